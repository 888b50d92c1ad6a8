"""LAMB (You et al., arXiv:1904.00962): Adam whose step in each layer is as long as that layer's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lamb(torch.optim.Optimizer):
    """The optimizer that large batches of MLPerf HPC's DeepCAM were trained with; PyTorch has none.

    The ratio of lengths has no bounds, and holds without weight decay, too, where Apex's takes Adam's step.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        *,
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do a step with the gradients; a closure is not called."""
        for group in self.param_groups:
            trained: list[torch.Tensor] = [each for each in group["params"] if each.grad is not None]
            if trained:
                self._move(trained, group)

    def _move(self, trained: list[torch.Tensor], group: dict[str, Any]) -> None:
        means, squares, number = self._averages(trained, *group["betas"])
        (one, two), decay = group["betas"], group["weight_decay"]
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - two**number) ** 0.5)
        torch._foreach_add_(roots, group["eps"])
        moves = torch._foreach_div(means, roots)
        torch._foreach_div_(moves, 1 - one**number)
        if decay:
            torch._foreach_add_(moves, trained, alpha=decay)
        weights, lengths = (torch.stack(torch._foreach_norm(each)) for each in (trained, moves))
        # A layer of zeros, or one that needs no move, takes Adam's own step.
        ratios = torch.where((weights > 0) & (lengths > 0), weights / lengths, 1.0) * -group["lr"]
        scales = [ratio.expand_as(move) for ratio, move in zip(ratios, moves, strict=True)]
        torch._foreach_addcmul_(trained, moves, scales)

    def _averages(
        self, trained: list[torch.Tensor], one: float, two: float
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], float]:
        """Bring the averages of gradients and of their squares up to date; return them, and the step's number."""
        for each in trained:
            state = self.state[each]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(each), torch.zeros_like(each)
            state["step"] += 1
        gradients = [each.grad for each in trained if each.grad is not None]
        means, squares = ([self.state[each][name] for each in trained] for name in ("exp_avg", "exp_avg_sq"))
        torch._foreach_lerp_(means, gradients, 1 - one)
        torch._foreach_mul_(squares, two)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - two)
        return means, squares, float(self.state[trained[0]]["step"])
