"""Names of the published tables, and what they mean."""

from __future__ import annotations

import numpy as np

from fairmile.benchmarks.suite.earthquake.nomenclature import (
    PARAMETERS,
    TARGET_WEEKS,
    lead_steps,
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
    assert [year.at(step) for step in (1, 2, 26)] == ["Next Year Back", "Next Year Back, step 2", "Year Ahead"]
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
