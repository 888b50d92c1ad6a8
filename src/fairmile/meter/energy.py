"""Joules out of samples: by a counter where there is one, else by integrating power; each with what it covers."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.units import format_duration
from fairmile.meter.lines import Channel, Log, Samples, Spans

Method = Literal["counter", "trapezoid", "estimate"]

_POOR = 1.1  # parts may exceed their whole by the errors of both
_GAP_PERIODS = 5  # a hole of more periods than this is told
# Which part of a machine a scope is: a part lies within another when its path begins with the other's.
_PARTS = (
    (re.compile(r"node\b"), "node"),
    (re.compile(r"platform\b"), "node/platform"),
    (re.compile(r"all sockets\b"), "node/platform/sockets"),
    (re.compile(r"socket (\S+)"), "node/platform/sockets/{}"),
    (re.compile(r"all memory\b"), "node/platform/memory"),
    (re.compile(r"memory of socket (\S+)"), "node/platform/memory/{}"),
    (re.compile(r"(?:device|accelerator) (\S+)"), "node/devices/{}"),
)


@dataclass(frozen=True, slots=True)
class Energy:
    """An amount of energy, how it was found, and what it covers.

    `start_ns` and `end_ns` (since the epoch) are what the samples really cover, which may be less than was asked for:
    `notes` says so, as it does of gaps and of counters that began anew.
    """

    joules: float
    method: Method
    channel: str
    source: str
    scope: str
    error: str
    start_ns: int
    end_ns: int
    samples: int
    longest_gap_s: float
    host: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """Energies added up without counting anything twice; `left_out` says of each other one why."""

    joules: float | None
    parts: tuple[Energy, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpanEnergy:
    """What one device used while a span of that name was open.

    `joules` counts each moment once, also where calls overlap; `calls` has one value for each call in the order of
    their beginnings, None where no sample covers it. `warnings` says why a value may be poor.
    """

    name: str
    channel: str
    source: str
    scope: str
    method: Method
    error: str
    host: str
    joules: float
    duration_s: float
    calls: tuple[float | None, ...]
    attributes: tuple[Mapping[str, Any] | None, ...]
    warnings: tuple[str, ...] = ()


def energies(samples: Samples, start_ns: int | None = None, end_ns: int | None = None) -> list[Energy]:
    """Return the energy of each scope that was measured, within a time or as far as the samples go."""
    found = []
    for curve in _curves(samples):
        energy = curve.energy(start_ns, end_ns)
        if energy is not None:
            found.append(energy)
    return found


def energy_of(samples: Samples, channel: str, start_ns: int | None = None, end_ns: int | None = None) -> Energy | None:
    """Return the energy by one channel, a counter of joules or a power; None where it has too few values."""
    for number, each in enumerate(samples.channels):
        if each.name == channel:
            if each.unit not in ("J", "W"):
                raise UsageError(f"the channel {channel!r} is in {each.unit}: it is neither an energy nor a power")
            curve = _Curve.of(samples, number)
            return curve.energy(start_ns, end_ns) if curve is not None else None
    raise NotFound(f"no channel is named {channel!r}", hint=", ".join(each.name for each in samples.channels))


def estimate(watts: float, start_ns: int, end_ns: int, *, scope: str, host: str = "") -> Energy:
    """Return watts times time, which is no measurement and says so."""
    if not 0 <= watts < float("inf"):
        raise UsageError(f"{watts!r} W is no power")
    error = f"an estimate: {watts:g} W were given, nothing was measured"
    seconds = (end_ns - start_ns) / 1e9
    return Energy(watts * seconds, "estimate", "estimate", "given", scope, error, start_ns, end_ns, 0, seconds, host)


def total(found: Iterable[Energy]) -> Total:
    """Add energies up, leaving out what lies within another one: a socket within a node, a device measured twice."""
    left_out: dict[str, str] = {}
    # The larger part first; of two measurements of one part the counter before the power, and those as they come.
    ranked = sorted(found, key=lambda each: (_part(each).count("/"), each.method != "counter"))
    kept: list[Energy] = []
    for energy in ranked:
        name = f"{energy.host}:{energy.channel}" if energy.host else energy.channel
        around = next((other for other in kept if _is_within(energy, other)), None)
        inner = [other for other in ranked if _is_within(other, energy) and not _is_within(energy, other)]
        if around is not None:
            is_same = _part(around) == _part(energy)
            left_out[name] = f"the same as {around.channel} ({around.source})" if is_same else f"within {around.scope}"
        elif inner and (total(inner).joules or 0.0) > _POOR * energy.joules:
            # A counter that is looked at twice a minute has seen nothing of a short program.
            left_out[name] = "it counts less than the parts within it"
        else:
            kept.append(energy)
    return Total(sum(energy.joules for energy in kept) if kept else None, tuple(kept), left_out)


def energy_by_span(log: Log, samples: Samples | Sequence[Samples]) -> list[SpanEnergy]:
    """Return the energy of each span name by each measured scope of the same host."""
    watches = [samples] if isinstance(samples, Samples) else samples
    found = []
    for watch in watches:
        names: dict[str, list[Spans]] = {}
        for spans in log.spans:
            if spans.writer.host == watch.writer.host:
                names.setdefault(spans.name, []).append(spans)
        for curve in _curves(watch):
            found += [each for name, group in names.items() if (each := _span_energy(curve, name, group)) is not None]
    return found


def _span_energy(curve: _Curve, name: str, group: Sequence[Spans]) -> SpanEnergy | None:
    calls = sorted(
        (
            (start, start + duration, attributes)
            for spans in group
            for start, duration, attributes in zip(spans.starts_ns, spans.durations_ns, spans.attributes, strict=True)
        ),
        key=lambda call: call[:2],
    )
    joules = [curve.between(start, end) if curve.covers(start, end) else None for start, end, _ in calls]
    if all(each is None for each in joules):
        return None
    union = _union([(start, end) for start, end, _ in calls])
    shortest_s = min(end - start for start, end, _ in calls) / 1e9
    warnings = []
    if shortest_s < curve.period_s:
        warnings.append(
            f"the shortest call took {format_duration(shortest_s)}, "
            f"less than the {format_duration(curve.period_s)} between two values of {curve.channel.name}: "
            "the energy of single calls is interpolated"
        )
    if uncovered := sum(each is None for each in joules):
        warnings.append(f"{uncovered} of {len(joules)} calls lie outside the samples")
    if len(union) < len(calls) and sum(end - start for start, end in union) < sum(
        end - start for start, end, _ in calls
    ):
        warnings.append("calls overlap: the sum of the calls is more than the whole")
    channel = curve.channel
    return SpanEnergy(
        name,
        channel.name,
        channel.source,
        channel.scope,
        curve.method,
        channel.error,
        curve.samples.writer.host,
        sum(curve.between(start, end) for start, end in union),
        sum(end - start for start, end in union) / 1e9,
        tuple(joules),
        tuple(attributes for _, _, attributes in calls),
        (*warnings, *curve.notes),
    )


def _union(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in intervals:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _part(energy: Energy) -> str:
    if energy.scope.startswith("all nodes"):
        return ""
    for pattern, part in _PARTS:
        if match := pattern.match(energy.scope):
            return f"/{energy.host}/{part.format(*match.groups())}"
    return f"/{energy.host}/node/{energy.scope}"


def _is_within(inner: Energy, outer: Energy) -> bool:
    """Tell whether one covers the other, or both cover the same."""
    return f"{_part(inner)}/".startswith(f"{_part(outer)}/")


def _curves(samples: Samples) -> list[_Curve]:
    """Return the best curve for each scope of each source: its counter, else the first of its powers."""
    scopes: dict[tuple[str, str], list[int]] = {}
    for number, channel in enumerate(samples.channels):
        if (channel.unit, channel.kind) in (("J", "counter"), ("W", "gauge")):
            scopes.setdefault((channel.source, channel.scope), []).append(number)
    found = []
    for numbers in scopes.values():
        ranked = sorted(numbers, key=lambda number: samples.channels[number].unit != "J")
        curve = next((curve for number in ranked if (curve := _Curve.of(samples, number)) is not None), None)
        if curve is not None:
            found.append(curve)
    return found


class _Curve:
    """The joules of one channel since its first value, at any time in between."""

    def __init__(self, samples: Samples, channel: Channel, at_ns: array[int], values: array[float]) -> None:
        self.samples = samples
        self.channel = channel
        self.at_ns = at_ns
        self.method: Method = "counter" if channel.unit == "J" else "trapezoid"
        self.notes: tuple[str, ...] = ()
        self._values = values
        steps = self._counted() if self.method == "counter" else self._integrated()
        self._joules = array("d", [0.0])
        for step in steps:
            self._joules.append(self._joules[-1] + step)
        self.sampling_s = _median_step_s(at_ns)
        self.period_s = self._period_s()

    @classmethod
    def of(cls, samples: Samples, number: int) -> _Curve | None:
        """Return the curve of a channel, None where it has fewer than two values."""
        at_ns, values = array("q"), array("d")
        for at, value in zip(samples.at_ns, samples.columns[number], strict=True):
            # A clock that was set back would make time run twice.
            if value is not None and -float("inf") < value < float("inf") and (not at_ns or at > at_ns[-1]):
                at_ns.append(at)
                values.append(value)
        return cls(samples, samples.channels[number], at_ns, values) if len(at_ns) > 1 else None

    def covers(self, start_ns: int, end_ns: int) -> bool:
        return self.at_ns[0] <= start_ns and end_ns <= self.at_ns[-1]

    def between(self, start_ns: int, end_ns: int) -> float:
        """Return the joules between two times, as far as samples go."""
        return self._at(end_ns) - self._at(start_ns)

    def energy(self, start_ns: int | None, end_ns: int | None) -> Energy | None:
        wanted = (self.at_ns[0] if start_ns is None else start_ns, self.at_ns[-1] if end_ns is None else end_ns)
        start, end = max(wanted[0], self.at_ns[0]), min(wanted[1], self.at_ns[-1])
        if end <= start:
            return None
        first, last = bisect_right(self.at_ns, start) - 1, min(bisect_right(self.at_ns, end), len(self.at_ns) - 1)
        gap_s = max(after - before for before, after in pairwise(self.at_ns[first : last + 1])) / 1e9
        notes = [*self.notes]
        if (missed_ns := (start - wanted[0]) + (wanted[1] - end)) > 0:
            notes.append(f"{format_duration(missed_ns / 1e9)} at the ends are not covered by samples")
        if gap_s > _GAP_PERIODS * self.sampling_s:
            notes.append(f"no sample for {format_duration(gap_s)}, bridged by a straight line")
        channel = self.channel
        return Energy(
            self.between(start, end),
            self.method,
            channel.name,
            channel.source,
            channel.scope,
            channel.error,
            start,
            end,
            last + 1 - first,
            gap_s,
            self.samples.writer.host,
            tuple(notes),
        )

    def _at(self, time_ns: int) -> float:
        if time_ns <= self.at_ns[0]:
            return 0.0
        if time_ns >= self.at_ns[-1]:
            return self._joules[-1]
        place = bisect_right(self.at_ns, time_ns) - 1
        into, whole = time_ns - self.at_ns[place], self.at_ns[place + 1] - self.at_ns[place]
        if self.method == "counter":
            return self._joules[place] + (self._joules[place + 1] - self._joules[place]) * into / whole
        before, after = self._values[place], self._values[place + 1]
        here = before + (after - before) * into / whole
        return self._joules[place] + (before + here) / 2 * into / 1e9

    def _counted(self) -> Iterable[float]:
        wraps_at, resets = self.channel.wraps_at, 0
        steps = []
        for before, after in pairwise(self._values):
            step = after - before
            if step < 0:
                round_trip = step + wraps_at if wraps_at is not None else float("inf")
                # One that seems to have run through more than half its range was set back instead.
                is_reset = wraps_at is None or not 0 <= round_trip <= wraps_at / 2
                resets += is_reset
                step = after if is_reset else round_trip
            steps.append(step)
        if resets:
            times = "once" if resets == 1 else f"{resets} times"
            self.notes = (f"the counter began anew {times}: what it counted just before is lost",)
        return steps

    def _integrated(self) -> Iterable[float]:
        points = zip(self.at_ns, self._values, strict=True)
        return [(w0 + w1) / 2 * (t1 - t0) / 1e9 for (t0, w0), (t1, w1) in pairwise(points)]

    def _period_s(self) -> float:
        """Return the usual time between two values; of a counter, between two that differ, if it is slower."""
        if self.method == "trapezoid":
            return self.sampling_s
        changed = [at for at, step in zip(self.at_ns[1:], pairwise(self._values), strict=True) if step[0] != step[1]]
        return max(self.sampling_s, _median_step_s([self.at_ns[0], *changed]))


def _median_step_s(at_ns: Sequence[int]) -> float:
    steps = sorted(after - before for before, after in pairwise(at_ns))
    return steps[len(steps) // 2] / 1e9 if steps else 0.0
