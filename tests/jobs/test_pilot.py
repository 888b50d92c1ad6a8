"""Pilot jobs for very many short commands: real workers, on this machine and on Slurm."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_jobs import jobs_on

from fairmile.base.errors import Unsupported, UsageError
from fairmile.jobs.machines import Machines
from fairmile.jobs.pilot import run_pilot
from fairmile.jobs.spec import JobSpec, Resources

needs_parsl = pytest.mark.skipif(importlib.util.find_spec("parsl") is None, reason="needs the Python package parsl")
# Sockets of Parsl are closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines([], tmp_path / "jobs")


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of living processes that name a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in words:
                found.append(words)
    return found


@pytest.mark.thorough
@needs_parsl
def test_hundreds_of_commands_run_on_the_workers_of_this_machine(machines: Machines, tmp_path: Path) -> None:
    commands = [["echo", str(number)] for number in range(200)]
    commands += [["bash", "-c", "exit 3"], ["no-such-program"], ["bash", "-c", "kill -9 $$"]]
    # The first time it takes its worker along.
    commands += [
        ["bash", "-c", f"[ -e {tmp_path}/mark ] || {{ touch {tmp_path}/mark; kill -9 $PPID; }}; echo survived"]
    ]
    seen = []
    found = run_pilot(
        commands,
        machines["laptop"],
        tmp_path / "pilot",
        workers=2,
        watch=lambda index, outcome: seen.append(index),
    )
    assert [(each.exit_code, each.stdout) for each in found[:200]] == [(0, f"{number}\n") for number in range(200)]
    assert [each.exit_code for each in found[200:]] == [3, 127, 137, 0]
    assert found[203].stdout == "survived\n"
    assert "no-such-program" in found[201].stdout
    assert seen == list(range(204))
    assert processes_of(tmp_path) == []
    assert list((tmp_path / "pilot").iterdir()) == []


@pytest.mark.thorough
@needs_parsl
def test_pilot_jobs_follow_the_rules_of_a_slurm_system(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    software = "software:\n  set: {lines: [export FROM_THE_SET=1], partition: cpu}\n"
    machine = jobs_on(slurm_cluster, tmp_path, monkeypatch, more=software).machines["rig"]
    like = JobSpec(
        argv=("true",),
        software=("set",),
        env={"FROM_THE_JOB": "2"},
        resources=Resources(cpus_per_task=2, memory_gib=1.5, time_s=600),
    )
    show = ["bash", "-c", "echo $SLURM_JOB_PARTITION $SLURM_CPUS_PER_TASK $FROM_THE_SET $FROM_THE_JOB"]
    found = run_pilot([show] * 20, machine, tmp_path / "pilot", like=like, workers=2, address="127.0.0.1")
    assert {(each.exit_code, each.stdout) for each in found} == {(0, "cpu 2 1 2\n")}
    slurm_cluster.wait_idle()
    assert processes_of(tmp_path) == []


def test_without_parsl_it_says_what_to_install(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "parsl", None)
    with pytest.raises(Unsupported, match="pilot jobs need Parsl") as caught:
        run_pilot([["true"]], machines["laptop"], tmp_path)
    assert caught.value.hint == "pip install 'fairmile[pilot]'"


def test_machines_that_pilot_jobs_cannot_serve_are_refused(tmp_path: Path) -> None:
    machines = Machines([], tmp_path / "jobs", reaches={"jureca": "somewhere.example"})
    with pytest.raises(Unsupported, match="known for Slurm and for this machine alone, polaris has pbs"):
        run_pilot([["true"]], machines["polaris"], tmp_path)
    with pytest.raises(Unsupported, match="must be started on jureca itself"):
        run_pilot([["true"]], machines["jureca"], tmp_path)
    with pytest.raises(UsageError, match="command 1: expected a program"):
        run_pilot([["true"], []], machines["laptop"], tmp_path)
    with pytest.raises(UsageError, match="workers: expected at least 1, found 0"):
        run_pilot([["true"]], machines["laptop"], tmp_path, workers=0)
