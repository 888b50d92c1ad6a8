"""One training step of CloudMask, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import torch

from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.suite.cloudmask.benchmark import CloudMaskTask, Data
from fairmile.benchmarks.suite.cloudmask.files import empty_patches
from fairmile.benchmarks.suite.cloudmask.settings import choose


def build(**params: Any) -> OneStep:
    """Return a step on a GPU, of blank patches; `preset=published` is the published benchmark."""
    settings = choose(params, has_data=False, has_gpu=True)
    none: Any = None
    task = CloudMaskTask(settings, Data(none, none, [], is_real=False, words=""))

    def batch() -> dict[str, torch.Tensor]:
        made = empty_patches(settings.batch_size, settings.patch)
        return {name: torch.from_numpy(value).to(torch.get_default_device()) for name, value in made.items()}

    return one_step(settings, task.model(), task.loss, batch, settings.train_scenes + settings.validation_scenes)
