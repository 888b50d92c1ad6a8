"""One training step of StemDL, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.suite.stemdl.benchmark import Symmetry
from fairmile.benchmarks.suite.stemdl.data import POTENTIAL_PIXELS
from fairmile.benchmarks.suite.stemdl.settings import choose


def build(**params: Any) -> OneStep:
    """Return a step of blank patterns; `preset=stfc` is the published benchmark."""
    settings = choose(params, has_data=False)
    no_data: Any = None
    task = Symmetry(settings, no_data, is_real=False)

    def batch() -> dict[str, torch.Tensor]:
        size = settings.batch_size
        return {
            "patterns": torch.zeros(size, 3, settings.pixels, settings.pixels),
            "group": torch.ones(size, dtype=torch.long),
            "potential": torch.zeros(size, 3, POTENTIAL_PIXELS, POTENTIAL_PIXELS),
        }

    return one_step(settings, task.model(), task.loss, batch)
