"""The durations of one timer: exact count, total, extremes and deviation; percentiles in bounded memory."""

from __future__ import annotations

from array import array
from operator import mul, sub
from struct import calcsize, pack, unpack

TYPE_CHECKING = False  # typing alone would take most of the time that `import fairmile.meter` may take
if TYPE_CHECKING:
    from collections.abc import Iterable

# Up to so many calls every duration is kept; beyond it every second, fourth, … one, evenly over the calls.
MOST_SAMPLES = 1 << 20
INT64 = "l" if calcsize("l") == 8 else "q"  # the first is packed in half the time


class Tally:
    """What is known of the durations of a timer."""

    __slots__ = ("_folded", "_pairs", "_pairs_bytes", "_phase", "_samples", "_stride")

    def __init__(self, durations_ns: Iterable[int] = ()) -> None:
        self._pairs: list[bytes] = []  # starts and ends of calls whose durations nobody asked for yet
        self._pairs_bytes = 0
        self._samples = array("q", durations_ns)
        self._stride = 1  # a power of two: each sample stands for that many calls
        self._phase = 0  # calls to pass over before the next one is kept
        self._folded: tuple[int, int, int, int, int] | None = None
        self._thin()

    @classmethod
    def of(cls, other: Tally) -> Tally:
        """Return a copy."""
        copy = cls()
        copy.merge(other)
        return copy

    def add(self, durations_ns: array[int]) -> None:
        """Add calls."""
        if self._folded is not None:
            self._folded = _joined(self._folded, _fold(durations_ns))
        self._samples.extend(durations_ns[self._phase :: self._stride] if self._stride > 1 else durations_ns)
        if self._stride > 1:
            self._phase = (self._phase - len(durations_ns)) % self._stride
        self._thin()

    def add_pairs(self, pairs_ns: bytes) -> None:
        """Add calls by start and end, 64-bit integers; the cost is paid when the tally is read, or a million wait."""
        self._pairs.append(pairs_ns)
        self._pairs_bytes += len(pairs_ns)
        if self._pairs_bytes > 16 * MOST_SAMPLES:
            self._settle()

    def merge(self, other: Tally) -> None:
        """Add the calls of another timer."""
        self._settle()
        other._settle()
        if self._folded is not None or other._folded is not None:
            self._folded = _joined(self._fold(), other._fold())
        stride = max(self._stride, other._stride)
        self._samples = self._samples[:: stride // self._stride]
        self._samples.extend(other._samples[:: stride // other._stride])
        self._stride = stride
        self._thin()

    @property
    def count(self) -> int:
        """How many calls there were."""
        return self.moments()[0]

    @property
    def exact(self) -> bool:
        """Whether every duration was kept, so that percentiles are those of all calls."""
        return self._stride == 1

    def moments(self) -> tuple[int, int, int, int, int]:
        """Return count, total, least, greatest and the sum of squares, exact, in nanoseconds."""
        self._settle()
        return self._fold()

    def percentiles_ns(self, shares: Iterable[float]) -> list[float]:
        """Return the durations below which these shares of the calls lie, interpolated between neighbours."""
        self._settle()
        ordered = sorted(self._samples)
        percentiles = []
        for share in shares:
            place = share * (len(ordered) - 1)
            low = int(place)
            high = min(low + 1, len(ordered) - 1)
            percentiles.append(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
        return percentiles

    def _settle(self) -> None:
        if self._pairs:
            durations = b"".join(map(_durations, self._pairs))
            self._pairs, self._pairs_bytes = [], 0
            self.add(array("q", durations))

    def _fold(self) -> tuple[int, int, int, int, int]:
        return self._folded if self._folded is not None else _fold(self._samples)

    def _thin(self) -> None:
        while len(self._samples) > MOST_SAMPLES:
            self._folded = self._fold()
            # The calls that are passed over at the end of the old stride count towards the new one.
            kept = len(self._samples)
            self._samples = self._samples[::2]
            self._phase += self._stride if kept % 2 else 0
            self._stride *= 2


def _durations(pairs_ns: bytes) -> bytes:
    numbers = unpack(f"{len(pairs_ns) // 8}{INT64}", pairs_ns)
    return pack(f"{len(numbers) // 2}{INT64}", *map(sub, numbers[1::2], numbers[0::2]))


def _fold(durations_ns: array[int]) -> tuple[int, int, int, int, int]:
    if not durations_ns:
        return 0, 0, 0, 0, 0
    squares = sum(map(mul, durations_ns, durations_ns))
    return len(durations_ns), sum(durations_ns), min(durations_ns), max(durations_ns), squares


def _joined(
    one: tuple[int, int, int, int, int], other: tuple[int, int, int, int, int]
) -> tuple[int, int, int, int, int]:
    if not one[0] or not other[0]:
        return one if one[0] else other
    least, greatest = min(one[2], other[2]), max(one[3], other[3])
    return one[0] + other[0], one[1] + other[1], least, greatest, one[4] + other[4]
