"""The largest batch that fits a device, found over the model of the step, not on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairmile.base.errors import RunFailed, UsageError
from fairmile.base.units import format_size
from fairmile.perf.memory.account import MemoryAccount

_MOST_TRIALS = 24


@dataclass(frozen=True)
class LargestBatch:
    """The batch that fits, its account, and the account of the first that does not where one was tried."""

    batch: int
    account: MemoryAccount
    too_large: MemoryAccount | None
    tried: tuple[int, ...]


def largest_batch(
    account_of: Callable[[int], MemoryAccount], *, start: int = 1, multiple: int = 1, most: int = 1 << 20
) -> LargestBatch:
    """Return the largest multiple of `multiple` up to `most` whose account fits; RunFailed where not even one does.

    Bytes grow nearly in a line with the batch: two accounts foretell where the end is, which is then tried.
    """
    if multiple < 1 or most < multiple:
        raise UsageError(
            f"no batch lies between {multiple} and {most}", hint="give a multiple of 1 or more below the most"
        )
    seen: dict[int, MemoryAccount] = {}

    def fits(units: int) -> bool:
        if units not in seen:
            seen[units] = account_of(units * multiple)
        return seen[units].fits

    end = most // multiple
    low = max(1, min(end, start // multiple))
    if not fits(low):
        high, low = low, 0
        if high > 1 and fits(1):
            low = 1
        elif high > 1 or not fits(1):
            first = seen[1] if 1 in seen else seen[high]
            raise RunFailed(
                f"a batch of {multiple} does not fit: {format_size(first.device_used_bytes)} of "
                f"{format_size(first.device_bytes)}",
                hint="use checkpointing, another precision, or a device with more memory",
            )
    else:
        high = end + 1
        if low < end:
            fits(min(end, 2 * low))
    low, high = _narrow(fits, seen, low, high, end)
    return LargestBatch(
        batch=low * multiple,
        account=seen[low],
        too_large=seen.get(high),
        tried=tuple(each * multiple for each in seen),
    )


def _narrow(
    fits: Callable[[int], bool], seen: dict[int, MemoryAccount], low: int, high: int, end: int
) -> tuple[int, int]:
    """Close in on the end between a batch that fits and one that does not, by line and then by halves."""
    for units in sorted(seen):
        if seen[units].fits:
            low = max(low, units)
        else:
            high = min(high, units)
    for trial in range(_MOST_TRIALS):
        if high - low <= 1:
            break
        guess = _foretold(seen, end) if trial % 3 < 2 else (low + high) // 2
        if not low < guess < high:
            guess = low + 1 if guess <= low else high - 1
        if fits(guess):
            low = guess
        else:
            high = guess
    return low, high


def _foretold(seen: dict[int, MemoryAccount], end: int) -> int:
    """Where a line through the two largest accounts reaches the device's memory."""
    if len(seen) < 2:
        return min(end, 2 * max(seen))
    first, second = sorted(seen)[-2:]
    rise = (seen[second].device_used_bytes - seen[first].device_used_bytes) / (second - first)
    if rise <= 0:
        return min(end, 2 * second)
    room = seen[second].device_bytes - seen[second].device_used_bytes
    return min(end, max(1, second + int(room // rise)))
