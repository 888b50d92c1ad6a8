"""What is drawn stands at its date, gaps included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairmile.benchmarks.suite.earthquake.data import load, prepare
from fairmile.benchmarks.suite.earthquake.figures import timeline
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
