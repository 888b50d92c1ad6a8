"""The traces of a run: what `fairmile trace record` wrote while it ran, or else its own log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from run_making import CREATED, make_run
from trace_files import write_kineto

from fairmile.base.errors import NotFound, Unsupported
from fairmile.runs.record.layout import RECORDING
from fairmile.runs.record.run import Run
from fairmile.traces.of_runs import traces_of
from fairmile.traces.traces import Traces

NONE: dict[str, Any] = {"sha256": "", "size_bytes": 1}


def traced_run(root: Path, *, began_s: float = CREATED + 1, name: str = "trace") -> Run:
    """Return a run that recorded two ranks into a folder of its own."""
    run = make_run(root, "train-traced", result={"outputs": {f"{name}/{RECORDING}": NONE}})
    folder = run.work / "trace"
    for rank in (0, 1):
        write_kineto(folder, rank)
    (folder / RECORDING).write_text(json.dumps({"began_ns": int(began_s * 1e9)}))
    return run


def test_a_run_stands_for_what_it_recorded(tmp_path: Path) -> None:
    run = traced_run(tmp_path)
    traces = Traces(lambda name: pytest.fail(name), {run.id: run}.__getitem__)
    assert run.has_trace
    assert traces_of(run) == [run.work / "trace"]
    assert traces.analyze(run).to_dict() == traces.analyze(run.work / "trace").to_dict()
    assert traces.analyze(run.id).to_dict() == traces.analyze(run).to_dict()


def test_a_recording_that_a_later_run_replaced_is_not_shown_for_the_earlier_one(tmp_path: Path) -> None:
    run = traced_run(tmp_path, began_s=CREATED + 86_400)
    with pytest.raises(NotFound, match="no longer exists"):
        traces_of(run)


def test_a_record_leads_to_no_folder_outside(tmp_path: Path) -> None:
    write_kineto(tmp_path / "secret", 0)
    (tmp_path / "secret" / RECORDING).write_text(json.dumps({"began_ns": int(CREATED * 1e9)}))
    with pytest.raises(NotFound):
        traces_of(traced_run(tmp_path / "runs", name="../../../secret"))


def test_a_run_without_a_trace_says_how_to_record_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, "train-plain", result={"spans": {}})
    assert not run.has_trace
    with pytest.raises(NotFound, match="no trace") as error:
        traces_of(run)
    assert "fairmile trace record" in str(error.value.hint)


def test_a_packed_run_says_so(tmp_path: Path) -> None:
    run = traced_run(tmp_path)
    with pytest.raises(Unsupported, match="packed"):
        traces_of(Run(run.record, run.folder, packed=True))
