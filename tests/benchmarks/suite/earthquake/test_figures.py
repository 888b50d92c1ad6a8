"""What is drawn stands at its date and its place, gaps included."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import numpy as np

from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.suite.earthquake.data import load, prepare
from fairmile.benchmarks.suite.earthquake.figures import draw_bars, draw_map, timeline
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.windows import split


def test_a_gap_of_the_catalog_breaks_the_line_and_moves_no_value_to_another_date(tmp_path):
    settings = Settings(synthetic_years=8, synthetic_locations=10)
    prepare(None, tmp_path, settings)
    data = load(tmp_path)
    observed, target = np.array(data.observed), np.array(data.target)
    observed[:, 60:64], target[:, 60:64] = np.nan, np.nan
    _, windows = split(replace(data, observed=observed, target=target), settings)
    assert (np.diff(windows.starts) > 1).any()
    for lead, step in (("overlapping", 1), ("non-overlapping", 26)):
        dates, values = timeline(windows, windows.truth(lead)[0, :, 3], step)
        assert (np.diff(dates) == np.timedelta64(14, "D")).all()
        series = dict(zip(data.dates.tolist(), target[windows.locations[0], :, 3].tolist(), strict=True))
        seen = ~np.isnan(values)
        assert values[seen].tolist() == [series[date] for date in dates[seen].tolist()]
        assert np.isnan(values).sum() >= 26


def test_a_map_has_the_coast_and_the_faults_of_its_catalog(tmp_path):
    settings = Settings(synthetic_years=6, synthetic_locations=15)
    prepare(None, tmp_path, settings)
    data = load(tmp_path)
    for is_made_up in (True, False):
        _, windows = split(replace(data, is_made_up=is_made_up), settings)
        forecast = windows.every_step().reshape(len(windows), windows.horizon, -1)
        drawn = draw_map(tmp_path, windows, forecast, "overlapping")
        svg = (tmp_path / drawn).read_text()
        assert "coast" in svg
        assert ("main faults" in svg) is not is_made_up
        assert ("faults of the synthetic catalog" in svg) is is_made_up
        assert "longitude" in svg


def test_scores_are_bars_from_zero_in_the_colour_of_their_kind(tmp_path):
    kinds = (("trivial", "mean"), ("classical", "ridge"), ("classical", "ridge, weighted"), ("model", "tft"))
    scores = [Score(kind, name, {"nnse_2wk": 0.6}) for kind, name in kinds]
    from matplotlib.figure import Figure  # takes long

    axis = Figure().subplots()
    draw_bars(axis, scores, ["nnse_2wk"])
    assert axis.get_ylim() == (0, 1)
    grey, blue, other_blue, red = (bars[0].get_facecolor() for bars in axis.containers)
    assert max(grey[:3]) - min(grey[:3]) < 0.01
    assert blue[2] > blue[0] and other_blue[2] > other_blue[0]
    assert blue != other_blue
    assert red[0] > red[2]


def test_the_outline_lies_in_southern_california_and_names_its_sources():
    outline = json.loads(resources.files("fairmile.benchmarks.suite.earthquake").joinpath("outline.json").read_text())
    assert set(outline["sources"]) == {"coast", "faults"}
    for line in (outline["coast"], *outline["faults"].values()):
        longitude, latitude = np.array(line).T
        assert ((longitude > -122) & (longitude < -114)).all()
        assert ((latitude > 31) & (latitude < 37)).all()
        assert (np.hypot(np.diff(longitude), np.diff(latitude)) < 1.2).all()
