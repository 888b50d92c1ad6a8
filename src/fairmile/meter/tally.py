"""The durations of one timer: exact count, total, extremes and deviation; percentiles in bounded memory."""

from __future__ import annotations

from array import array

TYPE_CHECKING = False  # typing alone would take most of the time that `import fairmile.meter` may take
if TYPE_CHECKING:
    from collections.abc import Iterable

# Up to so many calls every duration is kept; beyond it every second, fourth, … one, evenly over the calls.
MOST_SAMPLES = 1 << 20


class Tally:
    """What is known of the durations of a timer."""

    __slots__ = ("_folded", "_phase", "_samples", "_stride")

    def __init__(self, durations_ns: Iterable[int] = ()) -> None:
        self._samples = array("q", durations_ns)
        self._stride = 1  # a power of two: each sample stands for that many calls
        self._phase = 0  # calls to pass over before the next one is kept
        self._folded: tuple[int, int, int, int, int] | None = None
        self._thin()

    def add(self, durations_ns: array[int]) -> None:
        """Add calls."""
        if self._folded is not None:
            self._folded = _joined(self._folded, _fold(durations_ns))
        self._samples.extend(durations_ns[self._phase :: self._stride] if self._stride > 1 else durations_ns)
        if self._stride > 1:
            self._phase = (self._phase - len(durations_ns)) % self._stride
        self._thin()

    def merge(self, other: Tally) -> None:
        """Add the calls of another timer."""
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
        return self._fold()[0]

    @property
    def exact(self) -> bool:
        """Whether every duration was kept, so that percentiles are those of all calls."""
        return self._stride == 1

    def moments(self) -> tuple[int, int, int, int, int]:
        """Return count, total, least, greatest and the sum of squares, exact, in nanoseconds."""
        return self._fold()

    def percentiles_ns(self, shares: Iterable[float]) -> list[float]:
        """Return the durations below which these shares of the calls lie, interpolated between neighbours."""
        ordered = sorted(self._samples)
        found = []
        for share in shares:
            place = share * (len(ordered) - 1)
            low = int(place)
            high = min(low + 1, len(ordered) - 1)
            found.append(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
        return found

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


def _fold(durations_ns: array[int]) -> tuple[int, int, int, int, int]:
    if not durations_ns:
        return 0, 0, 0, 0, 0
    squares = sum(map(int.__mul__, durations_ns, durations_ns))
    return len(durations_ns), sum(durations_ns), min(durations_ns), max(durations_ns), squares


def _joined(
    one: tuple[int, int, int, int, int], other: tuple[int, int, int, int, int]
) -> tuple[int, int, int, int, int]:
    if not one[0] or not other[0]:
        return one if one[0] else other
    least, greatest = min(one[2], other[2]), max(one[3], other[3])
    return one[0] + other[0], one[1] + other[1], least, greatest, one[4] + other[4]
