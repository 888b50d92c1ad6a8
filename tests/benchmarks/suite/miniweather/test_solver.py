"""The solver: what it keeps, what the gate asks for, and how it breaks down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cases import for_each

from fairmile.base.errors import RunFailed, UsageError
from fairmile.benchmarks.suite.miniweather import solver
from fairmile.benchmarks.suite.miniweather.solver import (
    CASES,
    Background,
    Bubble,
    Case,
    Gate,
    Grid,
    Integration,
    Kernel,
    NumpyKernel,
    Problem,
    begin,
    split_time,
    totals,
)


def test_the_thermal_passes_the_gate_with_the_figures_of_the_reference(
    follow_thermal: Callable[[Kernel], Gate],
) -> None:
    gate = follow_thermal(NumpyKernel())

    assert gate.is_passed
    assert gate.energy_change == pytest.approx(-4.142e-5, abs=2e-8)


@for_each("gate", [Gate(2e-13, -4e-5), Gate(0, 1e-6), Gate(0, -4.6e-5), Gate(float("nan"), -4e-5)])
def test_the_gate_does_not_let_through_lost_mass_or_won_or_lost_energy(gate: Gate) -> None:
    assert not gate.is_passed


def test_air_at_rest_stays_at_rest() -> None:
    problem, state = begin(Case(0, profile=solver.stable), Grid(16, 8))

    Integration(problem, state).advance(20, 1.0)

    assert np.abs(state).max() == 0


def test_an_even_wind_over_walls_stays_even() -> None:
    problem, state = begin(Case(0, profile=solver.stable, wind_m_s=15), Grid(8, 20))

    Integration(problem, state).advance(300, problem.grid.step_s(1.5))

    assert np.abs(solver.perturbations(problem, state)["uwnd"] - 15).max() < 2e-3


@for_each("name", CASES)
def test_every_case_moves_stays_finite_and_keeps_its_mass_unless_air_is_blown_in(name: str) -> None:
    problem, state = begin(CASES[name], Grid(20, 10))
    before, beginning = totals(problem, state), state.copy()

    Integration(problem, state).advance(20, problem.grid.step_s(1.5))

    change = (totals(problem, state).mass - before.mass) / before.mass
    assert np.abs(state - beginning).max() > 1e-4
    assert change > 1e-3 if name == "injection" else abs(change) < 1e-13


def test_warm_air_rises_and_cold_air_falls() -> None:
    for name, sign in (("thermal", 1), ("density_current", -1)):
        problem, state = begin(CASES[name], Grid(20, 10))
        Integration(problem, state).advance(30, problem.grid.step_s(1.5))

        wind = solver.perturbations(problem, state)["wwnd"]
        assert sign * wind[:, 9:11].mean() > 0.1


def test_a_symmetric_case_stays_symmetric() -> None:
    problem, state = begin(CASES["collision"], Grid(20, 10))

    Integration(problem, state).advance(30, problem.grid.step_s(1.5))

    found = solver.perturbations(problem, state)
    np.testing.assert_allclose(found["theta"], found["theta"][:, ::-1], atol=1e-8)
    np.testing.assert_allclose(found["uwnd"], -found["uwnd"][:, ::-1], atol=1e-8)


def test_waves_of_air_are_computed_to_fourth_order_in_space() -> None:
    def error(nx: int) -> float:
        """Compare one step's change of a density wave carried by an even wind with its derivative."""
        grid = Grid(nx, 4, 20_000.0, 10_000.0)
        even = Background(np.ones(4), np.full(4, 300.0), np.ones(5), np.full(5, 300.0))
        state = np.zeros((4, 4, nx))
        edges = np.arange(nx + 1) * 2 * np.pi / nx
        wave = -np.diff(np.cos(edges)) / (2 * np.pi / nx)  # means of cells of a sine
        state[solver.U] = 10 + 1e-3 * wave
        change = solver._change_x(Problem(grid, even), state, 1e9)[solver.DENSITY][0]
        exact = -1e-3 * np.diff(np.sin(edges)) / grid.dx_m
        return float(np.abs(change - exact).max())

    assert error(16) / error(32) == pytest.approx(16, rel=0.1)


def test_the_background_is_hydrostatic() -> None:
    for profile in (solver.neutral, solver.stable):
        height = np.linspace(0, 9000, 200_001)
        density, theta = profile(height)
        falls = np.gradient(solver.pressure(density * theta), height)[1:-1]

        np.testing.assert_allclose(falls, -solver.GRAVITY * density[1:-1], rtol=1e-4)


def test_a_bubble_has_its_size_in_its_middle_half_of_it_half_way_and_nothing_outside() -> None:
    bubble = Bubble(4.0, 1000, 2000, 500, 100)

    found = bubble(np.array([1000.0, 1250.0, 1000.0, 1501.0]), np.array([2000.0, 2000.0, 2050.0, 2000.0]))

    np.testing.assert_allclose(found, [4, 2, 2, 0], atol=1e-12)


def test_a_time_is_cut_into_equal_steps_none_too_long() -> None:
    assert split_time(400.0, 2 / 3) == (600, pytest.approx(2 / 3))
    assert split_time(1.0, 0.3) == (4, 0.25)
    with pytest.raises(UsageError, match="cannot be cut"):
        split_time(0, 1)


def test_outputs_come_at_the_start_and_after_each_interval() -> None:
    problem, state = begin(CASES["thermal"], Grid(8, 4))

    assert list(Integration(problem, state).run(30, 10, 1.5)) == pytest.approx([0, 10, 20, 30])


def test_a_case_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no case named 'termal'") as caught:
        solver.find_case("termal")
    assert "thermal" in str(caught.value.hint)


def test_a_grid_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match="3 x 8"):
        Grid(3, 8)


def test_a_time_step_that_is_too_long_ends_in_a_sentence_with_time_and_field() -> None:
    problem, state = begin(CASES["thermal"], Grid(20, 10))

    with pytest.raises(RunFailed, match=r"broke down by [\d.]+ s: density.* is .* in cell x=\d+, z=\d+") as caught:
        Integration(problem, state, NumpyKernel()).advance(400, problem.grid.step_s(8.0))
    assert "courant" in str(caught.value.hint)
