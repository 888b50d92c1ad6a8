"""Programs of several ranks as one of them sees its own memory: a group that sends nothing, shards, DDP's buckets."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from fairmile.predict.fake_device import dispatch
from fairmile.predict.fake_device.kernels import NAME

_torch: Any = torch  # to change it
_IDLE = (
    "barrier all_reduce broadcast reduce all_gather all_gather_into_tensor reduce_scatter_tensor broadcast_object_list"
)
_RANKS = os.environ.get("WORLD_SIZE", "")
_RANKS = _RANKS if _RANKS.isdigit() and int(_RANKS) else "1"
_STORAGES = "torch.distributed.fsdp._fully_shard._fsdp_param"  # where fully_shard fills and empties storages
_GROUPS = "torch.distributed.fsdp._fully_shard._fsdp_param_group"


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
    core = group.distributed_c10d
    init = core.init_process_group

    def begin(*args: Any, **kwargs: Any) -> None:
        if not core.is_initialized():
            _make_group(init)

    def asked(name: str, variable: str) -> Any:
        real = getattr(core, name)
        return lambda *args, **kwargs: real(*args, **kwargs) if core.is_initialized() else int(os.environ[variable])

    group.init_process_group = core.init_process_group = begin
    group.get_rank, group.get_world_size = asked("get_rank", "RANK"), asked("get_world_size", "WORLD_SIZE")
    _follow_meshes(begin)
    group.get_backend = lambda *args, **kwargs: "nccl"
    group.is_nccl_available = lambda: True
    for name in _IDLE.split():
        setattr(group, name, lambda *args, **kwargs: None)
    _torch.nn.parallel.DistributedDataParallel = Replica
    _torch.nn.parallel.distributed.DistributedDataParallel = Replica


def begin(ranks: int | None) -> None:
    """Make the program that is traced next rank 0 of this many; it makes its group itself."""
    if _is_group():
        _torch.distributed.destroy_process_group()
    count = str(ranks or _RANKS)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}


def ranks() -> int:
    """Return how many ranks the program's group has, 1 where it made none."""
    return int(_torch.distributed.distributed_c10d.get_world_size()) if _is_group() else 1


def _is_group() -> bool:
    group = _torch.distributed
    return bool(group.is_available() and group.distributed_c10d.is_initialized())


def _make_group(init: Any) -> None:
    """Make the group of all ranks; it sends nothing, and leaves what it would receive as it is."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    make: Any = FakeStore
    init(f"cpu:fake,{NAME}:fake", rank=0, world_size=int(os.environ["WORLD_SIZE"]), store=make())
    _follow_shards()


def _follow_meshes(begin: Any) -> None:
    """Let a mesh of CUDA devices be one of this device, and make the group where the program has none."""
    from torch.distributed import device_mesh as meshes

    def on_this_device(function: Any, at: int) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "device_type" in kwargs:
                kwargs["device_type"] = _mapped(kwargs["device_type"])
            args = (*args[:at], *(_mapped(each) for each in args[at : at + 1]), *args[at + 1 :])
            return function(*args, **kwargs)

        return call

    made: Any = meshes
    made.init_process_group = begin
    made.DeviceMesh.__init__ = on_this_device(made.DeviceMesh.__init__, 1)
    made.init_device_mesh = on_this_device(made.init_device_mesh, 0)
    _torch.distributed.init_device_mesh = made.init_device_mesh


def _mapped(device: Any) -> Any:
    return NAME if device == "cuda" else device


@functools.cache
def _follow_shards() -> None:
    """Note when fully_shard gives the memory of gathered parameters back, and when it takes it again."""
    import importlib

    for name in (_STORAGES, _GROUPS):
        module: Any = importlib.import_module(name)
        module.alloc_storage = functools.partial(dispatch.refill, is_full=True)
        if hasattr(module, "free_storage"):
            module.free_storage = functools.partial(dispatch.refill, is_full=False)
