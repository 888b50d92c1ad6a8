"""Learning rates as pure functions of the step, and the optimizers they drive."""

from __future__ import annotations

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.lamb import Lamb

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.settings import TrainSettings
    from fairmile.benchmarks.harness.task import Metric

_CYCLE_RISE, _CYCLE_FIRST, _CYCLE_LAST = 0.3, 25.0, 1e4  # as PyTorch's OneCycleLR


def learning_rates(settings: TrainSettings, *, steps_per_epoch: int, total_steps: int) -> Callable[[int], float]:
    """Return the learning rate as a function of the step, the first being 0; a plateau's factor comes on top."""
    _check(settings)
    peak, warm = settings.learning_rate, settings.warmup_epochs * steps_per_epoch
    if settings.schedule == "onecycle":
        rise = warm / total_steps if warm else _CYCLE_RISE
        return lambda step: _one_cycle(step, total_steps, peak, min(rise, 1.0))

    def rate(step: int) -> float:
        if step < warm:
            return peak * (settings.warmup_factor + (1 - settings.warmup_factor) * step / warm)
        if settings.schedule == "steps":
            fallen = bisect_right(settings.decay_epochs, step // steps_per_epoch)
            return peak * settings.decay_factors[fallen - 1] if fallen else peak
        if settings.schedule == "cosine":
            part = min((step - warm) / max(total_steps - warm, 1), 1.0)
            return settings.min_learning_rate + (peak - settings.min_learning_rate) * (1 + math.cos(math.pi * part)) / 2
        return peak

    return rate


def plateau_factor(settings: TrainSettings, metric: Metric, scores: Sequence[float]) -> float:
    """Return what the learning rate is multiplied by after these scores: less each time they stop getting better."""
    if settings.schedule != "plateau":
        return 1.0
    factor, best, waited = 1.0, None, 0
    for score in scores:
        if metric.is_better(score, best):
            best, waited = score, 0
        else:
            waited += 1
        if waited > settings.plateau_patience:
            factor, waited = factor * settings.plateau_factor, 0
    return max(factor, min(settings.min_learning_rate / settings.learning_rate, 1.0))


def make_optimizer(settings: TrainSettings, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of the settings, with one kernel for all parameters where the device has it."""
    trained = [each for each in parameters if each.requires_grad]
    kinds = {each.device.type for each in trained}
    is_sharded = any(hasattr(each, "full_tensor") for each in trained)  # for which PyTorch has no fused SGD
    fast: dict[str, Any] = {"fused": True} if kinds and kinds <= {"cpu", "cuda"} and not is_sharded else {}
    given: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optimizer == "sgd":
        return _eager(torch.optim.SGD)(trained, momentum=settings.momentum, **given, **fast)
    if settings.epsilon:
        given["eps"] = settings.epsilon
    if settings.optimizer == "adam":
        return _eager(torch.optim.Adam)(trained, **given, **fast)
    if settings.optimizer == "adamw":
        return _eager(torch.optim.AdamW)(trained, **given, **fast)
    if settings.optimizer == "adamax":
        return _eager(torch.optim.Adamax)(trained, foreach=kinds == {"cuda"}, **given)
    if settings.optimizer == "lamb":
        return _eager(Lamb)(trained, **given)
    return _eager(torch.optim.NAdam)(trained, foreach=kinds == {"cuda"}, **given)


@cache
def _eager(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return an optimizer without the switches for PyTorch's compiler, which never gets to see it.

    Any of them imports the compiler: a thousand modules, which take two thirds of the time of `import torch`.
    """
    switched = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    plain: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in switched}
    return type(kind.__name__, (kind,), plain | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


def _one_cycle(step: int, total_steps: int, peak: float, rise: float) -> float:
    first, last = peak / _CYCLE_FIRST, peak / _CYCLE_FIRST / _CYCLE_LAST
    top, end = rise * total_steps - 1, total_steps - 1
    if step <= top and top > 0:
        return _cosine(first, peak, step / top)
    return _cosine(peak, last, min((step - top) / max(end - top, 1), 1.0))


def _cosine(begin: float, end: float, part: float) -> float:
    return end + (begin - end) * (1 + math.cos(math.pi * part)) / 2


def _check(settings: TrainSettings) -> None:
    epochs, factors = settings.decay_epochs, settings.decay_factors
    if len(epochs) != len(factors):
        raise UsageError(
            f"parameters decay_epochs and decay_factors: {len(epochs)} epochs, but {len(factors)} factors",
            hint="give one factor for each epoch, as in decay_epochs=32,64 decay_factors=0.25,0.125",
        )
    if list(epochs) != sorted(set(epochs)):
        raise UsageError(f"parameter decay_epochs: expected rising numbers, found {', '.join(map(str, epochs))}")
