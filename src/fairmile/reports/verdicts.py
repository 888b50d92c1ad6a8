"""Whether one group of repeats is better than another, or noise: the only place that decides it.

Each pair of groups is judged once for each metric. Tables that stand on one page pass each other their chances, so
that all of them correct for the same number of comparisons and never contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from fairmile.base.quick_dataclass import dataclass
from fairmile.reports.inference import CONFIDENCE, Effect, Estimate, Noise, effect, holm
from fairmile.reports.measures import percent
from fairmile.runs.record.run import Run
from fairmile.runs.record.values import Better


class Verdict(StrEnum):
    """How a group stands to another one."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same within noise"
    DIFFERS = "differs"  # beyond the noise, but nothing says which direction is better
    NOT_COMPARABLE = "not comparable"
    TOO_FEW = "too few repeats"


Pair = tuple[str, frozenset[tuple[str, ...]]]  # a metric, and the ids of the runs of either group


@dataclass(frozen=True)
class Judgement:
    """How a group stands to another one by one metric; `p` is the chance of noise alone, where there is a test."""

    verdict: Verdict
    why: str = ""
    effect: Effect | None = None
    p: float | None = None


def pair_of(metric: str, one: Sequence[str], other: Sequence[str]) -> Pair:
    """Return what names a comparison of two groups, given the ids of their runs."""
    return metric, frozenset((tuple(sorted(one)), tuple(sorted(other))))


def shared_noise(runs: Iterable[Run], estimates: Iterable[Estimate]) -> Noise | None:
    """Return the noise of all repeats together where all runs belong to one sweep; None where nothing was repeated.

    The points of a sweep are executions of one program, which tell more of its noise than the few repeats of each.
    """
    groups = {run.group for run in runs}
    if len(groups) != 1 or "" in groups:
        return None
    known = [(each.sd, each.count - 1) for each in estimates if each.sd is not None and math.isfinite(each.sd)]
    degrees = sum(free for _, free in known)
    largest = max((sd for sd, _ in known), default=0.0)
    if not degrees:
        return None
    # In units of the largest, no square overflows or vanishes.
    squares = math.fsum(free * (sd / largest) ** 2 for sd, free in known) if largest else 0.0
    return Noise(largest * math.sqrt(squares / degrees), degrees)


def judge(
    base: tuple[str, Estimate],
    other: tuple[str, Estimate],
    *,
    better: Better,
    tolerance: float | None = None,
    noise: Noise | None = None,
    is_positive: bool = False,
) -> Judgement:
    """Return how a group with its name stands to another one, as if that were the only comparison; then `settle`."""
    one, two = base[1], other[1]
    if noise is None and 1 in (one.count, two.count):
        who = "one run each" if one.count == two.count else f"one run of {(base if one.count == 1 else other)[0]}"
        return Judgement(Verdict.TOO_FEW, f"{who}: noise is unknown")
    seen = effect(one, two, noise=noise, is_positive=is_positive)
    if tolerance is not None and seen.relative is not None and abs(seen.relative) <= tolerance:
        return Judgement(Verdict.SAME, f"within the tolerance of {percent(tolerance, signed=False)}", seen, seen.p)
    if not better:
        return Judgement(Verdict.DIFFERS, "no better direction is declared", seen, seen.p)
    is_better = (seen.difference < 0) == (better == "lower")
    # What is computed alike each time, as with one seed for all, varies less than it would among other seeds.
    why = "identical repeats: no noise seen" if seen.g is None and not seen.p else ""
    return Judgement(Verdict.BETTER if is_better else Verdict.WORSE, why, seen, seen.p)


def settle(
    judgements: Mapping[Pair, Judgement], also: Mapping[Pair, float], *, confidence: float = CONFIDENCE
) -> dict[Pair, Judgement]:
    """Return the judgements with every verdict withdrawn that noise could have made among so many comparisons.

    `also` are the chances of other comparisons that stand beside these. Each pair counts once (Holm's rule).
    """
    family = {**also, **chances(judgements)}
    adjusted = dict(zip(family, holm(list(family.values())), strict=True))
    return {
        pair: each if each.p is None else _settled(each, adjusted[pair], len(family), confidence)
        for pair, each in judgements.items()
    }


def chances(judgements: Mapping[Pair, Judgement]) -> dict[Pair, float]:
    """Return the chance of noise alone of all pairs that were tested, each as if it were the only one."""
    return {pair: each.effect.p for pair, each in judgements.items() if each.effect is not None}


def _settled(judgement: Judgement, p: float, comparisons: int, confidence: float) -> Judgement:
    if p < 1 - confidence or judgement.verdict is Verdict.SAME:
        return replace(judgement, p=p)
    alone = judgement.effect is not None and judgement.effect.p < 1 - confidence
    why = f"significant alone, not among {comparisons} comparisons" if alone else ""
    return replace(judgement, p=p, verdict=Verdict.SAME, why=why)
