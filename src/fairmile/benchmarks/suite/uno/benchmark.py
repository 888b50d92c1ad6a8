"""Uno: predict the response of tumour cell lines to drugs, beside means, ridge regression and boosting."""

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
from fairmile.benchmarks.harness.report import report, train
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.suite.uno import baselines
from fairmile.benchmarks.suite.uno.data import PairSamples, Parts, split
from fairmile.benchmarks.suite.uno.models import Uno
from fairmile.benchmarks.suite.uno.screens import make_screen
from fairmile.benchmarks.suite.uno.settings import Settings, choose
from fairmile.meter import span

Array = np.ndarray[Any, Any]
TARGET = 0.0054
_SOURCE = "https://github.com/ECP-CANDLE/Benchmarks/blob/develop/Pilot1/Uno/README.AUC.md"
_PUBLISHED = (
    {"name": "Uno, validation", "metric": "mse", "value": 0.005335, "source": _SOURCE},
    {"name": "Uno, validation", "metric": "mae", "value": 0.049082, "source": _SOURCE},
    {"name": "Uno, truth and prediction compared", "metric": "r2", "value": 0.7742, "source": _SOURCE},
    {"name": "random pairs", "metric": "mse", "value": 0.0474, "source": _SOURCE},
)


def run(session: Session) -> None:
    """Read or make a screen, train, score the baselines and report."""
    settings, is_real = choose(session.params, has_data=session.data is not None), session.data is not None
    with span("data"):
        if session.data is not None:
            from fairmile.benchmarks.suite.uno.files import read_screen

            screen, about = read_screen(session.data), session.data.name
        else:
            sizes = settings.cells, settings.drugs, settings.genes, settings.descriptors
            screen, about = make_screen(settings.data_seed, *sizes), "generated screen"
        parts = split(screen, settings.split, settings.data_seed)
    words = f"{about}: {parts.words}"
    trained = train(task := Response(settings, parts, is_real), session, words)
    if trained is None:
        return
    with span("baselines"):
        scores, predicted = baselines.baseline_scores(parts, session.seed)
    auc = parts.screen.auc[parts.validation]
    predicted[settings.model] = trained.outputs["auc"][: len(auc)]
    with span("plots"):
        figure = save_figure(
            session.folder / "predicted.svg",
            lambda each: _draw(each, auc, predicted, settings.model),
            size=(9, 3.2),
            title="Predicted and measured response",
        )
    report(
        task, session, trained, scores, data=words, published=_PUBLISHED, notes=_notes(parts, is_real), figures=[figure]
    )


@dataclass(frozen=True)
class Response:
    """The task: how large is the area below the dose-response curve?"""

    settings: Settings
    parts: Parts
    is_real: bool

    @property
    def metric(self) -> Metric:
        is_published = self.is_real and self.settings.split == "pairs"
        return Metric("mse", "lower", target=TARGET if is_published else None, mllog_key="eval_error")

    @cached_property
    def training(self) -> PairSamples:
        return PairSamples.of(self.parts.screen, self.parts.train)

    @cached_property
    def validation(self) -> PairSamples:
        return PairSamples.of(self.parts.screen, np.concatenate([self.parts.validation, self.parts.test]))

    def model(self) -> nn.Module:
        """Return the network with the scaling of what it learns from; published features are scaled already."""
        settings = self.settings
        if self.is_real:
            screen = self.parts.screen
            size = {"genes": screen.cells.shape[1], "descriptors": screen.drugs.shape[1]}
            return Uno(dataclasses.replace(settings, **size))
        return Uno(settings, self.parts)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean squared error of AUC."""
        return nn.functional.mse_loss(model(batch["cell"], batch["drug"]).float(), batch["auc"])

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the AUC of each pair."""
        return {"auc": model(batch["cell"], batch["drug"]).float()}

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return the errors of the validation rows, by which epochs are judged, and those of test rows apart."""
        parts, predicted = self.parts, outputs["auc"]
        count = len(parts.validation)
        values = baselines.scores(predicted[:count], parts.screen.auc[parts.validation])
        if len(parts.test):
            tested = baselines.scores(predicted[count:], parts.screen.auc[parts.test])
            values |= {f"test_{name}": value for name, value in tested.items() if name in ("mse", "r2")}
        return values


def _notes(parts: Parts, is_real: bool) -> list[str]:
    """Return what a reader of the scores must know."""
    absent = [] if classical.can_fit() else [classical.ABSENT]
    if is_real:
        tested = "; test_mse and test_r2 are of rows that chose nothing" if len(parts.test) else ""
        return [*absent, f"the validation rows chose the epoch, as published{tested}"]
    noise = f"noise of the wells alone limits R2 to {parts.screen.ceiling:.3f} over all pairs"
    return [*absent, "This screen is generated: no published figure applies.", noise]


def _draw(figure: Any, auc: Array, predicted: Mapping[str, Array], model: str) -> None:
    """Draw predicted over measured AUC of the means, of ridge regression and of the network."""
    for axes, name in zip(figure.subplots(1, 3), ("drug + cell mean", "ridge", model), strict=True):
        axes.hexbin(auc, predicted[name], gridsize=45, bins="log", cmap="viridis", mincnt=1, linewidths=0.1)
        edges = [float(auc.min()), float(auc.max())]
        axes.plot(edges, edges, color="#888888", linewidth=0.8)
        r2 = baselines.scores(predicted[name], auc)["r2"]
        axes.set(title=f"{name}: R² {r2:.3f}", xlabel="measured AUC", ylabel="predicted AUC")
