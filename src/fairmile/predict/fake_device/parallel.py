"""Programs of several ranks as one of them sees its own memory: process groups of one, and DDP's buckets."""

from __future__ import annotations

import os
from typing import Any

import torch

from fairmile.predict.fake_device.kernels import NAME

_torch: Any = torch  # to change it
_IDLE = (
    "barrier all_reduce broadcast reduce all_gather all_gather_into_tensor reduce_scatter_tensor broadcast_object_list"
)


class Replica(torch.nn.Module):
    """A model in DistributedDataParallel: buckets as large as its gradients, unless gradients are views of them."""

    def __init__(self, module: torch.nn.Module, *args: Any, **options: Any) -> None:
        super().__init__()
        self.module = module
        if not options.get("gradient_as_bucket_view", False):
            learned = [each for each in module.parameters() if each.requires_grad]
            self._buckets = [torch.empty(each.shape, dtype=each.dtype, device=NAME) for each in learned]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def no_sync(self) -> Any:
        """Return a block in which gradients are not reduced."""
        return torch.enable_grad()


def patch() -> None:
    """Let programs make process groups and wrap their model, without a network."""
    group = _torch.distributed
    if not group.is_available():
        return
    made: list[bool] = []  # whether the program has made its group
    group.init_process_group = lambda *args, **kwargs: made.append(True)
    group.destroy_process_group = lambda *args, **kwargs: made.clear()
    group.is_initialized = lambda: bool(made)
    for name in _IDLE.split():
        setattr(group, name, lambda *args, **kwargs: None)
    answers = {
        "get_rank": int(os.environ.get("RANK", "0")),
        "get_world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "get_backend": "nccl",
        "is_nccl_available": True,
    }
    for name, answer in answers.items():
        setattr(group, name, lambda *args, _answer=answer, **kwargs: _answer)
    _torch.nn.parallel.DistributedDataParallel = Replica
    _torch.nn.parallel.distributed.DistributedDataParallel = Replica
