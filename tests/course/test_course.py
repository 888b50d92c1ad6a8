"""The course as a learner has it: notebooks, answers, and their judgement."""

from __future__ import annotations

import json
import os
import random
import re
import sys
from pathlib import Path

import pytest

from fairmile.base.errors import FairmileError, MissingExtra, NotFound, SystemFailure, UsageError
from fairmile.course import course
from fairmile.course import lessons as course_lessons
from fairmile.course.answers import ANSWER, given_answers
from fairmile.course.checks import judge
from fairmile.course.course import Course
from fairmile.course.lessons import exercise_sources, find_lesson, lessons, write_notebook
from fairmile.runs.record.run import RunState
from fairmile.workspace import Workspace

pytest.importorskip("nbconvert", reason="needs pip install 'fairmile[course]'")
pytest.importorskip("ipykernel", reason="needs pip install 'fairmile[course]'")

# Imported by every Python process of a lesson: whoever reaches out of this machine fails.
OFFLINE = """\
import socket

real = socket.socket.connect
def connect(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a lesson reaches out to {address}")
    return real(self, address)
socket.socket.connect = connect
"""


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """The course of somebody without any settings, in a folder of their own, without a network."""
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline" / "sitecustomize.py").write_text(OFFLINE)
    for name in [name for name in os.environ if name.startswith(("FAIRMILE", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which a lesson changes
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "offline"))
    monkeypatch.chdir(tmp_path)
    return Workspace.open().course


def answer_in(file: Path, **sources: str) -> None:
    """Put the answers of a learner, such as `_2_1="…"`, into a notebook."""
    document = json.loads(file.read_text())
    for cell in document["cells"]:
        name = "_" + cell["metadata"].get("exercise", "").replace(".", "_")
        cell["source"] = sources.get(name, cell["source"])
    file.write_text(json.dumps(document))


class TestStart:
    def test_writes_notebooks_with_empty_exercises_and_their_files(self, fresh: Course, tmp_path: Path) -> None:
        started = fresh.start(tmp_path / "mine", [1, "02-run"])
        names = ["01-find.ipynb", "02-run.ipynb", "levels.csv", "train.py"]
        assert sorted(each.name for each in started) == names
        assert sorted(each.name for each in (tmp_path / "mine").iterdir()) == names
        assert exercise_sources(tmp_path / "mine" / "02-run.ipynb") == find_lesson(2).skeletons()

    def test_keeps_what_a_learner_wrote(self, fresh: Course, tmp_path: Path) -> None:
        fresh.start(tmp_path, [2])
        answer_in(notebook := tmp_path / "02-run.ipynb", _2_1="better = 1")
        again = fresh.start(tmp_path, [2])
        assert list(again) == [] and len(again.kept) == 3
        assert exercise_sources(notebook)["2.1"] == "better = 1"

    def test_a_dry_run_writes_nothing(self, fresh: Course, tmp_path: Path) -> None:
        assert len(fresh.start(tmp_path / "mine", dry_run=True)) >= len(lessons())
        assert not (tmp_path / "mine").exists()


class TestCheck:
    def test_executes_no_lesson_without_an_answer(self, fresh: Course, tmp_path: Path) -> None:
        fresh.start(tmp_path, [1, 2])
        checked = fresh.check(tmp_path)
        assert {each.verdict for each in checked} == {"empty"} and not checked.is_complete
        assert not (tmp_path / "checked").exists()

    def test_a_dry_run_says_which_answers_would_be_judged(self, fresh: Course, tmp_path: Path) -> None:
        fresh.start(tmp_path, [2])
        answer_in(tmp_path / "02-run.ipynb", _2_1="better = run")
        assert [each.verdict for each in fresh.check(tmp_path, dry_run=True)] == ["given", "empty", "empty"]

    def test_a_folder_without_notebooks_is_an_error(self, fresh: Course, tmp_path: Path) -> None:
        with pytest.raises(NotFound, match="has no notebook of the course"):
            fresh.check(tmp_path)

    def test_a_file_or_a_lesson_that_is_not_there_is_an_error(self, fresh: Course, tmp_path: Path) -> None:
        fresh.start(tmp_path, [2])
        with pytest.raises(UsageError, match=r"02-run\.ipynb is a file; expected the folder"):
            fresh.check(tmp_path / "02-run.ipynb")
        with pytest.raises(NotFound, match=r"has no 05-compare\.ipynb") as caught:
            fresh.check(tmp_path, [2, 5])
        assert caught.value.hint == f"`fairmile course start {tmp_path} 5` writes it"

    def test_a_deleted_cell_is_named(self, fresh: Course, tmp_path: Path) -> None:
        fresh.start(tmp_path, [2])
        document = json.loads((file := tmp_path / "02-run.ipynb").read_text())
        document["cells"] = [each for each in document["cells"] if "2.2" not in str(each)]
        file.write_text(json.dumps(document))
        reasons = [each.reason for each in fresh.check(tmp_path)]
        assert reasons == ["there is no answer yet", "the notebook has no cell for this exercise", reasons[0]]

    @pytest.mark.thorough
    def test_an_endless_loop_is_interrupted_and_a_dead_kernel_is_named(
        self, fresh: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(course_lessons, "LONGEST_S", 1)
        fresh.start(tmp_path, [3])
        answer_in(tmp_path / "03-energy.ipynb", _3_1="while True:\n    pass", _3_3="import os\nos._exit(1)")
        loop, empty, dead = fresh.check(tmp_path)
        assert (loop.verdict, empty.verdict, dead.verdict) == ("failed", "empty", "failed")
        assert "was interrupted: does a loop in it never end?" in loop.reason
        assert (
            f"the lesson ended before it showed this answer (exit code 1); `fairmile runs log {dead.run}" in dead.reason
        )

    @pytest.mark.thorough
    def test_judges_each_answer_from_a_fresh_execution_of_its_own_lesson(self, fresh: Course, tmp_path: Path) -> None:
        fresh.start(tmp_path, [3])
        answer_in(file := tmp_path / "03-energy.ipynb", _3_1="energy_j = power.power_w.mean()", _3_2="1 / 0")
        document = json.loads(file.read_text())
        planted = "raise SystemExit(9)  # no cell but those of the exercises counts"
        document["cells"][1]["source"] = planted
        file.write_text(json.dumps(document))
        solution = find_lesson(3).solved()
        answer_in(file, _3_3=next(c["source"] for c in solution["cells"] if c["metadata"].get("exercise") == "3.3"))
        checked = fresh.check(tmp_path)
        assert [(each.verdict, each.reason) for each in checked] == [
            ("wrong", "that is the mean power in watts"),
            ("failed", "ZeroDivisionError: division by zero"),
            ("right", ""),
        ]
        assert checked[0].run in {row.id for row in Workspace.open().runs.ls()}
        assert (tmp_path / "checked" / "03-energy" / "03-energy-executed.ipynb").is_file()


class TestReady:
    def test_moves_the_workspace_beside_the_notebook(
        self, fresh: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FAIRMILE_HOME", "elsewhere")
        fresh.start(tmp_path, [2])
        assert fresh.ready(2).workspace == tmp_path / "workspace" == Path(os.environ["FAIRMILE_HOME"])

    def test_lets_python_be_that_of_the_notebook(
        self, fresh: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        fresh.start(tmp_path, [2])
        for _ in range(2):
            fresh.ready(2)
        assert os.environ["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"

    def test_says_what_is_missing_and_how_to_mend_it(
        self, fresh: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(NotFound, match=r"train\.py is not in this folder") as caught:
            fresh.ready(2)
        assert caught.value.hint == "`fairmile course start .` writes it"
        fresh.start(tmp_path, [2])
        monkeypatch.setattr(course, "_LEAST_FREE_BYTES", 1 << 80)
        with pytest.raises(SystemFailure, match=r"only .* are free in"):
            fresh.ready(2)
        monkeypatch.setattr(course, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match="lesson 2 needs pandas") as caught_extra:
            fresh.ready(2)
        assert caught_extra.value.hint == "pip install 'fairmile[interop]'"


def test_the_reason_of_an_answer_that_is_not_shown_is_its_first_error(tmp_path: Path) -> None:
    def cell(source: str, *outputs: dict[str, object], **metadata: str) -> dict[str, object]:
        return {"cell_type": "code", "source": [source], "metadata": metadata, "outputs": outputs}

    def error(kind: str, message: str) -> dict[str, object]:
        return {"output_type": "error", "ename": kind, "evalue": message}

    planted = {"output_type": "display_data", "data": {ANSWER: {"exercise": "3.2", "value": 10944.4}}}
    cells = [
        cell("energy_j = = 3", error("SyntaxError", "invalid syntax (416.py, line 1)"), exercise="3.1"),
        cell("fm.course.answer('3.1', energy_j)", error("NameError", "name 'energy_j' is not defined")),
        cell("…", planted, exercise="3.2"),
        cell('fm.course.answer("3.2", above_idle_j)', error("UsageError", "an answer cannot be of type object")),
        cell("cores = helper()", error("NameError", "name 'helper' is not defined"), exercise="3.3"),
    ]
    (file := tmp_path / "executed.ipynb").write_text(json.dumps({"cells": cells}))
    reasons = {name: str(each) for name, each in given_answers(file, None).items()}  # type: ignore[arg-type]
    assert reasons["3.1"] == "SyntaxError: invalid syntax (line 1)"
    assert reasons["3.2"] == "UsageError: an answer cannot be of type object"
    assert reasons["3.3"].endswith("only those of the exercises are executed, so put all that one needs into it")


def test_an_answer_shows_whether_it_is_right_and_keeps_its_value(fresh: Course) -> None:
    right, wrong = fresh.answer("3.1", 18430.0), fresh.answer("3.1", 152.8)
    assert "✓ Exercise 3.1" in right._repr_html_() and "mean power in watts" in wrong._repr_html_()
    assert right._repr_mimebundle_()[ANSWER] == {"exercise": "3.1", "value": 18430.0}
    with pytest.raises(FairmileError, match="no exercise"):
        fresh.answer("99.1", 1)


_ORDER = [lesson.name for lesson in lessons()]
random.Random(len(_ORDER)).shuffle(_ORDER)


@pytest.mark.thorough
@pytest.mark.parametrize("name", _ORDER)
def test_a_lesson_runs_offline_in_an_empty_workspace_and_its_solutions_are_right(
    fresh: Course, tmp_path: Path, name: str
) -> None:
    run = fresh.execute(name, tmp_path / "work")
    assert run.state is RunState.DONE, run.reason
    answers = given_answers(tmp_path / "work" / f"{name}-executed.ipynb", run)
    assert {exercise: judge(exercise, value) for exercise, value in answers.items()} == dict.fromkeys(
        find_lesson(name).exercises, ""
    )


def test_the_same_notebook_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_notebook(find_lesson(2).solved(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.thorough
def test_a_built_lesson_is_one_page_and_is_built_once(fresh: Course, tmp_path: Path) -> None:
    pytest.importorskip("nbconvert", reason="needs pip install 'fairmile[course]'")
    notebook, page = fresh.build(tmp_path / "pages", [8])
    text = page.read_text()
    assert "<h1" in text and "data:image/png;base64," in text and "Exercise 8.3" in text
    assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//", text)
    stamp = notebook.stat().st_mtime_ns
    assert list(fresh.build(tmp_path / "pages", [8])) == [notebook, page]
    assert notebook.stat().st_mtime_ns == stamp
