from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.loader import Loader
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.samples import ArraySamples

CPU = torch.device("cpu")


class Numbers:
    """Samples that are their own numbers; `on_read` is called with those of each batch."""

    def __init__(self, count: int, on_read: Callable[[Any], None] = lambda numbers: None) -> None:
        self._count = count
        self._on_read = on_read

    def __len__(self) -> int:
        return self._count

    def batch(self, numbers: Any) -> dict[str, Any]:
        self._on_read(numbers)
        return {"n": np.asarray(numbers)}


def loader(samples: Any, **given: Any) -> Loader:
    known: dict[str, Any] = {"batch_size": 4, "device": CPU, "ranks": Ranks(), "seed": 1, "shuffle": True, "workers": 0}
    return Loader(samples, **(known | given))


def taken(found: Loader, epoch: int = 0, skip: int = 0) -> list[list[int]]:
    return [batch["n"].tolist() for batch in found.epoch(epoch, skip)]


def all_of(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


@for_each("workers", [0, 1, 3])
def test_an_epoch_has_every_sample_once_in_an_order_that_seed_and_epoch_fix(workers: int) -> None:
    found = loader(Numbers(22), workers=workers)
    first = taken(found)
    assert sorted(all_of(first)) == list(range(22))
    assert [len(batch) for batch in first] == [4, 4, 4, 4, 4, 2]
    assert found.steps == 6
    assert taken(loader(Numbers(22)), 0) == first
    assert taken(found, 1) != first
    assert taken(loader(Numbers(22), seed=2)) != first


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_skipped_is_left_out_and_never_read(workers: int) -> None:
    read: list[int] = []
    found = loader(Numbers(22, lambda numbers: read.extend(numbers.tolist())), workers=workers)
    assert taken(found, 3, skip=4) == taken(loader(Numbers(22)), 3)[4:]
    assert len(read) == 6
    assert taken(found, 3, skip=6) == []


@for_each("count", [16, 22, 23, 3])
def test_the_ranks_of_a_step_have_together_what_one_rank_would_have(count: int) -> None:
    parts = [loader(Numbers(count), ranks=Ranks(rank, 4, rank, 4), batch_size=2) for rank in range(4)]
    whole = taken(loader(Numbers(count), batch_size=8))
    steps = list(zip(*(taken(part) for part in parts), strict=True))
    assert len(steps) == len(whole) == parts[0].steps
    for each, together in zip(steps, whole, strict=True):
        assert len({len(batch) for batch in each}) == 1, "no rank has less than another"
        joined = all_of(list(each))
        assert joined[: len(together)] == together
        assert len(joined) - len(together) < 4


@for_each("count", [1, 5, 16, 22])
def test_in_order_the_own_samples_of_all_ranks_one_after_the_other_are_all_samples(count: int) -> None:
    found: list[int] = []
    steps = set()
    for rank in range(3):
        part = loader(Numbers(count), ranks=Ranks(rank, 3, rank, 3), shuffle=False)
        numbers = all_of(taken(part))
        found += numbers[: part.own]
        assert all(number == count - 1 for number in numbers[part.own :]), "the rest repeats the last one"
        steps.add(len(taken(part)))
        assert part.steps == len(taken(part))
    assert found == list(range(count))
    assert len(steps) == 1, "all ranks take as many steps"


def test_batches_are_read_ahead_but_not_without_bound() -> None:
    read: list[int] = []
    found = loader(Numbers(400, lambda numbers: read.append(len(numbers))), workers=2)
    batches = found.epoch(0)
    next(batches)
    deadline = time.monotonic() + 30
    while len(read) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(read) == 5, "what was taken and two ready for each thread"
    time.sleep(0.05)
    assert len(read) == 5
    batches.close()  # type: ignore[attr-defined]


def readers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("reader")]


@for_each("end", ["close", "drop", "exhaust"])
def test_threads_end_with_the_iterator(end: str) -> None:
    batches = loader(Numbers(40), workers=2).epoch(0)
    next(batches)
    started = readers()
    assert started
    if end == "close":
        batches.close()  # type: ignore[attr-defined]
    elif end == "exhaust":
        assert len(list(batches)) == 9
    del batches
    gc.collect()
    for each in started:
        each.join(30)
        assert not each.is_alive()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_reader_raises_reaches_the_caller_at_its_batch(workers: int) -> None:
    bad = taken(loader(Numbers(40)))[3]

    def fail(numbers: Any) -> None:
        if numbers.tolist() == bad:
            raise UsageError("sample 7 is broken")

    found = []
    with pytest.raises(UsageError, match="sample 7 is broken"):
        for batch in loader(Numbers(40, fail), workers=workers).epoch(0):
            found.append(batch["n"].tolist())
    assert found == taken(loader(Numbers(40)))[:3]
    for each in readers():
        each.join(30)


def test_resident_samples_are_asked_once_to_move_and_indexed_with_tensors() -> None:
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    given = ArraySamples({"n": np.arange(20), "x": values})
    found = loader(given)
    assert found.is_resident
    assert not loader(given, resident=False).is_resident
    for batch in found.epoch(0):
        assert isinstance(batch["x"], torch.Tensor)
        assert np.array_equal(batch["x"].numpy(), values[batch["n"].numpy()])
    assert taken(found, 5) == taken(loader(Numbers(20)), 5), "the order is the same wherever the data is"
    assert taken(found, 5, skip=3) == taken(found, 5)[3:]
    assert taken(found, 5, skip=5) == []


def test_samples_that_do_not_fit_stay_where_they_are() -> None:
    class Huge(ArraySamples):
        def __init__(self) -> None:
            super().__init__({"n": np.arange(8)})
            self.size_bytes = 1 << 60

        def resident(self, device: torch.device) -> ArraySamples:
            raise AssertionError

    found = loader(Huge())
    assert not found.is_resident
    assert sorted(all_of(taken(found))) == list(range(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_times_are_counted(workers: int) -> None:
    found = loader(Numbers(22, lambda numbers: time.sleep(0.004)), workers=workers)
    taken(found)
    taken(found, 1)
    assert found.taken.reading_s >= 12 * 0.004
    assert found.taken.waiting_s > 0
    if workers == 0:
        assert found.taken.waiting_s == found.taken.reading_s


@pytest.mark.parametrize("many", [1, 2, 3])
def test_sizes_of_batches_are_known_before_they_are_read(many: int) -> None:
    for rank in range(many):
        part = loader(Numbers(23), ranks=Ranks(rank, many, rank, many))
        sizes = [len(each) for each in taken(part)]
        assert part.sizes.tolist() == sizes
        assert [part.samples_in(count) for count in range(part.steps + 1)] == [0, *accumulate(sizes)]


def test_arrays_that_must_not_be_written_become_tensors_of_their_own() -> None:
    fixed = np.arange(8)
    fixed.flags.writeable = False

    class Fixed(Numbers):
        def batch(self, numbers: Any) -> dict[str, Any]:
            return {"n": fixed[:4]}

    batch = next(loader(Fixed(8)).epoch(0))
    batch["n"][0] = 100
    assert fixed[0] == 0


def test_what_cannot_be_loaded_is_said() -> None:
    with pytest.raises(UsageError, match="there are no samples"):
        loader(Numbers(0))
    with pytest.raises(UsageError, match="batch_size: 0"):
        loader(Numbers(3), batch_size=0)
    with pytest.raises(UsageError, match="workers: -1"):
        loader(Numbers(3), workers=-1)
