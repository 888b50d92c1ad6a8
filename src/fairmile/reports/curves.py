"""What a log holds as curves and phases: metrics over steps, time per epoch, spans on a time line, power, energy."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import Channel, Log, Samples, Spans, Writer

MOST_POINTS = 2000
_MOST_PHASES = 8
_MOST_EXACT = 100_000  # intervals; beyond, those of one phase that touch at the resolution of a figure become one
_NUMBERS = ("n", "epoch", "step", "index", "i")
_NS = 1e-9


@dataclass(frozen=True)
class Curve:
    """Values over steps, in the order of the steps; `at_s` is when each was logged, since the epoch."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    at_s: tuple[float, ...]

    @property
    def not_finite(self) -> int:
        return sum(not math.isfinite(y) for y in self.ys)


@dataclass(frozen=True)
class Phase:
    """All calls of one timer, in seconds since the first thing in the log."""

    name: str
    intervals: tuple[tuple[float, float], ...]
    calls: int
    total_s: float


@dataclass(frozen=True)
class Trace:
    """Power over time, measured as such or told by a counter of joules."""

    channel: Channel
    at_s: tuple[float, ...]
    watts: tuple[float, ...]


@dataclass(frozen=True)
class Timeline:
    """The phases of a run, those that took longest first, and the power drawn meanwhile."""

    start_s: float  # since the epoch
    length_s: float
    phases: tuple[Phase, ...]
    traces: tuple[Trace, ...]
    segments: tuple[tuple[float, float, str], ...]  # start, end and the innermost phase; nothing overlaps
    hidden: int = 0  # phases that are not here because others took longer


def main_writer(log: Log) -> Writer | None:
    """Return the process that speaks for all: rank 0, or the first that wrote a metric or a span."""
    writers = [each.writer for each in log.metrics[:1]] + [each.writer for each in log.spans] + log.writers
    return next((writer for writer in writers if writer.rank == 0), writers[0] if writers else None)


def curves(log: Log) -> dict[str, Curve]:
    """Return each metric as one process logged it; a step that was logged again counts as it was last."""
    points: dict[str, dict[float, tuple[float, float]]] = {}
    ranked = any(each.writer.rank == 0 for each in log.metrics)
    for each in log.metrics:
        if ranked and each.writer.rank not in (0, None):
            continue
        known = points.setdefault(each.name, {})
        known[float(len(known)) if each.step is None else float(each.step)] = (each.value, each.at_ns * _NS)
    curves_by_name = {}
    for name, known in points.items():
        steps = sorted(known)
        values, times = [known[step][0] for step in steps], [known[step][1] for step in steps]
        curves_by_name[name] = Curve(name, tuple(steps), tuple(values), tuple(times))
    return curves_by_name


def epochs(log: Log) -> Curve | None:
    """Return the seconds of each epoch, from the timer of that name; None where there is none."""
    names = dict.fromkeys(spans.name for spans in log.spans)
    name = next((each for each in names if each.lower() == "epoch"), None)
    name = name or next((each for each in names if "epoch" in each.lower()), None)
    writer = main_writer(log)
    chosen = [spans for spans in log.spans if name and spans.name == name and spans.writer == writer]
    chosen = chosen or [spans for spans in log.spans if name and spans.name == name][:1]
    calls = [
        (start, duration, attributes or {})
        for spans in chosen
        for start, duration, attributes in zip(spans.starts_ns, spans.durations_ns, spans.attributes, strict=True)
    ]
    calls.sort(key=lambda call: call[0])
    if not calls:
        return None
    numbers = [_number(attributes) for _, _, attributes in calls]
    known = None not in numbers and len(set(numbers)) == len(numbers)
    xs = [float(each or 0) for each in numbers] if known else [float(at) for at in range(len(calls))]
    times = [start * _NS for start, _, _ in calls]
    return Curve("time per epoch", tuple(xs), tuple(duration * _NS for _, duration, _ in calls), tuple(times))


def over_epochs(curve: Curve, epoch: Curve) -> Curve:
    """Return a curve over epochs: as it is where its steps are epochs, else by the time each value was logged."""
    if len(curve.xs) <= len(epoch.xs) + 1:
        return curve
    xs = []
    for moment in curve.at_s:
        at = max(0, bisect_right(epoch.at_s, moment) - 1)
        share = (moment - epoch.at_s[at]) / epoch.ys[at] if epoch.ys[at] > 0 else 0.0
        xs.append(epoch.xs[at] + min(1.0, max(0.0, share)))
    return Curve(curve.name, tuple(xs), curve.ys, curve.at_s)


def thinned(xs: Sequence[float], ys: Sequence[float], most: int = MOST_POINTS) -> tuple[list[float], list[float]]:
    """Return at most so many points of a curve, the lowest and highest of each stretch among them."""
    if len(xs) <= most:
        return list(xs), list(ys)
    stretches, kept = max(1, most // 2 - 1), {0, len(xs) - 1}
    for stretch in range(stretches):
        places = range(stretch * len(xs) // stretches, (stretch + 1) * len(xs) // stretches)
        finite = [place for place in places if math.isfinite(ys[place])]
        if finite:
            kept |= {min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__)}
    order = sorted(kept)
    return [xs[place] for place in order], [ys[place] for place in order]


def timeline(log: Log) -> Timeline | None:
    """Return the phases of the process that speaks for all, and every trace of power; None without spans or power."""
    writer = main_writer(log)
    spans = [each for each in log.spans if each.writer == writer and len(each.starts_ns)]
    traces = [trace for samples in log.samples for trace in _traces(samples)]
    starts = [min(each.starts_ns) * _NS for each in spans] + [each.at_s[0] for each in traces]
    if not starts:
        return None
    start_s = min(starts)
    ends = [max(map(int.__add__, each.starts_ns, each.durations_ns)) * _NS for each in spans]
    length_s = max([*ends, *(each.at_s[-1] for each in traces)]) - start_s
    phases = sorted(_phases(spans, start_s), key=lambda phase: -phase.total_s)
    shown = [each for each in phases if each.total_s > 0][:_MOST_PHASES]
    if sum(len(each.intervals) for each in shown) > _MOST_EXACT:
        gap = length_s / MOST_POINTS
        shown = [Phase(each.name, merged(each.intervals, gap), each.calls, each.total_s) for each in shown]
    moved = [Trace(each.channel, tuple(at - start_s for at in each.at_s), each.watts) for each in traces]
    return Timeline(start_s, length_s, tuple(shown), tuple(moved), _segments(shown), len(phases) - len(shown))


def merged(intervals: Sequence[tuple[float, float]], gap_s: float) -> tuple[tuple[float, float], ...]:
    """Return intervals in order, those that are no more than a gap apart as one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start - merged[-1][1] <= gap_s:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def _number(attributes: Mapping[str, Any]) -> float | None:
    for name in _NUMBERS:
        value = attributes.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


def _phases(spans: Sequence[Spans], start_s: float) -> list[Phase]:
    calls_by_name: dict[str, list[tuple[float, float]]] = {}
    for each in spans:
        calls = calls_by_name.setdefault(each.name, [])
        for start, duration in zip(each.starts_ns, each.durations_ns, strict=True):
            begin = start * _NS - start_s
            calls.append((begin, begin + duration * _NS))
    return [
        Phase(name, tuple(sorted(calls)), len(calls), sum(end - start for start, end in calls))
        for name, calls in calls_by_name.items()
    ]


def _segments(phases: Sequence[Phase]) -> tuple[tuple[float, float, str], ...]:
    """Return which phase is the innermost at each time: of those open, the one that began last."""
    moments = sorted(
        [(start, 1, -end, phase.name) for phase in phases for start, end in phase.intervals if end > start]
        + [(end, 0, start, phase.name) for phase in phases for start, end in phase.intervals if end > start]
    )
    pieces: list[tuple[float, float, str]] = []
    stack: list[str] = []
    since = 0.0
    for moment, opens, _, name in moments:
        if stack and moment > since:
            if pieces and pieces[-1][2] == stack[-1] and pieces[-1][1] == since:
                pieces[-1] = (pieces[-1][0], moment, stack[-1])
            else:
                pieces.append((since, moment, stack[-1]))
        since = moment
        if opens:
            stack.append(name)
        else:
            # The call that ends is the one of its name that began last.
            del stack[len(stack) - 1 - stack[::-1].index(name)]
    return tuple(pieces)


def _traces(samples: Samples) -> list[Trace]:
    """Return one trace for each scope of each source: a power where it is measured, else what a counter tells."""
    traces: dict[tuple[str, str], Trace] = {}
    # A reading of the moment goes before a running mean, which shows a phase a second too late.
    ranked = sorted(
        zip(samples.channels, samples.columns, strict=True),
        key=lambda each: (each[0].unit != "W", not each[0].name.endswith("_instant")),
    )
    for channel, column in ranked:
        scope = (channel.source, channel.scope)
        points = [
            (at * _NS, value)
            for at, value in zip(samples.at_ns, column, strict=True)
            if value is not None and math.isfinite(value)
        ]
        if scope in traces or len(points) < 2:
            continue
        if channel.unit == "W":
            traces[scope] = Trace(channel, tuple(at for at, _ in points), tuple(value for _, value in points))
        elif channel.unit == "J" and channel.kind == "counter":
            traces[scope] = _power_of(channel, points)
    return [trace for trace in traces.values() if trace.at_s]


def _power_of(channel: Channel, points: Sequence[tuple[float, float]]) -> Trace:
    """Return the power that an energy counter tells, even between two readings."""
    times, watts = [], []
    for (before, low), (after, high) in pairwise(points):
        grown = high - low
        if grown < 0:
            grown = grown + channel.wraps_at if channel.wraps_at else high
        if after > before:
            # A step at each reading, so that the area is what the counter counted.
            times += [before, after]
            watts += [grown / (after - before)] * 2
    return Trace(channel, tuple(times), tuple(watts))
