"""Axes: every way in which people write values, and a sentence for what is none."""

from __future__ import annotations

from typing import Any

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.sweeps.axes import values


def typed(said: Any) -> list[Any]:
    return values(said, typed=True, where="sweep.yaml:3 axes.lr")


@for_each(
    "said, meant",
    [
        ("1,30,60", [1, 30, 60]),
        ("0.1, 1e-4, .5", [0.1, 0.0001, 0.5]),
        ("[1-3]", [1, 2, 3]),
        ("[08-11]", ["08", "09", "10", "11"]),
        ("[8-11]", [8, 9, 10, 11]),
        ("[1-2,5]", [1, 2, 5]),
        ("[0.1,0.2]", [0.1, 0.2]),
        ("x[1-2]y[1-2]", ["x1y1", "x1y2", "x2y1", "x2y2"]),
        ("a,n[1-2]", ["a", "n1", "n2"]),
        ("range(1,9)", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("range(3)", [0, 1, 2]),
        ("range(5,1,-2)", [5, 3]),
        ("range(0,1,0.25)", [0.0, 0.25, 0.5, 0.75]),
        ("range(0,0.4,0.1)", [0.0, 0.1, 0.2, 0.3]),
        ("linspace(0,1,5)", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("linspace(1,9,5)", [1, 3, 5, 7, 9]),
        ("linspace(2,3,1)", [2]),
        ("logspace(1e-4,1e-1,4)", [0.0001, 0.001, 0.01, 0.1]),
        ("logspace(1,1000,4)", [1, 10, 100, 1000]),
        ("1,range(3,5)", [1, 3, 4]),
        ("12:00:00", ["12:00:00"]),
        ("a100-dgx", ["a100-dgx"]),
        ("relu(6)", ["relu(6)"]),
        ("007", ["007"]),
        ("", [""]),
        ("a,b,", ["a", "b"]),
        ("true,false,null", [True, False, None]),
        ('["a,b", "[1-3]", 5]', ["a,b", "[1-3]", 5]),
    ],
)
def test_a_text_means_what_people_think(said: str, meant: list[Any]) -> None:
    found = typed(said)
    assert found == meant
    assert [type(each) for each in found] == [type(each) for each in meant]


@for_each(
    "said, meant",
    [
        ("1,30,60", ["1", "30", "60"]),
        ("[08-11]", ["08", "09", "10", "11"]),
        ("range(1,3)", ["1", "2"]),
        ("false", ["false"]),
        (200, [200]),
        (False, [False]),
    ],
)
def test_untyped_texts_stay_texts_and_numbers_stay_numbers(said: Any, meant: list[Any]) -> None:
    found = values(said, typed=False, where="")
    assert found == meant
    assert [type(each) for each in found] == [type(each) for each in meant]


def test_a_list_is_taken_as_it_is_and_a_scalar_is_one_value() -> None:
    assert typed(["[1-3]", "1,2", 5, True]) == ["[1-3]", "1,2", 5, True]
    assert typed(0.1) == [0.1]


def test_duplicates_are_dropped_but_not_what_only_compares_equal() -> None:
    assert typed("3,1,3,1") == [3, 1]
    found = typed([1, True, 1.0, "1", 1])
    assert [type(each) for each in found] == [int, bool, float, str]


@for_each(
    "said, word",
    [
        ("[1-", "bracket"),
        ("1]", "bracket"),
        ('["a", b]', "not a list"),
        ('["a", null]', "null"),
        ("a[b[1-2]]", "brackets inside brackets"),
        ("[3-1]", "reversed"),
        ("[a-c]", "not a range"),
        ("[1,,2]", "not a range"),
        ("[0-9999999]", "1,000,000"),
        ("x[1-2000]y[1-2000]", "1,000,000"),
        ("range(0,1e12)", "1,000,000"),
        ("range(1,1)", "no value"),
        ("range(1,2,0)", "step is 0"),
        ("range(a,b)", "not numbers"),
        ("rnage(1,3)", "did you mean 'range'"),
        ("linspace(0,1)", "FIRST, LAST and COUNT"),
        ("linspace(0,1e999,3)", "too large"),
        ("logspace(0,1,3)", "above 0"),
        (",,", "commas"),
        ([], "no values"),
        (None, "null"),
        ([1, None], "null"),
        ([[1]], "a list"),
        ({"a": 1}, "a mapping"),
        ([float("nan")], "not a finite number"),
    ],
)
def test_what_gives_no_values_is_refused_with_its_place(said: Any, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed(said)
    assert word in caught.value.message
    assert caught.value.message.startswith("sweep.yaml:3 axes.lr: ")
    assert caught.value.hint


def test_a_range_with_two_dots_includes_both_ends() -> None:
    assert values("1..3,7", typed=True, where="") == [1, 2, 3, 7]
    assert values("1..2", typed=False, where="") == ["1", "2"]
    with pytest.raises(UsageError, match=r"0\.1\.\.0\.5 is a search range"):
        values("0.1..0.5", typed=True, where="")
