"""What can be set when a benchmark runs: a frozen dataclass whose fields know their meaning, filled from parameters."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from fairmile.base.errors import UsageError
from fairmile.base.words import did_you_mean

Work = Literal["train", "prepare", "inference", "loaders"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Strategy = Literal["single", "ddp", "fsdp", "deepspeed", "horovod"]
Optimizer = Literal["sgd", "adam", "adamax", "adamw", "nadam", "lamb"]
Schedule = Literal["constant", "steps", "cosine", "onecycle", "plateau"]
OPTIMIZERS = f"optimizer: {', '.join(typing.get_args(Optimizer)[:-1])} or {typing.get_args(Optimizer)[-1]}"
S = TypeVar("S", bound="Settings")


def option(
    default: Any, meaning: str, *, least: float | None = None, most: float | None = None, above: float | None = None
) -> Any:
    """Return a field of settings with its default, what it means, and the bounds in which it makes sense."""
    bounds = {"least": least, "most": most, "above": above}
    return dataclasses.field(default=default, metadata={"meaning": meaning, **bounds})


def told(*given: Any, **limits: Any) -> Any:
    """Do what `option` does; this name goes in the next version."""
    warnings.warn("fairmile.benchmarks.harness.settings.told is now option", DeprecationWarning, stacklevel=2)
    return option(*given, **limits)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every benchmark can be told; a benchmark derives its own, with its own defaults.

    Where it says only a default anew, the least and the most that make sense stay.
    """

    work: Work = option("train", "what to do")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """What every benchmark that trains a network by the harness can be told."""

    work: Work = option(
        "train",
        "what to do: train, prepare (data only), inference (with the weights of `checkpoint`) or loaders (measure)",
    )
    model: str = option("", "name of the benchmark's model to train")
    epochs: int = option(1, "number of epochs", least=1)
    max_steps: int = option(0, "maximum number of optimizer steps; 0: no limit", least=0)
    batch_size: int = option(32, "batch size per rank", least=1)
    eval_batch_size: int = option(0, "batch size per rank in evaluation; 0: same as batch_size", least=0)
    optimizer: Optimizer = option("adam", OPTIMIZERS)
    learning_rate: float = option(1e-3, "peak learning rate", above=0)
    momentum: float = option(0.9, "momentum of sgd", least=0)
    weight_decay: float = option(0.0, "weight decay of the optimizer", least=0)
    epsilon: float = option(
        0.0, "term in the denominator of all optimizers but sgd; 0: PyTorch's 1e-8, or 1e-6 for lamb", least=0
    )
    schedule: Schedule = option("constant", "learning rate schedule: constant, steps, cosine, onecycle or plateau")
    warmup_epochs: float = option(0.0, "epochs of linear learning rate warm-up", least=0)
    warmup_factor: float = option(0.0, "start of the warm-up, as a fraction of the peak", least=0)
    decay_epochs: tuple[int, ...] = option((), "schedule=steps: epochs after which the learning rate drops")
    decay_factors: tuple[float, ...] = option(
        (), "schedule=steps: learning rate after each drop, as a fraction of the peak"
    )
    plateau_factor: float = option(0.5, "schedule=plateau: factor of each reduction")
    plateau_patience: int = option(5, "schedule=plateau: evaluations without improvement before a reduction", least=0)
    min_learning_rate: float = option(0.0, "schedules cosine and plateau: lowest learning rate", least=0)
    clip_norm: float = option(0.0, "maximum norm of gradients; 0: no clipping", least=0)
    accumulate: int = option(1, "batches per optimizer step", least=1)
    precision: Precision = option("fp32", "precision: fp32, tf32, bf16 or fp16 (the last two with autocast)")
    strategy: Strategy = option("single", "parallel strategy: single, ddp, fsdp, deepspeed or horovod")
    ranks: int = option(0, "number of processes to start here; 0: as started by the launcher, or one", least=0)
    device: str = option("auto", "device: auto, cpu, cuda or cuda:1")
    threads: int = option(0, "CPU threads of PyTorch; 0: as many as PyTorch chooses", least=0)
    channels_last: bool = option(False, "use channels-last memory format")
    compile: bool = option(False, "compile the model with torch.compile")
    checkpoint_activations: bool = option(False, "recompute activations instead of storing them")
    deterministic: bool = option(False, "use deterministic kernels only")
    patience: int = option(0, "stop after this many epochs without improvement; 0: never", least=0)
    stop_at_target: bool = option(False, "stop as soon as the quality target is met")
    evaluate_every: int = option(1, "epochs between evaluations; the last epoch is always evaluated", least=1)
    save_every: int = option(1, "epochs between checkpoints; 0: none", least=0)
    save_steps: int = option(0, "optimizer steps between checkpoints within an epoch; 0: none", least=0)
    checkpoint: str = option("", "weights to start from, such as checkpoint.pt of an earlier run")
    freeze: str = option("", "parameters that are not trained, as patterns of their names, such as encoder.*,embed.*")
    predictions: bool = option(False, "keep the predictions of validation samples, for `fairmile benchmark ensemble`")
    workers: int = option(1, "threads that prefetch batches; 0: no prefetching", least=0)
    resident: bool = option(True, "keep the data on the device if it fits and the benchmark supports it")
    shards: bool = option(False, "first copy samples read from files to memory-mapped shards, once for all runs")
    stage: str = option("", "copy the data to this folder first; auto: the fastest one with enough space")


def read_settings(kind: type[S], params: Mapping[str, Any]) -> S:
    """Return settings with the parameters of a run on top of the defaults; every value is checked."""
    hints = _type_hints(kind)  # type: ignore[arg-type]  # mypy looks at the hash of its instances
    known = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for name, value in params.items():
        if name not in known:
            near = did_you_mean(name, known)
            raise UsageError(f"no parameter named {name!r}", hint=near or f"there are {', '.join(known)}")
        values[name] = _typed(name, value, hints[name])
        _check_range(name, values[name], kind)
    return kind(**values)


@cache
def _type_hints(kind: type[Settings]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check_range(name: str, value: Any, kind: type[Settings]) -> None:
    least, most, above = (_bound(kind, name, side) for side in ("least", "most", "above"))
    if above is not None and value <= above:
        raise UsageError(f"parameter {name}: expected a number above {above:g}, found {value:g}")
    if least is not None and value < least:
        raise UsageError(f"parameter {name}: expected at least {least:g}, found {value:g}")
    if most is not None and value > most:
        raise UsageError(f"parameter {name}: expected at most {most:g}, found {value:g}")


def _bound(kind: type[Settings], name: str, side: str) -> float | None:
    """Return what the class that is nearest in the family says of a bound."""
    fields = (vars(each).get("__dataclass_fields__", {}).get(name) for each in kind.__mro__)
    bounds = (field.metadata.get(side) for field in fields if field is not None)
    return next((bound for bound in bounds if bound is not None), None)


def _typed(name: str, value: Any, wanted: Any) -> Any:
    origin = typing.get_origin(wanted)
    if origin is Literal:
        allowed = typing.get_args(wanted)
        if value not in allowed:
            raise UsageError(
                f"parameter {name}: {value!r} is not one of {', '.join(map(str, allowed))}",
                hint=did_you_mean(str(value), [str(each) for each in allowed]) or None,
            )
        return value
    if origin is tuple:
        return _items(name, value, typing.get_args(wanted)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in typing.get_args(wanted) if each is not type(None)]
        return None if value in (None, "") else _typed(name, value, kinds[0])
    return _plain(name, value, wanted)


def _items(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    """Return `1,2,3` or one value as a tuple."""
    if isinstance(value, list | tuple):
        parts: list[Any] = list(value)
    elif isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    else:
        parts = [] if value is None else [value]
    return tuple(_plain(name, part, kind) for part in parts)


def _plain(name: str, value: Any, kind: type) -> Any:
    typed: Any
    if kind is bool:
        words = {"true": True, "false": False, "yes": True, "no": False}
        typed = value if isinstance(value, bool) else words.get(str(value).lower())
    elif kind is str:
        typed = "" if value is None else str(value)
    else:
        typed = _number(value, kind)
    if typed is None:
        names = {bool: "true or false", int: "a whole number", float: "a number"}
        raise UsageError(f"parameter {name}: expected {names.get(kind, kind.__name__)}, found {value!r}")
    return typed


def _number(value: Any, kind: type) -> int | float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number):
        return None
    return number if kind is float else int(number) if number.is_integer() else None
