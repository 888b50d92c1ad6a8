"""Sets of moments as sorted, disjoint intervals of whole nanoseconds: union, intersection, difference, exact lengths.

A set is two int64 arrays, starts and ends, half-open; every operation returns one, so results can be combined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairmile.base.quick_dataclass import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Times = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Spans:
    """Disjoint intervals in order; made by `spans`, not by hand."""

    starts: Times
    ends: Times

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def length_ns(self) -> int:
        """How long all of it lasts."""
        return int((self.ends - self.starts).sum())

    def before(self, moments: Times) -> Times:
        """Return how much of the set lies before each moment: differences of it are lengths within windows."""
        import numpy as np

        if not len(self.starts):
            return np.zeros(len(moments), np.int64)
        sums = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        at = np.searchsorted(self.starts, moments, side="right")
        inside = np.minimum(moments, self.ends[at - 1]) - self.starts[at - 1]
        return np.where(at > 0, sums[at - 1] + inside, 0)

    def within(self, starts: Times, ends: Times) -> Times:
        """Return how much of the set lies in each window."""
        return self.before(ends) - self.before(starts)

    def covers(self, moments: Times) -> NDArray[np.bool_]:
        """Tell for each moment whether it lies in the set."""
        import numpy as np

        if not len(self.starts):
            return np.zeros(len(moments), bool)
        at = np.searchsorted(self.starts, moments, side="right") - 1
        return (at >= 0) & (moments < self.ends[at])

    def __or__(self, other: Spans) -> Spans:
        import numpy as np

        if not len(other) or not len(self):
            return self if len(self) else other
        return spans(np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends)))

    def __and__(self, other: Spans) -> Spans:
        return _combined(self, other, both=True)

    def __sub__(self, other: Spans) -> Spans:
        return _combined(self, other, both=False)


def spans(starts: Times, ends: Times) -> Spans:
    """Return the union of intervals in any order, overlapping or not; empty and backward ones count nothing."""
    import numpy as np

    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    real = ends > starts
    if not real.all():
        starts, ends = starts[real], ends[real]
    if not len(starts):
        return nothing()
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return Spans(starts[first], reach[last])


def one(start: int, end: int) -> Spans:
    """Return the set that is one interval."""
    import numpy as np

    return spans(np.array([start], np.int64), np.array([end], np.int64))


def nothing() -> Spans:
    """Return the empty set."""
    import numpy as np

    return Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(sets: list[Spans]) -> Spans:
    """Return the union of any number of sets."""
    import numpy as np

    full = [each for each in sets if len(each)]
    if len(full) < 2:
        return full[0] if full else nothing()
    return spans(np.concatenate([each.starts for each in full]), np.concatenate([each.ends for each in full]))


def _combined(left: Spans, right: Spans, *, both: bool) -> Spans:
    """Return where left and right hold (`both`), or left alone: one sweep over the edges of the two."""
    import numpy as np

    if not len(left) or not len(right):
        return nothing() if both or not len(left) else left
    edges = np.concatenate((left.starts, left.ends, right.starts, right.ends))
    steps = np.repeat(np.array([1, -1, 2, -2], np.int8), [len(left), len(left), len(right), len(right)])
    order = np.argsort(edges, kind="stable")
    edges, state = edges[order], np.cumsum(steps[order], dtype=np.int64)
    held = (state[:-1] == (3 if both else 1)) & (edges[1:] > edges[:-1])
    return spans(edges[:-1][held], edges[1:][held])
