"""All that a trace tells, in one call: where the time went, who waited for whom, what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from fairmile.base.errors import NotFound
from fairmile.base.html_tables import rows_table
from fairmile.base.plain import plain
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_duration
from fairmile.traces.achieved import OperatorWork, OperatorWorkDict, operators
from fairmile.traces.activity import PARTS, Activity, activities
from fairmile.traces.breakdown import NS, STEP_PARTS, Breakdown, BreakdownDict, breakdown
from fairmile.traces.counters import Traffic, TrafficDict
from fairmile.traces.coupling import CouplingAnalysis, CouplingAnalysisDict, coupling
from fairmile.traces.critical import CriticalPath, CriticalPathDict, critical_path
from fairmile.traces.events import EventTable
from fairmile.traces.evidence import Finding, FindingDict
from fairmile.traces.findings import findings
from fairmile.traces.intervals import Spans, one, spans
from fairmile.traces.replay import Replay, WhatIf
from fairmile.traces.self_time import time_by_name
from fairmile.traces.waiting import Delay, TransferModel, Waiting, WaitingDict, waiting

_MOST_NAMES = 30
_MOST_PIECES = 800  # of one part and rank in a drawing: about as many as a screen has pixels for them
_MOST_PLACES = 500_000  # of a replay that is part of an analysis
_LONGEST_ADVICE = 1000
_MOST_PRICED = 6
_WORTH_PRICING = 0.002


class NameTimeDict(TypedDict):
    """`NameTime` as JSON holds it."""

    name: str
    seconds: float
    share: float
    calls: int


@dataclass(frozen=True)
class NameTime:
    """How long one name ran, each moment counted for what ran innermost; sum over ranks."""

    name: str
    seconds: float
    share: float
    calls: int


@dataclass(frozen=True)
class TimelineRow:
    """What one rank did in a window: the intervals of each part in seconds since its start."""

    label: str
    parts: dict[str, tuple[tuple[float, float], ...]]
    steps: tuple[float, ...]


@dataclass(frozen=True)
class TraceTimeline:
    """A window of time over all ranks."""

    title: str
    start_ns: int
    length_s: float
    rows: tuple[TimelineRow, ...]


class TraceAnalysisDict(TypedDict):
    """`TraceAnalysis` as JSON holds it."""

    events: int
    ranks: list[str]
    missing_ranks: list[int]
    devices: list[str]
    span_s: float
    total_s: float
    step_s: float
    steps: int
    breakdown: BreakdownDict
    waiting: WaitingDict
    critical: CriticalPathDict
    findings: list[FindingDict]
    names: list[NameTimeDict]
    coupling: CouplingAnalysisDict | None
    operators: list[OperatorWorkDict]
    notes: list[str]
    page: str | None
    traffic: TrafficDict | None
    is_timed: bool


@dataclass(frozen=True, repr=False)
class TraceAnalysis(Result):
    """What a trace tells; times are seconds, `total_s` the mean over ranks of all steps together."""

    events: int
    ranks: tuple[str, ...]
    missing_ranks: tuple[int, ...]
    devices: tuple[str, ...]
    span_s: float
    total_s: float
    step_s: float
    steps: int
    breakdown: Breakdown
    waiting: Waiting
    critical: CriticalPath
    findings: tuple[Finding, ...]
    names: tuple[NameTime, ...]
    timelines: tuple[TraceTimeline, ...]
    coupling: CouplingAnalysis | None
    operators: tuple[OperatorWork, ...]
    notes: tuple[str, ...]
    page: str | None = None  # the HTML file that was written of it
    traffic: Traffic | None = None  # what a recording with counters counted
    is_timed: bool = True  # whether the times are those of the program

    def to_dict(self) -> TraceAnalysisDict:
        """Return all but what only a drawing needs."""
        drawn = replace(self, waiting=replace(self.waiting, calls=(), delayed={}), timelines=())
        document: Any = plain(drawn)
        del document["timelines"]
        for name in ("calls", "delayed"):
            del document["waiting"][name]
        if document["coupling"]:
            del document["coupling"]["edges"]
        return document  # type: ignore[no-any-return]

    def summary(self) -> str:
        ranks, findings = len(self.ranks), len(self.findings)
        steps = f"{self.steps:,} step{'s' * (self.steps != 1)} of {format_duration(self.step_s)}"
        return f"{ranks:,} rank{'s' * (ranks != 1)}, {steps}, {findings} finding{'s' * (findings != 1)}"

    def _repr_html_(self) -> str:
        rows = []
        for each in self.breakdown.ranks:
            total_s = each.total.total_s or 1.0
            shares = {part: getattr(each.total, f"{part}_s") / total_s for part in STEP_PARTS}
            row = {"rank": each.label, "steps": each.steps, "step": format_duration(each.step_s)}
            rows.append(row | {part.replace("_", " "): f"{share:.1%}" for part, share in shares.items() if share})
        findings = [
            (f"{each.share:.0%} of {each.share_of}" if each.share else each.kind, each.title, each.what_to_try)
            for each in self.findings
        ]
        more = rows_table(["costs", "finding", "try"], findings, longest=_LONGEST_ADVICE) if findings else ""
        return Results(rows)._repr_html_() + more


def analyze(table: EventTable, *, model: TransferModel | None = None) -> TraceAnalysis:
    """Return what a trace tells; `model` says how long collectives should take on that machine."""
    rank_activity = activities(table)
    if not rank_activity:
        raise NotFound("the trace has no events", hint="record at least one step, and read the files of all ranks")
    times = breakdown(rank_activity)
    waits = waiting(table, rank_activity, model)
    replay = (
        Replay(table, rank_activity, waits) if any(len(each.meetings.members) > 1 for each in waits.calls) else None
    )
    if replay is not None and replay.places <= _MOST_PLACES:
        waits = _priced(waits, replay, times.total_s)
    else:
        replay = None
    coupled = coupling(table, rank_activity)
    missing = tuple(table.missing_ranks)
    return TraceAnalysis(
        len(table),
        tuple(each.label for each in rank_activity),
        missing,
        tuple(dict.fromkeys(each.device for each in table.processes if each.device)),
        (max(each.end_ns for each in rank_activity) - min(each.start_ns for each in rank_activity)) * NS,
        times.total_s,
        times.step_s,
        max(each.steps for each in times.ranks),
        times,
        waits,
        critical_path(table, rank_activity, waits, coupled.edges if coupled else ()),
        findings(table, rank_activity, times, waits, coupled, replay),
        _names(table, rank_activity),
        tuple(_timelines(rank_activity)),
        coupled,
        operators(table),
        tuple(dict.fromkeys([*table.notes, *waits.notes, *_notes(rank_activity, missing)])),
    )


def _priced(waits: Waiting, replay: Replay, total_s: float) -> Waiting:
    """Return the delays with what the job really lost: a rank that is late also moves transfers out of the overlap."""
    late: dict[tuple[str, int], list[Delay]] = {}
    for each in waits.delays:
        late.setdefault((each.component, each.rank), []).append(each)
    worst = sorted(late, key=lambda rank: -sum(each.lost_s for each in late[rank]))[:_MOST_PRICED]
    factors = {}
    for rank in worst:
        lost = sum(each.lost_s for each in late[rank])
        peers = any(other != rank and other[0] == rank[0] for other in _members(waits))
        if peers and lost >= _WORTH_PRICING * total_s:
            factors[rank] = replay.gain_s(WhatIf(without_straggler=rank)) / lost
    delays = [
        replace(each, lost_s=round(each.lost_s * factors.get((each.component, each.rank), 1.0), 12))
        for each in waits.delays
    ]
    return replace(waits, delays=tuple(sorted(delays, key=lambda each: (-each.lost_s, -each.waiting_s, each.rank))))


def _members(waits: Waiting) -> set[tuple[str, int]]:
    return {(each.component, each.rank) for each in waits.states}


def _notes(rank_activity: Sequence[Activity], missing: Sequence[int]) -> list[str]:
    notes = []
    if missing:
        names = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        rank, it = ("rank", "it") if len(missing) == 1 else ("ranks", "them")
        notes.append(f"no trace of {rank} {names}: waits for {it} appear as slow transfers")
    by = {each.steps.found_by for each in rank_activity}
    without = [each.label for each in rank_activity if each.steps.found_by == "nothing"]
    if without:
        who = ["the trace"] if len(without) == len(rank_activity) else without
        its = "it counts as one step" if len(who) == 1 else "each counts as one step"
        notes.append(f"{_without_steps(who)}, and no data loader or optimizer marks them: {its}")
    if others := by - {"the trace", "nothing"}:
        who = ["the trace"] if len(by) == 1 else [each.label for each in rank_activity if each.steps.found_by in others]
        notes.append(f"{_without_steps(who)}: they were derived from {' and '.join(sorted(others))}")
    return notes


def _without_steps(labels: Sequence[str], most: int = 8) -> str:
    listed = ", ".join(labels[:most]) + (", …" if len(labels) > most else "")
    return f"{listed} {'marks' if len(labels) == 1 else 'mark'} no steps"


def _names(table: EventTable, rank_activity: Sequence[Activity]) -> tuple[NameTime, ...]:
    sums = np.zeros(len(table.names), np.int64)
    for each in rank_activity:
        sums += time_by_name(table, each, one(each.start_ns, each.end_ns))
    calls = np.bincount(table.name, minlength=len(table.names))
    total = max(1, int(sum(each.end_ns - each.start_ns for each in rank_activity)))
    order = np.argsort(-sums, kind="stable")[:_MOST_NAMES]
    return tuple(
        NameTime(table.names[at], float(sums[at]) * NS, float(sums[at]) / total, int(calls[at]))
        for at in order.tolist()
        if sums[at]
    )


def _timelines(rank_activity: Sequence[Activity]) -> list[TraceTimeline]:
    """Return the whole trace, and two steps of usual length from its middle where it has more."""
    first, last = min(each.start_ns for each in rank_activity), max(each.end_ns for each in rank_activity)
    lines = [_timeline("All steps", rank_activity, first, last)]
    steps = max(rank_activity, key=lambda each: len(each.steps)).steps
    if len(steps) > 3:
        lengths = steps.ends[1:] - steps.starts[:-1]
        middle = 1 + int(np.abs(lengths[1:] - np.median(lengths)).argmin())
        number = int(steps.numbers[middle])
        begin, end = int(steps.starts[middle]), int(steps.ends[min(middle + 1, len(steps) - 1)])
        lines.append(_timeline(f"Steps {number} and {number + 1}", rank_activity, begin, end))
    return lines


def _timeline(title: str, rank_activity: Sequence[Activity], first: int, last: int) -> TraceTimeline:
    return TraceTimeline(
        title, first, (last - first) * NS, tuple(_timeline_row(each, first, last) for each in rank_activity)
    )


def _timeline_row(each: Activity, first: int, last: int) -> TimelineRow:
    window = one(first, last)
    parts = {part: each.parts[part] & window for part in PARTS}
    if sum(map(len, parts.values())) > _MOST_PIECES:
        parts = _rastered(parts, first, last)
    edges = np.union1d(each.steps.starts, each.steps.ends)
    edges = edges[(edges >= first) & (edges <= last)]
    return TimelineRow(
        each.label,
        {
            part: tuple(zip(((seen.starts - first) * NS).tolist(), ((seen.ends - first) * NS).tolist(), strict=True))
            for part, seen in parts.items()
        },
        tuple(((edges - first) * NS).tolist()),
    )


def _rastered(parts: dict[str, Spans], first: int, last: int) -> dict[str, Spans]:
    """Return the parts as a screen can show them: each pixel for what fills most of it."""
    edges = np.linspace(first, last, _MOST_PIECES + 1).astype(np.int64)
    filled = np.stack([each.within(edges[:-1], edges[1:]) for each in parts.values()])
    idle = np.diff(edges) - filled.sum(axis=0)
    most = np.concatenate((filled, idle[None])).argmax(axis=0)
    return {part: spans(edges[:-1][most == at], edges[1:][most == at]) for at, part in enumerate(parts)}
