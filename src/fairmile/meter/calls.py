"""What a thread has timed and no line of the log tells yet, and the blocks that time it.

A call costs two readings of the clock and two entries in a list of its thread and name. The list is packed into bytes
when it is full, or once a second, and told by one line (see lines.py). Nesting is not stored: it follows from the
times.
"""

from __future__ import annotations

import threading
from array import array
from contextlib import suppress
from itertools import repeat, starmap
from operator import itemgetter, sub
from struct import error as struct_error
from struct import pack
from time import monotonic_ns

from fairmile.meter.tally import INT64, Tally
from fairmile.meter.text import FEW, attributes_text, base64, column_text, quote

TYPE_CHECKING = False  # see text.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from fairmile.meter.meter import Meter

    Leave = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]

BATCH = 1024  # numbers, two for each call, that a list may hold before its own thread packs them
SIMPLE = frozenset({int, float, str, bool, type(None)})  # what cannot change any more until a line tells it

clock = monotonic_ns


class Calls(list["Any"]):
    """The calls of one kind in one thread that no line tells yet: `width` numbers for each, start and end first."""

    __slots__ = ("head", "meter", "name", "owner", "packed", "tail", "tally")

    width = 2
    is_timed = True

    def __init__(self, meter: Meter, name: str, kind: str = "spans") -> None:
        self.meter = meter
        self.name = name
        self.head = f'{{"{kind}": {quote(name)}, "at": '
        self.tail = meter.line_end()
        self.owner = threading.current_thread()
        self.packed: list[bytes] = []
        self.tally = Tally()

    @property
    def running(self) -> int:
        """How many calls were started and not stopped yet."""
        return 0

    def take(self, most: int) -> str:
        """Take the calls out of the list; return the line that tells them once more than `most` batches are packed."""
        # The owner may append at any moment: only what was there at first is taken, and removed only from the front.
        if count := len(self) - len(self) % self.width:
            self.packed.append(self.pack(count))
            del self[:count]
        return self.line_if_over(most)

    def line_if_over(self, most: int) -> str:
        """Return the line that tells the batches if there are more than so many, else nothing."""
        if len(self.packed) <= most:
            return ""
        packed = b"".join(self.packed)
        self.packed = []
        return self.line(packed)

    def pack(self, count: int) -> bytes:
        """Return the first numbers as bytes."""
        return pack(f"{count}{INT64}", *self[:count])

    def line(self, packed: bytes) -> str:
        """Take note of what was packed and return the line that tells it."""
        self.tally.add_pairs(packed)
        return f"{self.head}{calls_text(packed)}{self.tail}"


class _InSlots(type):
    """Makes a block whose `__enter__` and `__exit__` lie in slots fit for ExitStack, which asks its class for them."""

    @property
    def __enter__(cls) -> Callable[[Any], None]:
        return lambda block: block.__enter__()

    @property
    def __exit__(cls) -> Callable[..., None]:
        return lambda block, *error: block.__exit__(*error)


class Timer(Calls, metaclass=_InSlots):
    """The calls of one name in one thread, and the block that times them; it may be entered again, also inside itself.

    The list holds start and end of calls that are over, `closed` entries, then the starts of those that run. Its thread
    alone adds to it, who holds the lock of the meter removes what is over: nothing can come between a change of the
    list and that of `closed`, since Python looks for signals and other threads at calls and jumps alone.

    What `with` calls lies in slots: Python makes no method of it first, and stays in C for the first and in its loop
    for the second, which is a tenth of the cost.
    """

    __slots__ = ("__enter__", "__exit__", "_is_explicit", "attributed", "closed", "with_attributes")

    __enter__: Callable[[], None]
    __exit__: Leave

    def __init__(self, meter: Meter, name: str, *, is_explicit: bool = False) -> None:
        super().__init__(meter, name)
        self._is_explicit = is_explicit  # started and stopped by name
        self.closed = 0
        self.attributed: list[int] = []  # durations of calls that have lines of their own
        self.with_attributes: TimerWithAttributes | None = None
        # All that this calls is the next reading of the clock and where it goes, again and again.
        self.__enter__ = map(self.append, starmap(clock, repeat(()))).__next__
        self.__exit__ = self.leave()

    def leave(self) -> Leave:
        """Return what ends the block."""
        append, meter = self.append, self.meter

        def leave(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
            if len(self) - self.closed == 1:
                append(clock())
                self.closed += 2
            else:
                self.end(clock())
            if self.closed >= BATCH:
                meter._spill(self)

        return leave

    @property
    def running(self) -> int:
        return len(self) - self.closed if self._is_explicit else 0

    def end(self, now_ns: int, *about: object) -> int:
        """End the call that began last of those that run; return when it began."""
        start: int = self.pop() if len(self) > self.closed else now_ns
        self.insert_call(start, now_ns, *about)
        return start

    def insert_call(self, *call: object) -> None:
        """Add a call that is over, before those that run."""
        self[self.closed : self.closed] = call
        self.closed += self.width
        if self.closed >= BATCH:
            self.meter._spill(self)

    def take(self, most: int) -> str:
        if count := self.closed:
            self.packed.append(self.pack(count))
            self._remove(count)
        if count := len(self.attributed):
            self.tally.add(array("q", self.attributed[:count]))
            del self.attributed[:count]
        return self.line_if_over(most)

    def _remove(self, count: int) -> None:
        del self[:count]
        self.closed -= count


class TimerWithAttributes(Timer):
    """The same for calls with simple attributes: start, end, and either the number `n` or all attributes by name.

    It is the block of one call after another, and `about` is told of the next that ends.
    """

    __slots__ = ("about",)

    width = 3

    def __init__(self, meter: Meter, name: str) -> None:
        super().__init__(meter, name)
        self.about: int | Mapping[str, object] = 0

    def leave(self) -> Leave:
        append, meter = self.append, self.meter

        def leave(kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
            if len(self) - self.closed == 1:
                append(clock())
                append(self.about)
                self.closed += 3
            else:
                self.end(clock(), self.about)
            if self.closed >= BATCH:
                meter._spill(self)

        return leave

    def take(self, most: int) -> str:
        if not (count := self.closed):
            return ""
        times = self[:count]
        about = times[2::3]
        del times[2::3]
        packed = pack(f"{len(times)}{INT64}", *times)
        lines = self._lines_of(times, packed, about)
        self._remove(count)
        self.tally.add_pairs(packed)
        return lines

    def _lines_of(self, times: Sequence[int], packed: bytes, about: Sequence[Any]) -> str:
        """Return the line that tells these calls, or one for each set of names."""
        with suppress(struct_error):  # names, or a number of more than 64 bits
            numbers = pack(f"{len(about)}{INT64}", *about)
            return self._line(packed, f', "n": {base64(numbers) if len(about) > FEW else about}')
        with suppress(KeyError, TypeError):  # not all have the same names
            return self._line(packed, _each(about))
        groups: dict[tuple[str, ...], tuple[list[int], list[Any]]] = {}
        for place, attributes in enumerate(about):
            named = {"n": attributes} if type(attributes) is int else attributes
            group = groups.setdefault(tuple(named), ([], []))
            group[0].extend(times[2 * place : 2 * place + 2])
            group[1].append(named)
        return "".join(
            [self._line(pack(f"{len(times)}{INT64}", *times), _each(named)) for times, named in groups.values()]
        )

    def _line(self, packed: bytes, columns: str) -> str:
        return f"{self.head}{calls_text(packed)}{columns}{self.tail}"


class SingleSpan:
    """A block for one call: it lies in another of its name, somebody keeps it, or an attribute may change later."""

    __slots__ = ("_about", "_open", "_timer")

    def __init__(self, timer: Timer, about: int | Mapping[str, object] | None = None) -> None:
        self._timer = timer
        self._about = about
        self._open: tuple[int, Any] | None = None  # when it was entered, and what was here before

    def __enter__(self) -> None:
        self._open = (clock(), self._open)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = clock()
        assert self._open is not None
        start, self._open = self._open
        timer, about = self._timer, self._about
        if about is None:
            timer.insert_call(start, now)
        elif isinstance(timer, TimerWithAttributes):
            timer.insert_call(start, now, about)
        else:
            timer.attributed.append(now - start)
            if timer.meter.file is not None:
                assert not isinstance(about, int)
                attributes = attributes_text(about)
                timer.meter._add(f'{timer.head}[{start}, {now - start}], "with": {attributes}{timer.tail}')
            elif len(timer.attributed) >= BATCH:
                timer.meter._spill(timer)


def calls_text(packed: bytes) -> str:
    """Return starts and durations where they are few, else starts and ends as base64 of 64-bit integers."""
    if len(packed) > 16 * FEW:
        return base64(packed)
    numbers = array("q", packed)
    numbers[1::2] = array("q", map(sub, numbers[1::2], numbers[0::2]))
    return repr(numbers.tolist())


def _each(attributes: Sequence[Mapping[str, object]]) -> str:
    """Return the part of a line that tells attributes, an entry for each call; KeyError if their names differ."""
    names = attributes[0]
    if set(map(len, attributes)) != {len(names)}:
        raise KeyError
    columns = [f"{quote(name)}: {column_text(list(map(itemgetter(name), attributes)))}" for name in names]
    return f', "each": {{{", ".join(columns)}}}'
