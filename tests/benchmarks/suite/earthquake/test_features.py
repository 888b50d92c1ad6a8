"""What models are shown: time, observations, faults along space-filling curves."""

from __future__ import annotations

import numpy as np
import pytest
from cases import for_each

from fairmile.base.errors import NotFound, UsageError
from fairmile.benchmarks.suite.earthquake.bins import Fortnights, Grid
from fairmile.benchmarks.suite.earthquake.features import (
    KNOWN,
    MIRRORS,
    STATIC,
    curve_order,
    known_features,
    observed_features,
    quarter_energy,
    read_faults,
    static_features,
    target_series,
    to_unit,
)
from fairmile.benchmarks.suite.earthquake.nomenclature import OBSERVED, PARAMETERS

GRID = Grid()


def test_the_quarter_power_of_energy_is_one_at_magnitude_three_point_two_nine():
    assert quarter_energy(np.array([3.29, 7.29])).tolist() == [1.0, pytest.approx(10**1.5)]


def test_features_are_brought_to_the_unit_range_and_missing_ones_stay_missing():
    values = np.array([[[2.0, 5.0], [4.0, 5.0]], [[np.nan, 5.0], [3.0, 5.0]]])
    unit, low, high = to_unit(values, (0, 1))
    np.testing.assert_array_equal(unit, [[[0, 0], [1, 0]], [[np.nan, 0], [0.5, 0]]])
    assert (low.tolist(), high.tolist()) == ([2, 5], [4, 5])


def test_thirteen_features_are_known_of_any_time_and_lie_between_zero_and_one():
    known = known_features(1801)
    assert known.shape == (1801, 13) == (1801, len(KNOWN))
    assert known.min() >= 0
    assert known.max() <= 1
    assert (known[:, 0] == 0.5).all()
    np.testing.assert_allclose(known[[0, 900, 1800], 1], [0, 0.5, 1])
    np.testing.assert_allclose(known[[0, 900, 1800], 2], [1, 0, 1], atol=1e-6)  # P2 is lowest in the middle
    np.testing.assert_allclose(known[[0, 900, 1800], 3], [0, 0.5, 1], atol=1e-6)
    np.testing.assert_allclose(known[:, 4].min(), 0, atol=1e-5)


def test_the_waves_have_periods_of_eight_to_sixty_four_fortnights():
    known = known_features(200)
    for place, period in ((5, 8), (7, 16), (9, 32), (11, 64)):
        np.testing.assert_allclose(known[period:, place : place + 2], known[:-period, place : place + 2], atol=1e-5)
        np.testing.assert_allclose(known[[0, period // 2], place], [1, 0], atol=1e-6)
        np.testing.assert_allclose(known[period // 4, place + 1], 1, atol=1e-6)


def test_nine_features_are_observed_and_four_are_targets_in_the_order_of_their_names():
    energy = np.full((60, 2), 14.0)
    energy[30, 0] = 10**6.0
    series = Fortnights(np.arange(2), np.arange(60), energy, energy * 0 + 5, energy * 0 + 1, energy * 0 + 2)
    observed, target = observed_features(series, "magnitude"), target_series(series, "magnitude")
    assert observed.shape == (2, 60, len(OBSERVED))
    assert target.shape == (2, 60, len(PARAMETERS))
    assert observed[0, 40, :4].tolist() == pytest.approx([np.log10(14) / 1.5, 5, 1, 2])
    for place, fortnights in ((4, 2), (5, 4), (6, 7), (7, 13), (8, 26)):
        high = np.flatnonzero(observed[0, :, place] > 3.9)
        assert (high[0], high[-1]) == (30, 30 + min(fortnights, 30) - 1)
    np.testing.assert_array_equal(target, observed[:, :, [0, 6, 7, 8]])
    assert target_series(series, "energy")[0, 30, 0] == pytest.approx(10 ** (0.375 * (4 - 3.29)))


@for_each("rows, columns", [(40, 60), (60, 40), (4, 4), (2, 30), (1, 7), (8, 6)])
def test_the_curve_visits_every_pixel_once_from_neighbour_to_neighbour(rows, columns):
    order = curve_order(rows, columns)
    assert sorted(order.tolist()) == list(range(rows * columns))
    y, x = np.divmod(order, columns)
    assert (np.abs(np.diff(y)) + np.abs(np.diff(x)) == 1).all()


def test_the_four_curves_are_mirrors_of_each_other():
    ends = [curve_order(40, 60, left_right=a, up_down=b)[0] for a, b in MIRRORS]
    assert ends == [0, 59, 39 * 60, 2399]


def test_faults_are_numbered_in_the_order_in_which_each_curve_meets_them():
    faults = np.zeros((40, 60), int)
    faults[:, 20:40], faults[:, 40:] = 7, 3
    pixels = np.array([0, 30, 59])
    static = static_features(GRID, pixels, faults)
    assert static.shape == (3, len(STATIC))
    np.testing.assert_allclose(static[:, 0], [0, 0.5, 1])
    np.testing.assert_allclose(static[:, 1], [1, 0.5, 0])
    np.testing.assert_allclose(static[:, 4], pixels / 2399)


def test_without_labels_each_pixel_has_its_place_on_each_curve():
    static = static_features(GRID, np.arange(2400))
    for place, (left_right, up_down) in enumerate(MIRRORS):
        order = curve_order(40, 60, left_right=left_right, up_down=up_down)
        np.testing.assert_allclose(static[order, place], np.arange(2400) / 2399, rtol=1e-6)


def test_labels_of_faults_are_read_and_checked(tmp_path):
    path = tmp_path / "faults.csv"
    labels = np.arange(2400).reshape(40, 60) % 36
    path.write_text("\n".join(",".join(map(str, row)) for row in labels) + "\n")
    np.testing.assert_array_equal(read_faults(path, GRID), labels)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]))
    with pytest.raises(UsageError, match="expected 40 rows of labels, found 39"):
        read_faults(path, GRID)
    path.write_text("\n".join([*lines[:2], "1,2,3", *lines[3:]]))
    with pytest.raises(UsageError, match=r"faults\.csv:3: expected 60 labels, found 3"):
        read_faults(path, GRID)
    path.write_text("\n".join([*lines[:2], lines[2].replace("1", "x"), *lines[3:]]))
    with pytest.raises(UsageError, match=r"faults\.csv:3: expected whole numbers"):
        read_faults(path, GRID)
    with pytest.raises(NotFound):
        read_faults(tmp_path / "none.csv", GRID)
