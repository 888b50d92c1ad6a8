"""The program of DeepCAM: make or read snapshots, fit the baselines and the network, compare what they mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness import classical
from fairmile.benchmarks.harness.report import report, train
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import Trained
from fairmile.benchmarks.suite.deepcam import baselines, figures
from fairmile.benchmarks.suite.deepcam.files import FileSamples, list_part, make_maps, read_maps
from fairmile.benchmarks.suite.deepcam.models import CLASSES, DeepLab, check_grid
from fairmile.benchmarks.suite.deepcam.settings import Settings, choose
from fairmile.meter import span

Array = NDArray[Any]
TARGET = 0.82  # mean IoU, MLPerf HPC v3.0
PUBLISHED = (
    {"name": "MLPerf HPC v3.0 quality target", "metric": "iou", "value": TARGET, "source": "MLPerf HPC rules"},
)
_FREQUENCY = 0.986267818, 0.000457871, 0.013274311  # of the classes in the published data
_PARTS = "train", "validation"
_JUDGED = 64  # snapshots on which baselines are judged at most
_FITTED = 64
_SHOWN = 2
_FORMAT = 1  # of what is prepared; another number makes it anew


@dataclass(frozen=True)
class Data:
    """Both parts of the snapshots, and what they are in words."""

    training: ArraySamples | FileSamples
    validation: ArraySamples | FileSamples
    is_real: bool
    words: str


def run(session: Session) -> None:
    """Run the benchmark as the parameters of the run say."""
    has_gpu = torch.cuda.is_available()
    settings = choose(session.params, has_data=session.data is not None, has_gpu=has_gpu)
    if settings.channels_last and (not has_gpu or settings.device == "cpu"):
        raise UsageError(
            "parameter channels_last: on a CPU, PyTorch crashes in the backward pass of this network",
            hint="remove channels_last=true",
        )
    with span("data"):
        data = prepare(session, settings)
    trained = train(task := DeepCamTask(settings, data), session, data.words)
    if trained is None:
        return
    with span("baselines"):
        fitted = fit_baselines(settings, data, session.seed)
        scores = baseline_scores(fitted, data)
    with span("plots"):
        best = max(fitted[1:], key=lambda each: _score_of(scores, each.name))
        drawn = draw(session, data, trained, best)
    report(task, session, trained, scores, data=data.words, published=PUBLISHED, notes=notes(data), figures=drawn)


def prepare(session: Session, settings: Settings) -> Data:
    """Return the real snapshots that were given, read from their files, or made ones, prepared once for all runs."""
    counts = settings.train_samples, settings.validation_samples
    if session.data is not None:
        parts = [list_part(session.data, part, most) for part, most in zip(_PARTS, counts, strict=True)]
        check_grid(*parts[0].shape)
        words = f"{session.data.name}: {len(parts[0]):,} snapshots to train, {len(parts[1]):,} to validate"
        return Data(parts[0], parts[1], is_real=True, words=words)
    if min(counts) < 1:
        raise UsageError("train_samples and validation_samples: expected at least 1 snapshot to make")
    check_grid(settings.rows, settings.rows * 3 // 2)
    asked = {"format": _FORMAT, "counts": counts, "rows": settings.rows, "seed": settings.data_seed}

    def make(folder: Path) -> None:
        session.say(f"making {sum(counts)} snapshots, once for all runs")
        make_maps(folder, dict(zip(_PARTS, counts, strict=True)), settings.rows, settings.data_seed)

    folder = session.prepared(asked, make)
    made = [read_maps(folder, part) for part in _PARTS]
    words = f"made-up snapshots of {settings.rows} x {settings.rows * 3 // 2} points: {counts[0]} to train, "
    return Data(made[0], made[1], is_real=False, words=words + f"{counts[1]} to validate")


@dataclass(frozen=True)
class DeepCamTask:
    """The network, its data and how it is judged."""

    settings: Settings
    data: Data

    @property
    def metric(self) -> Metric:
        return Metric("iou", "higher", target=TARGET if self.data.is_real else None, mllog_key="eval_accuracy")

    @property
    def training(self) -> ArraySamples | FileSamples:
        return self.data.training

    @property
    def validation(self) -> ArraySamples | FileSamples:
        return self.data.validation

    def model(self) -> nn.Module:
        return DeepLab(shrink=self.settings.shrink, middle=self.settings.middle)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the cross entropy of all points, in which rare classes weigh more."""
        x, labels = batch["x"], batch["labels"]
        if self.settings.turn:
            way = int(torch.randint(x.shape[2], (), device="cpu"))
            x, labels = x.roll(way, 2), labels.roll(way, 2)
        weights = [share**self.settings.weight_power for share in _FREQUENCY]
        logits = model(self._channels_first(x)).float()
        return functional.cross_entropy(logits, labels.long(), torch.tensor(weights, device=logits.device))

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the counts of each snapshot by class: hits, false and missed points."""
        marked, labels = model(self._channels_first(batch["x"])).argmax(1), batch["labels"]
        counts = []
        for kind in range(CLASSES):
            ours, theirs = marked == kind, labels == kind
            counts.append(torch.stack([(ours & theirs), (ours & ~theirs), (~ours & theirs)], 1).sum(dim=(2, 3)))
        return {"counts": torch.stack(counts, 1)}

    def scores(self, outputs: Mapping[str, Any]) -> Mapping[str, float]:
        return baselines.scores(outputs["counts"])

    def _channels_first(self, x: torch.Tensor) -> torch.Tensor:
        """Return snapshots as a network takes them; in memory the channels stay last, where asked."""
        layout = torch.channels_last if self.settings.channels_last else torch.contiguous_format
        return x.float().permute(0, 3, 1, 2).contiguous(memory_format=layout)


def fit_baselines(settings: Settings, data: Data, seed: int) -> list[baselines.Baseline]:
    """Return the baselines, fitted to some training snapshots."""
    count = len(data.training)
    batch = data.training.batch(np.linspace(0, count - 1, min(count, _FITTED)).astype(int))
    return baselines.fit(np.asarray(batch["x"]), np.asarray(batch["labels"]), settings.baseline_pixels, seed)


def baseline_scores(fitted: list[baselines.Baseline], data: Data) -> list[Score]:
    """Return what needs no network."""
    count = len(data.validation)
    numbers = np.linspace(0, count - 1, min(count, _JUDGED)).astype(int)
    counts: dict[str, list[Array]] = {}
    for number in numbers:
        batch = data.validation.batch(np.array([number]))
        x, labels = np.asarray(batch["x"], np.float32), np.asarray(batch["labels"])
        for each in fitted:
            counts.setdefault(each.name, []).append(baselines.count(each.mark(x), labels))
    judged = "" if len(numbers) == count else f"on {len(numbers)} snapshots"
    return [
        Score(
            each.kind,
            each.name,
            baselines.scores(np.concatenate(counts[each.name])),
            "; ".join(part for part in (each.note, judged) if part),
        )
        for each in fitted
    ]


def _score_of(scores: list[Score], name: str) -> float:
    return next(score.values["iou"] for score in scores if score.name == name)


def draw(session: Session, data: Data, trained: Trained, best: baselines.Baseline) -> list[str]:
    """Draw what the labels, the best baseline and the network mark in some validation snapshots."""
    batch = data.validation.batch(np.arange(min(_SHOWN, len(data.validation))))
    x = np.asarray(batch["x"], np.float32)
    with torch.no_grad():
        given = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous().to(trained.device)
        marked = trained.model(given).argmax(1).cpu().numpy()
    name = figures.draw_storms(session.folder / "storms.svg", x, np.asarray(batch["labels"]), best, marked)
    return [name] if name else []


def notes(data: Data) -> list[str]:
    """Return what a reader of the scores must know."""
    found = [] if classical.can_fit() else [classical.ABSENT]
    if data.is_real:
        return [*found, "labels are those of heuristics, which the network learns"]
    return [
        *found,
        "storms are planted in made-up fields and labelled by construction",
        f"the published target, IoU {TARGET}, holds for CAM5 snapshots of 768 x 1152 only: there is none here",
    ]
