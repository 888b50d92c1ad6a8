"""`fairmile course` as a learner types it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbconvert", reason="needs pip install 'fairmile[course]'")
Fairmile = Callable[..., Any]


def test_lessons_are_listed_with_what_they_need(fairmile: Fairmile) -> None:
    lessons = {each["name"]: each for each in fairmile("course", "ls", "--json").json["lessons"]}
    assert lessons["02-run"] == {
        "number": 2,
        "name": "02-run",
        "title": "First run and rerun",
        "exercises": ["2.1", "2.2", "2.3"],
        "needs": ["interop", "plots"],
    }


def test_a_learner_gets_notebooks_and_is_told_what_has_no_answer(fairmile: Fairmile, place: Path) -> None:
    started = fairmile("course", "start", "mine", "2")
    assert started.code == 0 and "wrote  mine/02-run.ipynb" in started.out
    assert "`fairmile course check mine` judges the answers" in started.err
    assert "kept   mine/train.py" in fairmile("course", "start", "mine", "3").out
    checked = fairmile("course", "check", "mine", "2")
    assert checked.code == 1
    assert checked.out.splitlines()[-1] == "0 of 3 answers right"
    assert fairmile("course", "check", "mine", "--dry-run").code == 0


def test_an_unknown_lesson_and_a_folder_without_notebooks_are_errors(fairmile: Fairmile) -> None:
    unknown = fairmile("course", "start", "mine", "02-runn")
    assert unknown.code == 2 and "no lesson '02-runn'" in unknown.err and "did you mean '02-run'" in unknown.err
    empty = fairmile("course", "check", ".")
    assert empty.code == 2 and "`fairmile course start .` writes them" in empty.err
