"""Ranks that wait for each other: one that hangs, one that is late, and work that is spread unevenly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fairmile.base.units import format_duration, format_size
from fairmile.traces.events import Array, EventKind
from fairmile.traces.evidence import Evidence, Finding, sentence_start
from fairmile.traces.finding_events import UsedEvents, events_of_delays
from fairmile.traces.waiting import Delay

_DOMINATES = 0.6  # of the waiting for one cause, from which one rank of many is the straggler
_OF_FEW = 0.3  # more than that, over the number of ranks: of two that take turns, one has 60 % by chance
_CLEARLY = 1.01
HANG = "hang"
_RANK_CAUSES = {
    "compute": (
        "straggler",
        "{who} computes longer than the others",
        "All other ranks wait for it in collectives. It has more work, or a slower processor.",
        "Balance the work (equal shards, bucketing by length), or check the clock, temperature and other users of its "
        "node.",
    ),
    "input": (
        "input starvation",
        "{who} gets its input later than the others",
        "All other ranks wait in collectives until its batch arrives.",
        "Check the storage and data loader of that rank: use more workers, prefetching, or a local copy of its shard.",
    ),
    "copies": (
        "copies",
        "{who} copies longer than the others",
        "All other ranks wait in collectives until its copies finish.",
        "Pin host memory and copy with non_blocking=True; check the PCIe link and NUMA node of that rank.",
    ),
    "checkpoint": (
        "checkpoint",
        "{who} writes a checkpoint while the others wait",
        "It reaches the next collective only after writing the file.",
        "Use asynchronous or sharded checkpoints, or write them less often.",
    ),
    "launch": (
        "host straggler",
        "The host of {who} issues work later than the other hosts",
        "Its device and all other ranks wait for it.",
        "Pin the rank to its own cores; check for other processes on the node; capture the step in a CUDA graph.",
    ),
    "exchange": (
        "coupling",
        "{who} spends longer exchanging data than the others",
        "All other ranks wait in collectives until the exchange finishes.",
        "Distribute the exchange over ranks, or overlap it with compute.",
    ),
    "idle": (
        "late rank",
        "{who} is late for no recorded reason",
        "The rank recorded no operator, input or copy in that time: Python code, a sleep, or another process.",
        "Put spans around the code between steps on that rank, or record with --stack.",
    ),
}

_LATER = (
    "late rank",
    "{who} reaches its collectives late: {cause} before them takes longer",
    "Its work is distributed differently: more before these calls, less after them.",
    "Check what it does before these calls that the others do later, or make all ranks call them at the same point.",
)
_CAUSE_NAMES = {"idle": "unrecorded time", "launch": "host time"}


def hangs(evidence: Evidence) -> Iterator[Finding]:
    """Collectives that some ranks came to and others did not, by the flight recorders: why a program stands still.

    Only those behind the last one of a rank count: recorders forget the first ones, and not all at the same moment. A
    rank that has none of a group may have forgotten them: it counts as having come to those that were completed.
    """
    table = evidence.table
    dumped = {(each.component, each.rank) for each in table.processes if each.format == "flight"}
    dumped -= {(each.component, each.rank) for each in table.processes if each.format != "flight"}
    if len(dumped) < 2:
        return
    rows = np.flatnonzero(table.of_kind(EventKind.COLLECTIVE) & (table.sequence >= 0))
    rows = rows[np.isin(table.rank[rows], [rank for _, rank in dumped])]
    is_done = table.attribute("state") == "completed"
    for group in np.unique(table.group[rows]).tolist():
        mine = rows[table.group[rows] == group]
        completed = int(table.sequence[mine[is_done[mine]]].max(initial=-1))
        named = table.groups[group].ranks if group >= 0 else ()
        last = {rank: completed for _, rank in dumped if rank in named}
        for rank in np.unique(table.rank[mine]).tolist():
            last[rank] = int(table.sequence[mine[table.rank[mine] == rank]].max())
        behind = sorted(rank for rank, number in last.items() if number < max(last.values()))
        if behind:
            yield _hang(evidence, mine, last, behind)


def _hang(evidence: Evidence, rows: Array, last: Mapping[int, int], behind: Sequence[int]) -> Finding:
    table = evidence.table
    first = min(last[rank] for rank in behind) + 1
    there = rows[table.sequence[rows] >= first]
    call = int(there[np.argmin(table.sequence[there])])
    waiting = rows[table.sequence[rows] == table.sequence[call]]
    came = sorted({int(rank) for rank in table.rank[waiting]})
    lacking = sorted(rank for rank in behind if last[rank] < int(table.sequence[call]))
    size = f" of {format_size(int(table.bytes[call]))}" if table.bytes[call] >= 0 else ""
    group = table.groups[int(table.group[call])].name if table.group[call] >= 0 else ""
    state = table.attribute("state")[call]
    stuck = "The ranks that called it wait until the timeout."
    if state == "completed":
        stuck = "It is completed there, so the dump may be older than the others, or the program ended early."
    return evidence.finding(
        HANG,
        f"{sentence_start(_ranks(lacking))} never called {table.name_of(call)}{size}",
        0.0,
        f"group {group!r}; called by {_ranks(came)}",
        f"{sentence_start(_ranks(came))} called it. The dump of {_ranks(lacking)} lacks it and everything after it in "
        f"this group. {stuck}",
        f"Check what {_ranks(lacking)} did last: an error, another code path, a missing batch, or a wait in another "
        "group. The stack in its dump or `py-spy dump` shows it.",
        events=UsedEvents(waiting, np.zeros(len(waiting))),
    )


def _ranks(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {listed}"


def late_ranks(evidence: Evidence) -> Iterator[Finding]:
    by_cause: dict[str, list[Delay]] = {}
    for delay in evidence.waits.delays:
        by_cause.setdefault(delay.cause, []).append(delay)
    for cause, delays in by_cause.items():
        whole = sum(each.waiting_s for each in delays)
        dominates = _DOMINATES + _OF_FEW / evidence.count
        # A rank is the straggler where most waits are for it; what is left is spread over ranks.
        single = [
            each
            for each in delays
            if each.waiting_s >= dominates * whole and each.lost_s >= 0.5 * each.waiting_s / max(1, evidence.count - 1)
        ]
        for each in single:
            yield _late_rank(evidence, each)
        rest = (whole - sum(each.waiting_s for each in single)) / evidence.count
        if rest > 0:
            yield _imbalance(evidence, cause, rest, [each for each in delays if each not in single])


def _late_rank(evidence: Evidence, delay: Delay) -> Finding:
    kind, title, why, what = _RANK_CAUSES[delay.cause]
    label = evidence.labels[(delay.component, delay.rank)]
    numbers = ""
    mine, others = _spent_per_step(evidence, delay)
    if delay.cause != "idle" and others is not None and mine > _CLEARLY * others:
        own, theirs = format_duration(mine), format_duration(others)
        numbers = f"{sentence_start(label)} spends {own} per step on it, the others {theirs} (median). "
    elif delay.cause != "idle" and others is not None:
        kind, title, why, what = _LATER
        if delay.own_s > delay.others_s:
            numbers = (
                f"Before a call that others wait in, {label} spends {format_duration(delay.own_s)} on it; the waiting "
                f"ranks spend {format_duration(delay.others_s)}. "
            )
        numbers += "Over whole steps, it does not spend more on it than the others. "
    spread = (
        f" {format_duration(delay.indirect_s)} of that was indirect, through other waiting ranks."
        if delay.indirect_s
        else ""
    )
    if delay.cause == "idle" and not evidence.has_work:
        why = "The trace has only collectives, so what the rank did before them is unknown."
        what = "Profile the program with `fairmile trace record` to see whether the rank computes, reads or waits."
    where = f"{label}, {delay.calls:,} of its collectives"
    why = f"{numbers}{why} In total, they waited {format_duration(delay.waiting_s)}.{spread}"
    cause = _CAUSE_NAMES.get(delay.cause, delay.cause)
    used = events_of_delays(evidence.table, evidence.activity, evidence.waits, [delay])
    title = title.format(who=sentence_start(label), cause=cause)
    return evidence.finding(kind, title, delay.lost_s, where, why, what, events=used)


def _spent_per_step(evidence: Evidence, delay: Delay) -> tuple[float, float | None]:
    """Return what a rank spends on a cause in a step, and what the others of its component do (median)."""
    name, mine, others = f"{delay.cause}_s", 0.0, []
    for each in evidence.times.ranks:
        spent = getattr(each.total, name) / max(1, each.steps)
        if (each.component, each.rank) == (delay.component, delay.rank):
            mine = spent
        elif each.component == delay.component:
            others.append(spent)
    return mine, float(np.median(others)) if others else None


def _imbalance(evidence: Evidence, cause: str, seconds: float, delays: Sequence[Delay]) -> Finding:
    ranked = sorted(delays, key=lambda each: -each.waiting_s)[:3]
    who = ", ".join(evidence.labels[(each.component, each.rank)] for each in ranked)
    name = _CAUSE_NAMES.get(cause, cause)
    by_step: dict[int, list[float]] = {}
    for step in evidence.times.steps:
        by_step.setdefault(step.step, []).append(getattr(step, f"{cause}_s"))
    low, high = (float(np.mean([pick(values) for values in by_step.values()])) for pick in (min, max))
    numbers = (
        f"{sentence_start(name)} per step is {format_duration(high)} on the slowest rank and {format_duration(low)} "
        "on the fastest (mean over steps). No single rank is always the slowest."
        if format_duration(high) != format_duration(low)
        else f"{sentence_start(name)} per step is the same on all ranks, but at different points of the step."
    )
    return evidence.finding(
        "imbalance",
        f"Ranks wait for each other: {name} differs",
        seconds,
        f"all ranks; mostly for {who}",
        f"{numbers} Each collective waits for the last rank.",
        "Balance the work per batch (bucket by length or size), or synchronize less: larger batches, local steps.",
        events=events_of_delays(evidence.table, evidence.activity, evidence.waits, delays),
    )
