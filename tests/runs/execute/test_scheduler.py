"""Job arrays of a system; the suite in test_executors has the rest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from sweep_making import wait_until, workspace_on

from fairmile.runs.execute.batches import ArrayState
from fairmile.runs.execute.executor import Member
from fairmile.runs.execute.job_arrays import Arrays
from fairmile.runs.execute.scheduler import Packing
from fairmile.runs.record.run import RunState

PROGRAM = "import fairmile as fm, time\nfor n in range({epochs}):\n  with fm.span('epoch'): time.sleep(0.01)"


def test_a_job_array_has_the_time_that_its_longest_member_is_expected_to_take(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = workspace_on(slurm_cluster, tmp_path, monkeypatch).runs
    argv = [sys.executable, "-c", PROGRAM]
    for epochs in (3, 6):
        runs.run(argv, name="fit", params={"epochs": epochs})
    plans = {epochs: runs.plan(argv, name="fit", params={"epochs": epochs}, system="rig") for epochs in (3, 20_000)}
    frozen = runs.freeze(plans[3], tmp_path)
    frozen.write_members(frozen.member(f"fit-{epochs}", params={"epochs": epochs}) for epochs in plans)
    asked: list[dict[str, Any]] = []

    def submit(*_: Any, resources: dict[str, Any], **__: Any) -> ArrayState:
        asked.append(resources)
        return ArrayState("job", False, frozenset(), "")

    monkeypatch.setattr(Arrays, "submit", submit)
    members = [Member(tmp_path, number, f"fit-{epochs}", "rig") for number, epochs in enumerate(plans)]
    runs.executors.on("rig", Packing(pack=1)).submit(members)
    short_s, long_s = (plan.spec.resources.time_s for plan in plans.values())
    assert short_s is not None and long_s is not None and short_s < long_s
    assert [each["time_s"] for each in asked] == [long_s]


def test_one_run_of_a_job_array_is_cancelled_by_its_id_and_the_others_go_on(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = workspace_on(slurm_cluster, tmp_path, monkeypatch).runs
    script = f"until test -e {tmp_path}/go-{{x}}; do sleep 0.1; done"
    plan = runs.plan(["sh", "-c", script], name="try", group="g", params={"x": 0}, system="rig", watch_s=0)
    (folder := tmp_path / "batch").mkdir()
    frozen = runs.freeze(plan, folder)
    frozen.write_members(frozen.member(f"g-{x}", params={"x": x}) for x in range(2))
    executor = runs.executors.on("rig", Packing(pack=2, slots=2))
    handles = executor.submit([Member(folder, x, f"g-{x}", "rig") for x in range(2)])

    def states() -> list[RunState]:
        return [runs.collect(f"g-{x}").state for x in range(2)]

    try:
        wait_until(lambda: all(runs.find(f"g-{x}") is not None for x in range(2)))
        cancelled = runs.cancel_runs(["g-0"])
        assert [run.id for run in cancelled] == ["g-0"]
        wait_until(lambda: states()[0] is RunState.CANCELLED)
        assert states()[1] is RunState.RUNNING
        (tmp_path / "go-1").touch()
        wait_until(lambda: states()[1] is RunState.DONE)
    finally:
        executor.cancel(handles)
