"""How far predictions of compiled steps are off: run the steps on a GPU, and predict them anywhere.

     python speed/accuracy_compiled.py --measure-all OUT.jsonl [CASE…]  on the GPU: adds one line for each case and mode
     python speed/accuracy_compiled.py --predict [CASE…]  anywhere: writes the predictions of these cases, or of all
     python speed/accuracy_compiled.py                    compares the predictions with what was measured

CASE is N or N:MODE, where N counts the cases of `compiled_steps.py`, then those of `compiled_steps_unseen.py` and of
`compiled_steps_blind.py`, and MODE is eager, default, reduce-overhead or max-autotune. Predictions lie in
`predicted_compiled.jsonl`, what was measured on one NVIDIA H200 with PyTorch 2.11 in `measured_compiled.jsonl`. Replays
of CUDA graphs allocate nothing, so the allocated size is not compared there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
PREDICTED, MEASURED = (HERE / name for name in ("predicted_compiled.jsonl", "measured_compiled.jsonl"))
COMPILING_S, ALL_S = 190, 245  # until timing begins, and until the last case must have ended
_LISTED = 1000  # kernels that a row names
_PHASES = ("gradients", "forward", "backward", "optimizer")


def cases() -> list[tuple[Any, str, dict[str, Any], list[str]]]:
    """Return module, name, arguments and modes of each case."""
    import compiled_steps
    import compiled_steps_blind
    import compiled_steps_unseen

    return [
        (module, name, arguments, module.MODES.get(number, ["default"]))
        for module in (compiled_steps, compiled_steps_unseen, compiled_steps_blind)
        for number, (name, arguments) in enumerate(module.CASES)
    ]


def _chosen(words: list[str]) -> list[tuple[int, str]]:
    every = cases()
    if not words:
        return [(number, mode) for number, case in enumerate(every) for mode in case[3]]
    chosen: list[tuple[int, str]] = []
    for word in words:
        number, _, mode = word.partition(":")
        chosen += [(int(number), each) for each in ([mode] if mode else every[int(number)][3])]
    return chosen


def measure_all(out: Path, words: list[str]) -> None:
    """Compile all cases at once, each in a process of its own, then time them one after another."""
    began = time.time()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        running = {}
        for number, mode in _chosen(words):
            argv = [sys.executable, __file__, "--measure", str(number), mode, place]
            with (
                (folder / f"out-{number}-{mode}").open("w") as said,
                (folder / f"err-{number}-{mode}").open("w") as bad,
            ):
                env = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
                running[number, mode] = subprocess.Popen(argv, stdout=said, stderr=bad, env=env)

        def is_ready(number: int, mode: str) -> bool:
            return (folder / f"ready-{number}-{mode}").exists() or running[number, mode].poll() is not None

        while time.time() - began < COMPILING_S and not all(is_ready(*each) for each in running):
            time.sleep(0.5)
        print(f"compiled after {time.time() - began:.0f} s", flush=True)
        (folder / "go").touch()
        for (number, mode), process in running.items():
            try:
                process.wait(max(1.0, ALL_S - (time.time() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            said = (folder / f"out-{number}-{mode}").read_text()
            lines = [line for line in said.splitlines() if line.startswith('{"case"')]
            if not lines:
                why = (folder / f"err-{number}-{mode}").read_text().strip()[-700:] or "it took too long"
                print(f"{number} {mode}: no result: {why}", flush=True)
                continue
            with out.open("a") as file:
                file.write(lines[-1] + "\n")
            row = json.loads(lines[-1])
            print(
                number,
                mode,
                row["name"],
                f"{row['step_s'] * 1e3:.2f} ms",
                row["allocated"],
                row["reserved"],
                flush=True,
            )


def measure(number: int, mode: str, folder: Path) -> dict[str, Any]:
    """Run one case on the GPU: its memory at once, its time when no other case is timed."""
    import torch

    module, name, arguments, _ = cases()[number]
    torch.manual_seed(0)
    made = getattr(module, name)(**arguments)
    model = made.model.cuda().train()
    optimizer = made.optimizer(model.parameters())
    called = model if mode == "eager" else torch.compile(model, mode=mode)
    dtype = {"bf16": torch.bfloat16}.get(made.precision)

    def step() -> list[float]:
        """Return when each phase had been issued: the host does not wait for the device within a step."""
        moments = [time.perf_counter()]
        optimizer.zero_grad(set_to_none=True)
        moments.append(time.perf_counter())
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            loss = made.loss(called)
        moments.append(time.perf_counter())
        loss.backward()
        moments.append(time.perf_counter())
        optimizer.step()
        return [*moments, time.perf_counter()]

    began = time.perf_counter()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    row: dict[str, Any] = {"case": number, "name": name, "arguments": arguments, "mode": mode}
    row["first_s"] = time.perf_counter() - began
    row["breaks"] = sum(torch._dynamo.utils.counters["graph_break"].values())
    torch.cuda.reset_peak_memory_stats()
    row["live_at_peak"] = _live_at_peak(step)
    row["allocated"] = torch.cuda.max_memory_allocated()
    (folder / f"ready-{number}-{mode}").touch()
    until = time.time() + COMPILING_S
    while not (folder / "go").exists() and time.time() < until:
        time.sleep(0.2)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        times, issued = [], []
        for _ in range(23):
            torch.cuda.synchronize()
            moments = step()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - moments[0])
            issued.append([end - begin for begin, end in pairwise(moments)])
        row["step_s"] = statistics.median(times[3:])
        row["call_us"] = _call_us()
        row["host_s"] = dict(zip(_PHASES, map(statistics.median, zip(*issued[3:], strict=True)), strict=True))
        row["kernels"] = _kernels(step)
        row["device_s"] = sum(time_us for _, _, time_us in row["kernels"]) * 1e-6
    row["reserved"] = torch.cuda.max_memory_reserved()
    return row | {"device": torch.cuda.get_device_name(), "torch": torch.__version__}


def _call_us() -> float:
    """Return the microseconds that this host takes for a small call, which tell how fast it is."""
    import torch

    small = torch.ones(16, device="cuda")
    spent = []
    for _ in range(9):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            small.add(1.0)
        spent.append((time.perf_counter() - begin) / 200 * 1e6)
    return statistics.median(spent)


def _live_at_peak(step: Any) -> dict[int, int]:
    """Return the sizes of the blocks that a step holds at its peak, with their counts."""
    import torch

    torch.cuda.memory._record_memory_history(context=None, stacks="python")
    step()
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    live: dict[int, int] = {}
    now, most, at = 0, -1, collections.Counter[int]()
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
            now += event["size"]
        elif event["action"] == "free_completed":
            now -= live.pop(event["addr"], event["size"])
        if now > most:
            most, at = now, collections.Counter(live.values())
    return dict(sorted(at.items(), reverse=True))


def _kernels(step: Any) -> list[list[Any]]:
    """Return name, count and microseconds of the kernels of a step, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiled:
        step()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0.0])
    for event in profiled.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Optimizer.step"):
            entry = kernels[event.name[:110]]
            entry[0] += 1
            entry[1] += event.device_time_total
    found = [[name, int(count), round(time_us, 1)] for name, (count, time_us) in kernels.items()]
    return sorted(found, key=lambda each: -each[2])[:_LISTED]


def predict(words: list[str]) -> None:
    """Write what is predicted of each case and mode, in place of what was written of them before."""
    import fairmile as fm
    from fairmile.costs.devices import device
    from fairmile.predict.compiled.doubts import of_compiled
    from fairmile.predict.memory.account import account
    from fairmile.predict.step_time import step_time

    on, every = device("h200"), cases()
    rows = {(row["case"], row["mode"]): row for row in _rows(PREDICTED)}
    for number, mode in _chosen(words):
        module, name, arguments, _ = every[number]
        how = {} if mode == "eager" else {"compile": mode}
        row: dict[str, Any] = {"case": number, "name": name, "arguments": arguments, "mode": mode}
        try:
            trace = fm.predict.trace(f"{module.__file__}:{name}", arguments, progress=False, **how)
        except fm.FairmileError as error:
            print(f"{number} {mode}: no prediction: {error}", flush=True)
            continue
        taken = account(trace, on)
        taken = of_compiled(taken, trace) if trace.compiled else taken
        step = step_time(trace, on)
        row |= {"allocated": taken.peak_allocated_bytes, "reserved": taken.peak_reserved_bytes}
        row |= {"step_s": step.step_time_s, "low_s": step.low_s, "high_s": step.high_s}
        row |= {"device_s": step.device_s, "host_s": step.host_s, "notes": list(trace.notes)}
        rows[number, mode] = row
        print(number, mode, name, f"{row['step_s'] * 1e3:.2f} ms", row["allocated"], *trace.notes, flush=True)
        with _locked():
            rows = {(each["case"], each["mode"]): each for each in _rows(PREDICTED)} | {(number, mode): row}
            PREDICTED.write_text("".join(json.dumps(rows[key]) + "\n" for key in sorted(rows)))


@contextlib.contextmanager
def _locked() -> Any:
    with (Path(tempfile.gettempdir()) / "predicted_compiled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def compare() -> None:
    """Print how far predictions are off, and the medians by set: the last was predicted before it was measured."""
    sets = [case[0].__name__ for case in cases()]
    predicted = {(row["case"], row["mode"]): row for row in _rows(PREDICTED)}
    errors: dict[tuple[str, str], list[float]] = {}
    names = ("allocated", "reserved", "device_s", "step_s")
    print(f"{'step':20} {'arguments':60} {'mode':16}" + "".join(f" {name:>10}" for name in names))
    for row in _rows(MEASURED):
        told = predicted.get((row["case"], row["mode"]))
        if told is None:
            print(f"{row['name']:20} {json.dumps(row['arguments']):60} {row['mode']:16} not predicted")
            continue
        if row["mode"] in ("reduce-overhead", "max-autotune"):
            row["allocated"] = None
        off = {name: told[name] / row[name] - 1 if row.get(name) else None for name in names}
        group = "eager" if row["mode"] == "eager" else sets[row["case"]]
        for name, error in off.items():
            if error is not None:
                errors.setdefault((group, name), []).append(abs(error))
        shown = " ".join(f"{'' if error is None else f'{error:.1%}':>10}" for error in off.values())
        print(f"{row['name']:20} {json.dumps(row['arguments']):60} {row['mode']:16} {shown}")
    for (group, name), each in sorted(errors.items()):
        ninety = sorted(each)[min(len(each) - 1, round(0.9 * len(each)))]
        middle = statistics.median(each)
        print(f"{group} {name}: median {middle:.2%}, 90 % {ninety:.1%}, worst {max(each):.1%} of {len(each)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", nargs=3, metavar=("N", "MODE", "FOLDER"), help="Measure this case on the GPU.")
    parser.add_argument("--measure-all", type=Path, metavar="OUT", help="Measure the cases on the GPU.")
    parser.add_argument("--predict", action="store_true", help="Write the predictions of the cases.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="N or N:MODE (default: all).")
    chosen = parser.parse_args()
    if chosen.measure:
        number, mode, folder = chosen.measure
        print(json.dumps(measure(int(number), mode, Path(folder))), flush=True)
    elif chosen.measure_all:
        measure_all(chosen.measure_all, chosen.cases)
    elif chosen.predict:
        predict(chosen.cases)
    else:
        compare()


if __name__ == "__main__":
    main()
