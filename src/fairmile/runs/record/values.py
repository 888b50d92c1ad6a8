"""The words of runs: values of parameters, directions of metrics and what the name of one tells."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from fairmile.base.errors import UsageError

Better = Literal["lower", "higher", ""]
Value = str | int | float | bool | None  # of a parameter
# Patterns are compiled when they are first used: most commands judge no metric.
_LOWER = (
    r"(?i)(^|[^a-z])(loss|err(or)?|rmse|mse|mae|mape|nll|perplexity|time|latency|duration|seconds|energy|joules|power|memory|"
    r"size|bytes|flops|wer|cer|fid|misfit|residual)s?($|[^a-z])"
)
_HIGHER = (
    r"(?i)(^|[^a-z])(acc(uracy)?|f1|auc|auroc|precision|recall|nnse|nse|r2|score|throughput|bandwidth|speedup|iou|map|bleu|"
    r"samples_per_s|images_per_s|tokens_per_s|flops_per_s|per_s|per_second)s?($|[^a-z])"
)
_FRACTION = r"(?i)(^|[^a-z])(acc(uracy)?|f1|auc|auroc|precision|recall|nnse|iou|dice|map)s?($|[^a-z])"
_RATE = r"(?i)(^|[^a-z])(throughput|bandwidth|speedup|per_s|per_second)($|[^a-z])"
_NEVER_NEGATIVE = ("s", "ms", "us", "ns", "min", "h", "J", "kJ", "kWh", "W", "kW", "bytes", "B")
_SPEED = r"(_s|_ms|_wait_share|speedup)$"
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|-?\.[0-9]+(?:[eE][+-]?[0-9]+)?"

_PARAM = r"[A-Za-z_][A-Za-z0-9_.-]*"


COUPLED = ":"  # between the words of a solver and those of the model beside it


def split_coupled(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of a solver and those of the model beside it; either is empty where none are given.

    The last mark counts: `mpirun` has marks of its own between parts of a solver.
    """
    words = list(argv)
    cut = len(words) - 1 - words[::-1].index(COUPLED) if COUPLED in words else len(words)
    return words[:cut], words[cut + 1 :]


def is_job_part(model: Sequence[str]) -> bool:
    """Tell whether the model is a part of the launcher's command: `mpirun -n 3 SOLVER : -n 1 python model.py`."""
    return bool(model) and model[0].startswith("-")


def is_onnx(model: Sequence[str]) -> bool:
    """Tell whether the model beside a solver is no program, but an ONNX file that the solver computes."""
    return len(model) == 1 and model[0].endswith(".onnx")


def parse_value(text: str) -> Value:
    """Return the value of a parameter that a text writes: a number, true, false, null, or else the text itself."""
    words: dict[str, Value] = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    if len(text) > 300 or not re.fullmatch(_NUMBER, text):  # what Python also takes for one: 007, 1_000, nan
        return text
    return int(text) if text.lstrip("-").isdecimal() else number if math.isfinite(number := float(text)) else text


def parse_params(texts: Sequence[str]) -> dict[str, Value]:
    """Return the parameters that `key=value` texts state; numbers, true, false and null are what they look like."""
    params: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(_PARAM, name):
            raise UsageError(f"-p {text!r} is not NAME=VALUE", hint="write -p NAME=VALUE, such as -p lr=0.1")
        params[name] = parse_value(value)
    return params


def is_speed(name: str) -> bool:
    """Tell whether a metric is a time or a speed by its name: no two executions have the same."""
    return bool(re.search(_SPEED, name))


def better_of(name: str) -> Better:
    """Return which direction of a metric is better, as far as its name tells."""
    if re.search(_HIGHER, name):
        return "higher"
    return "lower" if re.search(_LOWER, name) else ""


def bounds_of(name: str, unit: str, values: Sequence[float]) -> tuple[float, float]:
    """Return between which numbers a metric can lie, as far as name and unit tell and its values do not contradict."""
    least, largest = min(values, default=0.0), max(values, default=0.0)
    if least < 0:
        return -math.inf, math.inf
    if re.search(_FRACTION, name):
        return 0.0, next((top for top in (1.0, 100.0) if largest <= top), math.inf)
    is_bounded = unit in _NEVER_NEGATIVE or better_of(name) == "lower" or bool(re.search(_RATE, name))
    return 0.0 if is_bounded else -math.inf, math.inf


def value_text(value: Value) -> str:
    """Return a value as it stands in a command."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "" if value is None else str(value)
