"""Compares predicted with measured memory of steps whose shapes depend on values (see value_steps.py).

Run: python speed/accuracy_values.py --measure N     on a machine with a GPU: prints what case N takes, as JSON
     python speed/accuracy_values.py                 anywhere: predicts all cases, and compares with the measured ones

What was measured on one NVIDIA H200 with PyTorch 2.11 is in `measured_values.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from value_steps import CASES

MEASURED = Path(__file__).with_name("measured_values.jsonl")
STEPS = Path(__file__).with_name("value_steps.py")


def measure(number: int) -> dict[str, Any]:
    import torch
    import value_steps

    name, arguments = CASES[number]
    torch.manual_seed(0)
    made = getattr(value_steps, name)(**arguments)
    model = made.model.cuda().train()
    optimizer = made.optimizer(model.parameters())
    dtype = {"bf16": torch.bfloat16}.get(made.precision)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            loss = made.loss(model)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    sizes = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    return {"case": number, "name": name, "arguments": arguments, **sizes}


def compare() -> None:
    import fairmile as fm

    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    print(f"{'step':10} {'arguments':36} {'allocated':>14} {'predicted':>14} {'error':>8} {'reserved error':>15}")
    for row in rows:
        name, arguments = CASES[row["case"]]
        predicted = fm.predict.memory(f"{STEPS}:{name}", arguments=arguments, progress=False).estimate
        errors = (
            predicted.peak_allocated_bytes / row["allocated"] - 1,
            predicted.peak_reserved_bytes / row["reserved"] - 1,
        )
        sizes = f"{row['allocated']:>14,} {predicted.peak_allocated_bytes:>14,}"
        print(f"{name:10} {json.dumps(arguments):36} {sizes} {errors[0]:>8.2%} {errors[1]:>15.2%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", type=int, metavar="N", help="Measure this case on the GPU of this machine.")
    chosen = parser.parse_args()
    if chosen.measure is None:
        compare()
    else:
        print(json.dumps(measure(chosen.measure)))


if __name__ == "__main__":
    main()
