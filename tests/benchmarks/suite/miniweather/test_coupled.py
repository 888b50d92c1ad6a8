"""The moist atmosphere: what carries water, and what a storm keeps."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.base.errors import RunFailed
from fairmile.benchmarks.suite.miniweather import coupled, solver
from fairmile.benchmarks.suite.miniweather.coupled import MoistSimulation, NoMicrophysics, bubble_of, carried
from fairmile.benchmarks.suite.miniweather.kessler import Cells, Kessler
from fairmile.benchmarks.suite.miniweather.solver import Grid, NumpyKernel

GRID = Grid(32, 16)


def storm(microphysics: coupled.Microphysics, grid: Grid = GRID) -> MoistSimulation:
    return MoistSimulation.of(grid, bubble_of(0, 0, grid.length_m), microphysics, NumpyKernel())


def test_a_storm_condenses_rises_and_keeps_air_and_water() -> None:
    simulation = storm(Kessler())
    water, air = simulation.total_water, solver.totals(simulation.problem, simulation.integration.state).mass

    times = list(simulation.run(400, 4, 1.5))

    assert times[-1] == pytest.approx(400)
    assert simulation.total_water == pytest.approx(water, rel=1e-13)
    assert solver.totals(simulation.problem, simulation.integration.state).mass == pytest.approx(air, rel=1e-13)
    assert simulation.water.min() >= 0
    assert simulation.water[coupled.CLOUD].max() > 1e-3
    assert simulation.fields()["wwnd"].max() > 5
    assert simulation.fields().keys() == {"dens", "uwnd", "wwnd", "theta", "rho_v", "rho_c", "rho_p"}


def test_latent_heat_is_what_drives_it() -> None:
    with_it, without = storm(Kessler()), storm(NoMicrophysics())
    for each in (with_it, without):
        list(each.run(300, 4, 1.5))

    assert with_it.fields()["wwnd"].max() > 1.5 * without.fields()["wwnd"].max()
    assert without.water[coupled.CLOUD].max() == 0


def test_microphysics_sees_each_cell_and_is_called_as_often_as_told() -> None:
    seen: list[Cells] = []
    simulation = storm(Kessler())

    list(simulation.run(40, 4, 1.5, seen.append))

    calls, dt_s = coupled.physics_time(GRID, 40, 4, 1.5)
    assert len(seen) == simulation.calls == calls
    assert dt_s <= 4 * GRID.step_s(1.5)
    assert seen[0].dry.shape == (16, 32)


def test_the_atmosphere_is_hydrostatic_and_its_bubble_as_humid_as_the_air_around_it() -> None:
    height = np.linspace(0, 10_000, 100_001)
    density, theta = coupled.sounding(height)
    falls = np.gradient(solver.pressure(density * theta), height)[1:-1]
    np.testing.assert_allclose(falls, -solver.GRAVITY * density[1:-1], rtol=1e-4)
    assert coupled.humidity(np.array([0.0, 12_000.0])) == pytest.approx([1.0, 0.25])


def test_what_is_evenly_mixed_stays_so_and_nothing_is_lost_or_negative() -> None:
    draw = np.random.default_rng(0)
    density = draw.uniform(0.5, 1.2, (16, 32))
    flow = draw.normal(0, 20, (2, 16, 32))
    water = np.stack([0.01 * density, draw.random((16, 32)) * (draw.random((16, 32)) > 0.7), np.zeros((16, 32))])

    after = carried(water, density, flow, GRID, 2.0, x_first=True)

    np.testing.assert_allclose(after.sum(axis=(1, 2)), water.sum(axis=(1, 2)), rtol=1e-13)
    assert after.min() >= 0
    air = carried(density[None], density, flow, GRID, 2.0, x_first=True)[0]
    np.testing.assert_allclose(after[0], 0.01 * air, rtol=1e-12)
    assert np.abs(after[1] - water[1]).max() > 1e-3


def test_a_wind_that_crosses_cells_at_once_carries_in_parts_and_leaves_nothing_negative() -> None:
    density, grid = np.ones((8, 64)), Grid(64, 8, 6400.0, 800.0)
    water, flow = np.zeros((3, 8, 64)), np.zeros((2, 8, 64))
    water[:, :, 10:14], flow[0] = 1.0, 100.0

    after = carried(water, density, flow, grid, 10.0, x_first=True)  # 1000 m are 10 cells

    assert after.min() >= 0
    assert np.average(np.arange(64), weights=after[0, 4]) == pytest.approx(21.5, abs=0.01)
    with pytest.raises(RunFailed, match=r"wind crosses 1e\+03 cells"):
        carried(water, density, flow, grid, 1000.0, x_first=True)


@pytest.mark.parametrize("x_first", [False, True])
def test_a_patch_moves_with_the_wind(x_first: bool) -> None:
    density, grid = np.ones((8, 64)), Grid(64, 8, 6400.0, 800.0)
    place = np.exp(-(((np.arange(64) - 20) / 5.0) ** 2))
    water, flow = np.tile(place, (3, 8, 1)), np.zeros((2, 8, 64))
    flow[0] = 10.0

    for _ in range(100):  # 2 s each: 2000 m are 20 cells
        water = carried(water, density, flow, grid, 2.0, x_first=x_first)

    assert np.average(np.arange(64), weights=water[0, 4]) == pytest.approx(40, abs=0.05)
    assert water.max() > 0.9


def test_the_first_storm_is_always_the_same_and_the_others_are_drawn() -> None:
    assert bubble_of(0, 1, 2e4) == bubble_of(0, 2, 2e4)
    assert len({bubble_of(member, 1, 2e4) for member in range(4)}) == 4
    assert bubble_of(3, 1, 2e4) == bubble_of(3, 1, 2e4) != bubble_of(3, 2, 2e4)


def test_microphysics_that_gives_no_numbers_ends_in_a_sentence() -> None:
    class Broken:
        name = "broken"

        def __call__(self, cells: Cells, dt_s: float) -> Cells:
            return cells._replace(cloud=cells.cloud * np.nan)

    with pytest.raises(RunFailed, match=r"broke down by [\d.]+ s: cloud is not finite") as caught:
        list(storm(Broken()).run(40, 4, 1.0))
    assert "broken" in str(caught.value.hint)
