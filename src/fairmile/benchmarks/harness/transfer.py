"""Transfer learning: weights of another task or other data to start from, and parameters that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness import checkpoints

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.settings import TrainSettings


def start_from(file: Path, model: nn.Module) -> tuple[str, list[str]]:
    """Fill a model with the weights of a file that fit by name and shape; return in words how many did, and the others.

    Buffers that the model names in `own_buffers`, such as the range of its data, stay its own.
    """
    given, wanted = checkpoints.load(file).best_weights, model.state_dict()
    own = _own_buffers(model)
    usable = [name for name in wanted if name not in own]
    fitting = {name: given[name] for name in usable if name in given and given[name].shape == wanted[name].shape}
    if not any(name in fitting for name, _ in model.named_parameters()):
        raise UsageError(
            f"{file} has no weights that fit this model",
            hint="use the same `model` and sizes as the run that wrote it; layers fit by name and shape",
        )
    model.load_state_dict({**wanted, **fitting})
    fresh = [name for name in usable if name not in fitting]
    note = f"; new: {checkpoints.some(fresh)}" if fresh else ""
    return f"started from {file.name}: {len(fitting)} of {len(usable)} tensors{note}", fresh


def freeze(settings: TrainSettings, model: nn.Module, fresh: Sequence[str] = ()) -> str:
    """Exempt the parameters that the setting names from training; return in words how many those are.

    Those that are `fresh` were just drawn at random, and are named: they are rarely meant.
    """
    patterns = [word.strip() for word in settings.freeze.split(",") if word.strip()]
    parameters = dict(model.named_parameters())
    frozen = [name for name in parameters if _is_matched(name, patterns)]
    for pattern in patterns:
        if not any(_is_matched(name, [pattern]) for name in parameters):
            raise UsageError(
                f"parameter freeze: {pattern!r} matches no parameter of the model",
                hint=f"names are such as {checkpoints.some(list(parameters))}; `encoder.*` matches all below encoder",
            )
    if len(frozen) == len(parameters):
        raise UsageError("parameter freeze: it leaves nothing to train", hint="use work=inference to only evaluate")
    for name in frozen:
        parameters[name].requires_grad_(False)
    count, total = (sum(parameters[name].numel() for name in names) for names in (frozen, list(parameters)))
    random = [name for name in frozen if name in fresh]
    note = f"; warning: {checkpoints.some(random)} stay as drawn at random" if random else ""
    return f"frozen: {len(frozen)} of {len(parameters)} tensors, {count:,} of {total:,} parameters{note}"


def hold_frozen_statistics(model: nn.Module) -> None:
    """Keep the running statistics of batch norms whose weights are frozen; called after each `model.train()`."""
    for each in model.modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm) and not getattr(each.weight, "requires_grad", True):
            each.eval()


def _own_buffers(model: nn.Module) -> set[str]:
    buffers = {name for name, _ in model.named_buffers()}
    own: set[str] = set()
    for prefix, module in model.named_modules():
        names: Sequence[str] = getattr(module, "own_buffers", ())
        own |= {f"{prefix}.{name}" if prefix else name for name in names}
    return own & buffers


def _is_matched(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
