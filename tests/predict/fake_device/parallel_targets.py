"""Models that their own program shards over several ranks, for tests of traces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

WIDTH, BLOCKS = 256, 4


class Block(nn.Module):
    """Two linear layers with a residual."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


class Chain(nn.Module):
    """Blocks one after another."""

    def __init__(self, blocks: int = BLOCKS, width: int = WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def _program(model: nn.Module, batch: int, **more: Any) -> SimpleNamespace:
    def loss(model: nn.Module) -> torch.Tensor:
        out: torch.Tensor = model(torch.randn(batch, WIDTH, device="cuda")).pow(2).mean()
        return out

    fields = {"model": model, "loss": loss, "optimizer": torch.optim.AdamW, "precision": "fp32", **more}
    return SimpleNamespace(**fields)


def whole(batch: int = 32, blocks: int = BLOCKS) -> SimpleNamespace:
    """A model that nothing shards."""
    return _program(Chain(blocks).cuda(), batch)


def sharded(
    batch: int = 32, blocks: int = BLOCKS, *, reshard: bool = True, offload: bool = False, mixed: bool = False
) -> SimpleNamespace:
    """The same with fully_shard on each block and on the whole."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group("nccl")
    model = Chain(blocks) if offload else Chain(blocks).cuda()
    options: dict[str, Any] = {"reshard_after_forward": reshard}
    if offload:
        options["offload_policy"] = CPUOffloadPolicy()
    if mixed:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return _program(model, batch)


def on_a_mesh(batch: int = 32, replicas: int = 2) -> SimpleNamespace:
    """Replicas of shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    shape = (replicas, torch.distributed.get_world_size() // replicas)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicas", "shards"))
    model = Chain().cuda()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _program(model, batch)


def replicated(batch: int = 32) -> SimpleNamespace:
    """The same in DistributedDataParallel."""
    torch.distributed.init_process_group("nccl")
    return _program(nn.parallel.DistributedDataParallel(Chain().cuda()), batch)


class Packed(nn.Parameter):
    """A weight that becomes a byte an element when it leaves the host, with a scale for every row."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if device is None or self.dtype is torch.int8:
            return super().to(*args, **kwargs)
        there = self.data.to(device)
        self.scales = there.abs().amax(1)
        self.data = (there / self.scales[:, None]).to(torch.int8)
        return self


def packed(batch: int = 32, *, moved: bool = True) -> SimpleNamespace:
    """A frozen weight of a kind of its own beside a learned layer; `moved` by the program or not."""

    class Low(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = Packed(torch.randn(WIDTH, WIDTH), requires_grad=False)
            self.bias = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight.float() * self.weight.scales[:, None]
            return functional.linear(x, weight, self.bias)

    model = nn.Sequential(Low(), nn.Linear(WIDTH, 1))
    return _program(model.cuda() if moved else model, batch)


_kept: list[torch.library.Library] = []


def foreign(batch: int = 32) -> SimpleNamespace:
    """An operator of a library that needs much memory on other devices, and little on CUDA."""
    library = torch.library.Library("fairmile_tests", "FRAGMENT")
    _kept.append(library)
    library.define("halved(Tensor x) -> Tensor")
    library.impl("halved", lambda x: (x.repeat(100, 1) / 2)[: len(x)].clone(), "CompositeExplicitAutograd")
    library.impl("halved", lambda x: x / 2, "CUDA")
    library.impl("halved", torch.empty_like, "Meta")

    class Halved(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                half: torch.Tensor = torch.ops.fairmile_tests.halved(x)
            return x + half

    return _program(nn.Sequential(Chain().cuda(), Halved()), batch)


@torch.compile
def _squared(x: torch.Tensor) -> torch.Tensor:
    return x * x


def compiled(batch: int = 32, *, called: bool = True) -> SimpleNamespace:
    """A program with a compiled function, which its loss calls or not."""

    def loss(model: nn.Module) -> torch.Tensor:
        out: torch.Tensor = model(torch.randn(batch, WIDTH, device="cuda"))
        return (_squared(out) if called else out * out).mean()

    return _program(Chain().cuda(), batch, loss=loss)


def halves(batch: int = 32) -> SimpleNamespace:
    """A program that only asks who it is: each rank has its part of a batch."""
    return _program(Chain().cuda(), batch // torch.distributed.get_world_size())
