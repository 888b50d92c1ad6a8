"""Compares predicted with measured memory and time of eager and compiled training steps (see compiled_steps.py).

Run: python speed/accuracy_compiled.py --measure N MODE   on a machine with a GPU: prints what case N takes, as JSON
     python speed/accuracy_compiled.py --predict FILE     anywhere: writes the predictions of all cases
     python speed/accuracy_compiled.py                    compares the predictions with what was measured

MODE is eager, default, reduce-overhead or max-autotune. Predictions lie in `predicted_compiled.jsonl`, what was
measured on one NVIDIA H200 with PyTorch 2.11 in `measured_compiled.jsonl`.
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", nargs=2, metavar=("N", "MODE"), help="Measure this case on the GPU.")
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(int(chosen.measure[0]), chosen.measure[1])), flush=True)


if __name__ == "__main__":
    main()
