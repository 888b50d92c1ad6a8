"""Measures training steps on a GPU beside predictions that were written down before.

    PYTHONPATH=src python speed/rig/steps.py --predict FILE            # needs no GPU: writes the predictions
    PYTHONPATH=src python speed/rig/steps.py --measure FILE OUT.jsonl  # measures each case of the file
    PYTHONPATH=src python speed/rig/steps.py --count FILE FOLDER       # once, and the bytes that ncu counts
    PYTHONPATH=src python speed/rig/steps.py --profile OUT.json NAME [ARGUMENT=VALUE ...]

A step is what `fairmile predict` traces: the benchmark's `build`, or a function of a file of the repository as
FILE:FUNCTION, run eagerly. `--measure` does so as PyTorch starts and with cuDNN's search for the fastest convolutions,
as the harness has it; `--count` as PyTorch starts, then once more in a child under `fairmile trace record --counters`,
whose recordings lie in the folder beside measured.jsonl. `--predict` takes names of cases; without, it writes all.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fairmile.traces.record import Recorded

GPU = "h200"
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("deepcam", {"preset": "mlperf"}),
    ("deepcam", {"preset": "mlperf", "batch_size": 4}),
    ("opencatalyst", {"preset": "mlperf"}),
    ("opencatalyst", {"preset": "mlperf", "batch_size": 16}),
    ("cosmoflow", {"preset": "mlperf"}),
    ("cosmoflow", {"preset": "mlperf", "batch_size": 8}),
    ("cosmoflow", {"preset": "mlperf", "batch_size": 16}),
    ("speed/compiled_steps.py:transformers_step", {"kind": "bert", "batch": 16, "precision": "bf16"}),
    ("deepcam", {"preset": "mlperf", "batch_size": 3}),
    ("opencatalyst", {"preset": "mlperf", "batch_size": 24}),
    ("cosmoflow", {"preset": "mlperf", "batch_size": 2}),
    ("cosmoflow", {"preset": "mlperf", "batch_size": 6}),
    ("cosmoflow", {"preset": "mlperf", "batch_size": 12}),
)
COUNTED_STEPS, SKIPPED_STEPS = 2, 4
MEASURED_S, WARM_UP, MOST = 2.5, 5, 300


def main() -> None:
    """Predict, measure or profile, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", type=Path, metavar="FILE")
    parser.add_argument("--measure", type=Path, metavar="FILE")
    parser.add_argument("--count", type=Path, metavar="FILE")
    parser.add_argument("--train", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--profile", type=Path, metavar="OUT")
    parser.add_argument("more", nargs="*")
    given = parser.parse_args()
    if given.predict:
        predict(given.predict, given.more)
    elif given.measure:
        measure(given.measure, Path(given.more[0]))
    elif given.count:
        count(given.count, Path(given.more[0]))
    elif given.train:
        train(given.train, json.loads(given.more[0]))
    else:
        name, *arguments = given.more
        profile(given.profile, name, {"preset": "mlperf"} | dict(_argument(each) for each in arguments))


def _argument(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, int(value) if value.isdecimal() else value


def predict(file: Path, names: Sequence[str]) -> None:
    """Write a prediction of each case, or of the first of each name."""
    import fairmile as fm

    rows = []
    first = dict(reversed(CASES))
    for name, arguments in [(name, first[name]) for name in names] or CASES:
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
                "moved_bytes": step.moved_bytes,
                "least_bytes": step.least_bytes,
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


def count(predicted: Path, folder: Path) -> None:
    """Measure each case of a file of predictions as PyTorch starts, and count the bytes that its kernels move."""
    from fairmile.traces.record import RecordSettings, record

    settings = RecordSettings(skip=SKIPPED_STEPS, steps=COUNTED_STEPS, counters=True)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "measured.jsonl").open("w") as written:
        for number, line in enumerate(predicted.read_text().splitlines()):
            row = json.loads(line)
            name, arguments = row["benchmark"], row["arguments"]
            found = _measured(name, arguments, searches=False)
            torch.cuda.empty_cache()
            argv = [sys.executable, __file__, "--train", name, json.dumps(arguments)]
            recorded = record(argv, folder / f"counted-{number}", settings=settings, watch=False, progress=False)
            found |= _moved(recorded)
            written.write(json.dumps(found) + "\n")
            written.flush()
            print(
                f"{name} {arguments}: {found['step_s'] * 1e3:.2f} ms (predicted {row['step_s'] * 1e3:.2f}); "
                f"{found.get('moved_bytes', 0) / 1e9:.2f} GB in {found.get('kernels', 0)} kernels of "
                f"{found.get('kernels_s', 0) * 1e3:.2f} ms, predicted {row['moved_bytes'] / 1e9:.2f} GB, at least "
                f"{row['least_bytes'] / 1e9:.2f} GB; exit code {recorded.exit_code} {list(recorded.notes)}",
                flush=True,
            )


def _moved(recorded: Recorded) -> dict[str, Any]:
    """Return what a recording with counters says of one step."""
    from fairmile.traces.counters import read_counts

    counts, _ = read_counts(recorded.folder / (recorded.counters or ""))
    if not counts:
        return {}
    read, written = sum(each.read_bytes for each in counts), sum(each.written_bytes for each in counts)
    return {
        "moved_bytes": (read + written) / COUNTED_STEPS,
        "read_bytes": read / COUNTED_STEPS,
        "written_bytes": written / COUNTED_STEPS,
        "kernels": len(counts) / COUNTED_STEPS,
        "kernels_s": sum(each.seconds for each in counts) / COUNTED_STEPS,
    }


def train(name: str, arguments: dict[str, Any]) -> None:
    """Take a few more steps than are counted."""
    steps, _ = _steps(name, arguments)
    for _ in range(SKIPPED_STEPS + COUNTED_STEPS + 1):
        next(steps)
    torch.cuda.synchronize()


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
        step = _builder(name)(**arguments)
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


def _builder(name: str) -> Callable[..., Any]:
    """Return what builds a step: a benchmark's `build`, or the function that FILE:FUNCTION names."""
    file, colon, function = name.partition(":")
    if not colon:
        return import_module(f"fairmile.benchmarks.suite.{name}.step").build  # type: ignore[no-any-return]
    return runpy.run_path(str(Path(__file__).parents[2] / file))[function]  # type: ignore[no-any-return]


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
