"""MNIST: how many of the test images are read right."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.harness.scores import Results, Score
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import Trained, fit
from fairmile.benchmarks.suite.mnist.data import Digits, made_digits, read_digits
from fairmile.benchmarks.suite.mnist.models import make_model
from fairmile.benchmarks.suite.mnist.settings import Settings
from fairmile.meter import span

Array = np.ndarray[Any, Any]
_COMPONENTS, _ROWS = 50, 1000
_EPOCHS, _EPOCHS_SMALL = 5, 40
_PUBLISHED = (
    {
        "name": "reference network, five epochs, approximate",
        "metric": "accuracy",
        "value": 0.98,
        "source": "https://www.tensorflow.org/tutorials/quickstart/beginner",
    },
)


def run(session: Session) -> None:
    """Read the digits, score the baselines, train, and report."""
    settings = session.settings(Settings)
    with span("data"):
        digits = read_digits(session.data) if session.data is not None else made_digits()
    if settings.work == "prepare":
        session.say(f"{digits.about}: {len(digits.train_labels):,} to learn from, {len(digits.test_labels):,} to test")
        return
    with span("baselines"):
        scores = baselines(digits, settings.neighbours)
    is_real = session.data is not None
    settings = dataclasses.replace(settings, epochs=settings.epochs or (_EPOCHS if is_real else _EPOCHS_SMALL))
    trained = fit(task := Recognition(settings, digits, is_real), session)
    scores.append(Score("model", settings.model, trained.scores))
    figures: list[str] = []
    if session.ranks.is_first:
        with span("plots"):
            figures = _figures(task, trained, session)
    results = Results(
        benchmark="MNIST",
        data=f"{digits.about}, {len(digits.train_labels):,} to learn from, {len(digits.test_labels):,} to test",
        metric=task.metric,
        scores=scores,
        seed=session.seed,
        settings=dataclasses.asdict(settings),
        published=_PUBLISHED,
        notes=() if is_real else ("These are not MNIST's images: no published figure applies.",),
        figures=figures,
    )
    session.report(results)


@dataclass(frozen=True)
class Images:
    """Images and their digits, in memory or on a device."""

    images: Array | torch.Tensor
    labels: Array | torch.Tensor

    @property
    def size_bytes(self) -> int:
        return self.images.nbytes

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, numbers: Any) -> dict[str, Any]:
        """Return images and digits with these numbers."""
        return {"image": self.images[numbers], "digit": self.labels[numbers]}

    def resident(self, device: torch.device) -> Images:
        """Return the same on a device."""
        return Images(torch.as_tensor(self.images, device=device), torch.as_tensor(self.labels, device=device))


@dataclass(frozen=True)
class Recognition:
    """The task: which digit is it?"""

    settings: Settings
    digits: Digits
    is_real: bool

    @property
    def metric(self) -> Metric:
        return Metric("accuracy", "higher", target=0.95 if self.is_real else None, mllog_key="eval_accuracy")

    @cached_property
    def training(self) -> Images:
        return Images(self.digits.train_images, self.digits.train_labels)

    @cached_property
    def validation(self) -> Images:
        return Images(self.digits.test_images, self.digits.test_labels)

    def model(self) -> nn.Module:
        """Return the model that the settings name."""
        return make_model(self.settings, self.digits.train_images.shape[1])

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the cross entropy."""
        return nn.functional.cross_entropy(model(_scaled(batch["image"])).float(), batch["digit"].long())

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the digit that each image is taken for."""
        return {"guess": model(_scaled(batch["image"])).argmax(1).to(torch.uint8)}

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return the share of right guesses."""
        return {"accuracy": float(np.mean(outputs["guess"] == self.digits.test_labels))}


def baselines(digits: Digits, neighbours: int) -> list[Score]:
    """Return what needs no network: the most frequent digit, and nearest neighbours in fifty principal components."""
    commonest = np.bincount(digits.train_labels, minlength=10).argmax()
    trivial = float(np.mean(digits.test_labels == commonest))
    right = float(np.mean(_nearest(digits, neighbours) == digits.test_labels))
    return [
        Score("trivial", "most frequent digit", {"accuracy": trivial}),
        Score("classical", f"{neighbours} nearest neighbours", {"accuracy": right}),
    ]


def _nearest(digits: Digits, neighbours: int) -> Array:
    """Return the digit that most of the nearest training images have."""
    train = digits.train_images.reshape(len(digits.train_images), -1).astype(np.float32)
    test = digits.test_images.reshape(len(digits.test_images), -1).astype(np.float32)
    mean = train.mean(0)
    _, axes = np.linalg.eigh((train - mean).T @ (train - mean))
    axes = axes[:, -_COMPONENTS:]
    train, test = (train - mean) @ axes, (test - mean) @ axes
    lengths = (train**2).sum(1)
    neighbours = min(neighbours, len(train))
    digits_read = []
    for start in range(0, len(test), _ROWS):
        distances = lengths - 2 * test[start : start + _ROWS] @ train.T
        nearest = np.argpartition(distances, neighbours - 1, axis=1)[:, :neighbours]
        votes = digits.train_labels[nearest]
        digits_read.append(np.array([np.bincount(row, minlength=10).argmax() for row in votes]))
    return np.concatenate(digits_read)


def _scaled(images: torch.Tensor) -> torch.Tensor:
    return images.float() / 255


def _figures(task: Recognition, trained: Trained, session: Session) -> list[str]:
    """Draw which digits are taken for which, and what was read wrong; return the names of the files."""
    guesses, labels = trained.outputs["guess"], task.digits.test_labels
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (labels, guesses), 1)

    def confused(figure: Any) -> None:
        axes = figure.subplots()
        axes.imshow(np.log1p(confusion), cmap="Blues")
        for row in range(10):
            for column in range(10):
                if count := confusion[row, column]:
                    axes.text(column, row, str(count), ha="center", va="center", fontsize=7)
        axes.set(xticks=range(10), yticks=range(10), xlabel="read as", ylabel="digit")

    wrong = np.flatnonzero(guesses != labels)[:24]

    def misread(figure: Any) -> None:
        for place, number in enumerate(wrong):
            axes = figure.add_subplot(3, 8, place + 1)
            axes.imshow(task.digits.test_images[number], cmap="Greys")
            axes.set_title(f"{labels[number]} → {guesses[number]}", fontsize=7)
            axes.axis("off")

    names = [save_figure(session.folder / "confusion.svg", confused, size=(5, 4.5))]
    if len(wrong):
        names.append(save_figure(session.folder / "misread.svg", misread, size=(7, 3)))
    return [name for name in names if name]
