"""Answers that were given before, as long as what they were made from is the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
_MOST_BYTES = 32 << 20


class Repeats(Generic[T]):
    """The answers that were asked for last, each with the state of its sources when it was made.

    `size_of` tells how many bytes an answer takes; where all of them take more than `most_bytes`, the oldest go.
    """

    def __init__(self, size_of: Callable[[T], int], most_bytes: int = _MOST_BYTES) -> None:
        self._size_of = size_of
        self._most_bytes = most_bytes
        self._bytes = 0
        self._answers: OrderedDict[Hashable, tuple[object, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, question: Hashable, state: object) -> T | None:
        """Return the answer to a question; None where there is none that was made from this state."""
        with self._lock:
            kept = self._answers.get(question)
            if kept is None or kept[0] != state:
                return None
            self._answers.move_to_end(question)
            return kept[1]

    def keep(self, question: Hashable, state: object, answer: T) -> None:
        """Keep an answer; the state must have been looked up before the answer was made."""
        with self._lock:
            self._drop(question)
            self._answers[question] = state, answer
            self._bytes += self._size_of(answer)
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._answers)))

    def _drop(self, question: Hashable) -> None:
        kept = self._answers.pop(question, None)
        if kept is not None:
            self._bytes -= self._size_of(kept[1])
