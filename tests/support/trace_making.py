"""Traces of a training that never ran, with causes planted to the nanosecond: what an analysis must find in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows

MS = 1_000_000
Cost = Callable[[int, int], float]  # (rank, step) -> milliseconds


def steady(ms: float) -> Cost:
    return lambda rank, step: ms


@dataclass
class Training:
    """A data-parallel training: input, forward and backward, all-reduce, optimizer; everything as told, no noise."""

    ranks: int = 4
    steps: int = 5
    input_ms: Cost = field(default_factory=lambda: steady(1))
    compute_ms: Cost = field(default_factory=lambda: steady(10))
    transfer_ms: Callable[[int], float] = lambda step: 2
    optimizer_ms: Cost = field(default_factory=lambda: steady(1))
    size_bytes: int = 4 << 20
    device: bool = False
    kernels: int = 4  # of one step's compute
    buckets: int = 1  # gradients leave in so many all-reduces, each after its share of the kernels
    shuffled: bool = False  # ranks' rows mixed up, as a reader may hand them out

    def table(self) -> EventTable:
        rows, clock = Rows(), [0] * self.ranks
        group = RankGroup("default", tuple(range(self.ranks)), "nccl" if self.device else "gloo")
        main = [Lane(rank, "main") for rank in range(self.ranks)]
        stream = [Lane(rank, "stream 7", True, number=7, device=0) for rank in range(self.ranks)]
        talk = [
            Lane(rank, "stream 20", True, number=20, device=0) if self.device else Lane(rank, "gloo worker", number=2)
            for rank in range(self.ranks)
        ]
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if self.device else "gloo:all_reduce"
        for step in range(self.steps):
            begins = list(clock)
            ready = [self._compute(rows, main[rank], stream[rank], step, clock[rank]) for rank in range(self.ranks)]
            leave = 0
            for bucket in range(self.buckets):
                at = (bucket + 1) * self.kernels // self.buckets - 1
                enter = [max(leave, ready[rank][at]) for rank in range(self.ranks)]
                leave = max(enter) + round(self.transfer_ms(step) * MS)
                for rank in range(self.ranks):
                    number = len(rows)
                    # The host asks for it right behind the kernel it waits for.
                    asked = ready[rank][at] - 20 if self.device else ready[rank][at]
                    call = (
                        (EventKind.LAUNCH, "ncclAllReduce") if self.device else (EventKind.REGION, "c10d::allreduce_")
                    )
                    rows.add(*call, asked, asked + 10, main[rank], correlation=number, step=step)
                    rows.add(
                        EventKind.COLLECTIVE, name, enter[rank], leave, talk[rank], group=group, step=step,
                        sequence=step * self.buckets + bucket, bytes=self.size_bytes, correlation=number,
                    )  # fmt: skip
            for rank in range(self.ranks):
                clock[rank] = leave + self._optimizer(rows, main[rank], stream[rank], step, leave)
                rows.add(EventKind.PHASE, f"ProfilerStep#{step}", begins[rank], clock[rank], main[rank], step=step)
        table = rows.table(Process(rank, world=self.ranks) for rank in range(self.ranks))
        if self.shuffled:
            import numpy as np

            return table.select(np.random.default_rng(1).permutation(len(table)))
        return table

    def _compute(self, rows: Rows, main: Lane, stream: Lane, step: int, now: int) -> list[int]:
        """Add input and compute, and return when each kernel ends."""
        wait = round(self.input_ms(main.rank, step) * MS)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        rows.add(EventKind.IO, name, now, now + wait, main, step=step)
        now += wait
        length = round(self.compute_ms(main.rank, step) * MS)
        each, ends = length // self.kernels, []
        for number in range(self.kernels):
            end = now + (each if number < self.kernels - 1 else length - each * (self.kernels - 1))
            self._work(rows, main, stream, "aten::mm" if number % 2 else "aten::addmm", step, (now, end))
            now = end
            ends.append(end)
        return ends

    def _optimizer(self, rows: Rows, main: Lane, stream: Lane, step: int, now: int) -> int:
        length = round(self.optimizer_ms(main.rank, step) * MS)
        self._work(rows, main, stream, "aten::_foreach_add_", step, (now, now + length))
        return length

    def _work(self, rows: Rows, main: Lane, stream: Lane, name: str, step: int, when: tuple[int, int]) -> None:
        if self.device:
            number = len(rows)
            rows.add(EventKind.LAUNCH, "cudaLaunchKernel", when[0], when[0] + 10, main, correlation=number, step=step)
            rows.add(EventKind.KERNEL, f"sm90_{name[6:]}", *when, stream, correlation=number, step=step)
        else:
            rows.add(EventKind.REGION, name, *when, main, step=step)


def coupled(*, steps: int = 6, solver_ms: float = 10, trainer_ms: float = 4, move_ms: float = 1) -> EventTable:
    """A solver that puts a field each step, and a trainer that waits for it, gets it and trains on it."""
    rows = Rows()
    solver, trainer = Lane(0, "main", component="solver"), Lane(0, "main", component="trainer")
    made = taken = 0
    for step in range(steps):
        begin = made
        rows.add(EventKind.REGION, "advance", made, made + round(solver_ms * MS), solver, step=step)
        made += round(solver_ms * MS)
        put = made
        told = {"key": "field", "how": "put"}
        rows.add(
            EventKind.EXCHANGE, "put field", put, put + MS, solver, sequence=step, bytes=8 << 20, step=step, with_=told
        )
        made += MS
        rows.add(EventKind.PHASE, "step", begin, made, solver, step=step)
        begin, asked = taken, taken
        taken = max(taken, put) + round(move_ms * MS)
        told = {"key": "field", "how": "get"}
        rows.add(
            EventKind.EXCHANGE, "get field", asked, taken, trainer, sequence=step, bytes=8 << 20, step=step, with_=told
        )
        rows.add(EventKind.REGION, "train", taken, taken + round(trainer_ms * MS), trainer, step=step)
        taken += round(trainer_ms * MS)
        rows.add(EventKind.PHASE, "step", begin, taken, trainer, step=step)
    return rows.table([Process(0, "solver"), Process(0, "trainer")])
