"""Measures training steps of benchmarks on a GPU beside predictions that were written down before.

    PYTHONPATH=src python speed/rig/steps.py --predict FILE            # needs no GPU: writes the predictions
    PYTHONPATH=src python speed/rig/steps.py --measure FILE OUT.jsonl  # measures each case of the file
    PYTHONPATH=src python speed/rig/steps.py --profile OUT.json NAME [ARGUMENT=VALUE ...]

A step is what `fairmile predict` traces: the benchmark's `build`, run eagerly. Each is measured as PyTorch starts and
with cuDNN's search for the fastest convolutions, as the harness has it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

GPU = "h200"
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deepcam", {"preset": "mlperf"}),
    ("deepcam", {"preset": "mlperf", "batch_size": 4}),
    ("opencatalyst", {"preset": "mlperf"}),
    ("opencatalyst", {"preset": "mlperf", "batch_size": 16}),
    ("cosmoflow", {"preset": "mlperf"}),
    ("cosmoflow", {"preset": "mlperf", "batch_size": 8}),
    ("cosmoflow", {"preset": "mlperf", "batch_size": 16}),
)
MEASURED_S, WARM_UP, MOST = 2.5, 5, 300


def main() -> None:
    """Predict, measure or profile, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", type=Path, metavar="FILE")
    parser.add_argument("--measure", type=Path, metavar="FILE")
    parser.add_argument("--profile", type=Path, metavar="OUT")
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    if given.predict:
        predict(given.predict)
    elif given.measure:
        measure(given.measure, Path(given.more[0]))
    else:
        name, *arguments = given.more
        profile(given.profile, name, {"preset": "mlperf"} | dict(_argument(each) for each in arguments))


def _argument(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, int(value) if value.isdecimal() else value


def predict(file: Path) -> None:
    """Write a prediction of each case."""
    import fairmile as fm

    rows = []
    for name, arguments in CASES:
        step = fm.predict.time(name, gpu=GPU, arguments=arguments, progress=False).step
        memory = fm.predict.memory(name, gpu=GPU, arguments=arguments, progress=False).estimate
        rows.append(
            {
                "benchmark": name,
                "arguments": arguments,
                "gpu": GPU,
                "predicted_on": f"{datetime.now(UTC):%Y-%m-%d}",
                "step_s": step.step_time_s,
                "step_low_s": step.low_s,
                "step_high_s": step.high_s,
                "peak_allocated_bytes": memory.peak_allocated_bytes,
                "peak_reserved_bytes": memory.peak_reserved_bytes,
            }
        )
        print(name, arguments, f"{step.step_time_s * 1e3:.2f} ms", flush=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(predicted: Path, out: Path) -> None:
    """Measure each case of a file of predictions, both ways, and print how far the predictions are off."""
    rows = [json.loads(line) for line in predicted.read_text().splitlines()]
    with out.open("w") as written:
        for row in rows:
            for searches in (False, True):
                found = _measured(row["benchmark"], row["arguments"], searches)
                written.write(json.dumps(found) + "\n")
                written.flush()
                off = row["step_s"] / found["step_s"] - 1
                print(
                    f"{row['benchmark']:<13} {row['arguments']} search {searches!s:<5} predicted "
                    f"{row['step_s'] * 1e3:8.2f} ms, measured {found['step_s'] * 1e3:8.2f} ms: {off:+.1%}; allocated "
                    f"{row['peak_allocated_bytes'] / found['peak_allocated_bytes'] - 1:+.1%}, reserved "
                    f"{row['peak_reserved_bytes'] / found['peak_reserved_bytes'] - 1:+.1%}",
                    flush=True,
                )


def _measured(name: str, arguments: dict[str, Any], searches: bool) -> dict[str, Any]:
    torch.cuda.empty_cache()
    torch.backends.cudnn.benchmark = searches
    steps, precision = _steps(name, arguments)
    for _ in range(WARM_UP):
        next(steps)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    taken: list[float] = []
    while time.perf_counter() - began < MEASURED_S and len(taken) < MOST:
        before = time.perf_counter()
        next(steps)
        if len(taken) % 10 == 9:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - before)
    torch.cuda.synchronize()
    took_s = (time.perf_counter() - began) / len(taken)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "torch": torch.__version__,
        "benchmark": name,
        "arguments": arguments,
        "gpu": torch.cuda.get_device_name(),
        "precision": precision,
        "cudnn_search": searches,
        "steps": len(taken),
        "step_s": took_s,
        "call_median_s": statistics.median(taken),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def _steps(name: str, arguments: dict[str, Any]) -> tuple[Iterator[None], str]:
    """Return what takes a step each time it is asked, and its precision."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        step = import_module(f"fairmile.benchmarks.suite.{name}.step").build(**arguments)
    model = step.model.cuda().train()
    optimizer = step.optimizer(model.parameters())
    torch.set_float32_matmul_precision("highest" if step.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = step.precision != "fp32"
    is_half = step.precision == "bf16"

    def steps() -> Iterator[None]:
        while True:
            with torch.device("cuda"), torch.autocast("cuda", torch.bfloat16, enabled=is_half):
                loss = step.loss(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield

    return steps(), step.precision


def profile(out: Path, name: str, arguments: dict[str, Any]) -> None:
    """Write the device time of each operator with its shapes, of one step."""
    steps, _ = _steps(name, arguments)
    for _ in range(WARM_UP):
        next(steps)
    torch.cuda.synchronize()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profiled:
        next(steps)
        torch.cuda.synchronize()
    rows = [
        {
            "name": each.key,
            "shapes": str(each.input_shapes),
            "count": each.count,
            "device_ms": each.self_device_time_total / 1e3,
        }
        for each in profiled.key_averages(group_by_input_shape=True)
        if each.self_device_time_total > 0
    ]
    rows.sort(key=lambda row: -row["device_ms"])
    out.write_text(json.dumps(rows[:150], indent=0))
    for row in rows[:15]:
        print(f"{row['device_ms']:9.3f} ms x{row['count']:4d} {row['name'][:40]} {row['shapes'][:110]}", flush=True)


if __name__ == "__main__":
    main()
