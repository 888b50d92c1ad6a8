"""Sources that send, but too little or too much."""

from __future__ import annotations

from fairmile.base.errors import Integrity, SystemFailure, Transient
from fairmile.base.units import format_size

LEAST_BYTES_PER_S = 1 << 10


class TooSlow(Transient):
    """A source sends so little that another connection, or another source, is the better choice."""


class Flow:
    """Notices a trickle: less than 1 KiB/s over `window_s` seconds of waiting for one connection."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._bytes = 0
        self._waited_s = 0.0

    def add(self, size_bytes: int, waited_s: float, where: str) -> None:
        """Count bytes and the time waited for them; TooSlow, which names `where`, once the window has passed."""
        self._bytes += size_bytes
        self._waited_s += waited_s
        if self._waited_s < self._window_s:
            return
        if self._bytes < LEAST_BYTES_PER_S * self._waited_s:
            raise TooSlow(f"{where} sent {self._bytes:,} bytes in {self._waited_s:.1f} s")
        self._bytes, self._waited_s = 0, 0.0


def beyond_size(where: str, size_bytes: int) -> Integrity:
    """Return the error for a body that goes on after its last byte."""
    return Integrity(
        f"{where} sends more than the {size_bytes:,} bytes expected",
        hint="the source has a different file than the one described",
    )


def beyond_bound(where: str, most_bytes: int, reason: str) -> SystemFailure:
    """Return the error for a body of unknown size that is larger than may be stored."""
    return SystemFailure(
        f"{where} did not state a size, and sent more than {format_size(most_bytes)}, {reason}",
        hint="state the size in the card, or raise the setting `transfer.unsized`",
    )
