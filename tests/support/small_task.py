"""A task that trains in milliseconds: a line through noise, with a network that drops out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.harness.settings import TrainSettings, read_settings
from fairmile.benchmarks.harness.task import Metric

INPUTS = 6
FAST = {"epochs": 4, "batch_size": 16, "learning_rate": 0.01, "device": "cpu", "workers": 0}


class Points:
    """Points whose last value is a sum of the others with fixed factors."""

    def __init__(self, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.x = random.normal(size=(count, INPUTS)).astype(np.float32)
        self.y = (self.x @ np.linspace(-1, 1, INPUTS) + 0.01 * random.normal(size=count)).astype(np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, numbers: Any) -> Mapping[str, Any]:
        return {"x": self.x[numbers], "y": self.y[numbers]}


class SmallTask:
    """Regression; `at_loss` is called before each loss with the number of losses so far."""

    def __init__(
        self,
        *,
        samples: int = 88,
        held_out: int = 21,
        target: float | None = None,
        dropout: float = 0.2,
        hidden: int = 8,
        at_loss: Callable[[int], None] = lambda count: None,
        **params: Any,
    ) -> None:
        self.settings: TrainSettings = read_settings(TrainSettings, FAST | params)
        self.metric = Metric("mae", "lower", target=target, mllog_key="eval_error")
        self.training = Points(samples, 1)
        self.validation = Points(held_out, 2)
        self.losses = 0
        self._dropout, self._hidden, self._at_loss = dropout, hidden, at_loss

    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(INPUTS, self._hidden),
            torch.nn.BatchNorm1d(self._hidden),
            torch.nn.Dropout(self._dropout),
            torch.nn.ReLU(),
            torch.nn.Linear(self._hidden, 1),
        )

    def loss(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self._at_loss(self.losses)
        self.losses += 1
        return (model(batch["x"])[:, 0] - batch["y"]).square().mean()

    def predict(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return {"found": model(batch["x"])[:, 0], "y": batch["y"]}

    def scores(self, outputs: Mapping[str, Any]) -> Mapping[str, float]:
        error = outputs["found"] - outputs["y"]
        return {"mae": float(np.abs(error).mean()), "mse": float(np.square(error).mean())}


def session(folder: Path, *, name: str = "small", seed: int = 7, is_resumed: bool = False) -> Session:
    """Return a session of one process whose outputs go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Session.of(name, {"FAIRMILE_SEED": str(seed), "FAIRMILE_CACHE": str(folder / "cache")}, folder)
    return replace(found, is_resumed=is_resumed, ranks=Ranks())
