"""What a benchmark that learns tells the harness; everything else is the same for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch

    from fairmile.benchmarks.harness.predictions import Predictions
    from fairmile.benchmarks.harness.settings import TrainSettings

    Array = np.ndarray[Any, Any]
    Batch = Mapping[str, Array | torch.Tensor]  # the first axis of each counts the samples


@dataclass(frozen=True)
class Metric:
    """The number by which a benchmark is judged."""

    name: str
    better: Literal["lower", "higher"]
    unit: str = ""
    target: float | None = None  # of the published benchmark, on its real data; None: made-up data have no target
    mllog_key: str = ""  # `eval_error` or `eval_accuracy`
    synthetic_target: float | None = None  # set here for generated data; says nothing about the published benchmark

    def is_better(self, value: float, than: float | None) -> bool:
        """Tell whether a value beats another one; any number beats none."""
        if than is None or than != than:
            return value == value
        return value < than if self.better == "lower" else value > than

    def is_met(self, value: float) -> bool:
        """Tell whether a value meets the target."""
        return self._meets(value, self.target)

    def is_synthetic_met(self, value: float) -> bool:
        """Tell whether a value on generated data meets the target that was set for it."""
        return self._meets(value, self.synthetic_target)

    def _meets(self, value: float, target: float | None) -> bool:
        return target is not None and (value == target or self.is_better(value, target))


class Samples(Protocol):
    """Samples that can be read by number, from memory or from files."""

    def __len__(self) -> int: ...

    def batch(self, numbers: Array) -> Batch:
        """Return the samples with these numbers (int64, any order), as arrays or as tensors on any device."""
        ...


class ResidentSamples(Samples, Protocol):
    """Samples that can live on the device as a whole, so that a batch is an index operation there."""

    size_bytes: int

    def resident(self, device: torch.device) -> Samples:
        """Return the same samples with their data on a device; `batch` then gets numbers that lie there, too."""
        ...


class Task(Protocol):
    """One model, its data and how it is judged."""

    @property
    def settings(self) -> TrainSettings: ...

    @property
    def metric(self) -> Metric: ...

    @property
    def training(self) -> Samples: ...

    @property
    def validation(self) -> Samples: ...

    def model(self) -> torch.nn.Module:
        """Return a fresh model on the CPU; the harness has set the seed, moves it and wraps it."""
        ...

    def loss(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch, which lies on the device; call `model` itself, it may be wrapped."""
        ...

    def predict(self, model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return what evaluation needs of each sample, first axis the samples; called without gradients."""
        ...

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return the metrics of all validation samples, in their order; one of them is named as `metric`."""
        ...


class ForecastingTask(Task, Protocol):
    """A task whose predictions can be joined to those of other runs."""

    def predictions(self, outputs: Mapping[str, Array]) -> Predictions:
        """Return what is predicted of all validation samples, and the truth."""
        ...
