"""From measured times to a model: a law over sizes and ranks, tables where no law holds, and how far both are off.

The law is a floor that grows with the ranks, the bytes that every rank handles, the bytes that pass its link, and a
part of these that costs more until the message is long enough:
    t = a0 + a1 s(p) + b0 n + b1 n w(p)/r(p) + c n w(p)/r(p) / (1 + n/n0)
with s the steps, w bus over buffer bytes, and r the rings that the links of these ranks form (1 behind a switch).
For a fixed n0 it is linear, so that nothing can get stuck: n0 is searched for, the rest is solved with no term below 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.collectives.formulas import (
    TWO_LEVEL,
    algorithms,
    bus_factor,
    collective_name,
    cost,
    is_pipelined,
)
from fairmile.costs.collectives.links import Link
from fairmile.costs.collectives.tables import MeasuredPoint, checked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

Rings: TypeAlias = Callable[[int], float]

_STEPS: Mapping[str, Callable[[int], float]] = {"ranks": lambda p: p - 1.0, "log2": lambda p: math.log2(max(p, 1))}
_ROBUST = 0.03  # relative residuals beyond it count less and less
_SWEEPS = 12
_NO_LAW = 0.15  # mean error for ranks that were left out, above which a law is not trusted
_LONGEST = 1e12
_TRIED = 24
_SEGMENTS = (4, 16, 64)
_OWN_SIZES = 4
_CLEARLY = 0.5
_WIDER = 0.5  # a size that is left out lies in a gap twice as wide as those that a table is used in
_BARELY = 0.9  # a law with more parameters must be so much better


@dataclass(frozen=True)
class Law:
    """The law of one collective: coefficients in seconds and seconds per byte, each with its standard error."""

    collective: str
    steps: str  # "ranks" | "log2"
    saturates_bytes: float  # n0; infinite where bytes cost the same at any length
    coefficients: tuple[float, ...]  # a0, a1, b0, b1, c
    errors: tuple[float, ...] = ()
    rings: Rings | None = None

    def time_s(self, size_bytes: float, ranks: int) -> float:
        row = _terms(self.collective, self.steps, self.saturates_bytes, self.rings, size_bytes, ranks)
        return math.fsum(a * b for a, b in zip(self.coefficients, row, strict=True))

    def document(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        names = ("floor_s", "per_step_s", "per_byte_s", "per_bus_byte_s", "unsaturated_s_per_byte")
        return {
            "steps": self.steps,
            "saturates_bytes": self.saturates_bytes if math.isfinite(self.saturates_bytes) else None,
            **dict(zip(names, self.coefficients, strict=True)),
            "standard_errors": dict(zip(names, self.errors, strict=False)),
        }


@dataclass(frozen=True)
class InterpolatedTimes:
    """The times of one group as they are, with straight lines between them on logarithmic axes."""

    sizes: tuple[float, ...]
    times: tuple[float, ...]

    @classmethod
    def of(cls, points: Sequence[MeasuredPoint]) -> InterpolatedTimes:
        """Return the table of points with the same ranks; of several with one size, the median counts."""
        by_size: dict[float, list[float]] = {}
        for point in points:
            by_size.setdefault(point.size_bytes, []).append(point.time_s)
        sizes = sorted(by_size)
        return cls(tuple(sizes), tuple(sorted(by_size[size])[len(by_size[size]) // 2] for size in sizes))

    def time_s(self, size_bytes: float) -> float:
        sizes, times = self.sizes, self.times
        if len(sizes) == 1 or size_bytes <= sizes[0]:
            return times[0]
        if size_bytes >= sizes[-1]:
            # Beyond the longest message bandwidth stays as it was between the last two.
            slope = max(0.0, (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
            return times[-1] + slope * (size_bytes - sizes[-1])
        above = next(at for at, size in enumerate(sizes) if size >= size_bytes)
        low, high = max(sizes[above - 1], 1.0), sizes[above]
        share = math.log(max(size_bytes, 1.0) / low) / math.log(high / low) if high > low else 1.0
        return float(times[above - 1] * (times[above] / times[above - 1]) ** share)


@dataclass(frozen=True)
class FitGroup:
    """What became of the points of one number of ranks: relative errors, and what answers for them."""

    ranks: int
    points: int
    mean_error: float
    worst_error: float
    scale: float  # measured over the law's time, for long messages
    table: InterpolatedTimes
    by_table: bool
    own: Law | None = None  # of these ranks alone, where that is closer than the law of all


@dataclass(frozen=True)
class AlgorithmFit:
    """How well one algorithm's formula explains the times, with the link that does it best."""

    algorithm: str
    link: Link
    call_s: float
    mean_error: float
    segments: int | None = None

    def time_s(self, collective: str, size_bytes: float, ranks: int) -> float:
        return self.call_s + cost(collective, self.algorithm, size_bytes, ranks, self.link, segments=self.segments)


@dataclass(frozen=True)
class CollectiveFit:
    """The model of one collective on one machine; `unseen_error` is what it was off for ranks that were left out."""

    collective: str
    law: Law
    groups: Mapping[int, FitGroup]
    unseen_error: float | None
    algorithm: AlgorithmFit | None = None
    equals: tuple[str, ...] = ()  # other algorithms that these points cannot tell from it
    notes: tuple[str, ...] = field(default=())

    def time_s(self, size_bytes: float, ranks: int) -> float:
        """Return the time of one call, also for ranks that were not measured."""
        if ranks == 1:
            return 0.0
        group = self.groups.get(ranks)
        if group is not None and group.by_table:
            return group.table.time_s(size_bytes)
        if group is None and not self.has_law:
            return self._between(size_bytes, ranks)
        if group is not None and group.own is not None:
            return group.own.time_s(size_bytes, ranks)
        return self.law.time_s(size_bytes, ranks) * (group.scale if group else self._scale(ranks))

    @property
    def has_law(self) -> bool:
        """Whether the law can be used for ranks that were not measured."""
        return self.unseen_error is None or self.unseen_error <= _NO_LAW

    def error_bar(self, ranks: int) -> float:
        """Return the relative error to expect for so many ranks."""
        group = self.groups.get(ranks)
        typical = max(each.mean_error for each in self.groups.values())
        if group is not None:
            return group.mean_error
        # Fewer than three numbers of ranks cannot say how good a law over them is.
        return max(typical, self.unseen_error if self.unseen_error is not None else _NO_LAW)

    def document(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        return {
            "collective": self.collective,
            "law": self.law.document(),
            "has_law": self.has_law,
            "unseen_error": self.unseen_error,
            "groups": [
                {name: getattr(group, name) for name in ("ranks", "points", "mean_error", "worst_error", "by_table")}
                for group in self.groups.values()
            ],
            "algorithm": self.algorithm.algorithm if self.algorithm else None,
            "algorithm_error": self.algorithm.mean_error if self.algorithm else None,
            "algorithm_alpha_s": self.algorithm.link.alpha_s if self.algorithm else None,
            "algorithm_beta_s_per_byte": self.algorithm.link.beta_s_per_byte if self.algorithm else None,
            "equal_algorithms": list(self.equals),
            "notes": list(self.notes),
        }

    def _scale(self, ranks: int) -> float:
        """Groups with as many rings share their links in the same way; behind a switch the law itself counts."""
        if self.law.rings is None:
            return 1.0
        rings = self.law.rings(ranks)
        alike = [each.scale for each in self.groups.values() if self.law.rings(each.ranks) == rings]
        return math.exp(sum(map(math.log, alike)) / len(alike)) if alike else 1.0

    def _between(self, size_bytes: float, ranks: int) -> float:
        known = sorted(self.groups)
        low = max((each for each in known if each < ranks), default=known[0])
        high = min((each for each in known if each > ranks), default=known[-1])
        first, last = self.groups[low].table.time_s(size_bytes), self.groups[high].table.time_s(size_bytes)
        share = (ranks - low) / (high - low) if high > low else 0.0
        return first + (last - first) * share


def fit_points(points: Sequence[MeasuredPoint], *, rings: Rings | None = None) -> dict[str, CollectiveFit]:
    """Return the model of each collective that was measured."""
    by_name: dict[str, list[MeasuredPoint]] = {}
    for point in points:
        by_name.setdefault(collective_name(point.collective), []).append(point)
    return {name: fit_collective(name, each, rings=rings) for name, each in by_name.items()}


def fit_collective(collective: str, points: Sequence[MeasuredPoint], *, rings: Rings | None = None) -> CollectiveFit:
    """Fit the points of one collective; `rings` says how many rings the links of so many ranks form."""
    name = collective_name(collective)
    kept = [checked(point, name) for point in points if point.ranks > 1]
    if not kept:
        raise UsageError(f"no measurement of {name} with more than one rank")
    if rings is not None and any(rings(point.ranks) <= 0 for point in kept):
        raise UsageError(f"{name} was measured on ranks whose links do not form a ring")
    notes: list[str] = []
    law = _best_law(name, kept, rings)
    by_ranks: dict[int, list[MeasuredPoint]] = {}
    for point in kept:
        by_ranks.setdefault(point.ranks, []).append(point)
    groups = {ranks: _group(law, by_ranks[ranks]) for ranks in sorted(by_ranks)}
    unseen = _unseen_error(name, law, by_ranks, rings)
    if unseen is not None and unseen > _NO_LAW:
        notes.append(
            f"no formula fits all rank counts (error {unseen:.0%} on held-out counts): "
            "each count uses its own table, others are interpolated"
        )
    ranking = rank_algorithms(name, kept)
    best = ranking[0] if ranking else None
    equals = tuple(each.algorithm for each in ranking[1:] if best and each.mean_error < best.mean_error * 1.02 + 1e-4)
    return CollectiveFit(name, law, groups, unseen, best, equals, tuple(notes))


def rank_algorithms(collective: str, points: Sequence[MeasuredPoint]) -> tuple[AlgorithmFit, ...]:
    """Return the algorithms by how well their formulas explain the times, each with its own latency and bandwidth."""
    import numpy as np

    name = collective_name(collective)
    times = np.array([point.time_s for point in points])
    ranked = []
    for algorithm in algorithms(name):
        if algorithm in (TWO_LEVEL, "in_network"):
            continue
        choices = _SEGMENTS if is_pipelined(name, algorithm) else (None,)
        for segments in choices:
            columns = [
                [cost(name, algorithm, p.size_bytes, p.ranks, link, segments=segments) for p in points]
                for link in (Link(1.0, 0.0), Link(0.0, 1.0))
            ]
            matrix = np.array([[1.0] * len(points), *columns]).T
            solved, _ = _solve(matrix, times)
            error = float(np.mean(np.abs(matrix @ solved / times - 1)))
            link = Link(float(solved[1]), float(solved[2]))
            ranked.append(AlgorithmFit(algorithm, link, float(solved[0]), error, segments))
    best: dict[str, AlgorithmFit] = {}
    for each in sorted(ranked, key=lambda each: each.mean_error):
        best.setdefault(each.algorithm, each)
    return tuple(best.values())


# ---- the law


def _terms(
    collective: str, steps: str, n0: float, rings: Rings | None, size_bytes: float, ranks: int
) -> tuple[float, ...]:
    through = size_bytes * bus_factor(collective, ranks) / (rings(ranks) if rings is not None else 1.0)
    unsaturated = through / (1 + size_bytes / n0) if math.isfinite(n0) else 0.0
    return 1.0, _STEPS[steps](ranks), size_bytes, through, unsaturated


def _law_of(
    collective: str, points: Sequence[MeasuredPoint], rings: Rings | None, steps: str, n0: float
) -> tuple[Law, float]:
    """Return the law with this n0 and how badly it fits."""
    import numpy as np

    rows = np.array([_terms(collective, steps, n0, rings, point.size_bytes, point.ranks) for point in points])
    times = np.array([point.time_s for point in points])
    columns = [at for at, is_free in enumerate(_free(n0)) if is_free and np.any(rows[:, at] != 0)]
    columns = _independent(rows / times[:, None], columns)
    solved, errors = _solve(rows[:, columns], times)
    coefficients, spread = [0.0] * rows.shape[1], [0.0] * rows.shape[1]
    for at, value, error in zip(columns, solved, errors, strict=True):
        coefficients[at], spread[at] = float(value), float(error)
    residuals = np.abs(rows @ np.array(coefficients) / times - 1)
    bad = float(np.mean(np.minimum(residuals, _ROBUST) ** 2 + 2 * _ROBUST * np.maximum(residuals - _ROBUST, 0)))
    return Law(collective, steps, n0, tuple(coefficients), tuple(spread), rings), bad


def _free(n0: float) -> tuple[bool, ...]:
    """Return which terms of the law are looked for."""
    return True, True, math.isfinite(n0), True, math.isfinite(n0)


def _independent(rows: Floats, columns: list[int]) -> list[int]:
    """Leave out what the columns before say already, such as steps where all points have as many ranks."""
    import numpy as np

    kept: list[int] = []
    for at in (3, *(each for each in columns if each != 3)):  # what passes the link comes first: it always counts
        if at not in columns:
            continue
        chosen = rows[:, [*kept, at]]
        norms = np.linalg.norm(chosen, axis=0)
        if norms.min() > 0 and np.linalg.matrix_rank(chosen / norms, tol=1e-6) == len(kept) + 1:
            kept.append(at)
    return sorted(kept)


def _best_law(collective: str, points: Sequence[MeasuredPoint], rings: Rings | None) -> Law:
    sizes = sorted({point.size_bytes for point in points if point.size_bytes > 0})
    enough = len(sizes) >= 4 and len(points) >= 8
    plain = [_law_of(collective, points, rings, steps, math.inf) for steps in _STEPS]
    law, bad = min(plain, key=lambda each: each[1])
    if not enough:
        return law
    for steps in _STEPS:
        for n0 in _candidates(sizes):
            other, worse = _law_of(collective, points, rings, steps, n0)
            if worse < bad * (_BARELY if not math.isfinite(law.saturates_bytes) else 1.0):
                law, bad = other, worse
    return law


def _candidates(sizes: Sequence[float]) -> list[float]:
    low, high = math.log(sizes[0]), math.log(min(_LONGEST, sizes[-1]))
    return [math.exp(low + (high - low) * at / _TRIED) for at in range(_TRIED + 1)]


def _solve(matrix: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Return coefficients, none below 0, with least relative error, and their standard errors; outliers count less."""
    import numpy as np

    scaled = matrix / times[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    norms[norms == 0] = 1.0
    scaled = scaled / norms
    ones = np.ones(len(times))
    weights = np.ones(len(times))
    solved = np.zeros(matrix.shape[1])
    for _ in range(_SWEEPS):
        before = solved
        root = np.sqrt(weights)
        solved = _not_negative(scaled * root[:, None], ones * root)
        residuals = np.abs(scaled @ solved - 1)
        weights = 1 / np.maximum(1.0, residuals / _ROBUST)
        if np.allclose(solved, before, rtol=1e-9, atol=1e-12):
            break
    used = np.flatnonzero(solved > 0)
    errors = np.zeros(len(solved))
    if len(used) and len(times) > len(used):
        active = scaled[:, used] * np.sqrt(weights)[:, None]
        rest = float(np.sum(weights * (scaled @ solved - 1) ** 2)) / (len(times) - len(used))
        errors[used] = np.sqrt(np.maximum(0, rest * np.diag(np.linalg.pinv(active.T @ active))))
    return solved / norms, errors / norms


def _not_negative(matrix: Floats, wanted: Floats) -> Floats:
    """Return the least-squares solution without negative parts: of so few columns all sets can be tried."""
    import numpy as np

    count = matrix.shape[1]
    gram, moment = matrix.T @ matrix, matrix.T @ wanted
    best, least = np.zeros(count), math.inf
    for size in range(count, 0, -1):
        for chosen in combinations(range(count), size):
            at = list(chosen)
            try:
                part = np.linalg.solve(gram[np.ix_(at, at)], moment[at])
            except np.linalg.LinAlgError:
                continue
            if part.min() < 0:
                continue
            missed = -float(moment[at] @ part)
            if missed < least:
                least = missed
                best = np.zeros(count)
                best[at] = part
            if size == count:
                return best  # nothing is better than what no bound holds back
    return best


# ---- groups, and what is left out


def _group(law: Law, points: Sequence[MeasuredPoint]) -> FitGroup:
    ranks, table = points[0].ranks, InterpolatedTimes.of(points)
    longest = sorted(points, key=lambda point: point.size_bytes)[len(points) // 2 :]
    ratios = sorted(math.log(point.time_s / _positive(law.time_s(point.size_bytes, ranks))) for point in longest)
    scale = math.exp(ratios[len(ratios) // 2])
    errors = [abs(law.time_s(p.size_bytes, ranks) * scale / p.time_s - 1) for p in points]
    own = None
    if len(table.sizes) >= _OWN_SIZES:
        alone = _best_law(law.collective, points, None)
        of_alone = [abs(alone.time_s(p.size_bytes, ranks) / p.time_s - 1) for p in points]
        # Ranks alone explain their own times the better the fewer they are: that alone is no reason.
        if _mean(of_alone) < _mean(errors) * _CLEARLY:
            own, errors = alone, of_alone
    left_out = _left_out(table)
    # Only sizes between others can be left out: both are judged by the same ones.
    of_law = [error for point, error in zip(points, errors, strict=True) if point.size_bytes in left_out]
    by_table = bool(left_out) and _mean(list(left_out.values())) * _WIDER < _mean(of_law)
    if by_table:
        errors = [error * _WIDER for error in left_out.values()]
    return FitGroup(ranks, len(points), _mean(errors), max(errors), scale, table, by_table, None if by_table else own)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _left_out(table: InterpolatedTimes) -> dict[float, float]:
    """Return size → relative error for each size of a table when the others are used in its place."""
    errors = {}
    for at in range(1, len(table.sizes) - 1):
        others = InterpolatedTimes(
            (*table.sizes[:at], *table.sizes[at + 1 :]), (*table.times[:at], *table.times[at + 1 :])
        )
        errors[table.sizes[at]] = abs(others.time_s(table.sizes[at]) / table.times[at] - 1)
    return errors


def _unseen_error(
    collective: str, law: Law, by_ranks: Mapping[int, Sequence[MeasuredPoint]], rings: Rings | None
) -> float | None:
    """Return the largest mean error of a number of ranks when the law is made without it; None if nothing tells."""
    errors = []
    if len(by_ranks) < 3:
        # Too few to leave one out, but a law that misses even what it was made from is none.
        errors = [
            _mean([abs(law.time_s(p.size_bytes, p.ranks) / p.time_s - 1) for p in each]) for each in by_ranks.values()
        ]
        return max(errors) if max(errors) > _NO_LAW and len(by_ranks) > 1 else None
    inner = sorted(by_ranks)[1:-1]  # what lies outside is not asked of a law between them
    for ranks in inner:
        others = [point for other, points in by_ranks.items() if other != ranks for point in points]
        made, _ = _law_of(collective, others, rings, law.steps, law.saturates_bytes)
        missed = [abs(made.time_s(p.size_bytes, p.ranks) / p.time_s - 1) for p in by_ranks[ranks]]
        errors.append(_mean(missed))
    return max(errors)


def _positive(time_s: float) -> float:
    return max(time_s, 1e-12)
