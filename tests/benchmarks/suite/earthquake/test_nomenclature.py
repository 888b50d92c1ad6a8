"""Names of the published tables, and what they mean."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.nomenclature import (
    PARAMETERS,
    PREDICTIONS,
    TARGET_WEEKS,
    Prediction,
    lead_steps,
    parse_prediction,
    top_table,
)


def test_the_four_parameters_bear_their_published_names():
    assert [each.name for each in PARAMETERS] == [
        "Next 2 Weeks Now",
        "Next 3 Months Back",
        "Next 6 Months Back",
        "Next Year Back",
    ]
    assert tuple(each.weeks for each in PARAMETERS) == TARGET_WEEKS
    assert [each.target for each in PARAMETERS] == [0, 1, 2, 3]


def test_leads_without_overlap_are_as_long_as_the_window():
    assert lead_steps("overlapping") == (1, 1, 1, 1)
    assert lead_steps("non-overlapping") == (1, 7, 13, 26)


def test_a_parameter_a_whole_window_on_is_the_sum_ahead():
    year = PARAMETERS[3]
    assert [year.at(step) for step in (1, 2, 26)] == ["Next Year Back", "Mag Year Back 2wk+2", "Year Ahead"]
    assert PARAMETERS[0].at(1) == "Next 2 Weeks Now"


def test_the_top_table_ranks_parameters_at_steps_and_tells_how_much_was_known():
    average = np.full((26, 4), np.nan)
    average[0], average[6, 1], average[25, 3] = [0.4, 0.8, 0.9, 0.95], 0.45, 0.42
    rows = top_table(average, average / 2, count=5)
    assert [(row.rank, row.name, row.step) for row in rows] == [
        (1, "Next Year Back", 1),
        (2, "Next 6 Months Back", 1),
        (3, "Next 3 Months Back", 1),
        (4, "3 Months Ahead", 7),
        (5, "Year Ahead", 26),
    ]
    assert rows[0].shared == 25 / 26
    assert rows[3].shared == 0
    assert rows[0].summed == 0.475
    assert len(top_table(average, average)) == 6
    assert len(top_table(np.random.default_rng(0).uniform(size=(26, 4)), average)) == 20


def test_a_window_of_averages_is_ranked_among_the_others():
    average = np.full((26, 4), np.nan)
    average[0, 3] = 0.9
    rows = top_table(average, average, averages={7: (0.95, 0.8)})
    assert [(row.name, row.step, row.shared, row.summed) for row in rows] == [
        ("2wk+7AVG", 7, 0.0, 0.8),
        ("Next Year Back", 1, 25 / 26, 0.9),
    ]


def test_every_published_name_means_what_it_names():
    for each in PREDICTIONS:
        assert parse_prediction(each.name, 26) == each
    year = PARAMETERS[3]
    for text in ("Mag Year Back 2wk+13", "mag year  back 2WK+13", "Next Year Back 2wk+13"):
        assert parse_prediction(text, 26) == Prediction(year, 13)
    assert parse_prediction("2wk+26 avg", 26).name == "2wk+26AVG"
    assert parse_prediction("Magnitude 2 weeks Now 2wk+7AVG", 26).is_average
    assert parse_prediction("Next Magnitude 2 weeks Now", 26) == Prediction(PARAMETERS[0], 1)


def test_a_name_that_is_none_is_refused_with_those_that_are():
    for text, message in (
        ("Mag Decade Back 2wk+7", "no prediction parameter named 'Mag Decade Back 2wk\\+7'"),
        ("2wk+27AVG", "expected 2wk\\+2 to 2wk\\+26"),
        ("Mag Year Back 2wk+0", "expected 2wk\\+1 to 2wk\\+26"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_prediction(text, 26)
