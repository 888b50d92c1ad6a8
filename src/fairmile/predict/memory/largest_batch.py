"""The largest batch that fits a device, found over the model of the step, not on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

from fairmile.base.errors import RunFailed, UsageError
from fairmile.base.html_tables import fields_table
from fairmile.base.plain import plain
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_size
from fairmile.costs.steps import StepTrace
from fairmile.predict.memory.account import MemoryAccount, MemoryAccountDict
from fairmile.predict.memory.other_batches import OtherBatches

MOST = 1 << 20
_LINES = 3  # accounts that are drawn lines through before the end is sought step by step
_FARTHER = 16


class LargestBatchDict(TypedDict):
    """`LargestBatch` as JSON holds it."""

    batch: int
    account: MemoryAccountDict
    too_large: MemoryAccountDict | None
    tried: list[int]


@dataclass(frozen=True, repr=False)
class LargestBatch(Result):
    """The batch that fits, its account, and the account of the next, which does not; None where none is too large."""

    batch: int
    account: MemoryAccount
    too_large: MemoryAccount | None
    tried: tuple[int, ...]  # batches that were looked at, in order

    def to_dict(self) -> LargestBatchDict:
        fields: LargestBatchDict = plain(self)
        return fields

    def summary(self) -> str:
        used, size = format_size(self.account.device_used_bytes), format_size(self.account.device_bytes)
        return f"{self.batch:,} samples fit {self.account.device}, {used} of {size}"

    def _repr_html_(self) -> str:
        parts = {name: format_size(size) for name, size in self.account.breakdown.items() if size}
        device = f"{format_size(self.account.device_used_bytes)} of {format_size(self.account.device_bytes)}"
        return fields_table({"largest batch": f"{self.batch:,}", "device": device, **parts})


def largest_batch(
    account_of: Callable[[int], MemoryAccount], *, start: int = 1, multiple: int = 1, most: int = MOST
) -> LargestBatch:
    """Return the largest multiple of `multiple` up to `most` whose account fits; RunFailed where not even one does."""
    return _search(_Seen(lambda batches: [account_of(each) for each in batches], multiple), start, most)


def largest_traced_batch(
    traces_of: Callable[[Sequence[int]], Sequence[StepTrace]],
    account_of: Callable[[StepTrace], MemoryAccount],
    *,
    start: int = 1,
    multiple: int = 1,
    most: int = MOST,
) -> LargestBatch:
    """Return the same of a step that is traced, with few traces: each takes seconds, and so does starting to trace.

    Two of them foretell the end, and then only that batch and the next are traced; where the end lies elsewhere the
    search goes on from there. That batch and the next were traced in any case when this returns.
    """
    traces: dict[int, StepTrace] = {}

    def accounts(batches: Sequence[int]) -> list[MemoryAccount]:
        traced = traces_of(batches)
        traces.update(zip(batches, traced, strict=True))
        return [account_of(each) for each in traced]

    def foretell(first: int, second: int) -> Callable[[int], bool] | None:
        others = OtherBatches((first, second), (traces[first], traces[second]))
        return (lambda batch: account_of(others.at(batch)).fits) if others.is_known else None

    return _search(_Seen(accounts, multiple), start, most, foretell)


class _Seen:
    """What was found so far, by number of multiples."""

    def __init__(self, accounts_of: Callable[[Sequence[int]], Sequence[MemoryAccount]], multiple: int) -> None:
        self._accounts_of, self.multiple = accounts_of, multiple
        self.accounts: dict[int, MemoryAccount] = {}

    def look_at(self, *units: int) -> None:
        """Find what is not known yet, all in one go."""
        missing = [each for each in dict.fromkeys(units) if each not in self.accounts]
        if missing:
            accounts = self._accounts_of([each * self.multiple for each in missing])
            self.accounts.update(zip(missing, accounts, strict=True))

    def fits(self, units: int) -> bool:
        self.look_at(units)
        return self.accounts[units].fits


def _search(
    seen: _Seen,
    start: int,
    most: int,
    foretell: Callable[[int, int], Callable[[int], bool] | None] = lambda *_: None,
) -> LargestBatch:
    multiple = seen.multiple
    if multiple < 1 or most < multiple:
        raise UsageError(
            f"no batch size is a multiple of {multiple} and at most {most}",
            hint="use a multiple between 1 and the maximum",
        )
    end = most // multiple
    first = min(end, max(2, start // multiple))  # a batch of one lies in memory as no other does
    second = min(end, 2 * first)
    seen.look_at(first, second)
    guess = _on_the_line(seen, end)
    foretold = foretell(first * multiple, second * multiple)
    if foretold is not None:
        guess = max(1, _edge(lambda units: foretold(units * multiple), guess, end)[0])
        seen.look_at(guess, min(end, guess + 1))
    else:
        for _ in range(_LINES):
            seen.look_at(guess)
            guess = _on_the_line(seen, end)
    low, high = _edge(seen.fits, guess, end)
    if not low:
        least = seen.accounts[1]
        raise RunFailed(
            f"a batch of {multiple} does not fit: {format_size(least.device_used_bytes)} of "
            f"{format_size(least.device_bytes)}",
            hint="use checkpointing, another precision, or a device with more memory",
        )
    return LargestBatch(
        batch=low * multiple,
        account=seen.accounts[low],
        too_large=seen.accounts[high] if high <= end else None,
        tried=tuple(each * multiple for each in seen.accounts),
    )


def _on_the_line(seen: _Seen, end: int) -> int:
    """Return where a line through the accounts of the two largest batches reaches the device's memory."""
    first, second = sorted(seen.accounts)[-2:] if len(seen.accounts) > 1 else (end, end)
    one, other = seen.accounts[first], seen.accounts[second]
    rise = (_wanted(other) - _wanted(one)) / max(1, second - first)
    if rise <= 0:  # so small that segments had room for both
        return min(end, _FARTHER * second)
    return min(end, max(1, second + int((other.device_bytes - _wanted(other)) // rise)))


def _wanted(taken: MemoryAccount) -> int:
    return max(taken.wanted_bytes, taken.device_used_bytes)


def _edge(fits: Callable[[int], bool], guess: int, end: int) -> tuple[int, int]:
    """Return one that fits and the next, which does not; 0 where none does, `end` and the next where all do.

    From the guess it steps on by ever longer strides and then by halves.
    """
    low, high, at, stride = 0, end + 1, guess, 1
    while high - low > 1:
        if fits(at):
            low = at
        else:
            high = at
        if low and high <= end:
            at = (low + high) // 2
        else:
            at = min(end, low + stride) if low else max(1, high - stride)
            stride *= 2
    return low, high
