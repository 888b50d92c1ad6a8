"""What judges answers: typical wrong ones are refused with a sentence that fits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.yaml import load
from fairmile.course.checks import CHECKS, as_data, judge
from fairmile.course.lessons import lessons

WRONG = Path(__file__).parent / "wrong"


def wrong_answers() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(WRONG.glob("*.yaml")):
        for exercise, answers in load(file.read_text(encoding="utf-8"), file=file.name).items():
            for answer in answers:
                yield exercise, answer


def test_typical_wrong_answers_are_refused_with_a_sentence_that_fits() -> None:
    judged = [
        (exercise, each["did"], each["says"], judge(exercise, each["value"])) for exercise, each in wrong_answers()
    ]
    assert [each for each in judged if each[2] not in each[3]] == []


def test_every_exercise_has_a_check_and_three_wrong_answers() -> None:
    exercises = [exercise for lesson in lessons() for exercise in lesson.exercises]
    assert list(CHECKS) == exercises
    given = [exercise for exercise, _ in wrong_answers()]
    assert {exercise: given.count(exercise) for exercise in exercises} == dict.fromkeys(exercises, 3)


def test_no_answer_is_never_right() -> None:
    assert {judge(exercise, None) for exercise in CHECKS} == {"there is no answer yet"}


ODD = [0, -1.5, True, "", "tide", [], [1, "two"], {}, {"steps": [{}]}, {"points": [1]}, {"trials": [{"state": 1}]}]
ODD += [dict.fromkeys(("lr", "noise", "verdict", "cores", "epoch", "folder", "date"), odd) for odd in (0, "x", [])]


@pytest.mark.parametrize("value", ODD, ids=str)
def test_whatever_an_answer_is_it_is_judged(value: Any) -> None:
    assert [exercise for exercise in CHECKS if not judge(exercise, value)] == []


def test_an_answer_is_json_whatever_a_call_returned() -> None:
    given = {
        "n": np.int64(3),
        "x": np.float64(0.5),
        "all": np.arange(2),
        "path": Path("a"),
        "gap": ...,
        "bad": math.nan,
    }
    assert as_data(given) == {"n": 3, "x": 0.5, "all": [0, 1], "path": "a", "gap": None, "bad": "nan"}
    with pytest.raises(UsageError, match="an answer cannot be of type object"):
        as_data(object())


def test_an_unknown_exercise_is_an_error() -> None:
    with pytest.raises(NotFound, match=r"no exercise '99\.1'"):
        judge("99.1", 1)
