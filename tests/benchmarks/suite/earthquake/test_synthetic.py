"""The made-up catalog obeys the laws it is made by."""

from __future__ import annotations

import numpy as np
import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.bins import Grid
from fairmile.benchmarks.suite.earthquake.synthetic import Etas, make_catalog, simulate

ETAS = Etas(warm_up_years=0.0)
YEARS = 60
MADE = simulate(ETAS, Grid(), int(YEARS * 365.25), np.random.default_rng(3))
BACKGROUND = MADE.parent < 0


def test_background_comes_at_its_rate():
    expected = ETAS.background_per_day * YEARS * 365.25
    assert BACKGROUND.sum() == pytest.approx(expected, abs=4 * np.sqrt(expected))
    big = (MADE.mag[BACKGROUND] > 3.29).sum() / YEARS
    assert big == pytest.approx(62, abs=4 * np.sqrt(62 / YEARS))


def test_four_fifths_of_the_background_lie_on_the_faults():
    place = np.column_stack([MADE.lat, MADE.lon])[BACKGROUND]
    along = MADE.faults[:, 1] - MADE.faults[:, 0]
    part = ((place[:, None] - MADE.faults[:, 0]) * along).sum(axis=2) / (along**2).sum(axis=1)
    nearest = MADE.faults[:, 0] + np.clip(part, 0, 1)[..., None] * along
    distance_km = 111.2 * np.linalg.norm(place[:, None] - nearest, axis=2).min(axis=1)
    assert 0.8 < (distance_km < 5 * ETAS.scatter_km).mean() < 0.95  # others come near by chance
    assert (distance_km < ETAS.scatter_km).mean() > 0.5


def test_magnitudes_follow_gutenberg_and_richter():
    b = np.log10(np.e) / (MADE.mag.mean() - ETAS.min_magnitude)
    assert b == pytest.approx(0.9, abs=4 * 0.9 / np.sqrt(len(MADE.mag)) + 0.005)  # the cut at 7.5 raises it a little
    assert MADE.mag.min() >= 2.0
    assert MADE.mag.max() <= 7.5


def test_an_event_has_as_many_children_as_the_productivity_says():
    early = MADE.day < MADE.day.max() / 2
    children = np.bincount(MADE.parent[~BACKGROUND], minlength=len(MADE.mag))
    for low, high in ((2.0, 2.5), (3.0, 3.5), (4.0, 4.5)):
        chosen = early & (MADE.mag >= low) & (MADE.mag < high)
        mean = (ETAS.productivity * 10 ** (ETAS.alpha * (MADE.mag[chosen] - 2.0))).sum()
        in_time = 1 - (1 + (MADE.day.max() - MADE.day[chosen]) / ETAS.c_days) ** (1 - ETAS.p)
        expected = mean * in_time.mean()
        assert children[chosen].sum() == pytest.approx(expected, abs=5 * np.sqrt(expected))


def test_the_mean_number_of_children_is_the_branching_ratio():
    rng = np.random.default_rng(0)
    for alpha in (0.5, 0.8, 0.9):
        etas = Etas(alpha=alpha, max_magnitude=5.0)
        beta = 0.9 * np.log(10)
        mags = 2.0 - np.log1p(rng.uniform(size=400_000) * np.expm1(-beta * 3.0)) / beta
        mean = (etas.productivity * 10 ** (alpha * (mags - 2.0))).mean()
        assert mean == pytest.approx(0.6, rel=0.03)


def test_aftershocks_come_as_omori_says():
    young = (MADE.parent >= 0) & (MADE.day[MADE.parent] < MADE.day.max() / 2)
    delay = (MADE.day - MADE.day[MADE.parent])[young]
    window = MADE.day.max() / 2
    total = 1 - (1 + window / 0.01) ** -0.1
    for days in (0.05, 1.0, 30.0):
        part = (1 - (1 + days / 0.01) ** -0.1) / total
        found = (delay[delay < window] < days).mean()
        assert found == pytest.approx(part, abs=5 * np.sqrt(part * (1 - part) / young.sum()))


def test_aftershocks_of_large_events_spread_farther():
    child = MADE.parent >= 0
    distance = np.hypot(MADE.lat[child] - MADE.lat[MADE.parent[child]], MADE.lon[child] - MADE.lon[MADE.parent[child]])
    size = MADE.mag[MADE.parent[child]]
    near, far = np.median(distance[size < 3]), np.median(distance[size > 5])
    assert far > 5 * near


def test_the_rate_is_near_that_of_southern_california():
    rates = [(make_catalog(20, seed).events.mag > 3.29).sum() / 20 for seed in range(4)]
    assert 80 < np.mean(rates) < 150


def test_the_same_seed_makes_the_same_catalog_in_order():
    one, same, other = make_catalog(4, 7).events, make_catalog(4, 7).events, make_catalog(4, 8).events
    assert one.time_s.tolist() == same.time_s.tolist()
    assert one.mag.tolist() == same.mag.tolist()
    assert len(one) != len(other)
    assert (np.diff(one.time_s) >= 0).all()
    first, last = np.datetime64("2000-01-01"), np.datetime64("2004-01-01")
    assert first.astype("M8[s]").astype(int) <= one.time_s[0] <= one.time_s[-1] < last.astype("M8[s]").astype(int)
    assert (one.depth_km >= 0).all()


@for_each("changes", [{"branching": 1.0}, {"p": 1.0}, {"max_magnitude": 1.0}])
def test_a_process_that_never_ends_is_refused(changes):
    with pytest.raises(UsageError):
        Etas(**changes)
