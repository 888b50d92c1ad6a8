"""What findings are: their form, and the evidence in a trace that they are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from fairmile.base.quick_dataclass import dataclass
from fairmile.traces.activity import Activity, on_device
from fairmile.traces.breakdown import NS, Breakdown
from fairmile.traces.events import Array, EventKind, EventTable
from fairmile.traces.finding_events import FindingEvent, FindingEventDict, UsedEvents, events_within
from fairmile.traces.intervals import Spans, nothing, spans
from fairmile.traces.replay import Replay, WhatIf
from fairmile.traces.self_time import time_by_row
from fairmile.traces.waiting import CollectiveSummary, Waiting, mean_over_ranks

STEPS = "the time of the steps"
LONG_CALL_NS = 1_000_000  # of the host: from there a call costs by what it does, not by being one of many


# What JAX, TensorFlow and PyTorch call the tracing and compilation of a program, in their profiles.
_COMPILES = re.compile(
    r"backend_compile|compile_or_get_cached|Client::Compile|Compiler::(?:Compile|Run)|XlaCompil|lower_sharding_computation"
    r"|tf\.function-graph_building|lower_jaxpr|\btrace_to_jaxpr|\bcompile_fx\b|\bcompile_inner\b"
)


class FindingDict(TypedDict):
    """`Finding` as JSON holds it."""

    kind: str
    title: str
    seconds: float
    share: float
    where: str
    why: str
    what_to_try: str
    share_of: str
    events: list[FindingEventDict]
    event_count: int
    events_s: float


@dataclass(frozen=True)
class Finding:
    """One thing that costs time; `kind` is its name for programs, `share` its part of what `share_of` names.

    `events` are those that count most of `event_count`, which count `events_s` together, summed over ranks.
    """

    kind: str
    title: str
    seconds: float
    share: float
    where: str
    why: str
    what_to_try: str
    share_of: str = STEPS
    events: tuple[FindingEvent, ...] = ()
    event_count: int = 0
    events_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.seconds >= 0 and 0 <= self.share <= 1, f"{self.kind}: {self.share:.0%} of {self.share_of}"


class Evidence:
    """What all findings are made of."""

    def __init__(
        self,
        table: EventTable,
        rank_activity: Sequence[Activity],
        times: Breakdown,
        waits: Waiting,
        replay: Replay | None,
    ) -> None:
        self.table, self.activity, self.times, self.waits, self.replay = table, rank_activity, times, waits, replay
        self.total_s = times.total_s
        self.count = max(1, len(times.ranks))
        self.labels = {(each.component, each.rank): each.label for each in rank_activity}
        self.has_device = any(each.has_device for each in rank_activity)
        self.has_work = any(len(each.compute) or len(each.input) or len(each.host) for each in rank_activity)
        self.drained = [_drained(table, each) if self.has_device else nothing() for each in rank_activity]
        self.synced_s = self.mean_in_steps(self.drained)
        compiles = np.array([bool(_COMPILES.search(name)) for name in table.names] or [False], bool)
        self.compiles = _outermost(table, compiles[table.name] & table.of_kind(EventKind.REGION) & ~table.on_device())
        self.compiling = [_compiling(table, each, self.compiles) for each in rank_activity]

    def finding(
        self,
        kind: str,
        title: str,
        seconds: float,
        where: str,
        why: str,
        what_to_try: str,
        *,
        events: UsedEvents,
        base_s: float | None = None,
        share_of: str = STEPS,
    ) -> Finding:
        """Return a finding: a share of the time of the steps, mean over ranks, or of `base_s`.

        It never costs more than that, nor more than its events last. Bounding is for estimates, a sum over calls or a
        replay; what is measured is counted within its base.
        """
        base_s = self.total_s if base_s is None else base_s
        seconds = min(max(seconds, 0.0), max(base_s, 0.0), events.seconds)
        return Finding(
            kind,
            title,
            seconds,
            seconds / base_s if base_s > 0 else 0.0,
            where,
            why,
            what_to_try,
            share_of,
            events.listed(self.table, self.labels),
            len(events),
            events.seconds,
        )

    def events_within(self, part: str) -> UsedEvents:
        """Return what ran in one part of the time of all ranks."""
        return events_within(self.table, self.activity, [each.parts[part] for each in self.activity])

    def mean_in_steps(self, sets: Sequence[Spans]) -> float:
        """Return how long sets of moments, one for each rank, last within its steps: the mean over ranks."""
        lengths = [
            int(each.within(activity.steps.starts, activity.steps.ends).sum())
            for activity, each in zip(self.activity, sets, strict=True)
        ]
        return sum(lengths) * NS / max(1, len(lengths))

    def of_all_ranks(self, collectives: Sequence[CollectiveSummary], name: str) -> float:
        return mean_over_ranks(collectives, name, self.count)

    def saved_s(self, calls: Sequence[CollectiveSummary], factor: float, otherwise: float) -> float:
        """Return what it would save if these calls took a factor of their time."""
        if self.replay is None:
            return otherwise
        keys = {(each.group, each.operation, each.bytes): factor for each in calls}
        return self.replay.gain_s(WhatIf(transfers=keys))

    def mean(self, name: str) -> float:
        return float(np.mean([getattr(each.total, name) for each in self.times.ranks]))

    def least(self, name: str) -> float:
        return min(float(getattr(each.total, name)) for each in self.times.ranks)

    @property
    def steps(self) -> int:
        return max(each.steps for each in self.times.ranks)


def _outermost(table: EventTable, chosen: Array) -> Array:
    """Return of some rows (a mask) those that lie in no other of them in the same lane."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((-table.end_ns[rows], table.start_ns[rows], table.lane[rows]))]
    kept = np.zeros(len(table), bool)
    lane, reach = -1, 0
    for row in rows.tolist():
        if table.lane[row] != lane or table.end_ns[row] > reach:
            lane, reach = int(table.lane[row]), int(table.end_ns[row])
            kept[row] = True
    return kept


def _compiling(table: EventTable, each: Activity, compiles: Array) -> Spans:
    """Return when a rank compiles programs; what its device computes meanwhile is not lost."""
    rows = each.rows[compiles[each.rows]]
    moments = spans(table.start_ns[rows], table.end_ns[rows])
    return moments - each.compute if each.has_device else moments


def _drained(table: EventTable, each: Activity) -> Spans:
    """Return when a device had nothing to do after the host had waited for it, until the host gave it new work.

    Only the time in which the host issues work counts, without long calls: they would keep the device waiting anyway.
    Where nothing of the host was recorded but what it waits for, all of it does.
    """
    rows = each.rows[(table.kind[each.rows] == EventKind.SYNC) & ~on_device(table, each.rows)]
    busy = each.device_busy
    if not len(rows) or len(busy) < 2:
        return nothing()
    ends = table.end_ns[rows]
    at = np.searchsorted(busy.ends, ends, side="right")
    gaps = np.unique(at[(at > 0) & (at < len(busy))])
    gaps = gaps[np.isin(gaps, at[busy.starts[np.minimum(at, len(busy) - 1)] > ends])]
    empty = spans(busy.ends[gaps - 1], busy.starts[gaps])
    if not len(each.parts["launch"]):
        return empty & each.idle
    empty &= each.parts["launch"]
    ran, own = time_by_row(table, each, empty, EventKind.LAUNCH)
    long_ = ran[own >= LONG_CALL_NS]
    return empty - spans(table.start_ns[long_], table.end_ns[long_])


def sentence_start(text: str) -> str:
    """Return a text as a sentence begins with it; names of components keep their letters."""
    return text[:1].upper() + text[1:]
