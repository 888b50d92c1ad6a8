"""How far predicted step times are from those measured on an H200, each model left out of the table that predicts it.

Usage: python speed/accuracy_time.py [--traces FOLDER]

The measured steps are those of the shared folder (FAIRMILE_SHARED_DATA); traces are made on the spot without a GPU, or
taken from FOLDER, where they are kept for the next time. Rows of the table that only the model asked for are left out,
and so is the model when the speed of the host is fitted. Models that need a package that is missing are listed as such.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import math
import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

from fairmile.base.errors import FairmileError
from fairmile.costs.devices import device
from fairmile.costs.operators.op_times import OpTimes, shipped_op_times
from fairmile.costs.steps import StepTrace, read_trace, write_trace
from fairmile.predict.fake_device.request import TraceRequest, trace_target
from fairmile.predict.step_time import HostCosts, step_time

SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
MEASURED = SHARED / "gpu_h200_training.csv"
SCALES = (0.8, 0.9, 1.0, 1.1, 1.2)
_SAID = ("model", "batch", "opt", "prec", "seq", "side", "ckpt", "channels_last", "infer")


def build(**said: Any) -> SimpleNamespace:
    """Return a measured case as a target of a prediction; called by the tracer."""
    import torch

    program = _program()
    case = {key: value for key, value in said.items() if key in ("model", "batch", "opt", "prec", "seq", "side")}
    net, loss = program.build(case)
    net = net.cuda()
    if said.get("channels_last"):
        net = net.to(memory_format=torch.channels_last if said["model"] == "unet" else torch.channels_last_3d)
    if said.get("ckpt"):
        net.gradient_checkpointing_enable()
    optimizer = None if said.get("infer") else (lambda parameters: program.optimizer(said["opt"], parameters))
    return SimpleNamespace(model=net, loss=loss, optimizer=optimizer, precision=said["prec"])


def _program() -> ModuleType:
    if "transformers" not in sys.modules and importlib.util.find_spec("transformers") is None:
        sys.modules["transformers"] = ModuleType("transformers")  # half of the models need none of it
    spec = importlib.util.spec_from_file_location("measured_cases", SHARED / "gpu_h200_training.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured() -> list[dict[str, str]]:
    """Return the measured rows."""
    with MEASURED.open(newline="") as file:
        return list(csv.DictReader(file))


def name_of(row: dict[str, str]) -> str:
    """Return a row's name, made of all that it says."""
    return "_".join(row[key] for key in _SAID if row[key])


def traced(row: dict[str, str], folder: Path | None) -> StepTrace | str:
    """Return a row's trace, or why there is none."""
    kept = folder / f"{name_of(row)}.json" if folder else None
    if kept is not None and kept.exists():
        return read_trace(kept)
    said: dict[str, Any] = {key: row[key] for key in ("model", "opt", "prec")}
    said |= {key: int(row[key]) for key in ("batch", "seq", "side") if row[key]}
    said |= {key: True for key in ("ckpt", "channels_last", "infer") if row[key]}
    with TemporaryDirectory() as place:
        request = TraceRequest(file=str(Path(__file__).resolve()), arguments=said)
        try:
            trace = trace_target(request, folder=Path(place))
        except FairmileError as error:
            return f"{error}"
    if kept is not None:
        write_trace(trace, kept)
    return trace


def errors_by_scale(rows: list[tuple[dict[str, str], StepTrace]], table: OpTimes) -> dict[float, list[float]]:
    """Return each row's error for each speed of the host, in logarithms."""
    return {scale: [_error(row, trace, table, scale) for row, trace in rows] for scale in SCALES}


def _error(row: dict[str, str], trace: StepTrace, table: OpTimes, scale: float) -> float:
    return math.log(
        step_time(trace, "h200", table, HostCosts().scaled(scale)).step_time_s / float(row["median_step_s"])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="where traces are kept")
    chosen = parser.parse_args()
    whole = shipped_op_times("h200")
    assert whole is not None
    rows: list[tuple[dict[str, str], StepTrace]] = []
    for row in measured():
        found = traced(row, chosen.traces)
        if isinstance(found, str):
            print(f"{name_of(row):40} not traced: {found}")
        else:
            rows.append((row, found))
    print(
        f"{len(whole.rows)} operators measured on {whole.about.device}, torch {whole.about.torch}, {whole.about.date}"
    )
    print(f"{'case':40} {'measured':>9} {'least':>9} {'predicted':>9} {'error':>7}  {'90 % interval':17} bound   exact")
    errors, inside = [], 0
    tables: dict[str, tuple[OpTimes, float]] = {}
    by_scale = errors_by_scale(rows, whole)
    for row, trace in rows:
        model = row["model"]
        if model not in tables:
            others = [place for place, (other, _) in enumerate(rows) if other["model"] != model]
            best = min(SCALES, key=lambda each: sum(abs(by_scale[each][place]) for place in others))
            tables[model] = whole.without(model), best
        table, scale = tables[model]
        step = step_time(trace, device("h200"), table, HostCosts().scaled(scale))
        truth = float(row["median_step_s"])
        error = step.step_time_s / truth - 1
        errors.append(abs(error))
        inside += step.low_s <= truth <= step.high_s
        print(
            f"{name_of(row):40} {truth * 1e3:9.2f} {float(row['min_step_s']) * 1e3:9.2f} {step.step_time_s * 1e3:9.2f} "
            f"{error:+7.1%}  {step.low_s * 1e3:7.1f} – {step.high_s * 1e3:7.1f} {step.bound:7} "
            f"{step.by_how.get('exact', 0.0) / step.device_s:5.0%}  host ×{scale}"
        )
    errors.sort()
    ninth = errors[math.ceil(0.9 * len(errors)) - 1]
    print(
        f"{len(errors)} rows, ms: median {statistics.median(errors):.1%}, mean {statistics.mean(errors):.1%}, "
        f"90th percentile {ninth:.1%}, worst {errors[-1]:.1%}; inside the interval {inside} of {len(errors)}"
    )
    return 0 if statistics.median(errors) <= 0.08 and ninth <= 0.25 else 1


if __name__ == "__main__":
    sys.exit(main())
