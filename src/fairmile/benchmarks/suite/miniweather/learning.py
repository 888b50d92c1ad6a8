"""The network that learns microphysics, as a task of the harness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import fit
from fairmile.benchmarks.suite.miniweather import surrogate
from fairmile.benchmarks.suite.miniweather.kessler import Cells
from fairmile.benchmarks.suite.miniweather.settings import Settings
from fairmile.benchmarks.suite.miniweather.surrogate import CellSamples, Scaling, Surrogate
from fairmile.meter import span

Array = np.ndarray[Any, Any]
TARGET = 1.6e-7  # scaled mse of the published notebook's last epoch, on the published samples


def make_model(hidden: int) -> nn.Sequential:
    """Return the network: five inputs, one hidden layer, four outputs."""
    return nn.Sequential(nn.Linear(5, hidden), nn.LeakyReLU(surrogate.SLOPE), nn.Linear(hidden, 4))


@dataclass(frozen=True)
class Emulation:
    """The task: what is a cell after a step of microphysics?"""

    settings: Settings
    train: CellSamples
    test: CellSamples
    scaling: Scaling
    is_real: bool

    @property
    def metric(self) -> Metric:
        return metric(self.is_real)

    @cached_property
    def training(self) -> ArraySamples:
        return self._samples(self.train)

    @cached_property
    def validation(self) -> ArraySamples:
        return self._samples(self.test)

    def _samples(self, samples: CellSamples) -> ArraySamples:
        inputs = self.scaling.scaled_inputs(Cells(*samples.own.astype(np.float64).T)).T
        targets = self.scaling.scaled_targets(samples).astype(np.float32)
        return ArraySamples({"cell": np.ascontiguousarray(inputs), "target": targets})

    def model(self) -> nn.Module:
        """Return the network."""
        return make_model(self.settings.hidden)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean squared error of the scaled targets."""
        return nn.functional.mse_loss(model(batch["cell"]).float(), batch["target"])

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the scaled targets as the network has them."""
        return {"target": model(batch["cell"]).float()}

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return error, R² and skill in physical values."""
        predicted = surrogate.physical(self.scaling, outputs["target"], self.test.before)
        return surrogate.score(self.scaling, self.test, predicted)


def metric(is_real: bool) -> Metric:
    """Return what surrogates are judged by; made-up data have no target."""
    return Metric("mse", "lower", target=TARGET if is_real else None, mllog_key="eval_error")


def learn(
    session: Session, settings: Settings, samples: CellSamples, dt_s: float
) -> tuple[list[Surrogate], dict[str, dict[str, float]]]:
    """Fit the linear map and train the network; return both, and what they and no change at all score."""
    train, test = samples.split(settings.test_share, session.seed)
    scaling = Scaling.of(train, settings.target, settings.features)
    with span("baselines"):
        line = surrogate.linear(train, scaling, dt_s)
        scores = {
            "identity": surrogate.score(scaling, test, test.before.astype(np.float64)),
            "linear": surrogate.score(scaling, test, line.predict(test.own)),
        }
    trained = fit(Emulation(settings, train, test, scaling, session.data is not None), session)
    layers = [each for each in trained.model.modules() if isinstance(each, nn.Linear)]
    weights = tuple((_plain(each.weight), _plain(each.bias)) for each in layers)
    scores[settings.model] = dict(trained.scores)
    return [line, Surrogate(settings.model, weights, scaling, dt_s)], scores


def _plain(values: torch.Tensor) -> Array:
    array: Array = values.detach().float().cpu().numpy().copy()
    return array
