"""Kessler's microphysics: water and energy are kept, and saturated air becomes saturated."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.benchmarks.suite.miniweather import kessler
from fairmile.benchmarks.suite.miniweather.kessler import CP, LATENT_HEAT, Cells, Kessler, fall, saturation


@pytest.fixture
def cells() -> Cells:
    """Air of all kinds: dry and over-saturated, with much, little and no cloud and rain."""
    draw = np.random.default_rng(1)
    n = 20_000
    temperature, dry = draw.uniform(220, 303, n), draw.uniform(0.3, 1.15, n)
    full = dry * saturation(temperature, kessler.RD * dry * temperature)
    cloud, rain = (draw.uniform(0, 4e-3, n) * (draw.random(n) > 0.4) for _ in range(2))
    return Cells(temperature, dry, full * draw.uniform(0.0, 1.05, n), cloud, rain)


def test_water_is_kept_to_rounding_and_nothing_is_negative(cells: Cells) -> None:
    after = Kessler()(cells, 10.0)

    np.testing.assert_allclose(after.water, cells.water, rtol=1e-14)
    assert min(each.min() for each in after) >= 0
    assert np.abs(after.cloud - cells.cloud).max() > 1e-4


def test_temperature_changes_by_the_latent_heat_of_the_vapour_that_condenses(cells: Cells) -> None:
    after = Kessler()(cells, 10.0)

    warmer = LATENT_HEAT / CP * (cells.vapour - after.vapour) / cells.dry
    np.testing.assert_allclose(after.temperature - cells.temperature, warmer, atol=1e-11)


def test_over_saturated_air_becomes_saturated() -> None:
    temperature, dry = np.linspace(250, 300, 40), np.full(40, 0.9)
    pressure_pa = kessler.RD * dry * temperature
    full = saturation(temperature, pressure_pa)
    start = Cells(temperature, dry, 1.05 * full * dry, np.zeros(40), np.zeros(40))

    after = Kessler()(start, 1.0)

    left = after.vapour / dry / saturation(after.temperature, pressure_pa) - 1
    assert np.abs(left).max() < 0.05 * 0.03
    assert (after.cloud > 0).all()


def test_cloud_in_dry_air_evaporates_and_no_more_than_there_is() -> None:
    start = Cells(np.array([290.0]), np.array([1.0]), np.array([1e-3]), np.array([2e-4]), np.array([0.0]))

    after = Kessler()(start, 5.0)

    assert after.cloud[0] == 0
    assert after.vapour[0] == pytest.approx(1.2e-3, rel=1e-12)


def test_air_that_is_neither_saturated_nor_wet_stays_as_it_is(cells: Cells) -> None:
    dry = cells._replace(vapour=cells.vapour * 0.9, cloud=0 * cells.cloud, rain=0 * cells.rain)

    for before, after in zip(dry, Kessler()(dry, 10.0), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-15)


def test_rain_is_made_of_cloud_by_both_ways_at_their_rates() -> None:
    temperature, air = np.array([285.0, 285.0]), np.ones(2)
    full = saturation(temperature, kessler.RD * air * temperature)
    start = Cells(temperature, air, full, np.array([3e-3, 0.5e-3]), np.array([0.0, 2e-3]))

    made = Kessler()(start, 1e-3).rain - start.rain

    np.testing.assert_allclose(made, [1e-3 * 0.001 * 2e-3, 1e-3 * 2.2 * (2e-3) ** 0.875 * 0.5e-3], rtol=1e-3)


def test_rain_falls_to_the_ground_and_none_is_lost() -> None:
    dry = np.linspace(1.1, 0.4, 30)[:, None] * np.ones((1, 4))
    rain = np.zeros((30, 4))
    rain[20] = 3e-3

    after, ground = rain, np.zeros(4)
    for _ in range(40):
        after, fallen = fall(dry, after, 200.0, 20.0)
        ground += fallen

    assert after.min() >= 0
    np.testing.assert_allclose(after.sum(axis=0) * 200 + ground, rain.sum(axis=0) * 200, rtol=1e-13)
    assert (ground > 0.1).all() and after[21:].max() == 0


def test_a_drop_falls_at_the_speed_of_its_size() -> None:
    speed = kessler.fall_speed(np.array([[1.2], [0.3]]), np.full((2, 1), 1e-3))

    assert speed[0, 0] == pytest.approx(36.34 * 1e-6**0.1364)
    assert speed[1, 0] == pytest.approx(2 * speed[0, 0])
