"""What a step costs in energy: the device draws more the more of its arithmetic and its memory a step keeps busy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from fairmile.base.errors import UsageError
from fairmile.costs.devices import Device
from fairmile.predict.step_time import StepTime

_LEVEL = 1.645


@dataclass(frozen=True)
class PowerModel:
    """Shares of the room between idle and most power: for being busy at all, for arithmetic and for memory."""

    busy: float
    compute: float
    memory: float
    spread: float  # relative, one standard deviation
    source: str = ""


class StepEnergyDict(TypedDict):
    """`StepEnergy` as JSON holds it."""

    joules: float
    low_j: float
    high_j: float
    power_w: float


@dataclass(frozen=True)
class StepEnergy:
    """The energy of one step with its 90 % interval, and the mean power it comes from."""

    joules: float
    low_j: float
    high_j: float
    power_w: float


@dataclass(frozen=True)
class Measured:
    """A step whose mean power was measured: what it kept busy, and watts."""

    busy: float  # share of the time that the device worked
    compute: float  # operations per second over the peak for their type
    memory: float  # bytes per second over the bandwidth
    power_w: float


DEFAULT = PowerModel(
    busy=0.523, compute=0.644, memory=0.508, spread=0.09, source="15 training steps on one H200, 2026-11-16"
)


def energy_of(step: StepTime, on: Device, model: PowerModel = DEFAULT) -> StepEnergy:
    """Return the energy of a predicted step."""
    power = power_w(on, step.utilisation, *intensities(step, on), model)
    spread = math.hypot(model.spread, math.log(step.high_s / step.step_time_s) / _LEVEL if step.step_time_s else 0.0)
    joules = power * step.step_time_s
    return StepEnergy(joules, joules * math.exp(-_LEVEL * spread), joules * math.exp(_LEVEL * spread), power)


def power_w(on: Device, busy: float, compute: float, memory: float, model: PowerModel = DEFAULT) -> float:
    """Return the mean power of a step that keeps these shares of the device busy."""
    share = model.busy * busy + model.compute * compute + model.memory * memory
    return on.idle_w + (on.max_w - on.idle_w) * min(max(share, 0.0), 1.0)


def intensities(step: StepTime, on: Device) -> tuple[float, float]:
    """Return the shares of peak arithmetic and of bandwidth that a step uses, over its whole time."""
    if step.step_time_s <= 0:
        return 0.0, 0.0
    return min(step.compute_roof_s / step.step_time_s, 1.0), min(
        step.moved_bytes / on.bandwidth_bytes_per_s / step.step_time_s, 1.0
    )


def fit_power(cases: Sequence[Measured], on: Device, source: str = "") -> PowerModel:
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
