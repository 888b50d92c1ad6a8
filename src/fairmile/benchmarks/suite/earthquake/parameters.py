"""Scores of the published prediction parameters, of a model and of persistence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.benchmarks.suite.earthquake.nomenclature import PREDICTIONS, Prediction, parse_prediction
from fairmile.benchmarks.suite.earthquake.scoring import mean_energy, score

if TYPE_CHECKING:
    from fairmile.benchmarks.suite.earthquake.settings import Settings
    from fairmile.benchmarks.suite.earthquake.windows import Windows

Array = np.ndarray[Any, Any]
HEADER = "parameter,step,known,average_nnse,summed_nnse,persistence_average_nnse,persistence_summed_nnse"


@dataclass(frozen=True)
class ParameterScore:
    """What a model and persistence score for a prediction parameter."""

    prediction: Prediction
    average: float
    summed: float
    persistence_average: float
    persistence_summed: float

    @property
    def line(self) -> str:
        """Return it as a line of CSV, in the order of HEADER."""
        each = self.prediction
        values = (self.average, self.summed, self.persistence_average, self.persistence_summed)
        return f'"{each.name}",{each.step},{each.shared:.4f},' + ",".join(f"{value:.6f}" for value in values)


def wanted(settings: Settings) -> list[Prediction]:
    """Return the predictions that the reference scores and those that the settings name, within the horizon."""
    usual = [each for each in PREDICTIONS if each.step <= settings.horizon]
    named = [parse_prediction(text, settings.horizon) for text in settings.parameters.split(",") if text.strip()]
    return list(dict.fromkeys([*usual, *named]))


def score_parameters(
    windows: Windows, forecast: Array, predictions: Sequence[Prediction], settings: Settings
) -> list[ParameterScore]:
    """Return the scores of a forecast [len(windows), horizon, 4]."""
    truth, shaped, last = windows.every_step(), windows.shaped(forecast), windows.last()
    rows = []
    for each in predictions:
        target, at = each.parameter.target, each.step - 1
        if each.is_average:
            observed, ours = (averaged(windows, values, each.step, settings) for values in (truth, shaped))
            theirs = averaged(windows, _past(windows, each.step), each.step, settings)
        else:
            observed, ours, theirs = truth[:, :, at, target], shaped[:, :, at, target], last[..., target]
        model, persistence = (
            score(observed, values, published=settings.missing == "published") for values in (ours, theirs)
        )
        rows.append(ParameterScore(each, model.average, model.summed, persistence.average, persistence.summed))
    return rows


def averaged(windows: Windows, values: Array, count: int, settings: Settings) -> Array:
    """Return the average by energy of two weeks over the first steps of targets [L, S, steps, 4]."""
    low, high = windows.data.low[0], windows.data.high[0]
    return mean_energy(np.asarray(values[..., 0], np.float64) * (high - low) + low, count, settings.scale)


def _past(windows: Windows, count: int) -> Array:
    """Return the targets of the last `count` fortnights of each history, [L, S, count, 4]."""
    when = (windows.starts + windows.history)[:, None] - 1 - np.arange(min(count, windows.history))
    return np.asarray(windows.data.target[windows.locations[:, None, None], when])
