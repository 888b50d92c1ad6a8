"""What programs that work together tell of each other: who they are, what they exchange, how long they wait for it.

    from fairmile.meter import component, exchange, phase, sample

    component("trainer")
    with phase("step", 17):
        with exchange("get", "field", peer="solver", version=17) as got:
            data = receive()          # begins when the data is asked for
            got.bytes = data.nbytes
    sample("queue", 3)

A simulation in C or Fortran writes the same lines by include/fairmile_meter.h.
"""

from __future__ import annotations

from array import array
from operator import index
from struct import error as struct_error

from fairmile.meter.calls import BATCH, Calls, calls_text, clock
from fairmile.meter.text import FEW, attributes_text, base64, number, quote, usage_error

TYPE_CHECKING = False  # see text.py
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Literal, Self

    from fairmile.meter.meter import Block, Meter

_MOST_LISTS = 256  # exchanges and counters of a thread that have lists: a key may have the number of a step in it
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class _Exchanges(Calls):
    """The exchanges of one key in one thread that no line tells yet: start, end, wait, bytes, version, …"""

    __slots__ = ("about",)

    width = 5

    def __init__(self, meter: Meter, how: str, key: str, peer: str) -> None:
        name = f"{how} {key}"
        super().__init__(meter, name)
        self.about = f', "exchange": {attributes_text({"how": how, "key": key, "peer": peer})}'

    def pack(self, count: int) -> bytes:
        try:
            return super().pack(count)
        except struct_error:  # a number of bytes that nobody has
            return array("q", [min(max(each, _LEAST), _MOST) for each in self[:count]]).tobytes()

    def line(self, packed: bytes) -> str:
        numbers = array("q", packed)
        pairs = _pairs(numbers, self.width)
        self.tally.add_pairs(pairs)
        waits, sizes, versions = (_column(numbers[place::5]) for place in (2, 3, 4))
        columns = f', "bytes": {sizes}, "version": {versions}, "wait": {waits}'
        return f"{self.head}{calls_text(pairs)}{self.about}{columns}{self.tail}"


class _Counts(Calls):
    """What a counter said in one thread that no line tells yet: time, value, time, value, …"""

    __slots__ = ()

    is_timed = False

    def __init__(self, meter: Meter, name: str) -> None:
        super().__init__(meter, name, "counter")

    def pack(self, count: int) -> bytes:
        numbers = array("q", bytes(8 * count))
        numbers[0::2] = array("q", self[0:count:2])
        numbers[1::2] = array("q", array("d", self[1:count:2]).tobytes())
        return numbers.tobytes()

    def line(self, packed: bytes) -> str:
        numbers = array("q", packed)
        values = array("d", numbers[1::2].tobytes())
        if len(values) > FEW:
            column = base64(numbers[1::2].tobytes())
        else:
            column = f"[{', '.join(number(self.name, value) for value in values)}]"
        return f'{self.head}{_column(numbers[0::2])}, "is": {column}{self.tail}'


class Exchanging:
    """One exchange, from the moment that it is asked for to its end; bytes and version may be told while it lasts."""

    __slots__ = ("_calls", "_is_kept", "_start_ns", "_wait_ns", "bytes", "version")

    bytes: int | None
    version: int | None

    def __init__(self, calls: _Exchanges, *, is_kept: bool) -> None:
        self._calls = calls
        self._is_kept = is_kept  # else its list is for this one alone
        self._start_ns = 0  # 0 while it is not entered
        self._wait_ns = -1

    def __enter__(self) -> Self:
        self._wait_ns = -1
        self._start_ns = clock()
        return self

    def ready(self) -> None:
        """Say that the data, or who takes it, is there: what is over was waiting, what follows moves bytes."""
        self._wait_ns = clock() - self._start_ns

    def asked(self, at_ns: int) -> None:
        """Say that the data was asked for before, at this moment of the monotonic clock."""
        self._start_ns = at_ns

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end, start = clock(), self._start_ns
        size, version = self.bytes, self.version
        self._start_ns = 0
        if type(size) is not int:
            size = _whole("bytes", size)
        if type(version) is not int:
            version = _whole("version", version)
        calls = self._calls
        # One step of C: neither another thread nor a signal handler can come in between.
        calls += (start, end, self._wait_ns, size, version)
        if len(calls) >= BATCH:
            calls.meter._spill(calls)
        elif not self._is_kept:
            calls.meter.append(calls.line(calls.pack(5)))


class Coupling:
    """What one process tells of its part in a coupled run, by the meter that is given."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def component(self, name: str, /) -> None:
        """Say what this process is: "solver", "trainer", "inference"; FAIRMILE_COMPONENT says it without a change."""
        if not isinstance(name, str) or not name:
            raise usage_error(f"{name!r} is not a component name", "use a string, such as solver")
        self._meter.component = name
        self._meter.append(f'{{"component": {quote(name)}{self._meter.line_end()}')

    def metadata(self, /, **facts: object) -> None:
        """Note facts about this process, as texts."""
        text = attributes_text({name: str(value) for name, value in facts.items()})
        self._meter.append(f'{{"about": {text}{self._meter.line_end()}')

    def sample(self, name: str, value: Any, /) -> None:
        """Note what a number is now that changes: the length of a queue, a residual."""
        at = clock()
        if type(value) is not float:
            value = _real(name, value)
        try:
            counts: _Counts = self._meter._local.counts[name]
        except (AttributeError, KeyError):
            counts = self._counts(name)
        counts += (at, value)
        if len(counts) >= BATCH:
            self._meter._spill(counts)

    def phase(self, prefix: str, iteration: int, /) -> Block:
        """Return a context manager for one turn of a loop: `span(prefix, n=iteration)` of a whole number."""
        return self._meter.span(prefix, n=iteration if type(iteration) is int else _whole("iteration", iteration))

    def exchange(
        self,
        how: Literal["put", "get"],
        key: str,
        /,
        *,
        peer: str = "",
        bytes: int | None = -1,
        version: int | None = -1,
    ) -> Exchanging:
        """Return a context manager for data that goes to (put) or comes from (get) another component.

        A put and its get have the same key and version.
        """
        try:
            exchanging: Exchanging = self._meter._local.exchanges[how, key, peer]
        except (AttributeError, KeyError, TypeError):
            exchanging = self._exchanging(how, key, peer)
        if exchanging._start_ns:  # a call further up, or a task that waits, is in it
            exchanging = Exchanging(exchanging._calls, is_kept=exchanging._is_kept)
        exchanging.bytes = bytes
        exchanging.version = version
        return exchanging

    def _exchanging(self, how: str, key: str, peer: str) -> Exchanging:
        if how not in ("put", "get"):
            raise usage_error(f"{how!r} is not a kind of exchange", "use put or get: exchange('put', …)")
        if not isinstance(key, str) or not isinstance(peer, str):
            raise usage_error(
                f"{key!r} to or from {peer!r}: key and peer of an exchange must be strings", "see exchange()"
            )
        meter = self._meter
        meter._started()
        kept: dict[tuple[str, str, str], Exchanging] = meter._local.__dict__.setdefault("exchanges", {})
        exchanging = Exchanging(_Exchanges(meter, how, key, peer), is_kept=len(kept) < _MOST_LISTS)
        if exchanging._is_kept:
            meter._keep(exchanging._calls)
            kept[how, key, peer] = exchanging
        return exchanging

    def _counts(self, name: str) -> _Counts:
        if not isinstance(name, str):
            raise usage_error(f"{name!r} is not a counter name", "use a string")
        meter = self._meter
        meter._started()
        counts = _Counts(meter, name)
        meter._keep(counts)
        meter._local.__dict__.setdefault("counts", {})[name] = counts
        return counts


def _pairs(numbers: array[int], width: int) -> bytes:
    """Return starts and ends alone."""
    pairs = array("q", bytes(16 * (len(numbers) // width)))
    pairs[0::2], pairs[1::2] = numbers[0::width], numbers[1::width]
    return pairs.tobytes()


def _column(numbers: array[int]) -> str:
    return repr(numbers.tolist()) if len(numbers) <= FEW else base64(numbers.tobytes())


def _whole(name: str, value: object) -> int:
    try:
        return -1 if value is None else min(max(index(value), _LEAST), _MOST)  # type: ignore[arg-type]
    except TypeError:
        raise usage_error(f"{name} is {value!r}", "use a whole number") from None


def _real(name: str, value: Any) -> float:
    real = value if type(value) is int else float(number(name, value).strip('"'))
    try:
        return float(real)
    except OverflowError:
        return float("inf") if real > 0 else float("-inf")
