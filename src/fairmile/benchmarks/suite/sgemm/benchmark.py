"""SGEMM: predict the time of a matrix product from its kernel's parameters, beside trees that do it well."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fairmile.benchmarks.harness import classical
from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.harness.predictions import Predictions
from fairmile.benchmarks.harness.report import report, train
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.suite.sgemm import baselines
from fairmile.benchmarks.suite.sgemm.data import Parts, held_out, make_table, read_table, split
from fairmile.benchmarks.suite.sgemm.models import TimeModel
from fairmile.benchmarks.suite.sgemm.settings import Settings
from fairmile.meter import span

Array = np.ndarray[Any, Any]
TARGET, SYNTHETIC_TARGET = 0.99, 0.997
_SHARE, _SHARE_REAL = 0.1, 0.67
_SOURCE = "https://github.com/lokeshtokas/SGEMM-GPU-Kernel-Performance"
_PUBLISHED = (
    {"name": "decision tree, two thirds to learn from", "metric": "r2", "value": 0.9988, "source": _SOURCE},
    {"name": "linear, lasso and ridge regression", "metric": "r2", "value": 0.557, "source": _SOURCE},
)


def run(session: Session) -> None:
    """Read or make the table, train, score the baselines and report."""
    settings, is_real = session.settings(Settings), session.data is not None
    if settings.hold_out:
        held_out(settings.hold_out)  # before the table is made
    share = settings.train_share or (_SHARE_REAL if is_real else _SHARE)
    settings = dataclasses.replace(settings, train_share=share)
    with span("data"):
        table = read_table(session.data) if session.data else make_table(settings.data_seed, settings.rows)
        parts = split(table, share, settings.hold_out, settings.data_seed)
    about = f"{session.data.name}" if session.data else "generated times (a model of a GTX 680)"
    words = f"{about}: {parts.words}"
    trained = train(task := Prediction(settings, parts, is_real), session, words)
    if trained is None:
        return
    with span("baselines"):
        scores, predicted = baselines.baseline_scores(
            parts, session.seed, session.folder if settings.save_trees else None
        )
    notes = [] if is_real else ["These times are not measured: no published figure applies."]
    notes += [] if classical.can_fit() else [classical.ABSENT]
    with span("plots"):
        figure = save_figure(
            session.folder / "predicted.svg",
            lambda each: _draw(each, parts.test_ln, predicted | {settings.model: trained.outputs["ln_ms"]}),
            size=(9, 3.2),
            title="Predicted and measured run times",
        )
    report(task, session, trained, scores, data=words, published=_PUBLISHED, notes=notes, figures=[figure])


@dataclass(frozen=True)
class Prediction:
    """The task: how long does a kernel take?"""

    settings: Settings
    parts: Parts
    is_real: bool

    @property
    def metric(self) -> Metric:
        is_published = self.is_real and not self.settings.hold_out
        is_default = not self.is_real and not self.settings.hold_out and self.settings.train_share >= _SHARE
        return Metric(
            "r2",
            "higher",
            target=TARGET if is_published else None,
            synthetic_target=SYNTHETIC_TARGET if is_default else None,
            mllog_key="eval_accuracy",
        )

    @cached_property
    def training(self) -> ArraySamples:
        return _samples(self.parts.train, self.parts.train_ln)

    @cached_property
    def validation(self) -> ArraySamples:
        return _samples(self.parts.test, self.parts.test_ln)

    def model(self) -> nn.Module:
        """Return a network that scales as the training part needs it."""
        return TimeModel(self.settings, self.parts.train, self.parts.train_ln)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean squared error of ln(time)."""
        return nn.functional.mse_loss(model(batch["kernel"]).float(), batch["ln_ms"])

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return ln(time) of each kernel."""
        return {"ln_ms": model(batch["kernel"])}

    def predictions(self, outputs: Mapping[str, Array]) -> Predictions:
        """Return ln(time) of each kernel beside the measured one."""
        predicted, truth = (np.reshape(each, (-1, 1)) for each in (outputs["ln_ms"], self.parts.test_ln))
        return Predictions("regression", predicted, truth, ("ln(time / ms)",))

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return the errors on both scales."""
        return baselines.scores(outputs["ln_ms"], self.parts.test_ln)


def _samples(settings: Array, ln_ms: Array) -> ArraySamples:
    return ArraySamples({"kernel": settings.astype(np.float32), "ln_ms": ln_ms.astype(np.float32)})


def _draw(figure: Any, true_ln: Array, predicted: Mapping[str, Array]) -> None:
    """Draw predicted over true times of the linear model, the best tree and the network."""
    shown = [name for name in ("linear", "extra trees", *list(predicted)[-1:]) if name in predicted]
    true_ms = np.exp(true_ln)
    for axes, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        axes.hexbin(
            true_ms, np.exp(predicted[name]), gridsize=45, bins="log", xscale="log", yscale="log", cmap="viridis",
            mincnt=1, linewidths=0.1,
        )  # fmt: skip
        axes.plot([true_ms.min(), true_ms.max()], [true_ms.min(), true_ms.max()], color="#888888", linewidth=0.8)
        r2 = baselines.scores(predicted[name], true_ln)["r2"]
        axes.set(title=f"{name}: R² {r2:.4f}", xlabel="time, ms", ylabel="predicted, ms")
