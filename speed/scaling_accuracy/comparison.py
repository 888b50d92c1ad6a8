"""Predictions beside published measurements: every row with its error, calibrated on other rows than its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scaling_accuracy.calibration import TransformerRun, calibrate
from scaling_accuracy.epochs import Pair, learn_effects, predict_epoch_s
from scaling_accuracy.published import MegatronRow

from fairmile.base.errors import UsageError
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.sharding import rank_memory
from fairmile.predict.scaling.step import A100, NodeModel
from fairmile.predict.scaling.transformer import Constants, TransformerModel


@dataclass(frozen=True)
class Compared:
    """One figure, predicted and measured, in the same unit."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative, negative where the prediction is too low."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Summary:
    """Absolute relative errors of many rows."""

    rows: int
    mean: float
    median: float
    p90: float
    worst: float

    def __str__(self) -> str:
        figures = (
            f"mean {self.mean:.2%}, median {self.median:.2%}, 90th percentile {self.p90:.2%}, worst {self.worst:.2%}"
        )
        return f"{self.rows} rows: {figures}"


def summarise(rows: Sequence[Compared]) -> Summary:
    """Return the errors of rows in figures; no row is left out."""
    if not rows:
        raise UsageError("there is nothing to summarise: no row was compared")
    errors = sorted(abs(row.error) for row in rows)
    p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return Summary(len(errors), fmean(errors), median(errors), p90, errors[-1])


def compare_runs(runs: Sequence[TransformerRun], constants: Constants, machine: NodeModel = A100) -> list[Compared]:
    """Return measured runs beside their prediction by given constants."""
    model = TransformerModel(constants, machine)
    return [Compared(run.name, model.step(run.model, run.layout).step_time_s, run.step_time_s) for run in runs]


def split_runs(
    runs: Sequence[TransformerRun], calibration: int, seed: int, machine: NodeModel = A100
) -> list[Compared]:
    """Calibrate on runs drawn at random, and return all others beside their prediction."""
    if not 0 < calibration < len(runs):
        raise UsageError(f"{calibration} of {len(runs)} runs cannot calibrate and leave others to predict")
    drawn = list(runs)
    random.Random(seed).shuffle(drawn)
    constants = calibrate(drawn[:calibration], machine)
    return compare_runs(drawn[calibration:], constants, machine)


def compare_megatron_times(rows: Sequence[MegatronRow]) -> list[Compared]:
    """Return Megatron's iteration times beside the prediction calibrated on the rows of all other models."""
    timed = [(row, _run(row)) for row in rows if row.iteration_time_s is not None]
    found = []
    for row, run in timed:
        constants = calibrate([other for each, other in timed if each.name != row.name])
        found += compare_runs([run], constants)
    return found


def _run(row: MegatronRow) -> TransformerRun:
    assert row.iteration_time_s is not None
    return TransformerRun(row.model, row.layout, row.iteration_time_s, f"{row.name} {row.mode}")


def compare_megatron_memory(rows: Sequence[MegatronRow]) -> list[Compared]:
    """Return activations of the first stage, states of the average rank and the share that each mode keeps.

    The paper gives states without what embeddings add to the first stage, so the average over ranks is compared.
    """
    found = []
    kept = {}
    for row in rows:
        footprint = closed_form(row.model).footprint
        kept[row.name, row.mode] = rank_memory(footprint, row.layout).activations_bytes
        if row.activation_bytes is not None:
            name = f"{row.name} {row.mode} activations"
            found.append(Compared(name, kept[row.name, row.mode], row.activation_bytes))
        if row.parameter_optimizer_bytes is not None:
            states = footprint.total_parameters_bytes + footprint.gradients_bytes + footprint.optimizer_bytes
            average = states / (row.layout.tensor * row.layout.pipeline)
            found.append(Compared(f"{row.name} {row.mode} states", average, row.parameter_optimizer_bytes))
    for row in rows:
        if row.activation_percent is not None and (row.name, "none") in kept and row.mode != "none":
            share = 100 * kept[row.name, row.mode] / kept[row.name, "none"]
            found.append(Compared(f"{row.name} {row.mode} % of none", share, row.activation_percent))
    return found


def compare_epochs(pairs: Sequence[Pair], teachers: Callable[[Pair], Sequence[Pair]] | None = None) -> list[Compared]:
    """Return epoch times of the larger runs beside their prediction from the smaller ones.

    What cannot be seen in the smaller run alone is learned from other pairs, by default from all but the one predicted.
    """
    chosen = teachers or (lambda pair: [other for other in pairs if other is not pair])
    found = []
    for pair in pairs:
        effects = learn_effects(chosen(pair))
        found.append(Compared(pair.name, predict_epoch_s(pair, effects), pair.large.epoch_s))
    return found
