"""Limits on guessing: after too many failures, nobody tries again for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fairmile.base.errors import FairmileError

_WINDOW_S = 900.0
_MOST_KEYS = 10_000


class NotLoggedIn(FairmileError):
    """Name, password, session or token is wrong; which of them is not said."""


class TooManyAttempts(FairmileError):
    """Somebody has failed too often; `after_s` is how long they wait."""

    def __init__(self, after_s: float) -> None:
        super().__init__("too many failed attempts", hint=f"try again in {max(1, round(after_s / 60))} min")
        self.after_s = after_s


class Attempts:
    """Counts failures by a key: an account, or the address that a request comes from."""

    def __init__(self, most: int, *, window_s: float = _WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._window_s = window_s
        self._clock = clock
        self._failures: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def check(self, key: str) -> None:
        """Refuse a key with too many failures."""
        failures = self._recent(key)
        if len(failures) >= self._most:
            raise TooManyAttempts(failures[0] + self._window_s - self._clock())

    def failed(self, key: str) -> None:
        """Count a failure."""
        with self._lock:
            if len(self._failures) >= _MOST_KEYS:
                start = self._clock() - self._window_s
                self._failures = {key: times for key, times in self._failures.items() if times[-1] > start}
            self._failures[key] = [*self._recent(key), self._clock()][-self._most :]

    def succeeded(self, key: str) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def _recent(self, key: str) -> list[float]:
        start = self._clock() - self._window_s
        return [at for at in self._failures.get(key, ()) if at > start]
