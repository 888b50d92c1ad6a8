"""A benchmark in steps: each a run, each given what those before it made, and nothing done twice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fairmile.base.errors import RunFailed, UsageError
from fairmile.benchmarks.stages import declared_steps, planned_steps, run_stages
from fairmile.runs.execute import capture
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.spec import Input
from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

CARD = """{
 "@context": "https://w3id.org/fairmile/card/1.0/context",
 "@type": "Benchmark",
 "name": "Tides",
 "version": "0.1",
 "description": "Draw numbers, add them up, and tell: as short as a benchmark in steps can be.",
 "keywords": ["sum"],
 "license": "https://spdx.org/licenses/Apache-2.0",
 "command": "{python} -m fairmile.benchmarks {benchmark}",
 "makesData": true,
 "outputs": ["*.txt"]
}"""
SETTINGS = """from dataclasses import dataclass
from typing import NamedTuple

from fairmile.benchmarks.harness.settings import TrainSettings, option


@dataclass(frozen=True, kw_only=True)
class Settings(TrainSettings):
    step: str = option("draw", "which")
    count: int = option(3, "numbers")
    factor: int = option(1, "of the sum")


class Step(NamedTuple):
    gives: tuple[str, ...]
    params: tuple[str, ...] | None = None


STEPS = {"draw": Step(("numbers.txt",), ("count",)), "add": Step(("sum.txt",), ("factor",)), "tell": Step((), ())}
"""
PROGRAM = """import os
from pathlib import Path

from fairmile.base.errors import RunFailed
from settings import Settings


def run(session):
    settings = session.settings(Settings)
    if settings.step == "draw":
        Path("numbers.txt").write_text(" ".join(str(session.seed + n) for n in range(settings.count)))
    elif settings.step == "add":
        if settings.factor < 0:
            raise RunFailed("a factor below zero adds nothing up")
        numbers = Path(os.environ["FAIRMILE_INPUT_NUMBERS_TXT"]).read_text().split()
        Path("sum.txt").write_text(str(settings.factor * sum(map(int, numbers))))
    else:
        print("told", Path(os.environ["FAIRMILE_INPUT_SUM_TXT"]).read_text())
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.chdir(tmp_path)
    # Whoever edits Fairmile while the tests run changes the software of a run, which is then rightly done again.
    monkeypatch.setattr(capture, "development_folders", lambda argv, env: [])
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    environ.pop("FAIRMILE_EVENTS", None)
    return Workspace.open(environ=environ, cwd=tmp_path).runs


@pytest.fixture
def tides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "tides"
    folder.mkdir()
    for name, text in (("card.jsonld", CARD), ("settings.py", SETTINGS), ("benchmark.py", PROGRAM)):
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "settings", raising=False)
    return str(folder)


def ids(found: list[Run]) -> list[str]:
    return [run.id for run in found]


def test_each_step_is_a_run_of_one_group_and_is_given_what_those_before_it_made(runs: Runs, tides: str) -> None:
    seen: list[str] = []

    found = run_stages(
        runs, tides, params={"count": 4, "factor": 2}, seed=5, on_stage=lambda step, _: seen.append(step)
    )

    assert seen == ["draw", "add", "tell"]
    assert b"told 52" in runs.output(found[-1].id)
    assert all(run.state is RunState.DONE for run in found)
    assert len({run.group for run in found}) == 1 and found[0].group.startswith("tides-")
    made = found[0].result.outputs["numbers.txt"].sha256
    assert found[1].captured.inputs["numbers.txt"].sha256 == made
    assert set(found[2].captured.inputs) == {"numbers.txt", "sum.txt"}


def test_called_again_nothing_is_done_twice_and_a_change_is_done_from_where_it_matters(runs: Runs, tides: str) -> None:
    first = run_stages(runs, tides, params={"count": 4}, seed=5)

    again = run_stages(runs, tides, params={"count": 4}, seed=5)
    other = run_stages(runs, tides, params={"count": 4, "factor": 3}, seed=5)
    told: list[str] = []
    anew = run_stages(
        runs, tides, ["draw"], params={"count": 4}, seed=5, again=True, on_step=lambda _, step: told.append(step.what)
    )
    assert told == ["asked for"]

    assert ids(again) == ids(first)
    assert other[0].id == first[0].id and other[1].id != first[1].id and other[2].id != first[2].id
    assert anew[0].id != first[0].id


def test_a_step_that_fails_ends_it_with_the_reason_and_later_it_goes_on_from_there(runs: Runs, tides: str) -> None:
    ended: list[Run] = []
    with pytest.raises(RunFailed, match=r"step add of .*tides failed \(.*\): a factor below zero adds nothing"):
        run_stages(runs, tides, params={"factor": -1}, seed=1, on_stage=lambda _, run: ended.append(run))

    assert [run.state for run in ended] == [RunState.DONE, RunState.FAILED]
    program = Path(tides) / "benchmark.py"
    program.write_text(program.read_text().replace("factor < 0", "factor < -9"))
    told: dict[str, str] = {}
    done = run_stages(
        runs, tides, params={"factor": -1}, seed=1, on_step=lambda stage, step: told.update({stage: step.what})
    )
    assert b"told -6" in runs.output(done[-1].id)
    assert told == {"draw": "its code or packages changed", "add": "failed the last time"}


def test_a_run_whose_files_are_gone_or_changed_is_done_again(runs: Runs, tides: str) -> None:
    first = run_stages(runs, tides, seed=1)
    (first[0].folder / "work" / "numbers.txt").write_text("7 7 7")

    told: list[tuple[str, str, str]] = []
    second = run_stages(runs, tides, seed=1, on_step=lambda stage, step: told.append((stage, step.verb, step.what)))

    assert second[0].id != first[0].id
    assert told[0][:2] == ("draw", "again")
    assert told[0][2].startswith(f"run {first[0].id} has the same command")
    assert told[0][2].endswith("but its outputs are gone and were not kept")
    assert [(stage, verb) for stage, verb, _ in told[1:]] == [("add", "reuse"), ("tell", "reuse")]
    assert ids(second[1:]) == ids(first[1:])  # the same numbers went in


def test_an_input_that_changed_is_the_reason_why_a_step_runs_again(runs: Runs, tides: str, tmp_path: Path) -> None:
    table = tmp_path / "table.txt"
    told: list[str] = []
    for text in ("low", "high"):
        table.write_text(text)
        given = {"table": Input(path=str(table))}
        run_stages(runs, tides, ["draw"], seed=1, inputs=given, on_step=lambda _, step: told.append(step.what))
    assert told == ["input table has another digest"]


def test_only_the_steps_that_are_needed_are_run(runs: Runs, tides: str) -> None:
    assert [run.params["step"] for run in run_stages(runs, tides, ["add"])] == ["draw", "add"]


def test_words_that_nobody_knows_are_refused_before_anything_runs(runs: Runs, tides: str) -> None:
    with pytest.raises(UsageError, match="has no step 'ad'") as caught:
        run_stages(runs, tides, ["ad"])
    assert "add" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no parameter named 'factr'"):
        run_stages(runs, tides, params={"factr": 2})
    with pytest.raises(UsageError, match="the parameter step is set for each step"):
        run_stages(runs, tides, params={"step": "add"})
    with pytest.raises(UsageError, match="the benchmark mnist has no steps"):
        run_stages(runs, "mnist")
    assert not list(runs.rows())


def test_miniweather_declares_its_steps() -> None:
    assert list(declared_steps("miniweather")) == ["simulate", "sample", "train", "hybrid", "compare"]


def test_what_would_run_goes_as_far_as_the_last_step_that_is_named() -> None:
    assert planned_steps("miniweather", ["train", "sample"]) == ["simulate", "sample", "train"]
    with pytest.raises(UsageError, match="has no step 'trian'"):
        planned_steps("miniweather", ["trian"])
