"""Results that take long, kept for a while: a page that is loaded again, or twice at once, computes them once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import field
from typing import Any

from fairmile.base.quick_dataclass import dataclass

_MOST = 16
_FRESH_S = 600.0


@dataclass
class _Slot:
    result: Any = None
    made_at: float = float("-inf")
    making: threading.Lock = field(default_factory=threading.Lock)


class Kept:
    """The results that were asked for last, by what was asked."""

    def __init__(self, most: int = _MOST, fresh_s: float = _FRESH_S) -> None:
        self._most = most
        self._fresh_s = fresh_s
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, asked: Hashable, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, which whoever asked the same before may have called already."""
        with self._changing:
            slot = self._slots.setdefault(asked, _Slot())
            self._slots.move_to_end(asked)
            while len(self._slots) > self._most:
                self._slots.popitem(last=False)
        with slot.making:
            if time.monotonic() - slot.made_at > self._fresh_s:
                slot.result = make()
                slot.made_at = time.monotonic()
            return slot.result

    def has(self, asked: Hashable) -> bool:
        """Tell whether a result is there at once."""
        with self._changing:
            slot = self._slots.get(asked)
        return slot is not None and time.monotonic() - slot.made_at <= self._fresh_s
