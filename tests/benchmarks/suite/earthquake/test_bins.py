"""The three equations, fortnights, sums back and ahead, the cut of locations."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.bins import (
    Grid,
    backward,
    cut_locations,
    daily_bins,
    fortnights,
    forward,
)
from fairmile.benchmarks.suite.earthquake.events import Events

GRID = Grid()


def catalog(*rows):
    """Return events of (day, lat, lon, depth, mag)."""
    day, lat, lon, depth, mag = np.array(sorted(rows), float).T
    return Events(day * 86400.0 + 60.0, lat, lon, depth, mag)


def test_the_grid_counts_from_the_north_west_with_the_column_fastest():
    assert (GRID.rows, GRID.columns) == (40, 60)
    lat, lon = (
        np.array([35.95, 35.95, 35.85, 32.0, 36.0, 31.99]),
        np.array([-119.95, -114.05, -120.0, -114.01, -119, -119]),
    )
    assert GRID.pixel(lat, lon).tolist() == [0, 59, 60, 2399, -1, -1]


def test_a_place_on_an_edge_belongs_to_the_pixel_north_and_east_of_it():
    tenths = np.arange(40) / 10 + 32
    assert (GRID.pixel(tenths, np.full(40, -120.0)) == 60 * np.arange(39, -1, -1)).all()
    tenths = -120 + np.arange(60) / 10
    assert (GRID.pixel(np.full(60, 35.95), np.round(tenths, 1)) == np.arange(60)).all()


def test_the_centre_of_a_pixel_lies_in_it():
    lat, lon = GRID.centre(np.arange(2400))
    assert (GRID.pixel(lat, lon) == np.arange(2400)).all()


def test_a_daily_bin_follows_the_three_equations():
    events = catalog((3, 35.95, -119.95, 4.0, 3.0), (3, 35.91, -119.99, 10.0, 4.0), (4, 35.95, -119.95, 7.0, 2.0))
    bins = daily_bins(events, GRID, 0, 20)
    small, big = 10**4.5, 10**6.0
    assert bins.day.tolist() == [3, 4]
    assert bins.magnitude[0] == pytest.approx(np.log10(small + big) / 1.5)
    assert bins.depth_km[0] == pytest.approx((4 * small + 10 * big) / (small + big))
    assert bins.count.tolist() == [2, 1]
    assert bins.big.tolist() == [1, 0]


def test_events_without_magnitude_are_left_out_and_those_without_depth_weigh_nothing():
    events = catalog((1, 35.95, -119.95, np.nan, 5.0), (1, 35.95, -119.95, 8.0, 3.0), (1, 35.95, -119.95, 9.0, np.nan))
    bins = daily_bins(events, GRID, 0, 14)
    assert (bins.events, bins.unmeasured, bins.count.tolist()) == (2, 1, [2])
    assert bins.depth_km[0] == 8.0


def test_a_fortnight_adds_one_unit_of_energy_for_each_empty_day():
    events = catalog((2, 35.95, -119.95, 6.0, 4.0), (2, 35.95, -119.95, 6.0, 3.0), (9, 35.95, -119.95, 12.0, 3.5))
    series = fortnights(daily_bins(events, GRID, 0, 28), np.array([0, 1]))
    energy = 10**6.0 + 10**4.5 + 10**5.25
    assert series.energy[0, 0] == pytest.approx(energy + 12)
    assert series.depth_km[0, 0] == pytest.approx((6 * (10**6.0 + 10**4.5) + 12 * 10**5.25) / (energy + 12))
    assert series.count[:, 0].tolist() == [3, 0]
    assert series.big[:, 0].tolist() == [2, 0]
    assert series.magnitude[1].round(3).tolist() == [0.764, 0.764]


def test_the_days_that_fill_no_fortnight_are_skipped_at_the_beginning():
    events = catalog((2, 35.95, -119.95, 6.0, 4.0), (3, 35.95, -119.95, 6.0, 3.0), (30, 35.95, -119.95, 6.0, 3.0))
    series = fortnights(daily_bins(events, GRID, 0, 31), np.array([0]))
    assert series.count[:, 0].tolist() == [1, 1]
    assert series.last_day.tolist() == [16, 30]
    assert 25567 // 14 == 1826


def test_a_fortnight_that_touches_a_gap_is_missing():
    events = catalog((1, 35.95, -119.95, 6.0, 4.0), (69, 35.95, -119.95, 6.0, 4.0))
    series = fortnights(daily_bins(events, GRID, 0, 70), np.array([0]), [(16, 42)])
    assert np.isnan(series.energy[:, 0]).tolist() == [False, True, True, True, False]
    assert np.isnan(series.count[:, 0]).tolist() == [False, True, True, True, False]


def test_sums_back_hold_this_fortnight_and_sums_ahead_do_not():
    energy = np.array([[1.0], [10.0], [100.0], [1000.0], [10000.0]])
    back = 10 ** (1.5 * backward(energy, 4))
    ahead = 10 ** (1.5 * forward(energy, 4))
    np.testing.assert_allclose(back[:, 0], [np.nan, 11, 110, 1100, 11000])
    np.testing.assert_allclose(ahead[:, 0], [110, 1100, 11000, np.nan, np.nan])
    skipped = 10 ** (1.5 * forward(energy, 2, delay_weeks=4))
    np.testing.assert_allclose(skipped[:, 0], [1000, 10000, np.nan, np.nan, np.nan])
    assert np.isnan(backward(energy, 52)).all()


def test_a_missing_fortnight_makes_every_sum_over_it_missing():
    energy = np.array([[1.0], [np.nan], [1.0], [1.0], [1.0]])
    assert np.isnan(backward(energy, 4)[:, 0]).tolist() == [True, True, True, False, False]


def places(pixel, count):
    lat, lon = GRID.centre(np.array([pixel]))
    return [(day % 14, lat[0], lon[0], 5.0, 3.3) for day in range(count)]


def test_a_pixel_passes_by_its_own_events_or_by_those_around_it():
    events = catalog(*places(610, 8), *places(1000, 7), *places(1400, 35), (1, 33.0, -119.0, 5.0, 3.29))
    cut = cut_locations(daily_bins(events, GRID, 0, 14), 7.1, 34.1)
    around = [1400 + 60 * y + x for y in (-1, 0, 1) for x in (-1, 0, 1)]
    assert cut.pixels.tolist() == sorted([610, *around])
    assert (cut.single, cut.block) == (2, 9)
    assert cut_locations(daily_bins(events, GRID, 0, 14), 7.1, 34.1, most=2).pixels.tolist() == [610, 1400]


def test_a_block_does_not_reach_around_the_edge_of_the_region():
    cut = cut_locations(daily_bins(catalog(*places(659, 40)), GRID, 0, 14), 7.1, 34.1)
    assert cut.pixels.tolist() == [598, 599, 658, 659, 718, 719]


def test_a_quiet_catalog_is_told_with_its_most_active_pixel():
    with pytest.raises(UsageError, match=r"no pixel has 7\.1 events above magnitude 3\.29, the most active one has 3"):
        cut_locations(daily_bins(catalog(*places(610, 3)), GRID, 0, 14), 7.1, 34.1)


def test_an_empty_region_is_refused():
    with pytest.raises(UsageError, match="is empty"):
        Grid(south=36, north=32)
