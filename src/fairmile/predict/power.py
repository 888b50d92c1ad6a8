"""What a step costs in energy: the device draws more the more of its arithmetic and its memory a step keeps busy."""

from __future__ import annotations

import math
from typing import TypedDict

from fairmile.base.quick_dataclass import dataclass
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
