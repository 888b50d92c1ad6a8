"""Joules out of samples: by a counter where there is one, else by integrating power; each with what it covers."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.units import format_duration
from fairmile.meter.lines import Channel, Log, Samples, Spans

Method = Literal["counter", "trapezoid", "estimate"]

_POOR = 1.1  # parts may exceed their whole by the errors of both
_GAP_PERIODS = 5  # a hole of more periods than this is told
_MOST_W = 1000.0  # what a part whose counter wraps may draw
# Which part of a machine a scope is: a part lies within another when its path begins with the other's.
_PARTS = (
    (lazy_pattern(r"node\b"), "node"),
    (lazy_pattern(r"platform\b"), "node/platform"),
    (lazy_pattern(r"all sockets\b"), "node/platform/sockets"),
    (lazy_pattern(r"socket (\S+)"), "node/platform/sockets/{}"),
    (lazy_pattern(r"all memory\b"), "node/platform/memory"),
    (lazy_pattern(r"memory of socket (\S+)"), "node/platform/memory/{}"),
    (lazy_pattern(r"(?:device|accelerator) (\S+)"), "node/devices/{}"),
)


class EnergyDict(TypedDict):
    """An amount of energy as JSON."""

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
    host: str
    notes: list[str]


class SpanEnergyDict(TypedDict):
    """What one device used during a span, as JSON."""

    name: str
    channel: str
    source: str
    scope: str
    method: Method
    error: str
    host: str
    joules: float
    duration_s: float
    calls: list[float | None]
    attributes: list[dict[str, Any] | None]
    warnings: list[str]


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

    def to_dict(self) -> EnergyDict:
        """Return the energy as data."""
        return {
            "joules": self.joules,
            "method": self.method,
            "channel": self.channel,
            "source": self.source,
            "scope": self.scope,
            "error": self.error,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "samples": self.samples,
            "longest_gap_s": self.longest_gap_s,
            "host": self.host,
            "notes": list(self.notes),
        }


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

    def to_dict(self) -> SpanEnergyDict:
        """Return the energy of the span as data."""
        return {
            "name": self.name,
            "channel": self.channel,
            "source": self.source,
            "scope": self.scope,
            "method": self.method,
            "error": self.error,
            "host": self.host,
            "joules": self.joules,
            "duration_s": self.duration_s,
            "calls": list(self.calls),
            "attributes": [None if each is None else dict(each) for each in self.attributes],
            "warnings": list(self.warnings),
        }


def energies(samples: Samples, start_ns: int | None = None, end_ns: int | None = None) -> list[Energy]:
    """Return the energy of each scope that was measured, within a time or as far as the samples go."""
    measured = []
    for curve in _curves(samples, shaped=start_ns is not None or end_ns is not None):
        energy = curve.energy(start_ns, end_ns)
        if energy is not None:
            measured.append(energy)
    return measured


def energy_of(samples: Samples, channel: str, start_ns: int | None = None, end_ns: int | None = None) -> Energy | None:
    """Return the energy by one channel, a counter of joules or a power; None where it has too few values."""
    for number, each in enumerate(samples.channels):
        if each.name == channel:
            if each.unit not in ("J", "W"):
                raise UsageError(f"the channel {channel!r} is in {each.unit}, expected an energy or a power")
            curve = _Curve.of(samples, number)
            return curve.energy(start_ns, end_ns) if curve is not None else None
    raise NotFound(f"no channel named {channel!r}", hint=", ".join(each.name for each in samples.channels))


def estimate(watts: float, start_ns: int, end_ns: int, *, scope: str, host: str = "") -> Energy:
    """Return watts times time, which is not a measurement and says so."""
    if not 0 <= watts < float("inf"):
        raise UsageError(f"{watts!r} W is not a power")
    error = f"an estimate: {watts:g} W given, nothing measured"
    seconds = (end_ns - start_ns) / 1e9
    return Energy(watts * seconds, "estimate", "estimate", "given", scope, error, start_ns, end_ns, 0, seconds, host)


def total(energies: Iterable[Energy]) -> Total:
    """Add energies up, leaving out what lies within another one: a socket within a node, a device measured twice.

    What was measured one after the other, as when a run goes on later, is added.
    """
    left_out: dict[str, str] = {}

    # The larger part first; of two measurements of one part the counter before the power, then the longer one.
    def rank(each: Energy) -> tuple[int, bool, int]:
        return _part(each.host, each.scope).count("/"), each.method != "counter", each.start_ns - each.end_ns

    ranked = sorted(energies, key=rank)
    kept: list[Energy] = []
    for energy in ranked:
        name = f"{energy.host}:{energy.channel}" if energy.host else energy.channel
        whole = next((other for other in kept if _is_within(energy, other)), None)
        inner = [other for other in ranked if _is_within(other, energy) and not _is_within(energy, other)]
        if whole is not None:
            is_same = _part(whole.host, whole.scope) == _part(energy.host, energy.scope)
            left_out[name] = f"the same as {whole.channel} ({whole.source})" if is_same else f"within {whole.scope}"
        elif inner and (total(inner).joules or 0.0) > _POOR * energy.joules:
            # A counter that is looked at twice a minute has seen nothing of a short program.
            left_out[name] = "it is less than the sum of its parts"
        else:
            kept.append(energy)
    return Total(sum(energy.joules for energy in kept) if kept else None, tuple(kept), left_out)


def energy_by_span(log: Log, samples: Samples | Sequence[Samples]) -> list[SpanEnergy]:
    """Return the energy of each span name by each measured scope of the same host."""
    watches = [samples] if isinstance(samples, Samples) else samples
    by_span = []
    for watch in watches:
        names: dict[str, list[Spans]] = {}
        for spans in log.spans:
            if spans.writer.host == watch.writer.host:
                names.setdefault(spans.name, []).append(spans)
        for curve in _curves(watch, shaped=bool(names)):
            by_span += [each for name, group in names.items() if (each := _span_energy(curve, name, group)) is not None]
    return by_span


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
        warnings.append(f"{uncovered} of {len(joules)} calls are outside the sampled time")
    if len(union) < len(calls) and sum(end - start for start, end in union) < sum(
        end - start for start, end, _ in calls
    ):
        warnings.append("calls overlap, so their sum exceeds the total")
    channel = curve.channel
    return SpanEnergy(
        name,
        channel.name,
        channel.source,
        channel.scope,
        curve.method,
        curve.error,
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


@lru_cache(maxsize=4096)
def _part(host: str, scope: str) -> str:
    if scope.startswith("all nodes"):
        return ""
    for pattern, part in _PARTS:
        if match := pattern.match(scope):
            return f"/{host}/{part.format(*match.groups())}"
    return f"/{host}/node/{scope}"


def _is_within(inner: Energy, outer: Energy) -> bool:
    """Tell whether one covers the other, or both cover the same, at the same time."""
    if inner.end_ns <= outer.start_ns or outer.end_ns <= inner.start_ns:
        return False
    if inner.scope != outer.scope and inner.scope.startswith("device ") and outer.scope.startswith("device "):
        return False  # the first GPU of one maker and the first of another
    return f"{_part(inner.host, inner.scope)}/".startswith(f"{_part(outer.host, outer.scope)}/")


def _curves(samples: Samples, *, shaped: bool) -> list[_Curve]:
    """Return the best curve for each scope of each source: its counter, else the first of its powers.

    With `shaped` a counter that is read less often than a power of its scope follows that one in between.
    """
    scopes: dict[tuple[str, str], list[int]] = {}
    for number, channel in enumerate(samples.channels):
        if (channel.unit, channel.kind) in (("J", "counter"), ("W", "gauge")):
            scopes.setdefault((channel.source, channel.scope), []).append(number)
    curves = []
    for numbers in scopes.values():
        ranked = sorted(numbers, key=lambda number: samples.channels[number].unit != "J")
        curve = next((curve for number in ranked if (curve := _Curve.of(samples, number)) is not None), None)
        if curve is not None:
            curves.append(curve)
        if shaped and curve is not None and curve.method == "counter":
            # What is the power of the moment says more of a short span than the mean of a second.
            powers = sorted(ranked, key=lambda number: "instant" not in samples.channels[number].name)
            powers = [number for number in powers if samples.channels[number].unit == "W"]
            curve.follow(_Curve.of(samples, powers[0]) if powers else None)
    return curves


class _Curve:
    """The joules of one channel since its first value, at any time in between."""

    def __init__(self, samples: Samples, channel: Channel, at_ns: array[int], values: array[float]) -> None:
        self.samples = samples
        self.channel = channel
        self.at_ns = at_ns
        self.method: Method = "counter" if channel.unit == "J" else "trapezoid"
        self.notes: tuple[str, ...] = ()
        self.error = channel.error
        self._values = values
        steps = self._counted() if self.method == "counter" else self._integrated()
        self._joules = array("d", [0.0])
        for step in steps:
            self._joules.append(self._joules[-1] + step)
        self._curve_at_ns, self._curve_j = at_ns, self._joules
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

    def follow(self, power: _Curve | None) -> None:
        """Between two values of this counter share its joules out as a power does that has more values."""
        if power is not None and power.sampling_s < self.period_s:
            between = f"between two values, {format_duration(self.period_s)} apart, shared out by {power.channel.name}"
            self.error = "; ".join(filter(None, (self.error, between)))
            self._curve_at_ns, self._curve_j = self._shared_out(power)
            self.period_s = power.sampling_s

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
            notes.append(f"{format_duration(missed_ns / 1e9)} at the ends have no samples")
        if gap_s > _GAP_PERIODS * self.sampling_s:
            notes.append(f"no sample for {format_duration(gap_s)}, interpolated linearly")
        channel = self.channel
        if channel.wraps_at is not None and gap_s * _MOST_W > channel.wraps_at:
            notes.append(f"no value for {format_duration(gap_s)}, during which the counter may wrap more than once")
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
        at_ns, joules = self._curve_at_ns, self._curve_j
        if time_ns <= at_ns[0]:
            return 0.0
        if time_ns >= at_ns[-1]:
            return joules[-1]
        place = bisect_right(at_ns, time_ns) - 1
        into, whole = time_ns - at_ns[place], at_ns[place + 1] - at_ns[place]
        if self.method == "counter":
            return joules[place] + (joules[place + 1] - joules[place]) * into / whole
        before, after = self._values[place], self._values[place + 1]
        here = before + (after - before) * into / whole
        return joules[place] + (before + here) / 2 * into / 1e9

    def _shared_out(self, power: _Curve) -> tuple[array[int], array[float]]:
        """Return times and joules of this counter with those of a power in between."""
        at_ns, joules = array("q"), array("d")
        for place, (start, end) in enumerate(pairwise(self.at_ns)):
            at_ns.append(start)
            joules.append(self._joules[place])
            before_j = power.between(power.at_ns[0], start)
            whole_j = power.between(start, end) if power.covers(start, end) else 0.0
            if whole_j > 0:
                first, last = bisect_right(power.at_ns, start), bisect_left(power.at_ns, end)
                scale = (self._joules[place + 1] - self._joules[place]) / whole_j
                at_ns.extend(power.at_ns[first:last])
                joules.extend(self._joules[place] + (each - before_j) * scale for each in power._joules[first:last])
        at_ns.append(self.at_ns[-1])
        joules.append(self._joules[-1])
        return at_ns, joules

    def _counted(self) -> Iterable[float]:
        steps, resets = counted(self._values, self.channel.wraps_at)
        if resets:
            times = "once" if resets == 1 else f"{resets} times"
            self.notes = (f"the counter was reset {times}: the last counts are lost",)
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


def counted(values: Sequence[float], wraps_at: float | None) -> tuple[list[float], int]:
    """Return what a counter counted from each value to the next, wraps considered, and how often it was set back."""
    steps, resets = [], 0
    for before, after in pairwise(values):
        step = after - before
        if step < 0:
            round_trip = step + wraps_at if wraps_at is not None else float("inf")
            # One that seems to have run through more than half its range was set back instead.
            is_reset = wraps_at is None or not 0 <= round_trip <= wraps_at / 2
            resets += is_reset
            step = after if is_reset else round_trip
        steps.append(step)
    return steps, resets


def _median_step_s(at_ns: Sequence[int]) -> float:
    steps = sorted(after - before for before, after in pairwise(at_ns))
    return steps[len(steps) // 2] / 1e9 if steps else 0.0
