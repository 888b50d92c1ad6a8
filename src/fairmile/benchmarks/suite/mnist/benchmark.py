"""MNIST: how many of the test images are read right, or how well an autoencoder restores them."""

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
from fairmile.benchmarks.suite.mnist import autoencoding
from fairmile.benchmarks.suite.mnist.autoencoding import Autoencoding
from fairmile.benchmarks.suite.mnist.data import Digits, made_digits, read_digits
from fairmile.benchmarks.suite.mnist.models import make_model
from fairmile.benchmarks.suite.mnist.samples import Images, scaled
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
    is_real = session.data is not None
    settings = dataclasses.replace(settings, epochs=settings.epochs or (_EPOCHS if is_real else _EPOCHS_SMALL))
    task: Recognition | Autoencoding
    if settings.model == "autoencoder":
        task = Autoencoding(settings, digits)
        scores, figures = _restore(task, session)
    else:
        task = Recognition(settings, digits, is_real)
        scores, figures = _recognise(task, session)
    results = Results(
        benchmark="MNIST",
        data=f"{digits.about}, {len(digits.train_labels):,} to learn from, {len(digits.test_labels):,} to test",
        metric=task.metric,
        scores=scores,
        seed=session.seed,
        settings=dataclasses.asdict(settings),
        published=_PUBLISHED if settings.model == "mlp" else (),
        notes=() if is_real else ("These are not MNIST's images: no published figure applies.",),
        figures=figures,
    )
    session.report(results)


def _recognise(task: Recognition, session: Session) -> tuple[list[Score], list[str]]:
    """Train a network that reads digits; return its score below the baselines', and figures."""
    settings = task.settings
    with span("baselines"):
        scores = baselines(task.digits, settings.neighbours)
    trained = fit(task, session)
    scores.append(Score("model", settings.model, trained.scores))
    if not session.ranks.is_first:
        return scores, []
    with span("plots"):
        return scores, _figures(task, trained, session)


def _restore(task: Autoencoding, session: Session) -> tuple[list[Score], list[str]]:
    """Train an autoencoder; return its score below the baselines', and a figure."""
    with span("baselines"):
        scores, restored = autoencoding.baselines(task.digits, task.settings.code)
    trained = fit(task, session)
    scores.append(Score("model", "autoencoder", trained.scores, f"{task.settings.code} numbers for each image"))
    if not session.ranks.is_first:
        return scores, []
    restored |= {"autoencoder": trained.outputs["image"]}
    with span("plots"):
        name = save_figure(
            session.folder / "restored.svg",
            lambda each: autoencoding.draw(each, task.digits, restored),
            size=(7, 3.2),
            title="Restored digits",
        )
    return scores, [name] if name else []


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
        return nn.functional.cross_entropy(model(scaled(batch["image"])).float(), batch["digit"].long())

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the digit that each image is taken for."""
        return {"guess": model(scaled(batch["image"])).argmax(1).to(torch.uint8)}

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


def _figures(task: Recognition, trained: Trained, session: Session) -> list[str]:
    """Draw which digits are taken for which, and what was read wrong; return the names of the files."""
    guesses, labels = trained.outputs["guess"], task.digits.test_labels
    confusion = np.zeros((10, 10), int)
    np.add.at(confusion, (labels, guesses), 1)

    def confused(figure: Any) -> None:
        axes = figure.subplots()
        shades = np.log1p(confusion)
        axes.imshow(shades, cmap="Blues")
        for row, column in np.argwhere(confusion):
            # Both colours stay on a dark page, where the cells stay as they are.
            colour = "#fefefe" if shades[row, column] > shades.max() / 2 else "#101010"
            axes.text(column, row, str(confusion[row, column]), ha="center", va="center", fontsize=7, color=colour)
        axes.set(xticks=range(10), yticks=range(10), xlabel="read as", ylabel="digit")

    wrong = np.flatnonzero(guesses != labels)[:24]

    def misread(figure: Any) -> None:
        for place, number in enumerate(wrong):
            axes = figure.add_subplot(3, 8, place + 1)
            axes.imshow(task.digits.test_images[number], cmap="Greys")
            axes.set_title(f"{labels[number]} → {guesses[number]}", fontsize=7)
            axes.axis("off")

    names = [save_figure(session.folder / "confusion.svg", confused, size=(5, 4.5), title="Confusion of digits")]
    if len(wrong):
        names.append(save_figure(session.folder / "misread.svg", misread, size=(7, 3), title="Misread digits"))
    return [name for name in names if name]
