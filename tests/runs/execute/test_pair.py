"""A solver and the model beside it are one run: both find their socket, and the solver decides how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument, Unsupported, UsageError
from fairmile.runs.execute.carrier import recorder_bytes
from fairmile.runs.execute.processes import find_processes
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import split_coupled
from fairmile.runs.runs import Runs


def couple(runs: Runs, solver: str, model: str, **fields: Any) -> Run:
    return runs.run(["sh", "-c", solver, ":", "sh", "-c", model], coupled=True, **fields)


def printed(run: Run) -> list[str]:
    return sorted((run.folder / "output.log").read_text().splitlines())


def test_both_find_the_same_socket_and_know_what_they_are(runs: Runs) -> None:
    run = couple(runs, *['echo "$FAIRMILE_COMPONENT at $FAIRMILE_COUPLE"'] * 2)
    assert run.state is RunState.DONE
    (model, at, socket), solver = (line.split() for line in printed(run))
    assert [model, at] == ["model", "at"]
    assert solver == ["solver", "at", socket]
    assert not Path(socket).parent.exists()


def test_the_exit_code_is_that_of_the_solver_and_a_failed_model_is_noted(runs: Runs) -> None:
    run = couple(runs, "exit 3", "exit 4")
    assert run.result is not None
    assert run.result.exit_code == 3
    assert run.result.notes == ["the model ended with exit code 4"]
    assert couple(runs, "exit 0", "exit 4").state is RunState.DONE


def test_a_signal_that_ends_the_solver_ends_the_run(runs: Runs) -> None:
    run = couple(runs, "kill -ABRT $$", "true")
    assert run.result is not None
    assert (run.state, run.result.signal) == (RunState.FAILED, "ABRT")


def test_the_folder_of_the_socket_goes_with_the_model(runs: Runs) -> None:
    run = couple(runs, 'while [ -d "${FAIRMILE_COUPLE%/*}" ]; do sleep 0.02; done; echo alone', "true")
    assert printed(run) == ["alone"]


def test_a_model_that_goes_on_without_its_solver_is_ended_after_a_while(runs: Runs) -> None:
    run = couple(runs, "true", "exec sleep 60", env={"FAIRMILE_COUPLE_END_S": "0.1"})
    assert run.result is not None
    assert run.state is RunState.DONE
    assert run.result.notes == ["the model still ran 0.1 s after the solver had ended, and was ended"]


def test_a_model_does_not_wait_for_a_solver_that_has_ended(runs: Runs) -> None:
    Path("model.py").write_text(
        "from fairmile import coupling\nfor exchange in coupling.serve(): pass\nprint('model ended')\n"
    )
    solver = 'while [ -d "${FAIRMILE_COUPLE%/*}" ] && [ ! -e "$FAIRMILE_COUPLE" ]; do sleep 0.02; done; exit 5'
    run = runs.run(["sh", "-c", solver, ":", sys.executable, "model.py"], coupled=True)
    assert run.result is not None
    assert (run.result.exit_code, run.result.notes) == (5, [])
    assert printed(run) == ["model ended"]


def test_a_time_limit_ends_both(runs: Runs) -> None:
    run = couple(runs, "sleep 60", "sleep 60", timeout_s=0.5)
    assert run.state is RunState.TIMEOUT
    assert find_processes(run.folder) == []


@pytest.mark.parametrize("command", [["true", ":", "./missing"], ["./missing", ":", "sleep", "60"]])
def test_a_program_that_is_missing_is_named(runs: Runs, command: list[str]) -> None:
    run = runs.run(command, coupled=True)
    assert run.result is not None
    assert run.result.exit_code == 127
    assert run.result.notes == ["cannot start './missing': No such file or directory"]


def test_both_run_in_the_environment(runs: Runs) -> None:
    Path("tides.yaml").write_text("variables: {TIDE: high}\n")
    run = couple(runs, *['echo "$FAIRMILE_COMPONENT $TIDE"'] * 2, environment="tides.yaml")
    assert printed(run) == ["model high", "solver high"]


def test_points_of_a_sweep_in_an_environment_are_refused(runs: Runs, tmp_path: Path) -> None:
    Path("tides.yaml").write_text("variables: {TIDE: high}\n")
    plan = runs.plan(["true", ":", "true"], coupled=True, environment="tides.yaml")
    with pytest.raises(Unsupported, match="cannot be coupled runs in an environment"):
        runs.freeze(plan, tmp_path / "batch")


def test_a_container_that_isolates_one_program_would_not_hold_the_other(runs: Runs) -> None:
    run = couple(runs, "true", "true")
    with pytest.raises(UsageError, match="cannot be isolated in a container"):
        runs.rerun_plan(run.id, container="alpine")


def test_an_environment_in_a_container_is_refused_before_its_image_is_fetched(runs: Runs) -> None:
    Path("box.yaml").write_text("container: {image: 'docker://no.such.registry/python:3.12'}\n")
    with pytest.raises(Unsupported, match=r"box.yaml is a container: .* share memory"):
        couple(runs, "true", "true", environment="box.yaml")
    assert list(runs.ls()) == []


@pytest.mark.parametrize("text", ["soon", "nan", "-1"])
def test_a_grace_that_is_no_time_is_named_before_anything_starts(runs: Runs, text: str) -> None:
    run = couple(runs, "echo begun", "true", env={"FAIRMILE_COUPLE_END_S": text})
    assert run.result is not None
    assert run.result.notes == [f"FAIRMILE_COUPLE_END_S is '{text}': expected seconds, at most 1,000,000"]
    assert not any("begun" in line for line in printed(run))


def test_the_files_of_both_are_its_code_and_python_starts_those_of_python(runs: Runs) -> None:
    for name in ("solver.py", "model.py"):
        # One write of a whole line: `print` makes two where Python does not buffer, and the other may come between.
        Path(name).write_text(f"import sys; sys.stdout.write('{name}' + chr(10))")
    run = runs.run(["solver.py", ":", "model.py"], coupled=True)
    assert printed(run) == ["model.py", "solver.py"]
    assert {file.name for file in run.record.captured.code.files} == {"model.py", "solver.py"}


def test_a_recorder_on_another_machine_has_it_too(tmp_path: Path) -> None:
    recorder = tmp_path / "recorder.pyz"
    recorder.write_bytes(recorder_bytes())
    words = [sys.executable, "-I", str(recorder), "pair", "sh", "-c", "exit 7", ":", "true"]
    assert subprocess.run(words).returncode == 7


def test_the_last_colon_parts_the_programs() -> None:
    assert split_coupled(["mpirun", "a", ":", "b", ":", "model"]) == (["mpirun", "a", ":", "b"], ["model"])


@pytest.mark.parametrize(
    ("command", "fields", "problem"),
    [
        (["true"], {}, r"two programs: write SOLVER… : MODEL…"),
        (["true", ":"], {}, r"two programs: write SOLVER… : MODEL…"),
        (["true", ":", "true"], {"environment": "tides", "system": "jureca"}, r"takes its software from that system"),
        (["true", ":", "true"], {"resources": {"nodes": 2}}, r"share the memory of one node: ask for nodes=1"),
    ],
)
def test_what_cannot_be_coupled_is_refused(
    runs: Runs, command: list[str], fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidDocument, match=problem):
        runs.run(command, coupled=True, **fields)
