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
    """How long it took to take batches from a loader so far."""

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
        self._per_rank = per_rank = -(-self._count // ranks.size)
        self.sizes = np.diff([*range(0, per_rank, batch_size), per_rank])  # of the batches of an epoch
        self.steps = len(self.sizes)
        start = ranks.rank * per_rank
        self.own = max(min(self._count - start, per_rank), 0)

    def epoch(self, number: int, skip: int = 0) -> Iterator[Tensors]:
        """Yield the batches of an epoch, after the first `skip` of them."""
        numbers = self._order(number)[skip * self._batch_size :]
        if self.is_resident:
            return self._from_device(numbers)
        batches = [numbers[at : at + self._batch_size] for at in range(0, len(numbers), self._batch_size)]
        return self._ahead(batches) if self._workers else self._when_needed(batches)

    def samples_in(self, batches: int) -> int:
        """Return how many samples the first batches of an epoch have."""
        return min(batches * self._batch_size, self._per_rank)

    def _order(self, epoch: int) -> Array:
        """Return the numbers of the samples of this rank, batch after batch."""
        size, rank, ranks = self._batch_size, self._ranks.rank, self._ranks.size
        if not self._shuffle:
            own = np.arange(rank * self._per_rank, (rank + 1) * self._per_rank, dtype=np.int64)
            return np.minimum(own, self._count - 1)
        mixed = np.random.default_rng([self._seed, epoch]).permutation(self._count)
        if ranks == 1:
            return mixed
        if len(mixed) % ranks:
            mixed = np.concatenate([mixed, np.resize(mixed, ranks - len(mixed) % ranks)])
        whole = self._per_rank // size * size * ranks  # in batches that all ranks have full
        steps, rest = mixed[:whole].reshape(-1, ranks, size), mixed[whole:].reshape(ranks, -1)
        return np.concatenate([steps[:, rank].ravel(), rest[rank]])

    def _from_device(self, numbers: Array) -> Iterator[Tensors]:
        taken, read, clock = self.taken, cast(Any, self._samples).batch, time.perf_counter
        if not len(numbers):
            return
        # One copy for the epoch: a batch is then a slice of it, which costs no transfer.
        for some in torch.split(torch.from_numpy(numbers).to(self._device), self._batch_size):
            began = clock()
            batch = read(some)
            taken.waiting_s += clock() - began
            yield batch

    def _when_needed(self, batches: list[Array]) -> Iterator[Tensors]:
        move = _mover(self._device)
        for numbers in batches:
            began = time.perf_counter()
            batch = move(self._samples.batch(numbers))()
            spent_s = time.perf_counter() - began
            self.taken.waiting_s += spent_s
            self.taken.reading_s += spent_s
            yield batch

    def _ahead(self, todo: list[Array]) -> Iterator[Tensors]:
        # Threads know nothing of this iterator, so that it can be dropped in the middle and they end.
        threads = ThreadPoolExecutor(self._workers, thread_name_prefix="reader")
        read = partial(_read, self._samples, _mover(self._device))
        try:
            ahead = deque(threads.submit(read, numbers) for numbers in todo[: self._workers * _AHEAD])
            for at in range(len(ahead), len(ahead) + len(todo)):
                began = time.perf_counter()
                take, spent_s = ahead.popleft().result()
                if at < len(todo):
                    ahead.append(threads.submit(read, todo[at]))
                batch = take()
                self.taken.waiting_s += time.perf_counter() - began
                self.taken.reading_s += spent_s
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
