"""How far predictions of eager steps are off: those of `eager_steps.py`, predicted before they were measured.

     python speed/accuracy_eager.py --predict [--cases N…]            anywhere: writes the predictions
     python speed/accuracy_eager.py --measure OUT.jsonl [--cases N…]  on the GPU: adds one line for each case
     python speed/accuracy_eager.py [--probe TABLE] [--cases N…]      compares them with what was measured

TABLE is what `fairmile predict calibrate` measured on the same machine: with it, the speed of its host is taken from
there, for which each case is predicted for several speeds. Each case is measured in a process of its own, one after
the other, as PyTorch starts. Predictions lie in `docs/accuracy/eager-predicted.jsonl`, what was measured on one NVIDIA
H200 with PyTorch 2.11 beside it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PREDICTED, MEASURED = (HERE.parent / "docs" / "accuracy" / f"eager-{what}.jsonl" for what in ("predicted", "measured"))
STEPS = HERE / "eager_steps.py"
ALL_S = 140  # until the last case must have ended
WARM_UP, TIMED, TIMED_S = 4, 25, 2.0
COMPARED = ("allocated", "reserved", "step_s")
HOSTS = (0.7, 0.85, 1.0, 1.2, 1.4, 1.6)  # times as long for a call as the host of the table


def predict(traces: Path | None, cases: Sequence[int]) -> None:
    """Write what is predicted of these cases; traces are kept in a folder, or taken from there."""
    from eager_steps import CASES

    import fairmile as fm
    from fairmile.costs.devices import device
    from fairmile.costs.steps import read_trace, write_trace
    from fairmile.predict.memory.account import account
    from fairmile.predict.step_time import HostCosts, step_time

    rows = {row["case"]: row for row in _rows(PREDICTED)}
    for number in cases or range(len(CASES)):
        name, arguments = CASES[number]
        kept = traces / f"{number}.json" if traces else None
        if kept and kept.exists():
            trace = read_trace(kept)
        else:
            try:
                trace = fm.predict.trace(f"{STEPS}:{name}", arguments, progress=False)
            except fm.FairmileError as error:
                print(f"{number} {arguments}: not followed: {error}", flush=True)
                continue
            if kept:
                write_trace(trace, kept)
        taken, step = account(trace, device("h200")), step_time(trace, "h200")
        row = {"case": number, "name": name, "arguments": arguments, "step_s": step.step_time_s}
        row |= {"low_s": step.low_s, "high_s": step.high_s, "device_s": step.device_s, "bound": step.bound}
        row |= {"allocated": taken.peak_allocated_bytes, "reserved": taken.peak_reserved_bytes}
        by_host = {by: step_time(trace, "h200", host=HostCosts().scaled(by)).step_time_s for by in HOSTS}
        row |= {"by_host": by_host}
        rows[number] = row | {"notes": list(trace.notes)}
        print(number, arguments, f"{step.step_time_s * 1e3:.2f} ms", step.bound, *trace.notes, flush=True)
    PREDICTED.write_text("".join(json.dumps(rows[number]) + "\n" for number in sorted(rows)))


def measure_all(out: Path, cases: Sequence[int]) -> None:
    """Start these cases, which take turns on the GPU, and write what each of them says."""
    from eager_steps import CASES

    began = time.time()
    with tempfile.TemporaryDirectory() as place:
        running = []
        for number in cases or range(len(CASES)):
            argv = [sys.executable, __file__, "--one", str(number), place]
            said, bad = (Path(place) / f"{what}-{number}" for what in ("out", "err"))
            with said.open("w") as to, bad.open("w") as wrong:
                env = os.environ | {"OMP_NUM_THREADS": "2"}
                running.append((number, said, bad, subprocess.Popen(argv, stdout=to, stderr=wrong, env=env)))
        for number, said, bad, process in running:
            try:
                process.wait(max(1.0, ALL_S - (time.time() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            lines = [line for line in said.read_text().splitlines() if line.startswith('{"case"')]
            if not lines:
                why = bad.read_text().strip()[-500:] or "it took too long"
                print(f"{number} {CASES[number]}: no result: {why}", flush=True)
                continue
            with out.open("a") as file:
                file.write(lines[-1] + "\n")
            print(lines[-1], flush=True)


def measure(number: int, folder: Path) -> dict[str, Any]:
    """Build one case beside the others, then run it while no other one does."""
    import eager_steps
    import torch

    name, arguments = eager_steps.CASES[number]
    torch.manual_seed(0)
    made = getattr(eager_steps, name)(**arguments)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(made.precision)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = made.model.cuda().train()
        optimizer = made.optimizer(model.parameters())

        def step() -> float:
            torch.cuda.synchronize()
            start = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype, enabled=dtype is not None):
                loss = made.loss(model)
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            return time.perf_counter() - start

        for _ in range(WARM_UP):
            step()
        times: list[float] = []
        while len(times) < TIMED and sum(times) < TIMED_S:
            times.append(step())
        row = {"case": number, "name": name, "arguments": arguments, "step_s": statistics.median(times)}
        row |= {"least_s": min(times), "allocated": torch.cuda.max_memory_allocated()}
        row |= {"reserved": torch.cuda.max_memory_reserved(), "torch": torch.__version__}
        return row | {"device": torch.cuda.get_device_name()}


def compare(probe: Path | None, cases: Sequence[int]) -> None:
    """Print how far predictions are off, and their medians for steps that wait for the device and for the host."""
    from fairmile.costs.operators.op_times import read_op_times, shipped_op_times

    predicted = {row["case"]: row for row in _rows(PREDICTED)}
    table = shipped_op_times("h200")
    if probe and table:
        by = table.joined(read_op_times(probe)).host_factor
        print(f"the host takes {by:.2f} times as long for a call as the table's")
        for row in predicted.values():
            row["step_s"] = _between({float(each): step_s for each, step_s in row["by_host"].items()}, by)
    groups: dict[str, list[dict[str, float]]] = {}
    inside = 0
    measured = [row for row in _rows(MEASURED) if row["case"] in predicted and (not cases or row["case"] in cases)]
    for row in measured:
        told = predicted[row["case"]]
        off = {name: told[name] / row[name] - 1 for name in COMPARED}
        inside += told["low_s"] <= row["step_s"] <= told["high_s"]
        bound = "host-bound" if told["bound"] == "launch" else "device-bound"
        for group in ("all", bound):
            groups.setdefault(group, []).append(off)
        shown = "  ".join(f"{name} {error:+.2%}" for name, error in off.items())
        print(f"{json.dumps(row['arguments']):100} {row['step_s'] * 1e3:8.1f} ms  {shown}  {bound}")
    for group, rows in sorted(groups.items()):
        for name in COMPARED:
            each = sorted(abs(row[name]) for row in rows)
            ninety = each[math.ceil(0.9 * len(each)) - 1]
            middle = statistics.median(each)
            print(f"{group} {name}: median {middle:.2%}, 90 % {ninety:.1%}, worst {each[-1]:.1%} of {len(each)}")
    print(f"times within the prediction interval: {inside} of {len(measured)}")


def _between(known: dict[float, float], at: float) -> float:
    """Return a value between the two known ones around it."""
    below = max((each for each in known if each <= at), default=min(known))
    above = min((each for each in known if each >= at), default=max(known))
    share = (at - below) / (above - below) if above != below else 0.0
    return known[below] + share * (known[above] - known[below])


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true", help="Write the predictions.")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="Keep the traces of predictions here.")
    parser.add_argument("--measure", type=Path, metavar="OUT", help="Measure the cases on the GPU.")
    parser.add_argument("--probe", type=Path, metavar="TABLE", help="Take the speed of the host from here.")
    parser.add_argument("--cases", nargs="+", type=int, default=[], metavar="N", help="Take these cases alone.")
    parser.add_argument("--one", nargs=2, metavar=("N", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(int(chosen.one[0]), Path(chosen.one[1]))), flush=True)
    elif chosen.measure:
        measure_all(chosen.measure, chosen.cases)
    elif chosen.predict:
        predict(chosen.traces, chosen.cases)
    else:
        compare(chosen.probe, chosen.cases)


if __name__ == "__main__":
    main()
