"""StemDL: name the space group of crystals that were not seen, and their projected potential."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fairmile.benchmarks.harness import classical
from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.harness.report import report, train
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric, Samples
from fairmile.benchmarks.suite.stemdl import baselines
from fairmile.benchmarks.suite.stemdl.crystals import GROUPS
from fairmile.benchmarks.suite.stemdl.data import CLASSES, Data, make_data, read_data
from fairmile.benchmarks.suite.stemdl.models import StemModel
from fairmile.benchmarks.suite.stemdl.settings import Settings, choose
from fairmile.meter import span

Array = np.ndarray[Any, Any]
TARGET = 0.9
_SOURCE = "https://github.com/mlcommons/science/tree/main/benchmarks/stemdl"
_PUBLISHED = (
    {"name": "ResNet-50, Oak Ridge, approximate", "metric": "f1_macro", "value": 0.43, "source": _SOURCE},
    {"name": "ResNet-50, Oak Ridge, approximate", "metric": "top1", "value": 0.57, "source": _SOURCE},
)


def run(session: Session) -> None:
    """Read or make patterns, train, score the baselines and report."""
    is_real = session.data is not None
    settings = choose(session.params, has_data=is_real)
    with span("data"):
        data = read_data(session.data) if session.data is not None else make_data(settings)
    trained = train(task := Symmetry(settings, data, is_real), session, data.words)
    if trained is None:
        return
    with span("baselines"):
        scores = baselines.baseline_scores(data.training, data.validation, data.groups, session.seed)
    with span("plots"):
        figures = [
            save_figure(
                session.folder / "confusion.svg",
                lambda each: _draw_confusion(each, task, trained.outputs),
                title="Confusion of space groups",
            ),
            save_figure(
                session.folder / "patterns.svg",
                lambda each: _draw_patterns(each, data),
                size=(9, 3),
                title="Diffraction patterns",
            ),
        ]
    made = ["These patterns are generated: no published figure applies.", "They hold single scattering only."]
    notes = [] if is_real else made
    notes = notes if classical.can_fit() else [*notes, classical.ABSENT]
    report(task, session, trained, scores, data=data.words, published=_PUBLISHED, notes=notes, figures=figures)


@dataclass(frozen=True)
class Symmetry:
    """The task: which space group is it, and where does the potential lie?"""

    settings: Settings
    data: Data
    is_real: bool

    @property
    def metric(self) -> Metric:
        return Metric("f1_macro", "higher", target=TARGET if self.is_real else None, mllog_key="eval_accuracy")

    @property
    def training(self) -> Samples:
        return self.data.training

    @property
    def validation(self) -> Samples:
        return self.data.validation

    def model(self) -> nn.Module:
        """Return the network that the settings name."""
        return StemModel(self.settings)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of the space group, and the weighted one of the potential."""
        logits, potential = model(batch["patterns"])
        if self.settings.loss == "mse":
            wanted = nn.functional.one_hot(batch["group"], CLASSES).float()
            loss = nn.functional.mse_loss(logits.float(), wanted)
        else:
            loss = nn.functional.cross_entropy(logits.float(), batch["group"])
        if self.settings.potential_weight:
            loss = loss + self.settings.potential_weight * nn.functional.mse_loss(potential.float(), batch["potential"])
        return loss

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the likeliest space group, and the sums of squares that R2 of the potential needs."""
        logits, potential = model(batch["patterns"])
        found = {"group": logits.argmax(1)}
        if self.settings.potential_weight:
            true = batch["potential"]
            found["squared_error"] = (potential.float() - true).square().mean((1, 2, 3))
            found["sum"], found["square"] = true.mean((1, 2, 3)), true.square().mean((1, 2, 3))
        return found

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return macro F1, accuracy and R2 of the potential."""
        values = baselines.scores(outputs["group"], self.data.groups)
        if "square" in outputs:
            variance = float(outputs["square"].mean() - outputs["sum"].mean() ** 2)
            values["potential_r2"] = 1 - float(outputs["squared_error"].mean()) / max(variance, 1e-30)
        return values


def _draw_confusion(figure: Any, task: Symmetry, outputs: Mapping[str, Array]) -> None:
    """Draw which groups are taken for which."""
    known = np.unique(np.concatenate([task.data.groups, outputs["group"]]))
    counts = np.zeros((len(known), len(known)))
    np.add.at(counts, (np.searchsorted(known, task.data.groups), np.searchsorted(known, outputs["group"])), 1)
    axes = figure.subplots()
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    if len(known) <= len(GROUPS) * 2:
        axes.set(xticks=range(len(known)), yticks=range(len(known)), xticklabels=known, yticklabels=known)
    axes.set(xlabel="read as space group", ylabel="space group")


def _draw_patterns(figure: Any, data: Data) -> None:
    """Draw one pattern of each of the first groups."""
    chosen = np.unique(data.groups, return_index=True)[1][: len(GROUPS)]
    patterns = np.asarray(data.validation.batch(chosen)["patterns"])
    for number, (place, images) in enumerate(zip(chosen, patterns, strict=True)):
        for projection in range(2):
            axes = figure.add_subplot(2, len(chosen), projection * len(chosen) + number + 1)
            axes.imshow(images[projection], cmap="magma", vmin=0, vmax=170)
            axes.set(xticks=[], yticks=[])
            if not projection:
                axes.set_title(str(data.groups[place]), fontsize=8)
