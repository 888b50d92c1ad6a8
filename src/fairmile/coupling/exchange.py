"""What both ways to couple have in common: a solver, a step of it, its fields, and what the trace shows of them."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING, Any

from fairmile import meter
from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np

    Fields = Mapping[str, np.ndarray[Any, Any]]

PROTOCOL = 3
# Words that both sides read and write before the first slot, each in a cache line of its own; see fairmile_couple.h.
WORD_BYTES, WORDS = 64, 5
MOST_HELLO = 1 << 20
_HEAD = WORD_BYTES * WORDS
_MOST_BYTES = 1 << 40
_KINDS = ("f4", "f8", "i4", "i8")


@dataclass(eq=False)
class Solver:
    """A process of the simulation."""

    rank: int
    size: int
    lag: int = 0  # steps between a question and the use of its answer
    every: int = 1  # the solver couples each n-th of its steps
    slots: list[tuple[Fields, Fields]] = field(default_factory=list, repr=False)
    steps: int = 0
    is_stopping: bool = False


class Answers(dict[str, "np.ndarray[Any, Any]"]):
    """Where answers go, by label: the solver sees what is written into the arrays, and no others."""

    def __setitem__(self, label: str, values: object) -> None:
        raise UsageError(f"exchange.answers[{label!r}] cannot be replaced", hint=f"answers[{label!r}][...] = values")


class Exchange:
    """One step of one solver: what it sent, and where the answers go. Both are views of memory that is used again."""

    __slots__ = ("answers", "fields", "solver", "step")

    def __init__(self, solver: Solver, step: int, fields: Fields, answers: Fields) -> None:
        self.solver = solver
        self.step = step  # counts coupled steps from 0
        self.fields, self.answers = fields, answers

    def stop(self) -> None:
        """Ask the solver to end: its step returns FAIRMILE_STOP instead of an answer."""
        self.solver.is_stopping = True


_UNRECORDED = nullcontext()


class Trace:
    """Notes what a solver and the model exchange, and how long the model waited for it, if a run records that."""

    def __init__(self, solver: Solver) -> None:
        self._is_recorded = meter.current().file is not None
        self._fields, self._answers = f"fields/{solver.rank}", f"answers/{solver.rank}"
        self._bytes = [sum(each.nbytes for each in way.values()) for way in solver.slots[0]]

    def received(self, step: int, asked_ns: int) -> None:
        """Note that the fields came, for which the model has waited since `asked_ns`."""
        if not self._is_recorded:
            return
        with meter.exchange("get", self._fields, peer="solver", bytes=self._bytes[0], version=step) as got:
            got.asked(asked_ns)
            got.ready()

    def computing(self) -> AbstractContextManager[object]:
        """Time what the model does between both."""
        return meter.span("model") if self._is_recorded else _UNRECORDED

    def answering(self, step: int) -> AbstractContextManager[object]:
        """Time what sends the answer."""
        if not self._is_recorded:
            return _UNRECORDED
        return meter.exchange("put", self._answers, peer="solver", bytes=self._bytes[1], version=step)


def is_own_name_open() -> bool:
    """Tell whether nothing names this component of a coupled run yet."""
    return not (meter.current().component or os.environ.get("FAIRMILE_COMPONENT"))


def read_hello(text: bytes) -> dict[str, Any]:
    """Return what a solver says of itself and its fields."""
    said: dict[str, Any] = json.loads(text)
    if said["protocol"] != PROTOCOL:
        raise Unsupported(f"the solver speaks protocol {said['protocol']}, expected {PROTOCOL}: compile it again")
    return said


def bytes_of(said: Mapping[str, Any]) -> int:
    """Return how much memory a solver has for its fields."""
    size = _HEAD + int(said["slots"]) * int(said["slot_bytes"])
    if not _HEAD < size < _MOST_BYTES:
        raise ValueError(f"{size} bytes")
    return size


def view_slots(memory: mmap.mmap, said: Mapping[str, Any]) -> list[tuple[Fields, Fields]]:
    """Return the fields of each slot as arrays: those that came in, and those that go back."""
    return [_views(memory, said, number) for number in range(said["slots"])]


def _views(memory: mmap.mmap, said: Mapping[str, Any], slot: int) -> tuple[Fields, Fields]:
    import numpy as np

    views: dict[str, dict[str, Any]] = {"out": {}, "in": {}}
    for each in said["fields"]:
        if each["kind"] not in _KINDS:
            raise ValueError(f"kind {each['kind']}")
        start = _HEAD + slot * said["slot_bytes"] + each["offset"]
        shape = tuple(int(length) for length in each["shape"])
        view: Any = np.ndarray(shape, each["kind"], memory, start, order=each["order"])
        if each["offset"] < 0 or each["offset"] + view.nbytes > said["slot_bytes"]:
            raise ValueError(f"field {each['label']} lies outside")
        view.flags.writeable = each["way"] == "in"
        views[each["way"]][each["label"]] = view
    return views["out"], Answers(views["in"])
