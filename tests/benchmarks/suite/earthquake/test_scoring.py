"""NNSE by its definition; what is missing is masked."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.scoring import by_step, nnse, score, scores, skill, skills

RNG = np.random.default_rng(0)
OBSERVED = RNG.gamma(2.0, size=(6, 50))
PREDICTED = OBSERVED + RNG.normal(0, 0.7, size=OBSERVED.shape)


def by_hand(observed, predicted):
    spread = ((observed - observed.mean()) ** 2).sum()
    return spread / (spread + ((observed - predicted) ** 2).sum())


def test_the_efficiency_is_that_of_nash_and_sutcliffe_normalised():
    found = score(OBSERVED, PREDICTED)
    each = [by_hand(o, p) for o, p in zip(OBSERVED, PREDICTED, strict=True)]
    np.testing.assert_allclose(found.by_location, each)
    assert found.average == pytest.approx(np.mean(each))
    assert found.summed == pytest.approx(by_hand(OBSERVED.sum(0), PREDICTED.sum(0)))
    assert found.overall == pytest.approx(by_hand(OBSERVED.ravel(), PREDICTED.ravel()))
    efficiency = 1 - ((OBSERVED[0] - PREDICTED[0]) ** 2).sum() / ((OBSERVED[0] - OBSERVED[0].mean()) ** 2).sum()
    assert found.by_location[0] == pytest.approx(1 / (2 - efficiency))


def test_the_mean_scores_one_half_and_the_truth_one():
    mean = np.broadcast_to(OBSERVED.mean(1, keepdims=True), OBSERVED.shape)
    found = score(OBSERVED, mean)
    assert found.by_location == pytest.approx(np.full(6, 0.5), abs=1e-12)
    assert found.summed == pytest.approx(0.5, abs=1e-12)
    assert score(OBSERVED, OBSERVED).average == 1.0


def test_what_was_not_observed_takes_no_part():
    observed = OBSERVED.copy()
    observed[:, 40:] = np.nan
    wild = PREDICTED.copy()
    wild[:, 40:] = 1e9
    masked, short = score(observed, wild), score(OBSERVED[:, :40], PREDICTED[:, :40])
    for name in ("average", "summed", "overall"):
        assert getattr(masked, name) == pytest.approx(getattr(short, name), abs=1e-12)


def test_a_location_that_is_missing_at_some_time_is_missing_on_both_sides_of_the_sum():
    observed = OBSERVED.copy()
    observed[2, 7] = np.nan
    kept = PREDICTED.copy()
    kept[2, 7] = 0
    assert score(observed, PREDICTED).summed == pytest.approx(by_hand(np.nansum(observed, 0), kept.sum(0)))


def test_the_published_way_counts_what_is_missing_as_a_hit_and_scores_higher():
    observed = OBSERVED.copy()
    observed[:, 30:] = np.nan
    ours, published = score(observed, PREDICTED), score(observed, PREDICTED, published=True)
    filled = np.where(np.isnan(observed), PREDICTED, observed)
    assert published.by_location[0] == pytest.approx(by_hand(filled[0], PREDICTED[0]))
    assert published.average > ours.average
    assert score(OBSERVED, PREDICTED, published=True).average == score(OBSERVED, PREDICTED).average


def test_a_location_where_nothing_varies_has_no_score_and_does_not_enter_the_average():
    observed = OBSERVED.copy()
    observed[0], observed[1] = 3.0, np.nan
    found = score(observed, PREDICTED)
    assert np.isnan(found.by_location).tolist() == [True, True, False, False, False, False]
    assert found.average == pytest.approx(np.mean(found.by_location[2:]))
    assert np.isnan(nnse(np.full(5, 2.0), np.zeros(5)))


def test_a_prediction_that_is_no_number_does_not_leave_the_average():
    predicted = PREDICTED.copy()
    predicted[3, 7] = np.nan
    found = score(OBSERVED, predicted)
    assert np.isnan(found.by_location).tolist() == [False, False, False, True, False, False]
    assert np.isnan(found.average)
    unseen = OBSERVED.copy()
    unseen[3, 7] = np.nan
    assert np.isfinite(score(unseen, predicted).average)


def test_all_targets_are_scored_by_name():
    observed, predicted = np.stack([OBSERVED] * 4, -1), np.stack([PREDICTED, OBSERVED, OBSERVED, OBSERVED], -1)
    found = scores(observed, predicted)
    one = score(OBSERVED, PREDICTED)
    assert found["nnse_2wk"] == one.average
    assert found["nnse_summed_2wk"] == one.summed
    assert found["nnse_overall_2wk"] == one.overall
    assert found["nnse"] == pytest.approx((one.average + 3) / 4)
    assert len(found) == 13


def test_steps_are_scored_apart():
    observed = RNG.normal(size=(3, 20, 2, 4))
    predicted = observed.copy()
    predicted[:, :, 1, 2] += RNG.normal(size=(3, 20))
    average, summed = by_step(observed, predicted)
    assert (average < 1).sum() == (summed < 1).sum() == 1
    assert average[1, 2] == score(observed[:, :, 1, 2], predicted[:, :, 1, 2]).average


def test_skill_is_the_error_that_a_reference_makes_and_the_forecast_does_not():
    observed, reference, half = np.array([1.0, 2.0, np.nan]), np.array([3.0, 4.0, 9.0]), np.array([2.0, 3.0, 7.0])
    assert skill(observed, half, reference) == 0.75
    assert skill(observed, reference, reference) == 0
    assert np.isnan(skill(observed, half, observed))
    each = np.stack([observed] * 4, -1)
    assert skills(each, each, each + 1) == dict.fromkeys(("skill_2wk", "skill_14wk", "skill_26wk", "skill_52wk"), 1.0)


def test_predictions_of_another_shape_are_refused():
    with pytest.raises(UsageError, match="do not fit"):
        score(OBSERVED, PREDICTED[:, 1:])
