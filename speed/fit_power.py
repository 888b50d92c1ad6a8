"""Fit the power model of a GPU to measured training steps: where the constants in predict/power.py come from.

    python speed/fit_power.py STEPS.csv [GPU]

Each row of STEPS.csv is a step: `busy`, `compute` and `memory` are the shares of the device that it kept busy,
`power_w` is its mean power.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairmile.base.errors import UsageError
from fairmile.costs.devices import Device, device
from fairmile.predict.power import PowerModel, power_w


@dataclass(frozen=True)
class MeasuredPower:
    """A step whose mean power was measured: what it kept busy, and watts."""

    busy: float  # share of the time that the device worked
    compute: float  # operations per second over the peak for their type
    memory: float  # bytes per second over the bandwidth
    power_w: float


def fit_power(cases: Sequence[MeasuredPower], on: Device, source: str = "") -> PowerModel:
    """Fit the shares on measured steps, none below zero; UsageError where there are fewer than four."""
    if len(cases) < 4:
        raise UsageError(f"{len(cases)} measured steps are too few to fit a power model", hint="measure four or more")
    import numpy as np

    room = on.max_w - on.idle_w
    matrix = np.array([[each.busy, each.compute, each.memory] for each in cases])
    wanted = np.array([(each.power_w - on.idle_w) / room for each in cases])
    weights = 1.0 / np.maximum(np.array([each.power_w for each in cases]), 1.0)
    chosen = _non_negative(matrix * weights[:, None], wanted * weights)
    fitted = PowerModel(float(chosen[0]), float(chosen[1]), float(chosen[2]), 0.0, source)
    errors = [
        math.log(power_w(on, each.busy, each.compute, each.memory, fitted) / each.power_w)
        for each in cases
        if each.power_w > 0
    ]
    free = max(len(errors) - 3, 1)
    return PowerModel(fitted.busy, fitted.compute, fitted.memory, math.sqrt(sum(e * e for e in errors) / free), source)


def _non_negative(matrix: object, wanted: object) -> list[float]:
    """Return the least-squares solution without negative parts: the best of all choices of columns."""
    import numpy as np

    a, b = np.asarray(matrix), np.asarray(wanted)
    columns = a.shape[1]
    best, least = [0.0] * columns, math.inf
    for choice in range(1, 2**columns):
        used = [at for at in range(columns) if choice >> at & 1]
        found, *_ = np.linalg.lstsq(a[:, used], b, rcond=None)
        if (found < 0).any():
            continue
        left = float(((a[:, used] @ found - b) ** 2).sum())
        if left < least:
            least, best = left, [0.0] * columns
            for at, value in zip(used, found, strict=True):
                best[at] = float(value)
    return best


def main() -> None:
    """Print the model that fits the steps of a file."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    with Path(sys.argv[1]).open(newline="", encoding="utf-8") as file:
        names = ("busy", "compute", "memory", "power_w")
        steps = [MeasuredPower(*(float(row[name]) for name in names)) for row in csv.DictReader(file)]
    print(fit_power(steps, device(sys.argv[2] if len(sys.argv) > 2 else "h200"), sys.argv[1]))


if __name__ == "__main__":
    main()
