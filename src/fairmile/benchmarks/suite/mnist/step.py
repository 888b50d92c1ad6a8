"""One training step of MNIST, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.harness.settings import read_settings
from fairmile.benchmarks.suite.mnist.autoencoding import Autoencoding
from fairmile.benchmarks.suite.mnist.benchmark import Recognition
from fairmile.benchmarks.suite.mnist.models import make_model
from fairmile.benchmarks.suite.mnist.settings import Settings

_SIDE = 28


def build(**params: Any) -> OneStep:
    """Return a step of blank images."""
    settings = read_settings(Settings, params)
    no_digits: Any = None
    task = (
        Autoencoding(settings, no_digits)
        if settings.model == "autoencoder"
        else Recognition(settings, no_digits, is_real=False)
    )

    def batch() -> dict[str, torch.Tensor]:
        images = torch.zeros(settings.batch_size, _SIDE, _SIDE, dtype=torch.uint8)
        return {"image": images, "digit": torch.zeros(settings.batch_size, dtype=torch.uint8)}

    return one_step(settings, make_model(settings, _SIDE), task.loss, batch)
