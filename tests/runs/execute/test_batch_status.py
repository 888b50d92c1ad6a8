"""Where members of a batch stand, while job arrays go on with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweep_making import workspace_here

from fairmile.runs.execute import batch_status
from fairmile.runs.execute.batch_status import LiveArray, member_statuses
from fairmile.runs.record.ledger import Ledger, RunRows
from fairmile.runs.record.run import RunState


@dataclass
class TakenUp:
    """A ledger in which a second task goes on with a failed run as soon as its row was read."""

    ledger: Ledger
    folder: Path

    def rows(self, **asked: Any) -> RunRows:
        rows = self.ledger.rows(**asked)
        file = self.folder / "run.json"
        document = json.loads(file.read_text())
        document |= {"state": "running", "job": {"key": "g-2", "system": "rig", "task": 0}, "result": None}
        file.write_text(json.dumps(document))
        return rows

    def get(self, reference: str) -> Any:
        return self.ledger.get(reference)


def test_an_earlier_failure_is_not_taken_for_the_end_of_the_task_that_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = workspace_here(tmp_path).runs
    (folder := tmp_path / "batch").mkdir()
    frozen = runs.freeze(runs.plan(["false"], name="try", group="g", watch_s=0), folder)
    frozen.write_members([frozen.member("g-0")])
    batch = batch_status.Batch.read(folder)
    batch.execute(batch.member(0))
    shared = batch.shared.copy()
    shared.spec.system = "rig"
    monkeypatch.setattr(batch_status.Batch, "read", lambda _: replace(batch, shared=shared))
    monkeypatch.setattr(batch_status, "live_arrays", lambda *_: [LiveArray("g-2", {0: 0}, (0,))])
    assert runs.get("g-0").state is RunState.FAILED
    host: Any = SimpleNamespace(ledger=TakenUp(runs, runs.root / "g-0"), collect=lambda *_: None)
    (status,) = member_statuses(folder, host, lambda: SimpleNamespace())  # type: ignore[arg-type,return-value]
    assert status.row is not None
    assert (status.row.state, status.is_queued) == (RunState.RUNNING, False)
