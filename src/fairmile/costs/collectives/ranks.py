"""The ranks of a measurement: collectives of torch (gloo, NCCL) or MPI behind one face, each call checkable."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fairmile.base.errors import MissingExtra, Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.collectives.halo import grid_of

ELEMENT_BYTES = 4
BACKENDS = ("gloo", "nccl", "mpi")
MEASURED = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "all_to_all",
    "reduce",
    "point_to_point",
    "halo",
    "barrier",
)


@dataclass(frozen=True)
class CollectiveCall:
    """One collective of one size: `run` does it once, `check` does it with known numbers and tells what is wrong."""

    size_bytes: int  # as it is sent, which can be less than asked for where ranks share it equally
    run: Callable[[], None]
    check: Callable[[], str]
    count: int = 1  # messages on the way that `run` makes one after the other


class Ranks(Protocol):
    """One of several processes that work together."""

    rank: int
    size: int
    library: str

    def call(self, collective: str, size_bytes: int) -> CollectiveCall:
        """Return a call with its buffers made; Unsupported where the library has no such collective."""
        ...

    def slowest(self, times_s: Sequence[float]) -> list[float]:
        """Return for each time the longest of all ranks."""
        ...

    def gather(self, text: str) -> list[str]:
        """Return what every rank says."""
        ...

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        ...

    def done(self) -> None:
        """Wait until what was begun has ended on this rank's device."""
        ...

    def close(self) -> None:
        """Leave the others when all are done."""
        ...

    def abandon(self, exit_code: int) -> None:
        """End the others too, which would wait for this rank for ever."""
        ...


def elements(collective: str, size_bytes: int, ranks: int) -> int:
    """Return how many numbers make about so many bytes; a multiple of the ranks where they share them."""
    count = max(1, size_bytes // ELEMENT_BYTES)
    if collective in ("reduce_scatter", "all_gather", "all_to_all"):
        count = max(ranks, count // ranks * ranks)
    return count


def neighbours(rank: int, ranks: int) -> list[tuple[int, int, int]]:
    """Return (to, from, tag) for each face of a periodic grid of ranks."""
    grid = grid_of(ranks)
    places, left = [], rank
    for side in reversed(grid):
        places.append(left % side)
        left //= side
    places.reverse()
    pairs = []
    for dimension, side in enumerate(grid):
        if side == 1:
            continue
        stride = math.prod(grid[dimension + 1 :])
        for tag, step in ((2 * dimension, 1), (2 * dimension + 1, -1)):
            to = rank + ((places[dimension] + step) % side - places[dimension]) * stride
            source = rank + ((places[dimension] - step) % side - places[dimension]) * stride
            pairs.append((to, source, tag))
    return pairs


def place_of(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return this process's rank and the number of ranks as a launcher tells them, or None if none did."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("PMI_RANK", "PMI_SIZE")):
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    return None


class TorchRanks:
    """Ranks of torch.distributed."""

    def __init__(self, backend: str, rank: int, size: int, *, store: str = "") -> None:
        try:
            import torch
            import torch.distributed as group
        except ImportError as error:
            raise MissingExtra(f"measuring {backend} needs torch; MPI needs none", "predict") from error
        if backend == "nccl" and not torch.cuda.is_available():
            raise Unsupported("NCCL needs NVIDIA GPUs, but torch finds none", hint="use --backend gloo")
        if not store and ("MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ):
            raise UsageError(
                "MASTER_ADDR and MASTER_PORT are not set",
                hint="start the ranks with torchrun, or set them to a reachable node and a free port",
            )
        self.rank, self.size = rank, size
        self.backend = backend
        self._torch, self._group = torch, group
        # Newer versions of torch call these differently and warn of the names that older ones know.
        self._scatter = getattr(group, "reduce_scatter_single", None) or group.reduce_scatter_tensor
        self._gather = getattr(group, "all_gather_single", None) or group.all_gather_into_tensor
        torch.set_num_threads(1)
        local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", rank)))
        self.device = torch.device("cuda", local % torch.cuda.device_count()) if backend == "nccl" else None
        if self.device is not None:
            torch.cuda.set_device(self.device)
        where = f"file://{store}" if store else "env://"
        group.init_process_group(backend, init_method=where, rank=rank, world_size=size)
        self.library = f"torch {torch.__version__} {backend}"

    def call(self, collective: str, size_bytes: int) -> CollectiveCall:
        count = elements(collective, size_bytes, self.size)
        make = getattr(self, f"_{collective}", None)
        if make is None:
            raise Unsupported(f"torch's {self.backend} has no {collective}")
        run, check, sent = make(count)
        return CollectiveCall(sent * ELEMENT_BYTES, run, check, count=2 if collective == "point_to_point" else 1)

    def slowest(self, times_s: Sequence[float]) -> list[float]:
        held = self._torch.tensor(list(times_s), dtype=self._torch.float64, device=self.device)
        self._group.all_reduce(held, op=self._group.ReduceOp.MAX)
        return [float(each) for each in held.tolist()]

    def gather(self, text: str) -> list[str]:
        values: list[Any] = [None] * self.size
        self._group.all_gather_object(values, text)
        return [str(each) for each in values]

    def barrier(self) -> None:
        self._group.barrier()

    def done(self) -> None:
        if self.device is not None:
            self._torch.cuda.synchronize(self.device)

    def close(self) -> None:
        self._group.destroy_process_group()

    def abandon(self, exit_code: int) -> None:
        return None  # whoever started the ranks ends the others when it sees that one failed

    def _made(self, count: int, value: float = 0.0) -> Any:
        return self._torch.full((count,), value, dtype=self._torch.float32, device=self.device)

    def _wrong(self, held: Any, value: float) -> str:
        received = held.tolist()[0] if len(held) else value
        return "" if bool((held == value).all()) else f"rank {self.rank} got {received:g}, expected {value:g}"

    def _all_reduce(self, count: int) -> Any:
        data, group = self._made(count), self._group

        def check() -> str:
            mine = self._made(count, self.rank + 1.0)
            group.all_reduce(mine)
            return self._wrong(mine, self.size * (self.size + 1) / 2)

        return lambda: group.all_reduce(data), check, count

    def _reduce(self, count: int) -> Any:
        data, group = self._made(count), self._group

        def check() -> str:
            mine = self._made(count, self.rank + 1.0)
            group.reduce(mine, 0)
            return self._wrong(mine, self.size * (self.size + 1) / 2) if self.rank == 0 else ""

        return lambda: group.reduce(data, 0), check, count

    def _broadcast(self, count: int) -> Any:
        data, group = self._made(count), self._group

        def check() -> str:
            mine = self._made(count, 7.0 if self.rank == 0 else 0.0)
            group.broadcast(mine, 0)
            return self._wrong(mine, 7.0)

        return lambda: group.broadcast(data, 0), check, count

    def _reduce_scatter(self, count: int) -> Any:
        data, piece = self._made(count), self._made(count // self.size)

        def check() -> str:
            self._scatter(piece, self._made(count, self.rank + 1.0))
            return self._wrong(piece, self.size * (self.size + 1) / 2)

        return lambda: self._scatter(piece, data), check, count

    def _all_gather(self, count: int) -> Any:
        part = count // self.size
        data, piece = self._made(count), self._made(part)

        def check() -> str:
            self._gather(data, self._made(part, self.rank + 1.0))
            wrong = [self._wrong(data[at * part : (at + 1) * part], at + 1.0) for at in range(self.size)]
            return next(filter(None, wrong), "")

        return lambda: self._gather(data, piece), check, count

    def _all_to_all(self, count: int) -> Any:
        part = count // self.size
        data, got, group = self._made(count), self._made(count), self._group

        def check() -> str:
            mine = self._torch.cat([self._made(part, self.rank * self.size + to) for to in range(self.size)])
            group.all_to_all_single(got, mine)
            wrong = [
                self._wrong(got[at * part : (at + 1) * part], at * self.size + self.rank) for at in range(self.size)
            ]
            return next(filter(None, wrong), "")

        return lambda: group.all_to_all_single(got, data), check, count

    def _point_to_point(self, count: int) -> Any:
        data, group = self._made(count), self._group

        def there_and_back() -> None:
            if self.rank == 0:
                group.send(data, 1)
                group.recv(data, 1)
            elif self.rank == 1:
                group.recv(data, 0)
                group.send(data, 0)

        def check() -> str:
            data.fill_(3.0 if self.rank == 0 else 0.0)
            there_and_back()
            return self._wrong(data, 3.0) if self.rank < 2 else ""

        return there_and_back, check, count

    def _halo(self, count: int) -> Any:
        group, peers = self._group, neighbours(self.rank, self.size)
        part = max(1, count // len(peers))
        out = [self._made(part) for _ in peers]
        into = [self._made(part) for _ in peers]

        def exchange() -> None:
            asked = [
                operation(buffer, peer, tag=tag) if self.backend == "gloo" else group.P2POp(operation, buffer, peer)
                for (to, source, tag), sent, got in zip(peers, out, into, strict=True)
                for operation, buffer, peer in ((group.isend, sent, to), (group.irecv, got, source))
            ]
            for each in asked if self.backend == "gloo" else group.batch_isend_irecv(asked):
                each.wait()

        def check() -> str:
            for (_, _, tag), sent in zip(peers, out, strict=True):
                sent.fill_(100.0 * tag + self.rank)
            exchange()
            wrong = [self._wrong(got, 100.0 * tag + source) for (_, source, tag), got in zip(peers, into, strict=True)]
            return next(filter(None, wrong), "")

        return exchange, check, part * len(peers)

    def _barrier(self, count: int) -> Any:
        return self._group.barrier, lambda: "", 0


class MpiRanks:
    """Ranks of an MPI library."""

    def __init__(self) -> None:
        try:
            import numpy
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # mpi4py finds no library: RuntimeError
            raise Unsupported(
                "measuring MPI needs mpi4py, numpy and an MPI library", hint="pip install mpi4py numpy"
            ) from error
        self._mpi, self._numpy = MPI, numpy
        self._all = MPI.COMM_WORLD
        self.rank, self.size = self._all.Get_rank(), self._all.Get_size()
        self.library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip("\0 ")

    def call(self, collective: str, size_bytes: int) -> CollectiveCall:
        count = elements(collective, size_bytes, self.size)
        make = getattr(self, f"_{collective}", None)
        if make is None:
            raise Unsupported(f"MPI has no {collective}")
        run, check, sent = make(count)
        return CollectiveCall(sent * ELEMENT_BYTES, run, check, count=2 if collective == "point_to_point" else 1)

    def slowest(self, times_s: Sequence[float]) -> list[float]:
        held = self._numpy.array(times_s, dtype="d")
        self._all.Allreduce(self._mpi.IN_PLACE, held, op=self._mpi.MAX)
        return [float(each) for each in held]

    def gather(self, text: str) -> list[str]:
        return [str(each) for each in self._all.allgather(text)]

    def barrier(self) -> None:
        self._all.Barrier()

    def done(self) -> None:
        return None

    def close(self) -> None:
        return None

    def abandon(self, exit_code: int) -> None:
        self._all.Abort(exit_code)

    def _made(self, count: int, value: float = 0.0) -> Any:
        return self._numpy.full(count, value, dtype="f")

    def _wrong(self, held: Any, value: float) -> str:
        received = float(held[0]) if len(held) else value
        return "" if bool((held == value).all()) else f"rank {self.rank} got {received:g}, expected {value:g}"

    def _all_reduce(self, count: int) -> Any:
        data, got = self._made(count), self._made(count)

        def check() -> str:
            self._all.Allreduce(self._made(count, self.rank + 1.0), got)
            return self._wrong(got, self.size * (self.size + 1) / 2)

        return lambda: self._all.Allreduce(data, got), check, count

    def _reduce(self, count: int) -> Any:
        data, got = self._made(count), self._made(count)

        def check() -> str:
            self._all.Reduce(self._made(count, self.rank + 1.0), got, root=0)
            return self._wrong(got, self.size * (self.size + 1) / 2) if self.rank == 0 else ""

        return lambda: self._all.Reduce(data, got, root=0), check, count

    def _broadcast(self, count: int) -> Any:
        data = self._made(count)

        def check() -> str:
            mine = self._made(count, 7.0 if self.rank == 0 else 0.0)
            self._all.Bcast(mine, root=0)
            return self._wrong(mine, 7.0)

        return lambda: self._all.Bcast(data, root=0), check, count

    def _reduce_scatter(self, count: int) -> Any:
        data, piece = self._made(count), self._made(count // self.size)

        def check() -> str:
            self._all.Reduce_scatter_block(self._made(count, self.rank + 1.0), piece)
            return self._wrong(piece, self.size * (self.size + 1) / 2)

        return lambda: self._all.Reduce_scatter_block(data, piece), check, count

    def _all_gather(self, count: int) -> Any:
        part = count // self.size
        data, piece = self._made(count), self._made(part)

        def check() -> str:
            self._all.Allgather(self._made(part, self.rank + 1.0), data)
            wrong = [self._wrong(data[at * part : (at + 1) * part], at + 1.0) for at in range(self.size)]
            return next(filter(None, wrong), "")

        return lambda: self._all.Allgather(piece, data), check, count

    def _all_to_all(self, count: int) -> Any:
        part = count // self.size
        data, got = self._made(count), self._made(count)

        def check() -> str:
            mine = self._numpy.repeat(self._numpy.arange(self.size, dtype="f") + self.rank * self.size, part)
            self._all.Alltoall(mine, got)
            wrong = [
                self._wrong(got[at * part : (at + 1) * part], at * self.size + self.rank) for at in range(self.size)
            ]
            return next(filter(None, wrong), "")

        return lambda: self._all.Alltoall(data, got), check, count

    def _point_to_point(self, count: int) -> Any:
        data = self._made(count)

        def there_and_back() -> None:
            if self.rank == 0:
                self._all.Send(data, dest=1)
                self._all.Recv(data, source=1)
            elif self.rank == 1:
                self._all.Recv(data, source=0)
                self._all.Send(data, dest=0)

        def check() -> str:
            data.fill(3.0 if self.rank == 0 else 0.0)
            there_and_back()
            return self._wrong(data, 3.0) if self.rank < 2 else ""

        return there_and_back, check, count

    def _halo(self, count: int) -> Any:
        peers = neighbours(self.rank, self.size)
        part = max(1, count // len(peers))
        out = [self._made(part) for _ in peers]
        into = [self._made(part) for _ in peers]

        def exchange() -> None:
            asked = []
            for (to, source, tag), sent, got in zip(peers, out, into, strict=True):
                asked += [self._all.Irecv(got, source=source, tag=tag), self._all.Isend(sent, dest=to, tag=tag)]
            self._mpi.Request.Waitall(asked)

        def check() -> str:
            for (_, _, tag), sent in zip(peers, out, strict=True):
                sent.fill(100.0 * tag + self.rank)
            exchange()
            wrong = [self._wrong(got, 100.0 * tag + source) for (_, source, tag), got in zip(peers, into, strict=True)]
            return next(filter(None, wrong), "")

        return exchange, check, part * len(peers)

    def _barrier(self, count: int) -> Any:
        return self._all.Barrier, lambda: "", 0


def open_ranks(backend: str, environ: Mapping[str, str], *, store: str = "") -> Ranks:
    """Join the other ranks as the launcher said."""
    if backend == "mpi":
        return MpiRanks()
    if backend not in BACKENDS:
        raise UsageError(f"no backend named {backend!r}", hint=f"known: {', '.join(BACKENDS)}")
    place = place_of(environ)
    if place is None:
        raise UsageError(
            "RANK and WORLD_SIZE are not set",
            hint="start it with torchrun or srun, or add --ranks to start the ranks here",
        )
    return TorchRanks(backend, *place, store=store)
