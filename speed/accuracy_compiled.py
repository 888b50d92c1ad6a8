"""Compares predicted with measured memory and time of eager and compiled training steps (see compiled_steps.py).

Run: python speed/accuracy_compiled.py --measure N MODE   on a machine with a GPU: prints what case N takes, as JSON
     python speed/accuracy_compiled.py --predict          anywhere: writes the predictions of all cases
     python speed/accuracy_compiled.py                    compares the predictions with what was measured

MODE is eager, default, reduce-overhead or max-autotune. Predictions lie in `predicted_compiled.jsonl`, what was
measured on one NVIDIA H200 with PyTorch 2.11 in `measured_compiled.jsonl`: without the time where several processes
shared the GPU, and without the allocated size of CUDA graphs, whose replays allocate nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
STEPS, PREDICTED, MEASURED = (
    HERE / name for name in ("compiled_steps.py", "predicted_compiled.jsonl", "measured_compiled.jsonl")
)


def measure(number: int, mode: str, steps: int = 20) -> dict[str, Any]:
    import compiled_steps
    import torch

    name, arguments = compiled_steps.CASES[number]
    torch.manual_seed(0)
    made = getattr(compiled_steps, name)(**arguments)
    model = made.model.cuda().train()
    optimizer = made.optimizer(model.parameters())
    called = model if mode == "eager" else torch.compile(model, mode=mode)
    dtype = {"bf16": torch.bfloat16}.get(made.precision)
    began = time.perf_counter()
    times = []
    for step in range(steps + 5):
        if step == 5:
            compile_s = time.perf_counter() - began
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            loss = made.loss(called)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return {
        "case": number,
        "name": name,
        "arguments": arguments,
        "mode": mode,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "step_s": statistics.median(times[5:]),
        "first_s": compile_s,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def predict() -> None:
    """Write what is predicted of each case and mode."""
    import compiled_steps

    import fairmile as fm
    from fairmile.costs.devices import device
    from fairmile.predict.compiled.doubts import of_compiled
    from fairmile.predict.compiled.rewrite import compiled
    from fairmile.predict.memory.account import account
    from fairmile.predict.step_time import step_time

    on = device("h200")
    with PREDICTED.open("w") as file:
        for number, (name, arguments) in enumerate(compiled_steps.CASES):
            eager = fm.predict.trace(f"{STEPS}:{name}", arguments, progress=False)
            for mode in ("eager", *compiled_steps.MODES.get(number, ["default"])):
                trace = eager if mode == "eager" else compiled(eager, mode)
                taken = account(trace, on) if mode == "eager" else of_compiled(account(trace, on), trace)
                step = step_time(trace, on)
                row = {"case": number, "name": name, "arguments": arguments, "mode": mode}
                row |= {"allocated": taken.peak_allocated_bytes, "reserved": taken.peak_reserved_bytes}
                row |= {"step_s": step.step_time_s, "low_s": step.low_s, "high_s": step.high_s}
                file.write(json.dumps(row) + "\n")
                file.flush()


def compare() -> None:
    """Print how far predictions are off, and the medians by mode."""
    predicted = {(row["case"], row["mode"]): row for row in map(json.loads, PREDICTED.read_text().splitlines())}
    errors: dict[tuple[bool, str], list[float]] = {}
    print(f"{'step':18} {'arguments':52} {'mode':16} {'allocated':>10} {'reserved':>10} {'time':>10}")
    for row in map(json.loads, MEASURED.read_text().splitlines()):
        told = predicted[row["case"], row["mode"]]
        names = ("allocated", "reserved", "step_s")
        off = {name: told[name] / row[name] - 1 if row[name] else None for name in names}
        for name, error in off.items():
            if error is not None:
                errors.setdefault((row["mode"] != "eager", name), []).append(abs(error))
        shown = " ".join(f"{'' if error is None else f'{error:.1%}':>10}" for error in off.values())
        print(f"{row['name']:18} {json.dumps(row['arguments']):52} {row['mode']:16} {shown}")
    for (is_compiled, name), each in sorted(errors.items()):
        worst, kind = max(each), "compiled" if is_compiled else "eager"
        print(f"{kind} {name}: median {statistics.median(each):.1%}, worst {worst:.1%} of {len(each)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", nargs=2, metavar=("N", "MODE"), help="Measure this case on the GPU.")
    parser.add_argument("--predict", action="store_true", help="Write the predictions of all cases.")
    chosen = parser.parse_args()
    if chosen.predict:
        predict()
    elif not chosen.measure:
        compare()
    else:
        print(json.dumps(measure(int(chosen.measure[0]), chosen.measure[1])), flush=True)


if __name__ == "__main__":
    main()
