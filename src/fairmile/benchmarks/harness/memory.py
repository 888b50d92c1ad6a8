"""What a batch needs of a device's memory: an allocation that fails becomes a sentence with the batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from fairmile.base.distributions import fit_line
from fairmile.base.errors import RunFailed
from fairmile.base.units import format_size
from fairmile.benchmarks.harness.loader import Loader
from fairmile.benchmarks.harness.ranks import Ranks

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.strategies import Strategy
    from fairmile.benchmarks.harness.task import Task

Stage = Literal["initialise", "training", "evaluation"]
Measure = Callable[[int], int | None]  # peak bytes of a step with a batch of that size; None: it does not fit

_PROBES = (1, 2, 4, 8)
_MOST_TRIES = 5
# Numbers that the optimizer keeps for each weight.
_STATES = {"sgd": 1, "adam": 2, "adamax": 2, "adamw": 2, "nadam": 2, "lamb": 2}


@dataclass(frozen=True)
class Fit:
    """What was found out about a batch that does not fit."""

    needed_bytes: int  # by the batch that was asked for; 0: not known
    largest: int  # batch that fits; 0: not even one sample fits


def largest_batch(measure: Measure, asked: int, limit_bytes: int) -> Fit:
    """Find the largest batch that fits: small ones are measured, a line through them says where to look."""
    sizes: list[int] = []
    peaks_bytes: list[float] = []
    for size in (each for each in _PROBES if each < asked):
        peak_bytes = measure(size)
        if peak_bytes is None:
            break
        sizes.append(size)
        peaks_bytes.append(peak_bytes)
    if len(sizes) < 2:
        return Fit(0, sizes[-1] if sizes else 0)
    line = fit_line(sizes[-3:], peaks_bytes[-3:])  # the smallest may use kernels of their own
    low, high = sizes[-1], asked
    guess = int((limit_bytes - line.at_zero) / line.slope) if line.slope > 0 else asked - 1
    for _ in range(_MOST_TRIES):
        guess = min(max(guess, low + 1), high - 1)
        if guess <= low:
            break
        if measure(guess) is None:
            high, guess = guess, int(guess * 0.9)
        elif high == asked or high - guess <= guess // 16:
            low = guess
            break
        else:
            low, guess = guess, (guess + high) // 2
    return Fit(max(int(line.at(asked)), limit_bytes), low)


def explain(
    task: Task, strategy: Strategy, stage: Stage, parts: tuple[torch.nn.Module, torch.optim.Optimizer] | None
) -> RunFailed:
    """Return the error of a device that is out of memory; what failed must have let go of its tensors."""
    settings, device = task.settings, strategy.device
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    name = "eval_batch_size" if stage == "evaluation" and settings.eval_batch_size else "batch_size"
    asked = getattr(settings, name)
    if stage == "initialise" or parts is None:
        return RunFailed(
            f"the model and its data do not fit on {device} ({format_size(total_bytes)})",
            hint="use a smaller model, `-p resident=false`, or `-p strategy=fsdp` on several GPUs",
        )
    fit = Fit(0, 0)
    is_measured = settings.strategy in ("single", "ddp")  # others cannot take a step without all ranks
    if is_measured:
        model, optimizer = parts
        optimizer.zero_grad(set_to_none=True)
        samples = task.validation if stage == "evaluation" else task.training
        limit_bytes = _limit_bytes(device)
        measure = _measure_on_device(task, strategy, stage, model, optimizer, limit_bytes)
        fit = largest_batch(measure, min(asked, len(samples)), limit_bytes)
    return sentence(name, asked, f"{device} ({format_size(total_bytes)})", fit if is_measured else None)


def sentence(name: str, asked: int, place: str, fit: Fit | None) -> RunFailed:
    """Return the error as a sentence, with what helps."""
    others = "`-p checkpoint_activations=true` or `-p precision=bf16`"
    text = f"{name} {asked} does not fit on {place}"
    if fit is None:
        return RunFailed(text, hint=f"a smaller `-p {name}=N` with more `-p accumulate=N`, {others}")
    if fit.largest == 0:
        return RunFailed(f"{text}: not even one sample fits", hint=f"a smaller model, {others}")
    needs = f"one batch needs about {format_size(fit.needed_bytes)}; " if fit.needed_bytes else ""
    same = (
        ""
        if name != "batch_size"
        else f", with `-p accumulate={-(-asked // fit.largest)}` for the same number of samples per step"
    )
    return RunFailed(
        f"{text}: {needs}the largest batch that fits is about {fit.largest}",
        hint=f"`-p {name}={fit.largest}`{same}; or {others}",
    )


def _measure_on_device(
    task: Task,
    strategy: Strategy,
    stage: Stage,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    limit_bytes: int,
) -> Measure:
    device, plain = strategy.device, strategy.unwrapped(model)
    trains = stage == "training"
    plain.train(trains)
    later_bytes = 0
    if trains and not optimizer.state:  # its numbers are only there after the first step
        weights_bytes = sum(each.numel() * each.element_size() for each in plain.parameters() if each.requires_grad)
        later_bytes = _STATES[task.settings.optimizer] * weights_bytes

    def measure(size: int) -> int | None:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        samples = task.training if trains else task.validation
        loader = Loader(
            samples, batch_size=size, device=device, ranks=Ranks(), seed=0, shuffle=False, workers=0, resident=False
        )
        try:
            batch = next(loader.epoch(0))
            # Each new size would be timed with every algorithm first.
            quick = torch.backends.cudnn.flags(enabled=True, benchmark=False)
            with torch.set_grad_enabled(trains), quick:
                if trains:
                    strategy.backward(plain, strategy.in_precision(task.loss)(plain, batch))
                else:
                    strategy.in_precision(task.predict)(plain, batch)
        except torch.OutOfMemoryError:
            return None
        finally:
            optimizer.zero_grad(set_to_none=True)
        peak_bytes = torch.cuda.max_memory_allocated(device) + later_bytes
        return peak_bytes if peak_bytes <= limit_bytes else None

    return measure


def _limit_bytes(device: torch.device) -> int:
    """Return what this process can have of a device's memory."""
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    mine_bytes = free_bytes + torch.cuda.memory_reserved(device)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return min(mine_bytes, int(share(device) * total_bytes)) if share is not None else mine_bytes
