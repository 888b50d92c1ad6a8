"""Filters: conditions over the values of a point, which never become code."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.sweeps.filters import Filter, alike

VALUES = {"lr": 0.1, "model": "cnn", "model.depth": 3, "epoch": "200", "flag": "False", "cache": True, "none": None}


@for_each(
    "text",
    [
        'lr > 0.05 and model in ("cnn", "rnn")',
        "0 < lr <= 0.1",
        "not (0 < lr < 0.1)",
        "lr * 10 + 1 == 2",
        "-lr < 0",
        "2 ** model.depth == 8",
        "7 // 2 % model.depth == 0",
        "model.depth == 3",
        "model != 'rnn' or undefined > 3",
        "'nn' in model",
        "model not in ['a', 'b']",
        "epoch > 30",  # a text beside a number
        "epoch in (100, 200)",
        "epoch / 2 == 100",
        "flag == false",
        "not flag",
        "cache",
        "cache == True",
        "none == null",
        " lr<1 ",
    ],
)
def test_a_condition_holds(text: str) -> None:
    assert Filter(text).holds(VALUES) is True


@for_each("text", ["lr > 0.5", "model == 'x'", "epoch < 30", "flag", "cache == 1", "model == 3"])
def test_a_condition_does_not_hold(text: str) -> None:
    assert Filter(text).holds(VALUES) is False


def test_the_names_are_those_of_axes() -> None:
    assert Filter("lr > 0.05 and model.depth in (1, n) and not true").names == {"lr", "model.depth", "n"}


@for_each(
    "text",
    [
        "12:00:00",
        "lr = 1",
        "lr >",
        "",
        "5",
        "true",
        "__import__('os')",
        "lr.__class__()",
        "[x for x in lr]",
        "lr if cache else 1",
        "lambda: lr",
        "lr[0] == 1",
        "f'{lr}' == 'a'",
        "lr is 1",
        "~lr == 1",
        "lr @ 2 == 1",
        "(lr := 3) > 1",
        "lr > 1; 2",
        "lr == b'x'",
        "(" * 60 + "lr" + ")" * 60 + "+1" * 2000 + "> 0",
        "lr > 0 " + "and lr > 0 " * 2000,
        "lr > \0",
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Filter(text, "sweep.yaml:7")
    assert caught.value.message.startswith("sweep.yaml:7: ")


def test_one_equals_sign_is_explained() -> None:
    with pytest.raises(UsageError) as caught:
        Filter("lr = 1")
    assert "==" in str(caught.value.hint)


@for_each(
    "text, word",
    [
        ("lrr > 1", "did you mean 'lr'"),
        ("model > 1", "cannot compare 'cnn' > 1"),
        ("none < 1", "cannot compare"),
        ("lr + 1", "expected true or false"),
        ("model + 'x' == 'cnnx'", "not a number"),
        ("1 / (lr - lr) > 0", "cannot compute"),
        ("9 ** 9 ** 9 ** 9 > lr", "cannot compute"),
        ("(0 - lr) ** 0.5 > 0", "cannot compute"),
        ("lr in 5", "cannot search in"),
    ],
)
def test_what_has_no_answer_for_a_point_is_an_error(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        Filter(text, "here").holds(VALUES)
    assert word in caught.value.message


def test_odd_escapes_in_texts_are_no_warning() -> None:
    assert Filter(r"model != '\d'").holds(VALUES)


def test_values_are_alike_across_text_and_number_but_not_across_number_and_truth() -> None:
    assert alike("0.10", 0.1)
    assert alike(True, "true")
    assert not alike(1, True)
    assert not alike("1", "1.0")
    assert not alike("nan", float("nan"))
