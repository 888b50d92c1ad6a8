"""Energy of a step: power by what the step keeps busy, times its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairmile.costs.devices import device
from fairmile.predict.power import DEFAULT, energy_of, power_w
from fairmile.predict.step_time import StepTime

H200 = device("h200")
STEP = StepTime(0.1, 0.09, 0.112, "NVIDIA H200", 0.08, 0.05, "memory", {}, {}, {}, {}, 1e12, 0, 0, 0.05, 0.02, ())


def test_power_lies_between_idle_and_most() -> None:
    assert power_w(H200, 0, 0, 0) == H200.idle_w
    assert power_w(H200, 1, 1, 1) == H200.max_w
    assert H200.idle_w < power_w(H200, 0.5, 0.1, 0.1) < power_w(H200, 0.9, 0.1, 0.1) < H200.max_w


def test_energy_is_power_times_time_and_its_interval_holds_both_doubts() -> None:
    found = energy_of(STEP, H200)
    assert found.joules == pytest.approx(found.power_w * 0.1)
    assert found.low_j < found.joules < found.high_j
    sure = energy_of(STEP, H200, replace(DEFAULT, spread=0.0))
    assert found.high_j - found.low_j > sure.high_j - sure.low_j > 0
