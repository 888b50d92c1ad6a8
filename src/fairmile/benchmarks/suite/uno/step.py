"""One training step of Uno, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.suite.uno.benchmark import Response
from fairmile.benchmarks.suite.uno.models import Uno
from fairmile.benchmarks.suite.uno.settings import choose


def build(**params: Any) -> OneStep:
    """Return a step of pairs that are all alike; `preset=candle` is the published benchmark."""
    settings = choose(params, has_data=False)
    no_parts: Any = None
    task = Response(settings, no_parts, is_real=False)

    def batch() -> dict[str, torch.Tensor]:
        size = settings.batch_size
        cell, drug = torch.ones(size, settings.genes), torch.ones(size, settings.descriptors)
        return {"cell": cell, "drug": drug, "auc": torch.ones(size)}

    # Cell lines and drugs are few: the pairs on the device are numbers.
    return one_step(settings, Uno(settings), task.loss, batch)
