"""Lessons as text: each has the parts that a learner expects, and exercises that no other cell depends on."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.course.lessons import Lesson, exercise_sources, find_lesson, lessons, write_notebook
from fairmile.machine_checks import EXTRAS

_WORDS_PER_MINUTE = 200
TAUGHT = [lesson for lesson in lessons() if lesson.number <= 11]  # the others are stories, without exercises


def ids(lesson: Lesson) -> str:
    return lesson.name


@pytest.mark.parametrize("lesson", lessons(), ids=ids)
def test_a_lesson_has_its_parts_and_reads_in_ten_minutes(lesson: Lesson) -> None:
    for part in ("**Questions.**", "**You learn**", "**You need**", "## Key points", "## The same on a cluster"):
        assert part in lesson.text
    assert len(lesson.exercises) == (3 if lesson in TAUGHT else 0)
    assert all(exercise.startswith(f"{lesson.number}.") for exercise in lesson.exercises)
    assert len(re.findall(r"\w+", lesson.text)) < 10 * _WORDS_PER_MINUTE
    assert set(lesson.needs.values()) <= set(EXTRAS)
    assert all(file.is_file() for file in lesson.files)


@pytest.mark.parametrize("lesson", TAUGHT, ids=ids)
def test_an_answer_follows_each_exercise_and_nothing_but_the_cluster_follows_those(lesson: Lesson) -> None:
    cells = [cell for cell in lesson.solved()["cells"] if cell["cell_type"] == "code"]
    assert f"fm.course.ready({lesson.number})" in cells[0]["source"]
    kinds = "".join(
        "e" if "exercise" in c["metadata"] else "a" if "fm.course.answer(" in c["source"] else "." for c in cells
    )
    assert re.fullmatch(r"\.{3,}(ea){3}\.", kinds)
    for exercise, answer in ((cells[i], cells[i + 1]) for i, kind in enumerate(kinds) if kind == "e"):
        assert f'fm.course.answer("{exercise["metadata"]["exercise"]}", ' in answer["source"]


@pytest.mark.parametrize("lesson", TAUGHT, ids=ids)
def test_the_notebook_of_a_learner_has_no_solution(lesson: Lesson) -> None:
    solved = {c["metadata"]["exercise"]: c["source"] for c in lesson.solved()["cells"] if "exercise" in c["metadata"]}
    given = {
        c["metadata"]["exercise"]: c["source"] for c in lesson.with_answers({})["cells"] if "exercise" in c["metadata"]
    }
    assert given == lesson.skeletons()
    assert all("..." in skeleton and solved[name] not in skeleton for name, skeleton in given.items())


@pytest.mark.parametrize("lesson", lessons(), ids=ids)
def test_the_notebook_is_that_of_jupytext(lesson: Lesson) -> None:
    jupytext = pytest.importorskip("jupytext", reason="needs pip install 'fairmile[dev]'")
    theirs = jupytext.reads(lesson.text, fmt="md:myst")
    ours = lesson.solved()
    assert ours["metadata"] == {"kernelspec": theirs.metadata["kernelspec"]}
    assert [each["source"] for each in ours["cells"]] == [each.source for each in theirs.cells]
    assert [each["cell_type"] for each in ours["cells"]] == [each.cell_type for each in theirs.cells]
    starts = {each.metadata["exercise"]: each.metadata["start"].strip() for each in theirs.cells if each.metadata}
    assert lesson.skeletons() == starts


def test_a_lesson_is_found_by_number_name_and_file() -> None:
    assert {find_lesson(word).name for word in (2, "2", "02-run", "course/02-run.ipynb")} == {"02-run"}
    with pytest.raises(NotFound, match="no lesson 'runn'"):
        find_lesson("runn")


def test_of_a_notebook_only_exercises_are_read(tmp_path: Path) -> None:
    notebook = find_lesson(2).with_answers({"2.1": "better = 1"})
    notebook["cells"][0]["source"] = "raise SystemExit"
    write_notebook(notebook, file := tmp_path / "02-run.ipynb")
    sources = exercise_sources(file)
    assert list(sources) == ["2.1", "2.2", "2.3"]
    assert sources["2.1"] == "better = 1"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "<<<<<<< mine", '{"cells": [{"source": [1]}], "metadata": {}}', "\xff"]
)
def test_what_is_no_notebook_is_an_error(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "02-run.ipynb").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"02-run\.ipynb is not a notebook"):
        exercise_sources(file)


def test_a_notebook_of_another_language_is_an_error(tmp_path: Path) -> None:
    notebook = find_lesson(2).with_answers({"2.1": "better <- 1"})
    notebook["metadata"]["language_info"] = {"name": "R"}
    write_notebook(notebook, file := tmp_path / "02-run.ipynb")
    with pytest.raises(UsageError, match=r"is a notebook in R, and the lesson is in Python"):
        exercise_sources(file)


class TestAnswersAsEditorsSaveThem:
    def test_the_halves_of_a_cell_that_was_split_belong_together(self, tmp_path: Path) -> None:
        notebook = find_lesson(2).with_answers({"2.1": "width = 32"})
        at = next(n for n, cell in enumerate(notebook["cells"]) if cell["metadata"].get("exercise") == "2.1")
        half = copy.deepcopy(notebook["cells"][at])
        half["source"] = "better = width"
        notebook["cells"].insert(at + 1, half)
        write_notebook(notebook, file := tmp_path / "02-run.ipynb")
        assert exercise_sources(file)["2.1"] == "width = 32\nbetter = width"

    def test_without_metadata_the_code_between_text_and_answer_counts(self, tmp_path: Path) -> None:
        notebook = find_lesson(2).with_answers({"2.1": "better = 1"})
        for cell in notebook["cells"]:
            cell["metadata"] = {}
        write_notebook(notebook, file := tmp_path / "02-run.ipynb")
        assert exercise_sources(file) == find_lesson(2).skeletons() | {"2.1": "better = 1"}

    def test_metadata_of_editors_change_nothing(self, tmp_path: Path) -> None:
        notebook = find_lesson(2).with_answers({"2.1": "better = 1"})
        notebook["metadata"] |= {"vscode": {"interpreter": {"hash": "0"}}, "language_info": {"name": "python"}}
        for cell in notebook["cells"]:
            cell["metadata"] |= {"vscode": {"languageId": "python"}, "collapsed": True}
            cell["source"] = cell["source"].splitlines(keepends=True)
        write_notebook(notebook, file := tmp_path / "02-run.ipynb")
        assert exercise_sources(file) == find_lesson(2).skeletons() | {"2.1": "better = 1"}
