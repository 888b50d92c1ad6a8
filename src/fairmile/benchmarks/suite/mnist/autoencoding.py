"""MNIST's autoencoder: how well images are restored from a few numbers, beside principal components of as many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fairmile.benchmarks.harness.scores import Score
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.suite.mnist.data import Digits
from fairmile.benchmarks.suite.mnist.models import Autoencoder
from fairmile.benchmarks.suite.mnist.samples import Images, scaled
from fairmile.benchmarks.suite.mnist.settings import Settings

Array = np.ndarray[Any, Any]
METRIC = "reconstruction_mse"


@dataclass(frozen=True)
class Autoencoding:
    """The task: restore an image from what a narrow layer keeps of it."""

    settings: Settings
    digits: Digits

    @property
    def metric(self) -> Metric:
        return Metric(METRIC, "lower", mllog_key="eval_error")

    @cached_property
    def training(self) -> Images:
        return Images(self.digits.train_images, self.digits.train_labels)

    @cached_property
    def validation(self) -> Images:
        return Images(self.digits.test_images, self.digits.test_labels)

    def model(self) -> nn.Module:
        """Return the model that the settings ask for."""
        return Autoencoder(self.digits.train_images.shape[1], self.settings)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean squared error of pixels between 0 and 1."""
        images = scaled(batch["image"])
        return nn.functional.mse_loss(model(images).float(), images)

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the restored images."""
        return {"image": model(scaled(batch["image"])).float()}

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return the error of the test images."""
        return errors(outputs["image"], self.digits)


def errors(restored: Array, digits: Digits) -> dict[str, float]:
    """Return the mean squared error of pixels between 0 and 1."""
    off = restored.reshape(digits.test_images.shape) - digits.test_images / np.float32(255)
    return {METRIC: float(np.square(off).mean(dtype=np.float64))}


def baselines(digits: Digits, width: int) -> tuple[list[Score], dict[str, Array]]:
    """Return what the mean image and principal components reach, the latter as many as the narrow layer is wide."""
    train = digits.train_images.reshape(len(digits.train_images), -1) / np.float32(255)
    test = digits.test_images.reshape(len(digits.test_images), -1) / np.float32(255)
    mean = train.mean(0)
    _, axes = np.linalg.eigh((train - mean).T @ (train - mean))
    axes = axes[:, -width:]
    restored = {"mean image": np.broadcast_to(mean, test.shape), "PCA": mean + (test - mean) @ axes @ axes.T}
    about = f"{axes.shape[1]} components"
    return [
        Score("trivial", "mean image", errors(restored["mean image"], digits)),
        Score("classical", "PCA", errors(restored["PCA"], digits), about),
    ], restored


def draw(figure: Any, digits: Digits, restored: Mapping[str, Array]) -> None:
    """Draw some test images, and what each method makes of them."""
    rows = {"image": digits.test_images / 255, **restored}
    many = min(10, len(digits.test_images))
    for row, (name, images) in enumerate(rows.items()):
        for column in range(many):
            axes = figure.add_subplot(len(rows), many, row * many + column + 1)
            axes.imshow(images[column].reshape(digits.test_images.shape[1:]), cmap="Greys", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            if not column:
                axes.set_ylabel(name, fontsize=8)
