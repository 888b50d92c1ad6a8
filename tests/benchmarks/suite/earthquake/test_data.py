"""From a catalog to prepared arrays."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.earthquake.bins import Grid, backward, daily_bins, fortnights
from fairmile.benchmarks.suite.earthquake.data import load, prepare, what
from fairmile.benchmarks.suite.earthquake.events import Events, read_events, write_events
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.synthetic import START, make_catalog

PERIOD = {"start": "2000-01-01", "end": "2007-12-31", "min_events": 2.1, "min_block_events": 10.0}


def cut(events, kept):
    return Events(*(getattr(events, name)[kept] for name in ("time_s", "lat", "lon", "depth_km", "mag")))


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    path = tmp_path_factory.mktemp("catalog") / "events.csv"
    write_events(path, make_catalog(8, 1).events)
    return path


def test_prepared_series_are_those_of_the_equations(catalog, tmp_path):
    prepare(catalog, tmp_path, Settings(**PERIOD))
    data = load(tmp_path)
    length = (8 * 365 + 2) // 14 - 25
    assert data.observed.shape == (len(data.pixels), length, 9)
    assert data.target.shape == (len(data.pixels), length, 4)
    assert (data.known.shape, data.static.shape) == ((length, 13), (len(data.pixels), 5))
    series = fortnights(daily_bins(read_events(catalog), Grid(), START, 2922), data.pixels)
    for place, weeks in enumerate((2, 14, 26, 52)):
        expected = backward(series.energy, weeks)[25:].T
        np.testing.assert_allclose(data.restore(data.target)[:, :, place], expected, rtol=1e-5)
    assert data.observed.min() == 0
    assert data.observed.max() == 1
    assert data.dates[-1] == np.datetime64("2007-12-31")
    assert (np.diff(data.last_day) == 14).all()
    assert (Grid().pixel(data.latitude, data.longitude) == data.pixels).all()
    assert not data.is_made_up
    assert data.notes == data.faults == ()
    assert f"{data.events:,} events 2000-01-01 to 2007-12-31, {len(data.pixels)} locations" in data.source


def test_without_a_catalog_one_is_made_up_in_the_same_schema(tmp_path):
    settings = Settings(synthetic_years=6, synthetic_locations=20)
    prepare(None, tmp_path, settings)
    data = load(tmp_path)
    assert data.is_made_up
    assert len(data.pixels) == 20
    assert "synthetic" in data.source
    made = make_catalog(6, 0)
    assert len(read_events(tmp_path / "events.csv.gz")) == len(made.events)
    np.testing.assert_array_equal(data.faults, made.faults)
    assert not np.isnan(data.target).any()


def test_a_missing_year_is_told_and_masked(catalog, tmp_path):
    events = read_events(catalog)
    year = events.time_s.astype("M8[s]").astype("M8[Y]").astype(int) + 1970
    path = tmp_path / "gap.csv"
    write_events(path, cut(events, year != 2003))
    prepare(path, tmp_path / "out", Settings(**PERIOD))
    data = load(tmp_path / "out")
    assert len(data.notes) == 1
    assert "no event from 2003-01-01 to 2003-12-31" in data.notes[0]
    begins = data.dates - np.timedelta64(13, "D")
    touched = (data.dates >= np.datetime64("2003-01-01")) & (begins <= np.datetime64("2003-12-31"))
    first, last = np.flatnonzero(touched)[[0, -1]]
    for place, weeks in enumerate((2, 14, 26, 52)):
        missing = np.isnan(data.target[:, :, place])
        assert np.flatnonzero(missing.all(axis=0)).tolist() == list(range(first, last + weeks // 2))
        assert missing.any(axis=0).tolist() == missing.all(axis=0).tolist()


def test_a_period_that_is_not_there_is_refused_with_the_one_that_is(catalog, tmp_path):
    with pytest.raises(UsageError, match="no event in the region and the period 1960-01-01 to 1970-01-01") as caught:
        prepare(catalog, tmp_path, Settings(start="1960-01-01", end="1970-01-01"))
    assert "the catalog covers 2000-01-02 to 2007-12-31" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"start": "yesterday"}, "parameter start: expected a day like 1950-01-01, found 'yesterday'"),
        ({"end": "2001-01-01"}, "shorter than 4 years"),
        ({"south": 36.0}, "is empty"),
    ],
)
def test_settings_that_leave_nothing_are_refused(catalog, tmp_path, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        prepare(catalog, tmp_path, Settings(**{**PERIOD, **changes}))
    with pytest.raises(UsageError, match="2 years are too few"):
        prepare(None, tmp_path, Settings(synthetic_years=2))


def test_what_was_skipped_stays_in_the_notes(catalog, tmp_path):
    path = tmp_path / "broken.csv"
    path.write_text(catalog.read_text() + "2007-12-31T00:00:00,oops,1,2,3\n")
    with pytest.raises(UsageError, match="has no lat"):
        prepare(path, tmp_path / "a", Settings(**PERIOD))
    prepare(path, tmp_path / "b", Settings(**PERIOD, broken="skip"))
    assert "1 broken rows were skipped" in load(tmp_path / "b").notes[0]


def test_a_folder_that_was_not_prepared_or_is_damaged_is_told(catalog, tmp_path):
    with pytest.raises(NotFound, match="has no prepared earthquake data"):
        load(tmp_path)
    prepare(catalog, tmp_path, Settings(**PERIOD))
    (tmp_path / "target.npy").write_bytes(b"short")
    with pytest.raises(Integrity, match=r"target\.npy cannot be read"):
        load(tmp_path)


def test_only_what_changes_the_data_counts_for_its_cache():
    assert what(Settings(epochs=7)) == what(Settings())
    assert what(Settings(split="time", lead="non-overlapping")) == what(Settings())
    assert what(Settings(end="2018-12-31")) != what(Settings())


def test_other_fault_labels_in_the_same_file_are_other_data(tmp_path):
    faults = tmp_path / "faults.csv"
    faults.write_text("1,2\n")
    before = what(Settings(faults=str(faults)))
    faults.write_text("2,1\n")
    assert what(Settings(faults=str(faults))) != before
