"""A power model is found again from measured steps."""

from __future__ import annotations

import pytest
from fit_power import MeasuredPower, fit_power

from fairmile.base.errors import UsageError
from fairmile.costs.devices import device
from fairmile.predict.power import PowerModel, power_w

H200 = device("h200")


def test_a_fit_finds_the_shares_that_made_the_measurements() -> None:
    true = PowerModel(0.4, 0.5, 0.2, 0.0)
    points = [(0.2, 0.1, 0.1), (0.9, 0.1, 0.5), (0.9, 0.5, 0.1), (0.5, 0.3, 0.2), (1.0, 0.05, 0.05)]
    found = fit_power([MeasuredPower(*each, power_w(H200, *each, true)) for each in points], H200)
    assert (found.busy, found.compute, found.memory) == pytest.approx((0.4, 0.5, 0.2))
    assert found.spread == pytest.approx(0.0, abs=1e-6)


def test_a_share_never_falls_below_zero() -> None:
    points = [(1.0, 0.1, 0.9), (1.0, 0.2, 0.5), (1.0, 0.5, 0.4), (1.0, 0.6, 0.1)]
    found = fit_power([MeasuredPower(*each, 300 - 200 * each[2]) for each in points], H200)
    assert found.memory == 0.0 and min(found.busy, found.compute) >= 0.0


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(UsageError, match="3 measured steps are too few"):
        fit_power([MeasuredPower(1, 1, 1, 500)] * 3, H200)
