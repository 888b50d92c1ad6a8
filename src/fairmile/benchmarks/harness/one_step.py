"""One training step of a benchmark without its data: what `fairmile predict` looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairmile.benchmarks.harness.schedules import make_optimizer
from fairmile.benchmarks.harness.strategies import lay_out

if TYPE_CHECKING:
    import torch

    from fairmile.benchmarks.harness.settings import TrainSettings

    Loss = Callable[[torch.nn.Module, Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class OneStep:
    """A model, the loss of a made-up batch on the default device, and the optimizer; None for inference."""

    model: torch.nn.Module
    loss: Callable[[torch.nn.Module], torch.Tensor]
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None
    precision: str
    samples: int = 0  # in a batch; 0: the first axis of most inputs counts them


def one_step(
    settings: TrainSettings,
    model: torch.nn.Module,
    loss: Loss,
    batch: Callable[[], Mapping[str, torch.Tensor]],
    samples: int = 0,
    *,
    in_batch: int = 0,
) -> OneStep:
    """Return a step of a task as the settings say; `batch` makes what one rank takes from its data for it.

    `samples` is how many of them lie on the device all the while, where the settings let them. `in_batch` is how many
    a batch has, where most of its inputs count something else, such as the edges of a graph.
    """
    lay_out(model, settings)
    trains = settings.work != "inference"
    held: list[torch.Tensor] = []

    def of_a_batch(wrapped: torch.nn.Module) -> torch.Tensor:
        taken = batch()
        if settings.resident and not held:
            held.extend(value.new_empty((samples, *value.shape[1:])) for value in taken.values())
        return loss(wrapped, taken)

    return OneStep(
        model,
        of_a_batch,
        (lambda parameters: make_optimizer(settings, parameters)) if trains else None,
        settings.precision,
        in_batch,
    )
