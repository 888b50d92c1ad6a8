"""Losses that a graph for training has at its end."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.models.onnx_torch.operators import Node, operator


def _negative_log(node: Node, logs: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    ignored = node.get("ignore_index")
    places = target.to(torch.int64)
    is_ignored = places == ignored if ignored is not None else torch.zeros_like(places, dtype=torch.bool)
    safe = torch.where(is_ignored, torch.zeros_like(places), places)
    picked = -logs.gather(1, safe.unsqueeze(1)).squeeze(1)
    weights = torch.ones_like(picked) if weight is None else weight[safe].to(picked.dtype)
    weights = torch.where(is_ignored, torch.zeros_like(weights), weights)
    loss = picked * weights
    how = node.get("reduction", "mean")
    if how == "none":
        return loss
    return loss.sum() if how == "sum" else loss.sum() / weights.sum()


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(node: Node, logs: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return _negative_log(node, logs, target, weight)


@operator("SoftmaxCrossEntropyLoss")
def cross_entropy(node: Node, scores: Tensor, target: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    logs = F.log_softmax(scores, 1)
    return _negative_log(node, logs, target, weight), logs
