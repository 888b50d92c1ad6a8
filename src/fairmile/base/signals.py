"""Requests to end this process as exceptions, so that no block is left without ending what it started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

_REQUESTS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class AskedToEnd(SystemExit):
    """A signal asked this process to end; its exit code is that of a program which the signal ended."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = signal.Signals(number)


@contextmanager
def asked_to_end() -> Iterator[None]:
    """Leave the block with AskedToEnd on SIGTERM, SIGHUP or SIGQUIT; in a main thread, and unless they are handled."""
    before = _handle((signal.SIG_DFL,), _REQUESTS, _leave)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def end_deferred() -> Iterator[None]:
    """Let what would leave the block, Ctrl-C too, wait for its end: of a program just started nobody knows the number.

    A signal that somebody else handles, or ignores, is not touched.
    """
    held: list[int] = []
    before = _handle((_leave, signal.default_int_handler), (*_REQUESTS, signal.SIGINT), lambda n, _: held.append(n))
    try:
        yield
    finally:
        _restore(before)
        for number in held[:1]:
            signal.raise_signal(number)


def _leave(number: int, _: object) -> None:
    raise AskedToEnd(number)


def _handle(instead: tuple[Any, ...], numbers: tuple[signal.Signals, ...], handler: Any) -> dict[signal.Signals, Any]:
    """Handle those signals that are handled by one of `instead`; return how they were."""
    if current_thread() is not main_thread():
        return {}
    before = {number: now for number in numbers if (now := signal.getsignal(number)) in instead}
    for number in before:
        signal.signal(number, handler)
    return before


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
