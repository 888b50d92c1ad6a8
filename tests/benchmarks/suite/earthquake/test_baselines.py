"""What a forecast has to beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairmile.benchmarks.suite.earthquake.baselines import BASELINES, climatology, constant, persistence, ridge
from fairmile.benchmarks.suite.earthquake.data import load, prepare
from fairmile.benchmarks.suite.earthquake.scoring import scores
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.windows import split

LEADS = ("overlapping", "non-overlapping")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    settings = Settings(synthetic_years=16, synthetic_locations=60, synthetic_seed=1)
    prepare(None, folder, settings)
    return split(load(folder), settings)


@pytest.mark.parametrize("lead", LEADS)
def test_the_constant_mean_scores_one_half_for_every_target(parts, lead):
    training, validation = parts
    found = scores(validation.truth(lead), constant(training, validation, lead))
    for name, value in found.items():
        if "overall" not in name:
            assert value == pytest.approx(0.5, abs=1e-6), name


def test_persistence_looks_good_only_where_windows_overlap(parts):
    training, validation = parts
    near, far = (scores(validation.truth(lead), persistence(training, validation, lead)) for lead in LEADS)
    assert near["nnse_2wk"] < 0.45
    assert near["nnse_14wk"] > 0.7
    assert near["nnse_52wk"] > near["nnse_26wk"] > near["nnse_14wk"]
    assert near["nnse_2wk"] == far["nnse_2wk"]
    assert max(far[f"nnse_{weeks}wk"] for weeks in (14, 26, 52)) < 0.45


def test_climatology_is_the_mean_of_what_was_seen_until_then(parts):
    training, validation = parts
    found = climatology(training, validation, "overlapping")
    place, which = 2, 5
    seen = validation.data.target[validation.locations[place], : validation.starts[which] + validation.history]
    np.testing.assert_allclose(found[place, which], seen.mean(axis=0), rtol=1e-5)


def test_climatology_leaves_out_what_is_missing(parts):
    training, validation = parts
    target = np.array(validation.data.target)
    target[:, :3] = np.nan
    masked = replace(validation, data=replace(validation.data, target=target))
    found = climatology(training, masked, "overlapping")
    seen = target[validation.locations[0], 3 : validation.history]
    np.testing.assert_allclose(found[0, 0], seen.mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("lead", LEADS)
def test_ridge_beats_persistence_on_every_target(parts, lead):
    training, validation = parts
    truth = validation.truth(lead)
    ours, theirs = (scores(truth, each(training, validation, lead)) for each in (ridge, persistence))
    for weeks in (2, 14, 26):
        assert ours[f"nnse_{weeks}wk"] > theirs[f"nnse_{weeks}wk"], weeks
    assert ours["nnse_2wk"] > theirs["nnse_2wk"] + 0.08


def test_ridge_finds_a_linear_law(parts):
    training, validation = parts
    data = training.data
    target = np.array(data.target)
    target[:, 1:] = (0.3 * data.observed[:, :-1, [0]] - 0.5 * data.observed[:, :-1, [2]] + 0.1).repeat(4, axis=2)
    changed = replace(data, target=target)
    found = ridge(replace(training, data=changed), replace(validation, data=changed), "overlapping")
    np.testing.assert_allclose(found, replace(validation, data=changed).truth("overlapping"), atol=1e-3)


def test_ridge_does_not_read_what_it_forecasts(parts):
    training, validation = parts
    data = validation.data
    border = int(validation.starts[4]) + validation.history
    later = np.array(data.observed)
    later[:, border:] = 0.7
    same = replace(validation, data=replace(data, observed=later), starts=validation.starts[:5])
    ours = ridge(training, replace(validation, starts=validation.starts[:5]), "overlapping")
    np.testing.assert_array_equal(ours, ridge(training, same, "overlapping"))


def test_missing_targets_are_left_out_of_the_fit(parts):
    training, validation = parts
    target = np.array(training.data.target)
    target[:, 60:70] = np.nan
    found = ridge(replace(training, data=replace(training.data, target=target)), validation, "overlapping")
    assert np.isfinite(found).all()


def test_every_baseline_forecasts_every_target_of_every_window(parts):
    training, validation = parts
    for kind, baseline in BASELINES.values():
        assert kind in ("trivial", "classical")
        assert baseline(training, validation, "overlapping").shape == (12, len(validation.starts), 4)
