"""How good outputs are beside the targets of a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.models.convert.proof import Array


def quality_of(portions: Sequence[Sequence[Array]], targets: Array) -> tuple[str, float]:
    """Return the name and the value of a data set's metric: accuracy for labels, RMSE for numbers.

    `portions` are the outputs of all portions of the data; rows behind the last target fill up the last portion.
    """
    answers = np.concatenate([np.asarray(each[0]) for each in portions])[: len(targets)]
    if targets.dtype.kind in "iub":
        labels = answers.argmax(-1) if answers.ndim == targets.ndim + 1 and answers.dtype.kind == "f" else answers
        if labels.shape != targets.shape:
            raise UsageError(f"outputs of shape {list(answers.shape)} do not fit targets of {list(targets.shape)}")
        return "accuracy", float(np.mean(labels == targets))
    if answers.size != targets.size:
        raise UsageError(f"outputs of shape {list(answers.shape)} do not fit targets of {list(targets.shape)}")
    gaps = answers.astype(np.float64).reshape(targets.shape) - targets
    return "rmse", float(np.sqrt(np.mean(gaps**2)))


def loss_of(metric: str, value: float, expected: float) -> float:
    """Return how much worse a metric is than that of the source: accuracy by difference, RMSE by ratio."""
    if metric == "accuracy":
        return expected - value
    return value / expected - 1.0 if expected else (0.0 if value == expected else float("inf"))
