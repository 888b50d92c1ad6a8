"""Batches of samples on the device, in an order that a seed fixes, read ahead by threads."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.task import ResidentSamples, Samples

Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]
_Move = Callable[[Mapping[str, Any]], Callable[[], Tensors]]

_RESIDENT_SHARE = 0.5  # of the free memory of a device: the rest is for weights and activations
_AHEAD = 2  # batches that wait ready for each thread


@dataclass
class Taken:
    """What was taken from a loader so far, and how long it took."""

    samples: int = 0
    waiting_s: float = 0.0  # the program waited for input; a GPU may still have been busy meanwhile
    reading_s: float = 0.0  # summed over the threads


class Loader:
    """The batches of this rank.

    Shuffled, the batches of all ranks of a step are together what one rank with a batch as large as all of theirs
    would get; samples are repeated so that no rank has less than another. In order, each rank gets one stretch, so
    that what the ranks found can be put one after the other; the first `own` samples of a rank count, those after it
    only fill its batches up.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        device: torch.device,
        ranks: Ranks,
        seed: int,
        shuffle: bool,
        workers: int = 1,
        resident: bool = True,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"parameter batch_size: {batch_size}, expected at least 1")
        if workers < 0:
            raise UsageError(f"parameter workers: {workers}, expected at least 0")
        self._count = len(samples)
        if not self._count:
            raise UsageError("there are no samples")
        self._samples = samples
        self._batch_size = batch_size
        self._device = device
        self._ranks = ranks
        self._seed = seed
        self._shuffle = shuffle
        self._workers = workers
        self.taken = Taken()
        self.is_resident = resident and _fits(samples, device, ranks)
        if self.is_resident:
            self._samples = cast(ResidentSamples, samples).resident(device)
        per_rank = -(-self._count // ranks.size)
        self.steps = -(-per_rank // batch_size)
        start = ranks.rank * per_rank
        self.own = max(min(self._count - start, per_rank), 0)

    def epoch(self, number: int, skip: int = 0) -> Iterator[Tensors]:
        """Yield the batches of an epoch, after the first `skip` of them."""
        order = self._order(number)
        if self.is_resident:
            return self._from_device(order, skip)
        if self._workers == 0:
            return self._when_needed(order, skip)
        return self._ahead(order, skip)

    def _order(self, epoch: int) -> list[Array]:
        """Return the numbers of the samples of each batch of this rank."""
        size, rank, ranks = self._batch_size, self._ranks.rank, self._ranks.size
        if not self._shuffle:
            per_rank = -(-self._count // ranks)
            numbers = np.minimum(np.arange(rank * per_rank, (rank + 1) * per_rank, dtype=np.int64), self._count - 1)
            return [numbers[at : at + size] for at in range(0, per_rank, size)]
        mixed = np.random.default_rng([self._seed, epoch]).permutation(self._count)
        whole = size * ranks
        if len(mixed) % ranks:
            mixed = np.concatenate([mixed, np.resize(mixed, ranks - len(mixed) % ranks)])
        batches = []
        for at in range(0, len(mixed), whole):
            together = mixed[at : at + whole]
            each = len(together) // ranks
            batches.append(together[rank * each : (rank + 1) * each])
        return batches

    def _from_device(self, order: list[Array], skip: int) -> Iterator[Tensors]:
        taken, read, clock = self.taken, cast(Any, self._samples).batch, time.perf_counter
        sizes = [len(each) for each in order[skip:]]
        if not sizes:
            return
        # One copy for the epoch: a batch is then a slice of it, which costs no transfer.
        numbers_of_all = torch.from_numpy(np.concatenate(order[skip:])).to(self._device)
        for size, numbers in zip(sizes, torch.split(numbers_of_all, sizes), strict=True):
            began = clock()
            batch = read(numbers)
            taken.waiting_s += clock() - began
            taken.samples += size
            yield batch

    def _when_needed(self, order: list[Array], skip: int) -> Iterator[Tensors]:
        move = _mover(self._device)
        for numbers in order[skip:]:
            began = time.perf_counter()
            batch = move(self._samples.batch(numbers))()
            spent_s = time.perf_counter() - began
            self.taken.waiting_s += spent_s
            self.taken.reading_s += spent_s
            self.taken.samples += len(numbers)
            yield batch

    def _ahead(self, order: list[Array], skip: int) -> Iterator[Tensors]:
        todo = order[skip:]
        # Threads know nothing of this iterator, so that it can be dropped in the middle and they end.
        threads = ThreadPoolExecutor(self._workers, thread_name_prefix="reader")
        read = partial(_read, self._samples, _mover(self._device))
        try:
            ahead = deque(threads.submit(read, numbers) for numbers in todo[: self._workers * _AHEAD])
            for at, numbers in enumerate(todo, len(ahead)):
                began = time.perf_counter()
                take, spent_s = ahead.popleft().result()
                if at < len(todo):
                    ahead.append(threads.submit(read, todo[at]))
                batch = take()
                self.taken.waiting_s += time.perf_counter() - began
                self.taken.reading_s += spent_s
                self.taken.samples += len(numbers)
                yield batch
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def _read(samples: Samples, move: _Move, numbers: Array) -> tuple[Callable[[], Tensors], float]:
    began = time.perf_counter()
    return move(samples.batch(numbers)), time.perf_counter() - began


def _fits(samples: Samples, device: torch.device, ranks: Ranks) -> bool:
    size_bytes = getattr(samples, "size_bytes", None)
    if size_bytes is None or not hasattr(samples, "resident"):
        return False
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
    else:
        pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"  # macOS has no other
        free_bytes = os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") // ranks.local_size
    return bool(size_bytes <= free_bytes * _RESIDENT_SHARE)


def _mover(device: torch.device) -> _Move:
    """Return what begins to bring a batch to a device and returns what ends it, in the consumer's thread."""
    if device.type != "cuda":
        return lambda batch: lambda: {name: _tensor(value).to(device) for name, value in batch.items()}
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def move(batch: Mapping[str, Any]) -> Callable[[], Tensors]:
        with torch.cuda.stream(side):
            held = {name: _tensor(value) for name, value in batch.items()}
            held = {name: each if each.is_cuda else each.pin_memory() for name, each in held.items()}
            there = {name: each.to(device, non_blocking=True) for name, each in held.items()}
            copied = side.record_event()

        def take() -> Tensors:
            current = torch.cuda.current_stream(device)
            current.wait_event(copied)
            for each in there.values():
                each.record_stream(current)  # else its memory could be used again too early
            return there

        return take

    return move


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
