from __future__ import annotations

from collections.abc import Callable

import pytest

from fairmile.benchmarks.suite.miniweather.solver import (
    CASES,
    GATE_NX,
    GATE_S,
    Gate,
    Grid,
    Integration,
    Kernel,
    begin,
    changed,
    split_time,
    totals,
)


@pytest.fixture
def follow_thermal() -> Callable[[Kernel], Gate]:
    """Follow the thermal for 400 s, as miniWeather's own check does, and return the change of mass and energy."""

    def follow(kernel: Kernel) -> Gate:
        problem, state = begin(CASES["thermal"], Grid(GATE_NX, GATE_NX // 2))
        before = totals(problem, state)
        Integration(problem, state, kernel).advance(*split_time(GATE_S, problem.grid.step_s(1.5)))
        return changed(before, totals(problem, state))

    return follow
