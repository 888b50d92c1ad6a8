"""Random training traces with one known cause of lost time: nested, long and overlapping events, several lanes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows

US, MS = 1_000, 1_000_000
HOST_CAUSES = (
    "nothing", "straggler", "late input", "slow input", "queueing", "imbalance", "idle", "exposed communication",
    "small collectives", "checkpoint", "late checkpoint",
)  # fmt: skip
DEVICE_CAUSES = (*HOST_CAUSES, "launch-bound", "copies", "long operator")


@dataclass
class Planted:
    """A trace, what costs time in it, and how much: the mean over ranks of all steps."""

    table: EventTable
    cause: str
    seconds: float
    rank: int  # the one that is late, -1 where none is


@dataclass
class Program:
    """Ranks that train in steps; host and device clocks of each rank go on as events are added."""

    seed: int
    cause: str
    device: bool
    rows: Rows = field(default_factory=Rows)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng([self.seed, sum(map(ord, self.cause)), self.device])
        self.ranks, self.steps = int(self.random.integers(2, 6)), int(self.random.integers(4, 9))
        self.blocks, self.buckets = int(self.random.integers(1, 5)), int(self.random.integers(1, 4))
        self.compute = int(self.random.integers(8, 30)) * MS
        self.extra = int(self.compute * self.random.uniform(0.4, 1.5))
        self.late = int(self.random.integers(self.ranks))
        self.nested, self.workers = self.random.random() < 0.6, self.random.random() < 0.6
        self.host, self.busy = [0] * self.ranks, [0] * self.ranks
        self.main = [Lane(rank, "main") for rank in range(self.ranks)]
        self.stream = [Lane(rank, "stream 7", True, number=7, device=0) for rank in range(self.ranks)]
        self.talk = [
            Lane(rank, "stream 20", True, number=20, device=0) if self.device else Lane(rank, "gloo", number=2)
            for rank in range(self.ranks)
        ]
        self.group = RankGroup("default", tuple(range(self.ranks)), "nccl" if self.device else "gloo")
        self.calls = self.idle = 0

    def made(self) -> Planted:
        begin = list(self.host)
        for step in range(self.steps):
            self._step(step)
        for rank in range(self.ranks):
            if self.nested:  # frames of the whole program around all of it
                end = max(self.host[rank], self.busy[rank])
                for depth, name in enumerate(("main.py: main", "train_epoch")):
                    self.rows.add(EventKind.REGION, name, begin[rank] - 10 + depth, end + 10 - depth, self.main[rank])
        table = self.rows.table(Process(rank, world=self.ranks) for rank in range(self.ranks))
        late = self.late if self.cause in ("straggler", "late input", "late checkpoint") else -1
        return Planted(table, self.cause, self._truth_ns() / 1e9, late)

    def _truth_ns(self) -> float:
        if self.cause == "nothing":
            return 0.0
        if self.cause == "imbalance":  # each step, all but one wait
            return self.extra * self.steps * (self.ranks - 1) / self.ranks
        if self.cause == "launch-bound":
            return self.idle / self.ranks
        if self.cause in ("checkpoint", "late checkpoint"):
            return self.extra * len(self._saving())
        return float(self.extra * self.steps)

    def _saving(self) -> range:
        return range(1, self.steps - 1, 2)  # the ranks wait for it in the next step

    def _step(self, step: int) -> None:
        begins = list(self.host)
        slow = self.late if self.cause in ("straggler", "late input") else step % self.ranks
        for rank in range(self.ranks):
            waits = 50 * US
            if self.cause == "slow input" or (self.cause == "late input" and rank == slow):
                waits += self.extra
            self._input(rank, waits)
            if self.cause == "copies":
                start = max(self.host[rank], self.busy[rank])
                self.busy[rank] = self.host[rank] = start + self.extra
                self.rows.add(EventKind.MEMCPY, "Memcpy HtoD", start, self.busy[rank], self.stream[rank])
            if self.cause == "idle":
                self.host[rank] = self.busy[rank] = max(self.host[rank], self.busy[rank]) + self.extra
        ready = [self._compute(rank, step, rank == slow) for rank in range(self.ranks)]
        left = self._reduce(ready)
        for rank in range(self.ranks):
            self.busy[rank] = max(self.busy[rank], left)
            self.host[rank] = max(self.host[rank], left if not self.device else self.host[rank])
            self._work(rank, "aten::_foreach_add_", self.compute // 40)
            if self.device:  # the loss is read
                wait = max(self.host[rank], self.busy[rank]) + 2 * US
                self.rows.add(EventKind.SYNC, "cudaStreamSynchronize", self.host[rank], wait, self.main[rank])
                self.host[rank] = wait
            saves = self.cause == "checkpoint" or (self.cause == "late checkpoint" and rank == self.late)
            if saves and step in self._saving():
                start = self.host[rank]
                self.host[rank] = self.busy[rank] = start + self.extra
                self.rows.add(EventKind.REGION, "torch.save", start, self.host[rank], self.main[rank])
            about = {"step": step}
            self.rows.add(EventKind.PHASE, f"step {step}", begins[rank], self.host[rank], self.main[rank], **about)

    def _input(self, rank: int, length: int) -> None:
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        start = self.host[rank]
        self.host[rank] = start + length
        self.rows.add(EventKind.IO, name, start, self.host[rank], self.main[rank])
        if self.workers:  # they read all the time, which stops nobody
            lane = Lane(rank, "loader worker", number=9)
            self.rows.add(EventKind.IO, "read", start, start + self.compute, lane)

    def _compute(self, rank: int, step: int, is_slow: bool) -> list[int]:
        """Add forward and backward, and return when the gradients of each bucket are ready."""
        length = self.compute + int(self.compute * 0.005 * self.random.random())
        if is_slow and self.cause in ("straggler", "imbalance"):
            length += self.extra
        if self.cause == "long operator":  # of the host, before the first kernel
            start = self.host[rank] = max(self.host[rank], self.busy[rank])
            self.host[rank] += self.extra
            self.rows.add(EventKind.REGION, "aten::sort", start, self.host[rank], self.main[rank])
        ready = []
        for bucket in range(self.buckets):
            start = self.host[rank]
            for _ in range(self.blocks):
                if self.cause == "launch-bound":
                    self._tiny(rank, (length + self.extra) // (self.buckets * self.blocks))
                else:
                    self._work(rank, "aten::addmm", length // (self.buckets * self.blocks))
            if self.nested:
                self.rows.add(EventKind.REGION, f"nn.Module: Block_{bucket}", start, self.host[rank], self.main[rank])
            ready.append(self.busy[rank])
        return ready

    def _work(self, rank: int, name: str, length: int) -> None:
        start = self.host[rank]
        if not self.device:
            self.host[rank] = self.busy[rank] = start + length
            self.rows.add(EventKind.REGION, name, start, self.host[rank], self.main[rank])
            if self.nested:
                self.rows.add(EventKind.REGION, "aten::mm", start + length // 8, start + length // 2, self.main[rank])
            return
        self.host[rank] = start + 12 * US
        call = {"correlation": len(self.rows)}
        self.rows.add(EventKind.REGION, name, start, self.host[rank], self.main[rank])
        self.rows.add(EventKind.LAUNCH, "cudaLaunchKernel", start + 4 * US, start + 8 * US, self.main[rank], **call)
        begin = max(start + 8 * US, self.busy[rank])
        self.busy[rank] = begin + length
        self.rows.add(EventKind.KERNEL, f"sm90_{name[6:]}", begin, self.busy[rank], self.stream[rank], **call)

    def _tiny(self, rank: int, length: int) -> None:
        """Add many kernels that are shorter than the time to issue one; all together they leave the extra time idle."""
        each = 200 * US
        count = max(1, length // each)
        self.idle += count * (each - int(each * self.compute / (self.compute + self.extra)))
        busy = int(each * self.compute / (self.compute + self.extra))
        for _ in range(count):
            start = self.host[rank]
            self.host[rank] = start + each
            call = {"correlation": len(self.rows)}
            self.rows.add(EventKind.REGION, "aten::add", start, self.host[rank], self.main[rank])
            self.rows.add(EventKind.LAUNCH, "cudaLaunchKernel", self.host[rank] - 4 * US, self.host[rank],
                          self.main[rank], **call)  # fmt: skip
            begin = max(self.host[rank], self.busy[rank])
            self.busy[rank] = begin + busy
            self.rows.add(EventKind.KERNEL, "add", begin, self.busy[rank], self.stream[rank], **call)

    def _reduce(self, ready: list[list[int]]) -> int:
        """Add the all-reduces of the buckets as soon as gradients are there; return when the last has ended."""
        left, transfer, size = 0, self.compute // 100, 4 << 20
        if self.cause == "exposed communication":
            transfer += self.extra
        small = self.cause == "small collectives"
        for bucket in range(self.buckets):
            # What is planted is behind the last bucket, so that no compute hides it.
            is_last = bucket == self.buckets - 1
            for _ in range(6 if small and is_last else 1):
                length = transfer if is_last else self.compute // 200
                queue = 0
                if small:
                    size, length = 2048, (self.compute // 1000 + self.extra // 6 if is_last else self.compute // 200)
                if self.cause == "queueing" and is_last:
                    queue = self.extra
                enter = [max(left, ready[rank][bucket]) for rank in range(self.ranks)]
                left = max(enter) + queue + length
                moves = {"with_": {"moves": (max(enter) + queue, left)}} if self.cause == "queueing" else {}
                for rank in range(self.ranks):
                    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if self.device else "gloo:all_reduce"
                    about = {"group": self.group, "sequence": self.calls, "bytes": size, **moves}
                    self.rows.add(EventKind.COLLECTIVE, name, enter[rank], left, self.talk[rank], **about)
                self.calls += 1
        return left
