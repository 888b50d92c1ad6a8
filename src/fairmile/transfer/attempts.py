"""Which sources to try next for a file, and which of them were at fault."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.transfer.flow import TooSlow
from fairmile.transfer.items import Item
from fairmile.transfer.large import Changed, LargeFile, Offer
from fairmile.transfer.part import Part
from fairmile.transfer.remote import Remote

_BUFFER = 1 << 20


class Attempts:
    """Decides from which sources to try next, and remembers which of them failed and why.

    Several sources share the work only where a digest can tell the outcome. When it comes out wrong, each is tried
    alone; the bytes of the first good attempt then tell which of the others had been at fault.
    """

    def __init__(self, item: Item, remotes: Sequence[Remote], notes: list[str], tell: Callable[[str], None]) -> None:
        self._notes = notes
        self._tell = tell
        shared = bool(item.checksums) and len(remotes) > 1
        self._groups: list[list[Remote]] = [list(remotes)] if shared else [[remote] for remote in remotes]
        self._now: list[Remote] = []
        self._slow: list[list[Remote]] = []
        self._is_second_try = False
        # Ranges of a spoiled attempt: start, stop, source, and the sha256 of what it brought.
        self._suspects: list[tuple[int, int, str, str]] = []
        self.error: FairmileError = SystemFailure(f"{item.path}: no source left")
        self._has_error = False

    def next(self) -> list[Remote] | None:
        """Return the sources to try now, or None when none is left."""
        if not self._groups:
            self._groups, self._slow = self._slow[:1], []  # slow as it is, it is the best there is
        if not self._groups:
            return None
        self._now = self._groups.pop(0)
        return self._now

    @property
    def is_last(self) -> bool:
        """Tell whether nothing else can be tried when the sources of now fail."""
        return not self._groups

    def spoiled(self, error: FairmileError, offers: Sequence[Offer], large: LargeFile, part: Part) -> None:
        """Note that what came was wrong, and plan what to try instead."""
        self._remember(error)
        if len(self._now) > 1 and isinstance(error, Changed):
            rest = [offer.remote for offer in offers if not error.message.startswith(f"{offer.shown} ")]
            self._groups = [rest, *self._groups]
            self._say(f"{error}; continuing without it")
        elif len(self._now) > 1:
            self._suspects = _digests(large, offers, part)
            self._groups += [[remote] for remote in self._now]
            self._say(f"{error}; trying each source alone")
        elif not self._is_second_try:
            # Once more from the beginning: the fault may lie on the way, or in what an earlier process left.
            self._is_second_try = True
            # What the source is by now has another validator, which its next answer tells.
            again = [replace(remote, validator="") for remote in self._now] if isinstance(error, Changed) else self._now
            self._groups = [again, *self._groups]
            self._say(f"{error}; trying once more")
            return
        else:
            self._say(f"{error}, twice")
        self._is_second_try = False

    def failed(self, error: FairmileError) -> None:
        """Note that no source of the group could bring the file."""
        self._remember(error)
        self._is_second_try = False
        if isinstance(error, TooSlow):
            self._slow.append(self._now)
        if self._groups:
            self._say(f"{error}; trying the next source")

    def settle(self, offers: Sequence[Offer], large: LargeFile) -> None:
        """Name the sources that failed beside those that served."""
        for offer in offers if len(offers) > 1 else ():
            trouble = offer.fault or (offer.last_error if not offer.moved_bytes else None)
            if trouble is not None:
                self._say(f"{trouble}; continuing with the others")
            elif large.segments.silent[offer.number]:
                self._say(f"{offer.shown} stopped responding; continuing with the others")

    def compare(self, part: Part) -> None:
        """Name the sources whose bytes differed from those of a part that turned out right."""
        suspects, self._suspects = self._suspects, []
        wrong = {source for start, stop, source, digest in suspects if _digest(part, start, stop) != digest}
        for source in sorted(wrong):
            self._say(f"{source} sent corrupt data")

    def _remember(self, error: FairmileError) -> None:
        if not self._has_error:
            self.error, self._has_error = error, True

    def _say(self, text: str) -> None:
        self._notes.append(text)
        self._tell(text)


def _digests(large: LargeFile, offers: Sequence[Offer], part: Part) -> list[tuple[int, int, str, str]]:
    return [
        (start, stop, offers[number].shown, _digest(part, start, stop))
        for start, stop, number in large.segments.brought_by()
        if number >= 0 and stop > start
    ]


def _digest(part: Part, start: int, stop: int) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_BUFFER))
    while start < stop:
        count = part.read(start, buffer[: min(stop - start, _BUFFER)])
        if not count:
            break
        digest.update(buffer[:count])
        start += count
    return digest.hexdigest()
