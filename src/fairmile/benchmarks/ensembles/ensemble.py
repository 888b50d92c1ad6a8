"""Joins runs of one benchmark to an ensemble, calibrates its uncertainty and judges it on other samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.benchmarks.ensembles.results import Ensemble, EnsembleDict, GainDict, MethodDict
from fairmile.benchmarks.ensembles.scores import (
    Scores,
    conformal_factors,
    fit_temperature,
    fit_variance,
    interval_of_mean,
    score_classes,
    score_normal,
    with_temperature,
)
from fairmile.benchmarks.harness.predictions import Predictions, read_predictions
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.runs import Runs

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

LEAST = 2
_MOST_SAMPLES = 200_000  # of each part and output: more does not make the scores any surer


def join(runs: Runs, references: Sequence[str], *, calibration_share: float = 0.5, seed: int = 0) -> Ensemble:
    """Return runs as one forecast; a part of the groups of samples calibrates it, the others judge it."""
    if not 0 < calibration_share < 1:
        raise UsageError(f"calibration share: expected a number between 0 and 1, found {calibration_share:g}")
    members = _selected(runs, references)
    kept = [read_predictions(run.work, run.id) for run in members]
    _check_equal(members, kept)
    first = kept[0]
    groups = np.arange(len(first.truth)) if first.groups is None else first.groups
    calibrates = _drawn(groups, calibration_share, seed)
    predicted = np.stack([each.predicted for each in kept]).astype(np.float64)
    judge = _classes if first.kind == "classification" else _regression
    methods, gains = judge(first, predicted, groups, calibrates)
    counts = (len(np.unique(groups[part])) for part in (calibrates, ~calibrates))
    calibration_groups, test_groups = counts
    data: EnsembleDict = {
        "benchmark": members[0].spec.name,
        "kind": first.kind,
        "runs": [run.id for run in members],
        "unit": first.unit,
        "calibration_samples": int(calibrates.sum()),
        "test_samples": int((~calibrates).sum()),
        "calibration_groups": calibration_groups,
        "test_groups": test_groups,
        "methods": methods,
        "gains": gains,
        "notes": _notes(members, calibration_groups != int(calibrates.sum())),
    }
    return Ensemble(data)


def _selected(runs: Runs, references: Sequence[str]) -> list[Run]:
    words = [runs.get(each).group or each if each == "last" else each for each in references]
    chosen = {run.id: run for word in words for run in runs.select(word)}
    done = [run for run in chosen.values() if run.state == RunState.DONE]
    if len(done) < LEAST:
        raise UsageError(
            f"{', '.join(references)}: an ensemble needs at least {LEAST} finished runs, found {len(done)}",
            hint="`fairmile run NAME --repeat 5 --seed 0 -p predictions=true` runs a benchmark with 5 seeds",
        )
    return done


def _check_equal(members: Sequence[Run], kept: Sequence[Predictions]) -> None:
    """Refuse runs that predict different things, or the same thing twice."""
    first = kept[0]
    for run, each in zip(members[1:], kept[1:], strict=True):
        is_same = each.kind == first.kind and each.predicted.shape == first.predicted.shape
        if not is_same or not np.array_equal(each.truth, first.truth, equal_nan=each.kind == "regression"):
            raise UsageError(
                f"runs {members[0].id} and {run.id} predict different samples",
                hint="join runs of one benchmark with the same data and split; only the seed may differ",
            )
        if np.array_equal(each.predicted, first.predicted):
            raise UsageError(
                f"runs {members[0].id} and {run.id} predict the same",
                hint="give each its own seed: with --repeat, --seed 0 counts up",
            )


def _drawn(groups: Array, share: float, seed: int) -> Array:
    """Return which samples calibrate: all of a group or none of it."""
    known = np.unique(groups)
    count = round(len(known) * share)
    if not 0 < count < len(known):
        raise UsageError(f"{len(known)} independent samples are too few to calibrate and to judge")
    chosen = np.random.default_rng(seed).permutation(known)[:count]
    return np.asarray(np.isin(groups, chosen))


def _regression(
    first: Predictions, predicted: Array, groups: Array, calibrates: Array
) -> tuple[list[MethodDict], list[GainDict]]:
    methods: list[MethodDict] = []
    gains: list[GainDict] = []
    for place in range(first.truth.shape[1]):
        output = first.outputs[place] if place < len(first.outputs) else str(place)
        truth = first.truth[:, place].astype(np.float64)
        seen = ~np.isnan(truth)
        parts = [_thinned(np.flatnonzero(seen & part)) for part in (calibrates, ~calibrates)]
        if not all(map(len, parts)):
            continue
        members = predicted[:, :, place]
        error, spread = truth - members.mean(axis=0), members.std(axis=0, ddof=1)
        scored = _ways(error, spread, *parts)
        rmse = {"rmse": float(np.sqrt(np.mean(error[parts[1]] ** 2)))}
        alone = float(np.mean(np.sqrt(np.mean((truth - members)[:, parts[1]] ** 2, axis=1))))
        methods.append(_row("single run", output, Scores({"rmse": alone}, *(np.zeros(0),) * 3)))
        methods += [_row(name, output, each, rmse) for name, each in scored.items()]
        gains.append(_gain("crps", output, scored, "calibrated", "constant", groups[parts[1]]))
    return methods, gains


def _ways(error: Array, spread: Array, fitting: Array, test: Array) -> dict[str, Scores]:
    a2, b2 = fit_variance(error[fitting], spread[fitting])
    constant = float(np.sqrt(np.mean(error[fitting] ** 2)))
    sigma = np.sqrt(a2 * spread**2 + b2)
    factors = conformal_factors(error[fitting], sigma[fitting])
    return {
        "spread": score_normal(error[test], spread[test]),
        "constant": score_normal(error[test], np.full(len(test), constant)),
        "calibrated": score_normal(error[test], sigma[test]),
        "conformal": score_normal(error[test], sigma[test], factors),
    }


def _classes(
    first: Predictions, predicted: Array, groups: Array, calibrates: Array
) -> tuple[list[MethodDict], list[GainDict]]:
    truth, test = first.truth.astype(np.int64), ~calibrates
    mean = predicted.mean(axis=0)
    temperature = fit_temperature(mean[calibrates], truth[calibrates])
    each = [score_classes(member[test], truth[test]) for member in predicted]
    single = Scores(
        {name: float(np.mean([one.values[name] for one in each])) for name in each[0].values},
        np.mean([one.expected for one in each], axis=0),
        np.mean([one.observed for one in each], axis=0),
        np.mean([one.loss for one in each], axis=0),
    )
    scored = {
        "single run": single,
        "ensemble": score_classes(mean[test], truth[test]),
        "calibrated": score_classes(with_temperature(mean[test], temperature), truth[test]),
    }
    methods = [_row(name, "", one) for name, one in scored.items()]
    pairs = (("ensemble", "single run"), ("calibrated", "ensemble"))
    return methods, [_gain("nll", "", scored, *pair, groups[test]) for pair in pairs]


def _thinned(numbers: Array) -> Array:
    step = -(-len(numbers) // _MOST_SAMPLES) if len(numbers) else 1
    return np.asarray(numbers[::step])


def _row(name: str, output: str, scored: Scores, more: Mapping[str, float] | None = None) -> MethodDict:
    expected, observed = scored.expected.tolist(), scored.observed.tolist()
    values = {**(more or {}), **scored.values}
    return {"method": name, "output": output, "values": values, "expected": expected, "observed": observed}


def _gain(loss: str, output: str, scored: Mapping[str, Scores], method: str, than: str, groups: Array) -> GainDict:
    difference, low, high = interval_of_mean(scored[method].loss - scored[than].loss, groups)
    base = abs(float(scored[than].loss.mean())) or 1.0
    what = f"{output}: " if output else ""
    change = f"{loss.upper()} {difference / base:+.1%} [{low / base:+.1%}, {high / base:+.1%}] against {than}"
    if low <= 0 <= high:
        verdict = f"{what}cannot tell {method} from {than}, {change}"
    else:
        verdict = f"{what}{method} is {'better' if high < 0 else 'worse'}, {change}"
    relative = {"relative": difference / base, "low": low / base, "high": high / base}
    return {"loss": loss, "output": output, "method": method, "than": than, **relative, "verdict": verdict}  # type: ignore[typeddict-item]


def _notes(members: Sequence[Run], is_grouped: bool) -> list[str]:
    notes = [
        "Calibration and test share no group of samples." if is_grouped else "Calibration and test share no sample."
    ]
    seeds = {run.spec.params.get("seed", run.spec.seed) for run in members}
    others = {
        tuple(sorted((name, str(value)) for name, value in run.spec.params.items() if name != "seed"))
        for run in members
    }
    if len(others) > 1:
        notes.append("The runs differ in more than their seed.")
    if len(seeds) < len(members):
        notes.append("Some runs share a seed.")
    notes.append("Where the validation samples also chose the epoch of each run, errors on them are slightly too low.")
    return notes
