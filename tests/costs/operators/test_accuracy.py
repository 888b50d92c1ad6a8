"""Predicted step times beside steps measured on an H200, with the model left out of the table that predicts it."""

from __future__ import annotations

import importlib.util
import os
import statistics
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairmile.costs.operators.op_times import shipped_op_times
from fairmile.costs.steps import StepTrace
from fairmile.predict.fake_device.request import TraceRequest, trace_targets
from fairmile.predict.step_time import step_time

pytest.importorskip("torch")
SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
PROGRAM = Path(__file__).parents[3] / "speed" / "accuracy_time.py"
# Those of the measured models that need no package beside torch.
OWN = ("mlp", "gcn", "lstm", "cosmoflow")


@pytest.fixture
def program() -> ModuleType:
    if not (SHARED / "gpu_h200_training.csv").exists():
        pytest.skip(f"no measured steps in {SHARED}: FAIRMILE_SHARED_DATA names their folder")
    spec = importlib.util.spec_from_file_location("accuracy_time", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_steps_of_models_that_were_left_out_are_predicted_within_the_bar(program: ModuleType, tmp_path: Path) -> None:
    rows = [row for row in program.measured() if row["model"] in OWN]
    traces = trace_targets([request(row) for row in rows], folder=tmp_path)
    table = shipped_op_times("h200")
    assert table is not None
    errors = {}
    for row, trace in zip(rows, traces, strict=True):
        assert isinstance(trace, StepTrace), trace
        step = step_time(trace, "h200", table.without(row["model"]))
        errors[program.name_of(row)] = abs(step.step_time_s / float(row["median_step_s"]) - 1)
    assert len(errors) >= len(OWN)
    assert statistics.median(errors.values()) <= 0.08, errors
    assert max(errors.values()) <= 0.25, errors


def request(row: dict[str, str]) -> TraceRequest:
    said: dict[str, Any] = {key: row[key] for key in ("model", "opt", "prec")}
    said |= {key: int(row[key]) for key in ("batch", "seq", "side") if row[key]}
    return TraceRequest(file=str(PROGRAM), arguments=said)
