"""One training step of the earthquake forecast, for predictions: the parameters are those of the benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.one_step import OneStep, one_step
from fairmile.benchmarks.harness.settings import read_settings
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.suite.earthquake.context import CONTEXT
from fairmile.benchmarks.suite.earthquake.features import KNOWN, STATIC
from fairmile.benchmarks.suite.earthquake.models import UNTRAINED, Forecaster, ForecastTask
from fairmile.benchmarks.suite.earthquake.nomenclature import OBSERVED, PARAMETERS
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.tft import Shape
from fairmile.benchmarks.suite.earthquake.windows import AROUND


def build(**params: Any) -> OneStep:
    """Return a step of windows of zeros, as long as the settings say."""
    settings = read_settings(Settings, params)
    if settings.model in UNTRAINED:
        raise UsageError(f"model={settings.model} trains nothing", hint="predict for model=tft, lstm or hybrid")
    batch, targets = settings.batch_size, len(PARAMETERS)
    observed = len(OBSERVED) + (len(CONTEXT) if settings.context else 0)
    shape = Shape(len(STATIC), len(KNOWN), observed, settings.history, settings.horizon, 0)
    model = Forecaster(settings, shape, np.zeros(targets), np.ones(targets))
    no_windows: Any = None
    task = ForecastTask(settings, Metric("nnse", "higher"), no_windows, no_windows)

    def windows() -> dict[str, torch.Tensor]:
        around: dict[str, torch.Tensor] = {}
        if settings.model == "hybrid":
            seen = (batch, settings.history, settings.neighbours, len(AROUND))
            around = {"around": torch.zeros(seen), "offset": torch.zeros(batch, settings.neighbours, 2)}
        return {
            "static": torch.zeros(batch, len(STATIC)),
            "known": torch.zeros(batch, settings.history + settings.horizon, len(KNOWN)),
            "observed": torch.zeros(batch, settings.history, observed),
            "target": torch.zeros(batch, settings.horizon, targets),
            "weight": torch.ones(batch, settings.horizon, targets),
            "place_weight": torch.ones(batch, targets),
            **around,
        }

    return one_step(settings, model, task.loss, windows)
