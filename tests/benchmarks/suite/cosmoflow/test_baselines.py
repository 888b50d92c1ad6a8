from __future__ import annotations

import numpy as np
import pytest

from fairmile.benchmarks.suite.cosmoflow.baselines import Mean, Ridge, scores, summarise
from fairmile.benchmarks.suite.cosmoflow.universes import Generator


def test_scores_are_mean_errors_in_all_and_by_parameter():
    truth = np.zeros((2, 4))
    found = scores(np.array([[0.1, 0.2, 0.3, 0.4], [-0.1, -0.2, -0.3, -0.8]]), truth)
    assert found["mae"] == pytest.approx(0.3)
    assert found["mae_omega_m"] == pytest.approx(0.1)
    assert found["mae_h_0"] == pytest.approx(0.6)
    assert found["mse"] == pytest.approx((2 * (0.01 + 0.04 + 0.09) + 0.16 + 0.64) / 8)


def test_the_mean_of_uniform_parameters_is_wrong_by_a_half():
    unit = np.random.default_rng(0).uniform(-1, 1, (20000, 4))
    assert scores(Mean.fit(unit).predict(20000), unit)["mae"] == pytest.approx(0.5, abs=0.01)


def test_ridge_finds_a_linear_law_and_clips_what_cannot_be():
    random = np.random.default_rng(0)
    summaries = random.normal(size=(300, 6)) * [1, 10, 100, 1, 1, 1] + 5
    unit = np.tanh((summaries[:, :4] - 5) / [4, 40, 400, 4])
    ridge = Ridge.fit(summaries[:200], unit[:200])
    assert scores(ridge.predict(summaries[200:]), unit[200:])["mae"] < 0.03
    assert np.abs(ridge.predict(summaries * 50)).max() == 1


def test_ridge_learns_nothing_from_noise():
    random = np.random.default_rng(0)
    summaries, unit = random.normal(size=(150, 100)), random.uniform(-1, 1, (150, 4))
    ridge = Ridge.fit(summaries[:120], unit[:120])
    assert ridge.penalty >= 100
    assert scores(ridge.predict(summaries[120:]), unit[120:])["mae"] < 0.6


def test_summaries_do_not_depend_on_how_a_cube_is_turned_or_cut_into_batches():
    counts, _ = Generator(8).make(range(70))
    found = summarise(counts)
    assert found.shape == (70, 4 * 4 + 4 * 4 + 6)
    assert np.allclose(found, np.concatenate([summarise(counts[:3]), summarise(counts[3:])]))
    assert np.allclose(found, summarise(counts[:, ::-1].transpose(0, 2, 3, 1, 4)))
    assert np.isfinite(found).all()


@pytest.mark.thorough
def test_moments_are_right_to_twelve_digits_also_of_fields_in_which_hardly_anything_happens():
    counts = np.ones((3, 32, 32, 32, 2), np.int16)
    counts[0, ..., 0] = np.random.default_rng(0).poisson(2.0, (32, 32, 32))
    counts[1, 5, 6, :20, 1] = 0
    counts[2, 0, 0, 0] = (30, 0)
    found = summarise(counts)[:, 2 * 16 :]
    exact = np.log1p(counts.astype(np.longdouble)).reshape(3, -1, 2)
    mean = exact.mean(1)
    rest = exact - mean[:, None]
    deviation = np.sqrt((rest**2).mean(1))
    scale = np.maximum(deviation, 1e-9)
    normed = rest / scale[:, None]
    expected = [mean, deviation, (normed**3).mean(1), (normed**4).mean(1), normed.prod(2).mean(1, keepdims=True)]
    assert np.allclose(found, np.concatenate(expected, axis=1).astype(float), rtol=1e-12, atol=1e-12)
