"""Members of a batch, executed by a crew of processes on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fairmile.runs.execute.crew import Ended, Order, execute_all
from fairmile.runs.execute.worker import Batch, start


def pool(folder: Path, numbers: Iterable[int], at_once: int) -> Iterator[Ended]:
    """Execute members by their numbers, so many at once, and yield how each ended."""
    batch = Batch.read(folder) if (folder / "batch.json").stat().st_size > 1 else None
    orders = [Order(folder, number, batch.member(number)["id"] if batch else "") for number in numbers]
    yield from execute_all(orders, at_once, start)
