"""Pilot jobs: what they refuse, and how they follow the rules of a system; the suite in test_executors has the rest."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import psutil
import pytest
from slurm_cluster import SlurmCluster
from sweep_making import environ_of, workspace_here, workspace_on

from fairmile.base.errors import Unsupported, UsageError
from fairmile.jobs.machines import Machines
from fairmile.runs.execute.in_place import MembersOnly
from fairmile.runs.execute.pilot import Pilot
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.run import RunState
from fairmile.testing.executors import ExecutorSetup, followed, wait_for

needs_parsl = pytest.mark.skipif(importlib.util.find_spec("parsl") is None, reason="needs the Python package parsl")
# Sockets of Parsl are closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.thorough
@needs_parsl
def test_pilot_jobs_have_the_resources_of_their_batch(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = workspace_on(slurm_cluster, tmp_path, monkeypatch).runs
    place = ExecutorSetup(runs, "pilot", tmp_path, environ_of(tmp_path), "rig")
    show = "echo $SLURM_JOB_PARTITION $SLURM_CPUS_PER_TASK {x}"
    works = place.works(show, *range(20), resources={"cpus_per_task": 2, "memory_gib": 1.5, "time_s": 600})
    with place.executor() as executor:
        over = followed(executor, executor.submit(works))
    assert {each.state for each in over.values()} == {RunState.DONE}
    assert {runs.output(work.id) for work in works} == {f"cpu 2 {n}\n".encode() for n in range(20)}
    slurm_cluster.wait_idle()
    assert not list(works[0].batch.glob(".pilot-*"))


@pytest.mark.thorough
@needs_parsl
def test_pilot_jobs_end_what_they_are_at_after_their_submitter_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = ExecutorSetup(workspace_here(tmp_path).runs, "pilot", tmp_path, environ_of(tmp_path))
    begun = tmp_path / "begun"
    works = place.works(f"echo {{x}} >> {begun}; sleep 3; echo all of it", *range(4))  # by two workers
    submitter = place.process(works)
    wait_for(lambda: begun.exists() and len(begun.read_text().split()) == 2)
    (scratch,) = works[0].batch.glob(".pilot-*")
    assert processes_below(scratch)
    submitter.kill()
    submitter.wait()
    wait_for(lambda: not processes_below(scratch) and not scratch.exists())
    ids = [works[int(number)].id for number in begun.read_text().split()]
    assert [place.runs.output(id) for id in ids] == [b"all of it\n"] * 2  # and no other was begun


def processes_below(scratch: Path) -> list[int]:
    """Return the processes whose command names a folder."""
    return [
        each.pid for each in psutil.process_iter(["cmdline"]) if str(scratch) in " ".join(each.info["cmdline"] or ())
    ]


def test_without_parsl_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = ExecutorSetup(workspace_here(tmp_path).runs, "pilot", tmp_path, environ_of(tmp_path))
    works = place.works("true", 1)
    monkeypatch.setitem(sys.modules, "parsl", None)
    with place.executor() as executor, pytest.raises(Unsupported, match="pilot jobs need Parsl") as caught:
        executor.submit(works)
    assert caught.value.hint == "pip install 'fairmile[pilot]'"


def test_machines_that_pilot_jobs_cannot_serve_are_refused(tmp_path: Path) -> None:
    machines = Machines([], tmp_path / "jobs", reaches={"jureca": "somewhere.example"})
    host = MembersOnly(Ledger(tmp_path / "runs"))
    with pytest.raises(Unsupported, match="work with Slurm and on this machine, but polaris uses pbs"):
        Pilot(machines["polaris"], host)
    with pytest.raises(Unsupported, match="must be started on jureca"):
        Pilot(machines["jureca"], host)
    with pytest.raises(UsageError, match="workers: expected at least 1, found 0"):
        Pilot(machines["laptop"], host, workers=0)
