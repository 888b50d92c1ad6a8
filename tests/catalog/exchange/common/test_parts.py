"""Taking a mapping of a lenient format apart."""

from __future__ import annotations

from typing import Any

import pytest

from fairmile.catalog.card import Card
from fairmile.catalog.exchange.common.parts import (
    as_text,
    given_version,
    number_as_written,
    one_or_many,
    plain,
    take_each,
    take_known,
    take_one,
    take_text,
    take_texts,
    take_value,
    with_rest,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(" a ", "a"), (1.5, "1.5"), ("", None), (" ", None), (True, None), (None, None), (["a"], None)],
)
def test_texts_and_numbers_are_texts(value: Any, expected: str | None) -> None:
    assert as_text(value) == expected


@pytest.mark.parametrize(
    ("value", "taken", "rest"),
    [
        ("a", ["a"], None),
        (["a", "b"], ["a", "b"], None),
        (["a", None, {"x": 1}], ["a"], [{}, None, {"x": 1}]),
        (["a", None, "", "b"], ["a", "b"], [None, ""]),
        ([], [], []),
        ({}, [], {}),
        (None, [], None),
    ],
)
def test_texts_are_popped_and_the_rest_stays(value: Any, taken: list[str], rest: Any) -> None:
    node = {"k": value}
    assert take_texts(node, "k") == taken
    assert node.get("k") == rest
    assert ("k" in node) == (not taken or rest is not None)


def test_a_mapping_that_remains_in_part_keeps_its_place() -> None:
    node: dict[str, Any] = {"k": [{"n": 1}, {"n": 2, "more": True}, {"other": 3}]}
    assert take_each(node, "k", lambda each: each.pop("n", None)) == [1, 2]
    assert node == {"k": [{}, {"more": True}, {"other": 3}]}
    assert take_each({"k": {"n": 1}}, "k", lambda each: each.pop("n", None)) == [1]


def test_one_value_is_taken_alone_or_from_a_list_of_one() -> None:
    assert take_text({"a": ["x"]}, "a") == "x"
    assert take_text({"a": ["x", "y"]}, "a") is None
    assert take_text({"a": None, "b": "y"}, "a", "b") == "y"
    assert take_one({}, "a", as_text) is None


def test_only_known_keys_are_taken_at_any_depth() -> None:
    node: dict[str, Any] = {
        "k": [{"name": "a", "odd": 1, "inner": {"name": "b", "odd": 2}, "list": [{"odd": 3}, {"name": "c"}]}, "text"]
    }
    made = take_value(node, "k", lambda key: key != "odd")
    assert made == [{"name": "a", "inner": {"name": "b"}, "list": [{"name": "c"}]}, "text"]
    assert node == {"k": [{"odd": 1, "inner": {"odd": 2}, "list": [{"odd": 3}, {}]}, {}]}
    assert take_known({"odd": 1}, lambda key: key != "odd") is None


@pytest.mark.parametrize(
    ("values", "expected"), [([], None), (["a"], "a"), (["a", "a"], "a"), (["a", "b", "a"], ["a", "b"])]
)
def test_one_or_many(values: list[Any], expected: Any) -> None:
    assert one_or_many(values) == expected


def test_yaml_becomes_json() -> None:
    assert plain({1: [{True: float("inf")}], 2.5: float("nan"), "a": None}) == {
        "1": [{"true": ".inf"}],
        "2.5": ".nan",
        "a": None,
    }


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("version: 1.10\n", "1.1", "1.10"),
        ("version: 1.10 # newest\n", "1.1", "1.10"),
        ('{"version": 1.10, "x": 1}', "1.1", "1.10"),
        ('{\n "version" : 2.0\n}', "2.0", "2.0"),
        ("other: 1.10\n", "1.1", "1.1"),
        ("nested:\n  version: 3.0\nversion: 1.10\n", "1.1", "1.10"),
        ("version: 1.2.3\n", "1.2", "1.2"),
    ],
)
def test_a_number_keeps_the_spelling_it_has_in_the_source(text: str, value: str, expected: str) -> None:
    assert number_as_written(text, "version", value) == expected


def test_what_remained_is_laid_over_what_was_made_and_never_wins() -> None:
    made = {"a": 1, "list": [{"n": 1}, {"n": 2}], "other": ["x"]}
    rest = {"a": 2, "b": 3, "empty": [], "list": [{}, {"more": 1, "n": 9}], "other": ["y", "z"]}
    assert with_rest(made, rest) == {"a": 1, "list": [{"n": 1}, {"n": 2, "more": 1}], "other": ["x"], "b": 3}


def test_a_version_named_by_a_digest_was_not_given() -> None:
    assert given_version(Card({"version": "1.0"})) == "1.0"
    assert given_version(Card({"version": "sha256-0123456789ab"})) == ""
