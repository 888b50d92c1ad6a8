"""Fitting positive constants to times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scaling_accuracy.fitting import fit_constants

from fairmile.base.errors import UsageError

SIZES = [1e6 * 2**power for power in range(12)]


def _line(values: Sequence[float]) -> list[float]:
    latency, rate = values
    return [latency + size / rate for size in SIZES]


def test_constants_that_made_the_times_are_found_again() -> None:
    found = fit_constants([1e-4, 1e10], [5.0, 5.0], _line, _line([3e-5, 2.5e10]))
    assert found == pytest.approx([3e-5, 2.5e10], rel=0.01)


def test_one_wild_run_does_not_bend_the_constants() -> None:
    times = _line([3e-5, 2.5e10])
    times[5] *= 10
    found = fit_constants([1e-4, 1e10], [5.0, 5.0], _line, times)
    assert found == pytest.approx([3e-5, 2.5e10], rel=0.1)


def test_what_the_runs_do_not_show_stays_as_usual() -> None:
    found = fit_constants([1.0, 7.0], [1.0, 1.0], lambda values: [values[0]], [2.0])
    assert found[1] == pytest.approx(7.0)
    assert found[0] == pytest.approx(2.0, rel=0.02)


def test_a_narrow_spread_holds_a_constant_against_a_single_run() -> None:
    held = fit_constants([1.0], [0.001], lambda values: [values[0]], [2.0])
    assert held[0] < 1.01


def test_a_time_of_zero_cannot_be_fitted() -> None:
    with pytest.raises(UsageError, match="not positive"):
        fit_constants([1.0], [1.0], lambda values: [values[0]], [0.0])
