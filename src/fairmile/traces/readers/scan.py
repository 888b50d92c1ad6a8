"""Reads the events of a JSON trace piece by piece, so that a trace of any length needs little memory.

A trace is `[event, …]` or `{…, "traceEvents": [event, …], …}`, plain or gzipped. The text is cut between two events,
and each piece is decoded into typed records at once. What is broken is passed over and told: a file that was cut off,
bytes in the middle that are no JSON, numbers that JSON does not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from fairmile.base.errors import Integrity
from fairmile.base.units import format_size
from fairmile.traces.readers.opening import BROKEN, open_trace, read_block

E = TypeVar("E")

_BLOCK = 256 << 10  # what is decoded of it stays in the processor's cache: 1.7 times as fast as pieces of 4 MB
_LONGEST_EVENT = 16 << 20
_MOST_RECOVERIES = 100
_LONGEST_BAD_HEAD = 4 << 20
_LONGEST_HEAD = 256 << 20
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_ANOTHER = re.compile(rb"\s*[}\]]*\s*,\s*\{")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_DECODER = json.JSONDecoder()
_AT_BYTE = re.compile(r"byte (\d+)")
# Profilers print what C prints for a division by zero.
_NO_NUMBER = re.compile(rb"(?<=[:\[,\s])-?(?:inf|nan|Infinity|NaN)(?=[\s,\]}])")


class Fault(ValueError):
    """A piece that cannot be decoded: where, and whether the text goes on behind the array or only ends too early.

    Whatever is cut within an event ends too early, since two objects follow each other in lists and texts alone.
    """

    def __init__(self, at: int, *, trailing: bool = False, early: bool = False) -> None:
        super().__init__(at)
        self.at = at
        self.trailing = trailing
        self.early = early


class Events(Generic[E]):
    """The events of one file in pieces; `head` is known after the first, `notes` after the last.

    `decode` turns the text of a JSON array into records; `one` turns a value that is not as it should be into one, or
    into None.
    """

    def __init__(self, file: Path, decode: Callable[[bytes], list[E]], one: Callable[[Any], E | None]) -> None:
        self.file = file
        self.head: dict[str, Any] = {}
        self.notes: list[str] = []
        self._lost_at = -1
        self._passed_bytes = 0
        self._odd = 0
        self._decode = decode
        self._one = one
        self._ended = False
        self._is_object = False
        self._enough = 0  # how much text must be there before it is worth another try

    def __iter__(self) -> Iterator[list[E]]:
        text, at = b"", 0  # what is not decoded yet, and where in the file it begins
        begun = False
        for block in self._blocks():
            text += block
            if not begun:
                start = self._begin(text)
                if start < 0:
                    continue
                begun, at, text = True, start, text[start:]
            if self._ended or len(text) < self._enough:
                continue
            cut = _last_cut(text)
            if cut >= 0:
                events, used = self._piece(text, cut, at)
                text, at = text[used:], at + used
                yield events
            elif len(text) > _LONGEST_EVENT:
                raise Integrity(f"{self.file}: an event is longer than {format_size(_LONGEST_EVENT)}")
        if not begun and (start := self._begin(text, force=True)) >= 0:
            begun, at, text = True, start, text[start:]
        if not begun:
            raise Integrity(
                f"{self.file} has no list of events",
                hint='expected [ … ] or {"traceEvents": [ … ]} with JSON objects',
            )
        yield self._last(text, at)
        self._tell()

    def _blocks(self) -> Iterator[bytes]:
        with open_trace(self.file) as stream:
            try:
                while block := read_block(stream, _BLOCK):
                    yield block
            except BROKEN as error:
                self.notes.append(f"{self.file.name}: the compressed file is truncated or damaged ({error})")

    def _begin(self, text: bytes, *, force: bool = False) -> int:
        """Return where the first event begins once the head of the file is there, -1 before."""
        start = text.lstrip(b"\xef\xbb\xbf \t\r\n")
        if start.startswith(b"["):
            return len(text) - len(start) + 1
        for opening in _EVENTS.finditer(text):
            try:
                self.head = json.loads(text[: opening.end()] + b"]}")
            except ValueError:
                continue  # the words stand in a text, or something is wrong before them
            self._is_object = True
            return opening.end()
        if (force or len(text) > _LONGEST_BAD_HEAD) and (match := _EVENTS.search(text)):
            self.notes.append(f"{self.file.name}: the header is damaged, so rank and clock may be wrong")
            return match.end()
        if len(text) > _LONGEST_HEAD:
            raise Integrity(f"{self.file} has no list of events within its first {format_size(_LONGEST_HEAD)}")
        return -1

    def _piece(self, text: bytes, cut: int, at: int) -> tuple[list[E], int]:
        """Return the events up to a cut and how much of the text they took."""
        try:
            return self._records(memoryview(text)[:cut]), _behind_comma(text, cut)
        except Fault as fault:
            if fault.trailing:
                return self._end_of_array(text, fault.at, at)
            first = fault
        if not first.early:
            return self._pass_over(text, first.at, at)
        for earlier in _cuts_before(text, cut, 8):  # the cut lies within an event that holds objects itself
            try:
                return self._records(text[:earlier]), _behind_comma(text, earlier)
            except Fault as fault:
                if not fault.early:
                    return self._pass_over(text, fault.at, at)
        if len(text) > _LONGEST_EVENT:
            return self._recovered(text, at)
        self._enough = 2 * len(text)
        return [], 0

    def _recovered(self, text: bytes, at: int) -> tuple[list[E], int]:
        """Return the events before the first place where brackets or quotes are lost, and begin again behind it."""
        self._enough = 0
        cuts = [match.start() + 1 for match in _BETWEEN.finditer(text)]
        good, kept, low, high = list[E](), 0, 0, len(cuts)
        while low < high:  # what ends before that place can be decoded, unless its end lies within an event
            middle = (low + high) // 2
            for cut in cuts[middle : max(middle - 8, 0) or None : -1] or cuts[:1]:
                try:
                    good, kept, low = self._records(text[:cut]), _behind_comma(text, cut), middle + 1
                    break
                except Fault:
                    continue
            else:
                high = middle
        used = self._next_event(text, kept)
        self._lose(at + kept, used - kept)
        return good, used

    def _pass_over(self, text: bytes, broken: int, at: int) -> tuple[list[E], int]:
        """Return the events before a broken place and begin again at the next event behind it."""
        good: list[E] = []
        kept = 0
        for cut in _cuts_before(text, min(broken, len(text)), 4):
            try:
                good, kept = self._records(text[:cut]), _behind_comma(text, cut)
                break
            except Fault:
                continue
        used = self._next_event(text, max(broken, kept))
        self._lose(at + kept, used - kept)
        return good, used

    def _next_event(self, text: bytes, begin: int) -> int:
        """Return where the first thing behind a place begins that is an event, and no object within one."""
        for match in islice(_BETWEEN.finditer(text, begin), 256):
            try:
                value, _ = _DECODER.raw_decode(text[match.end() : match.end() + _BLOCK].decode("latin-1"))
            except (ValueError, RecursionError):
                continue
            if self._one(value) is not None:
                return match.end()
        return len(text)

    def _end_of_array(self, text: bytes, place: int, at: int) -> tuple[list[E], int]:
        end = text.rfind(b"]", 0, max(place, 0))
        if end >= 0 and _ANOTHER.match(text, end + 1):  # a bracket too many, and the events go on
            return self._pass_over(text, end, at)
        self._ended = True
        try:
            return self._records(text[:end]), end + 1
        except Fault:
            return [], end + 1

    def _last(self, text: bytes, at: int) -> list[E]:
        """Return the events of what is left behind the last cut."""
        events: list[E] = []
        if not self._ended:
            try:
                events = self._records(text, closed=True)
                self._ended, text = True, b""
            except Fault as fault:
                if fault.trailing:
                    events, used = self._end_of_array(text, fault.at, at)
                    text = text[used:]
                else:
                    return self._cut_off(text, at)
        foot = text.strip().removeprefix(b"]").strip()
        if self._is_object and foot.startswith(b","):
            try:
                self.head.update(json.loads(b"{" + foot[1:]))
            except ValueError:
                self.notes.append(f"{self.file.name}: the data after the events is incomplete")
        return events

    def _cut_off(self, text: bytes, at: int) -> list[E]:
        events: list[E] = []
        for _ in range(_MOST_RECOVERIES):
            rest = text.strip().removesuffix(b",")
            try:
                events += self._records(rest)
            except Fault:
                pass
            else:
                if self._is_object:  # an array may lack its bracket: a program that was killed never wrote it
                    place = at + len(text)
                    self.notes.append(f"{self.file.name} is truncated after its last complete event, at byte {place}")
                return events
            for cut in _cuts_before(text, len(text), 8):
                try:
                    events += self._records(text[:cut])
                except Fault:
                    continue
                self._tell_cut_off(at + cut, len(text) - cut)
                return events
            if _last_cut(text) < 0:
                break
            good, used = self._recovered(text, at)
            events += good
            text, at = text[used:], at + used
        self._tell_cut_off(at, len(text))
        return events

    def _tell_cut_off(self, at: int, lost_bytes: int) -> None:
        lost = f"the last {lost_bytes} bytes are lost"
        self.notes.append(f"{self.file.name} is truncated: no complete event after byte {at}, {lost}")

    def _records(self, text: bytes | memoryview, *, closed: bool = False) -> list[E]:
        whole = b"".join((b"[", text, b"" if closed else b"]"))
        try:
            return self._decode(whole)
        except UnicodeDecodeError:
            return self._plain(whole.decode("utf-8", "replace").encode())
        except RecursionError as error:
            raise Fault(0) from error
        except ValueError as error:
            if _is_no_number(whole, error):
                return self._plain(_NO_NUMBER.sub(b"null", whole))
            return self._plain(whole)

    def _plain(self, whole: bytes) -> list[E]:
        """Return the records of a piece that is not as it should be, value by value."""
        try:
            values = msgspec.json.decode(whole)
        except (ValueError, RecursionError) as error:
            match = _AT_BYTE.search(str(error))
            place = int(match[1]) - 1 if match else 0
            is_early = "truncated" in str(error)
            raise Fault(max(place - 1, 0), trailing="trailing" in str(error), early=is_early) from error
        if not isinstance(values, list):
            raise Fault(0)
        events = [self._one(value) for value in values]
        self._odd += sum(each is None for each in events)
        return [each for each in events if each is not None]

    def _lose(self, at: int, size_bytes: int) -> None:
        self._lost_at = at if self._lost_at < 0 else self._lost_at
        self._passed_bytes += size_bytes

    def _tell(self) -> None:
        if self._lost_at >= 0:
            self.notes.append(
                f"{self.file.name}: skipped {self._passed_bytes} bytes that are not JSON, first at byte {self._lost_at}"
            )
        if self._odd:
            self.notes.append(f"{self.file.name}: skipped {self._odd} events that do not follow the format")


def typed_decoder(kind: type[E]) -> Callable[[bytes], list[E]]:
    """Return what decodes the text of a JSON array into records of a msgspec.Struct."""
    return msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]


def _is_no_number(text: bytes, error: ValueError) -> bool:
    """Tell whether decoding failed at a number that JSON does not know."""
    match = _AT_BYTE.search(str(error))
    place = int(match[1]) if match else 0
    return bool(match and _NO_NUMBER.search(text, max(place - 24, 0), place + 24))


def _behind_comma(text: bytes, cut: int) -> int:
    match = _BETWEEN.match(text, cut - 1)
    return match.end() if match else cut


def _last_cut(text: bytes) -> int:
    """Return the end of the last event that another follows, -1 where there is none."""
    return next(iter(_cuts_before(text, len(text), 1)), -1)


def _cuts_before(text: bytes, end: int, most: int) -> Sequence[int]:
    """Return the ends of the last events before a place, the last one first."""
    window = 4096
    while True:
        begin = max(end - window, 0)
        cuts = [match.start() + 1 for match in _BETWEEN.finditer(text, begin, end) if match.end() <= end]
        cuts = [each for each in cuts if each < end]
        if len(cuts) >= most or begin == 0:
            return cuts[::-1][:most]
        window *= 8
