"""How far predicted memory is off: every case of a table of measured steps, and what a prediction costs.

    python speed/accuracy_memory.py TRUTH.csv CASES.py [--gpu h200] [--only TEXT] [--tracker]

TRUTH.csv has one row per case: the arguments of the function `build` in CASES.py (empty cells are left out; `accum` is
the number of batches a gradient is summed over), and peak_allocated, peak_reserved and used_at_end in bytes.
With --tracker, torch's MemTracker runs two steps of each case on fake tensors in a process of its own: its peak and its
CPU time stand beside ours. No row is left out; one that cannot be predicted counts as such.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import FairmileError
from fairmile.costs.devices import device
from fairmile.predict.fake_device.request import TraceRequest, trace_target
from fairmile.predict.memory.account import account

MEASURED = {
    "params",
    "peak_allocated",
    "peak_reserved",
    "used_before_model",
    "used_at_end",
    "median_step_s",
    "min_step_s",
}
FIGURES = ("allocated", "reserved", "device")


def read_cases(file: Path) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Return the arguments and the measured figures of each row."""
    found = []
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            arguments = {key: value_of(text) for key, text in row.items() if key not in MEASURED and text}
            truth = dict(
                zip(FIGURES, (int(row[key]) for key in ("peak_allocated", "peak_reserved", "used_at_end")), strict=True)
            )
            found.append((arguments, truth))
    return found


def value_of(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def cpu_s() -> float:
    """CPU seconds of this process and of all its children that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def predict(cases: Path, arguments: dict[str, Any], gpu: str) -> tuple[dict[str, int], float]:
    """Return our figures for one case and the CPU seconds they took."""
    before = cpu_s()
    passed = {key: value for key, value in arguments.items() if key != "accum"}
    with tempfile.TemporaryDirectory() as folder:
        request = TraceRequest(file=str(cases), arguments=passed, accumulate=int(arguments.get("accum", 1)))
        got = account(trace_target(request, folder=Path(folder)), device(gpu))
    figures = (got.peak_allocated_bytes, got.peak_reserved_bytes, got.device_used_bytes)
    return dict(zip(FIGURES, figures, strict=True)), cpu_s() - before


def tracker(cases: Path, arguments: dict[str, Any]) -> tuple[int | None, float]:
    """Return MemTracker's peak, None where it fails, and the CPU seconds it took."""
    before = cpu_s()
    argv = [sys.executable, __file__, "--track", json.dumps(arguments), "-", str(cases)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    last = (ended.stdout.strip().splitlines() or [""])[-1]
    return (int(last) if last.isdecimal() else None), cpu_s() - before


def start_s(cases: Path) -> float:
    """Return the CPU seconds that a process spends before it can begin: imports of torch and of what cases need."""
    before = cpu_s()
    code = "import runpy, sys; runpy.run_path(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(cases)], capture_output=True, check=False)
    return cpu_s() - before


def track(cases: Path, arguments: dict[str, Any]) -> None:
    """Print the peak that MemTracker finds for two steps of a case."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    spec = importlib.util.spec_from_file_location("cases", cases)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    with FakeTensorMode(allow_non_fake_inputs=True):
        built = module.build(**{key: value for key, value in arguments.items() if key != "accum"})
        optimizer = built.optimizer(built.model.parameters()) if built.optimizer is not None else None
        watch = MemTracker()
        watch.track_external(built.model, *([optimizer] if optimizer is not None else []))
        half = {"bf16": torch.bfloat16, "fp16": torch.bfloat16}.get(built.precision)
        with watch:
            for number in range(2):
                with (
                    torch.autocast("cpu", half, enabled=half is not None),
                    torch.set_grad_enabled(optimizer is not None),
                ):
                    loss = built.loss(built.model)
                if optimizer is not None:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                if number == 0:
                    watch.reset_mod_stats()
    print(watch.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def summary(name: str, errors: Sequence[float]) -> None:
    """Print what the errors of one figure come to."""
    if errors:
        ordered = sorted(abs(each) for each in errors)
        p90 = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
        print(
            f"{name:22}{len(ordered):4} cases  median {statistics.median(ordered):8.3%}"
            f"  mean {statistics.mean(ordered):8.3%}  p90 {p90:8.3%}  worst {ordered[-1]:8.3%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--only", default="")
    parser.add_argument("--tracker", action="store_true")
    parser.add_argument("--track", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.track:
        track(given.cases, json.loads(given.track))
        return 0
    errors: dict[str, list[float]] = {figure: [] for figure in (*FIGURES, "tracker")}
    ours_s = tracker_s = 0.0
    failed = 0
    for arguments, truth in read_cases(given.truth):
        name = " ".join(f"{value}" if key == "model" else f"{key}={value}" for key, value in arguments.items())
        if given.only not in name:
            continue
        try:
            figures, spent_s = predict(given.cases, arguments, given.gpu)
        except FairmileError as error:
            failed += 1
            print(f"{name:70} FAILED: {error}", flush=True)
            continue
        ours_s += spent_s
        line = f"{name:70}"
        for figure in FIGURES:
            errors[figure].append(figures[figure] / truth[figure] - 1)
            line += f" {figure} {figures[figure] / 1e6:9.1f} / {truth[figure] / 1e6:9.1f} MB {errors[figure][-1]:+8.3%}"
        line += f"  {spent_s:6.1f} CPU s"
        if given.tracker:
            peak, other_s = tracker(given.cases, arguments)
            tracker_s += other_s
            off = "fails" if peak is None else f"{peak / truth['allocated'] - 1:+8.2%}"
            line += f"  MemTracker {off} {other_s:6.1f} CPU s"
            if peak is not None:
                errors["tracker"].append(peak / truth["allocated"] - 1)
        print(line, flush=True)
    for figure in FIGURES:
        summary(figure, errors[figure])
    summary("MemTracker, allocated", errors["tracker"])
    print(
        f"{failed} cases failed; {ours_s:.1f} CPU s ours" + (f", {tracker_s:.1f} CPU s MemTracker" if tracker_s else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
