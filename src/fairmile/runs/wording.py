"""The words of runs: values of parameters, directions of metrics and what the name of one tells."""

from __future__ import annotations

import re
from typing import Literal

Better = Literal["lower", "higher", ""]
Value = str | int | float | bool | None  # of a parameter
_LOWER = re.compile(
    r"(^|[^a-z])(loss|err(or)?|rmse|mse|mae|mape|nll|perplexity|time|latency|duration|seconds|energy|joules|power|memory|"
    r"size|bytes|flops|wer|cer|fid|misfit|residual)s?($|[^a-z])",
    re.IGNORECASE,
)
_HIGHER = re.compile(
    r"(^|[^a-z])(acc(uracy)?|f1|auc|auroc|precision|recall|nnse|nse|r2|score|throughput|bandwidth|speedup|iou|map|bleu|"
    r"samples_per_s|images_per_s|tokens_per_s|flops_per_s|per_s|per_second)s?($|[^a-z])",
    re.IGNORECASE,
)
_SPEED = re.compile(r"(_s|_ms|_wait_share|speedup)$")


def is_speed(name: str) -> bool:
    """Tell whether a metric is a time or a speed by its name: no two executions have the same."""
    return bool(_SPEED.search(name))


def better_of(name: str) -> Better:
    """Return which direction of a metric is better, as far as its name tells."""
    if _HIGHER.search(name):
        return "higher"
    return "lower" if _LOWER.search(name) else ""
