"""Runs as one forecast: what is fitted, what is judged, and what no ensemble is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.ensembles.scores import (
    conformal_factors,
    crps,
    fit_temperature,
    fit_variance,
    interval_of_mean,
    normal_quantile,
    score_classes,
    score_normal,
)
from fairmile.benchmarks.harness.predictions import FILE, Predictions
from fairmile.workspace import Workspace

RNG = np.random.default_rng


def test_a_variance_is_fitted_back_from_its_own_errors():
    spread = RNG(0).uniform(0.1, 2, 20_000)
    for a2, b2 in ((4.0, 0.09), (0.0, 1.0), (1.0, 0.0)):
        error = RNG(1).normal(size=len(spread)) * np.sqrt(a2 * spread**2 + b2)
        found = fit_variance(error, spread)
        fitted, true = (first * spread**2 + second for first, second in (found, (a2, b2)))
        np.testing.assert_allclose(fitted, true, rtol=0.1)


def test_the_crps_of_a_normal_distribution_is_its_integral():
    x = np.linspace(-30, 30, 400_001)
    for error, sigma in ((0.0, 1.0), (1.3, 0.7), (-2.0, 2.5)):
        below = np.array([normal_part(each) for each in x[::100] / sigma])
        steps = (x[::100] >= error).astype(float)
        integral = float(((below - steps) ** 2).sum() * (x[100] - x[0]))
        assert float(crps(np.array([error]), np.array([sigma]))[0]) == pytest.approx(integral, rel=2e-2)


def normal_part(z: float) -> float:
    from math import erf, sqrt

    return (1 + erf(z / sqrt(2))) / 2


def test_intervals_of_the_right_width_hold_what_they_state_and_others_do_not():
    assert normal_quantile(0.95) == pytest.approx(1.959964, abs=1e-5)
    error = RNG(2).normal(size=50_000) * 3
    right, narrow = score_normal(error, np.full(len(error), 3.0)), score_normal(error, np.full(len(error), 1.0))
    for level in (50, 80, 90, 95):
        assert right.values[f"coverage_{level}"] == pytest.approx(level / 100, abs=0.01)
    assert narrow.values["coverage_90"] < 0.5
    assert narrow.values["crps"] > right.values["crps"]
    assert narrow.values["nll"] > right.values["nll"]
    np.testing.assert_allclose(right.observed, right.expected, atol=0.01)


def test_conformal_intervals_hold_what_they_state_for_errors_that_are_not_normal():
    error = RNG(3).standard_t(1.5, size=40_000)
    fitting, test, sigma = error[:20_000], error[20_000:], np.ones(20_000)
    held = score_normal(test, sigma, conformal_factors(fitting, sigma)).values
    assert held["coverage_90"] == pytest.approx(0.9, abs=0.01)
    assert abs(score_normal(test, sigma * float(np.std(fitting))).values["coverage_50"] - 0.5) > 0.2
    assert "nll" not in held


def test_a_temperature_makes_too_sure_probabilities_honest():
    logits = RNG(4).normal(size=(20_000, 3))
    honest = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    truth = (honest.cumsum(1) > RNG(5).uniform(size=(len(honest), 1))).argmax(1)
    too_sure = honest**3 / (honest**3).sum(1, keepdims=True)
    assert fit_temperature(too_sure, truth) == pytest.approx(3, rel=0.1)
    assert score_classes(honest, truth).values["ece"] < 0.02 < 0.15 < score_classes(too_sure, truth).values["ece"]


def test_the_interval_of_a_mean_is_wider_where_samples_of_a_group_are_alike():
    groups = np.repeat(np.arange(50), 40)
    alike = RNG(6).normal(size=50)[groups]
    mean, low, high = interval_of_mean(alike, groups)
    assert low < mean < high
    alone = interval_of_mean(alike, np.arange(len(alike)))
    assert high - low > 4 * (alone[2] - alone[1])


class TestRuns:
    """Runs of a program that keeps predictions."""

    @pytest.fixture()
    def workspace(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
        monkeypatch.chdir(tmp_path)
        return Workspace.open(
            environ={"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
            cwd=tmp_path,
        )

    def kept(self, workspace: Workspace, member: Predictions, seed: int, name: str = "waves") -> str:
        folder = Path(f"{name}-{seed}")
        folder.mkdir()
        run = workspace.runs.run([sys.executable, "-c", "0"], name=name, seed=seed, folder=str(folder.absolute()))
        member.write(run.work)
        return str(run.id)

    def member(self, seed: int, *, count: int = 4000, truth_seed: int = 0) -> Predictions:
        """Return a member that errs where it is hard, as all others do, and by as much more as its own dice say."""
        hard = RNG(7).uniform(0.05, 1, (count, 1))
        truth = RNG(truth_seed).normal(size=(count, 1))
        predicted = truth + hard * (RNG(8).normal(size=(count, 1)) + RNG(seed + 10).normal(size=(count, 1)))
        truth[0] = np.nan
        return Predictions("regression", predicted, truth, ["height"], "m", np.arange(count) // 4)

    def test_are_calibrated_on_one_part_and_judged_on_another(self, workspace: Workspace, tmp_path: Path) -> None:
        for seed in range(4):
            self.kept(workspace, self.member(seed), seed)
        joined = workspace.benchmarks.ensemble("waves", output=tmp_path / "waves.html")
        data = joined.to_dict()
        assert (len(data["runs"]), data["calibration_samples"], data["test_samples"]) == (4, 2000, 2000)
        assert (data["calibration_groups"], data["test_groups"]) == (500, 500)
        rows = {row["method"]: row["values"] for row in data["methods"]}
        assert list(rows) == ["single run", "spread", "constant", "calibrated", "conformal"]
        assert rows["calibrated"]["rmse"] < rows["single run"]["rmse"]
        assert rows["spread"]["coverage_90"] < 0.85 < rows["calibrated"]["coverage_90"]
        assert rows["conformal"]["coverage_90"] == pytest.approx(0.9, abs=0.03)
        assert rows["calibrated"]["crps"] < rows["constant"]["crps"]
        (gain,) = data["gains"]
        assert gain["high"] < 0
        assert gain["verdict"].startswith("height: calibrated is better, CRPS -")
        assert "height: calibrated is better" in joined.summary()
        page = (tmp_path / "waves.html").read_text()
        assert "Reliability" in page
        assert "90 % intervals hold" in page
        assert workspace.benchmarks.ensemble("waves", seed=1).to_dict()["methods"] != data["methods"]

    def test_of_a_classification_get_a_temperature(self, workspace: Workspace) -> None:
        truth = RNG(0).integers(0, 3, 3000)
        for seed in range(3):
            logits = 2 * RNG(seed + 1).normal(size=(3000, 3)) + 2.0 * np.eye(3)[truth]
            powers = np.exp(2 * logits)
            member = Predictions("classification", powers / powers.sum(1, keepdims=True), truth)
            self.kept(workspace, member, seed, "letters")
        data = workspace.benchmarks.ensemble(["letters"]).to_dict()
        rows = {row["method"]: row["values"] for row in data["methods"]}
        assert rows["ensemble"]["accuracy"] > rows["single run"]["accuracy"]
        assert rows["calibrated"]["nll"] < rows["ensemble"]["nll"] < rows["single run"]["nll"]
        assert [each["high"] < 0 for each in data["gains"]] == [True, True]

    def test_that_make_no_ensemble_are_one_sentence(self, workspace: Workspace) -> None:
        first = self.kept(workspace, self.member(0), 0)
        ensemble = workspace.benchmarks.ensemble
        with pytest.raises(UsageError, match=f"{first}: an ensemble needs at least 2 finished runs, found 1"):
            ensemble(first)
        twin = self.kept(workspace, self.member(0), 1)
        with pytest.raises(UsageError, match=f"{first} and {twin} predict the same"):
            ensemble([first, twin])
        other = self.kept(workspace, self.member(2, truth_seed=1), 2)
        with pytest.raises(UsageError, match=f"{first} and {other} predict different samples"):
            ensemble([first, other])
        bare = workspace.runs.run([sys.executable, "-c", "0"], name="bare")
        with pytest.raises(NotFound, match=f"run {bare.id} keeps no predictions"):
            ensemble([first, bare.id])
        (bare.work / FILE).write_bytes(b"PK no archive")
        with pytest.raises(Integrity, match="cannot be read"):
            ensemble([first, bare.id])
        with pytest.raises(UsageError, match="between 0 and 1, found 1"):
            ensemble([first, twin], calibration_share=1)
