"""What costs time, in plain words: each finding says how many seconds, where, why, and what to try.

Seconds are of the whole trace, by what would be gained were the cause gone and everything else the same; two findings
may gain less together than apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from fairmile.base.units import format_duration, format_size
from fairmile.traces.activity import Activity, on_device
from fairmile.traces.breakdown import NS, Breakdown
from fairmile.traces.coupling import CouplingAnalysis
from fairmile.traces.critical import time_by_name
from fairmile.traces.events import Array, EventKind, EventTable
from fairmile.traces.intervals import Spans, nothing, spans
from fairmile.traces.replay import Replay, WhatIf
from fairmile.traces.waiting import CollectiveSummary, Delay, Waiting, mean_over_ranks

_LEAST = 0.01  # share of the time from which something is worth a finding
_DOMINATES = 0.6  # of the waiting for one cause, from which one rank is the straggler
_SMALL_BYTES = 64 << 10
_SLOW = 0.5  # of the model's speed
_TINY_KERNEL_S = 10e-6
_LONG_CALL_S = 1e-3
_CLEARLY = 1.01
_MOVES_LONG = 0.1  # of the time of its steps that a component spends on moving data
_HANG, _STALE = "hang", "old data"
_WITHOUT_TIME = (_HANG, _STALE)  # what is told whatever it costs
_TURNS = re.compile(r"nchwToNhwc|nhwcToNchw|nhwc2nchw|nchw2nhwc", re.IGNORECASE)


STEPS = "the time of the steps"


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


@dataclass(frozen=True)
class Finding:
    """One thing that costs time; `kind` is its name for programs, `share` its part of what `share_of` names."""

    kind: str
    title: str
    seconds: float
    share: float
    where: str
    why: str
    what_to_try: str
    share_of: str = STEPS

    def __post_init__(self) -> None:
        assert self.seconds >= 0 and 0 <= self.share <= 1, f"{self.kind}: {self.share:.0%} of {self.share_of}"


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
        "{who} is late, and nothing was recorded meanwhile",
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


def findings(
    table: EventTable,
    rank_activity: Sequence[Activity],
    times: Breakdown,
    waits: Waiting,
    coupled: CouplingAnalysis | None,
    replay: Replay | None = None,
) -> tuple[Finding, ...]:
    """Return what costs time, the dearest first; a replay tells what a change of the communication would save."""
    about = _About(table, rank_activity, times, waits, replay)
    if not times.ranks:
        return ()
    if about.total_s <= 0:  # who waits in the first collective of all has no time yet
        return tuple(_hangs(about))
    all_ = [
        *_hangs(about),
        *_late_ranks(about),
        *_shared_input(about),
        *_communication(about),
        *_device(about),
        *_host(about),
        *_shared_checkpoints(about),
        *_coupled(about, coupled),
        *_exchanges(about, coupled),
    ]
    kept = [each for each in all_ if each.share >= _LEAST or each.kind in _WITHOUT_TIME]
    return tuple(sorted(kept, key=lambda each: (each.kind != _HANG, -each.seconds, each.kind, each.where)))


class _About:
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
        self.synced_s = (
            self.mean_in_steps([_drained(table, each) for each in rank_activity]) if self.has_device else 0.0
        )

    def finding(
        self,
        kind: str,
        title: str,
        seconds: float,
        where: str,
        why: str,
        what_to_try: str,
        *,
        base_s: float | None = None,
        share_of: str = STEPS,
    ) -> Finding:
        """Return a finding: a share of the time of the steps, mean over ranks, or of `base_s`, and never more.

        Bounding is for estimates, a sum over calls or a replay; what is measured is counted within its base.
        """
        base_s = self.total_s if base_s is None else base_s
        seconds = min(max(seconds, 0.0), max(base_s, 0.0))
        return Finding(kind, title, seconds, seconds / base_s if base_s > 0 else 0.0, where, why, what_to_try, share_of)

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


def _hangs(about: _About) -> Iterator[Finding]:
    """Collectives that some ranks came to and others did not, by the flight recorders: why a program stands still.

    Only those behind the last one of a rank count: recorders forget the first ones, and not all at the same moment. A
    rank that has none of a group may have forgotten them: it counts as having come to those that were completed.
    """
    table = about.table
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
            yield _hang(about, mine, last, behind)


def _hang(about: _About, rows: Array, last: Mapping[int, int], behind: Sequence[int]) -> Finding:
    table = about.table
    first = min(last[rank] for rank in behind) + 1
    there = rows[table.sequence[rows] >= first]
    call = int(there[np.argmin(table.sequence[there])])
    came = sorted({int(rank) for rank in table.rank[rows[table.sequence[rows] == table.sequence[call]]]})
    lacking = sorted(rank for rank in behind if last[rank] < int(table.sequence[call]))
    size = f" of {format_size(int(table.bytes[call]))}" if table.bytes[call] >= 0 else ""
    group = table.groups[int(table.group[call])].name if table.group[call] >= 0 else ""
    state = table.attribute("state")[call]
    stuck = "The ranks that called it wait until the timeout."
    if state == "completed":
        stuck = "It is completed there, so the dump may be older than the others, or the program ended early."
    return about.finding(
        _HANG,
        f"{_begin(_ranks(lacking))} never called {table.name_of(call)}{size}",
        0.0,
        f"group {group!r}; called by {_ranks(came)}",
        f"{_begin(_ranks(came))} called it. The dump of {_ranks(lacking)} lacks it and everything after it in this "
        f"group. {stuck}",
        f"Check what {_ranks(lacking)} did last: an error, another code path, a missing batch, or a wait in another "
        "group. The stack in its dump or `py-spy dump` shows it.",
    )


def _ranks(numbers: Sequence[int]) -> str:
    listed = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {listed}"


def _late_ranks(about: _About) -> Iterator[Finding]:
    by_cause: dict[str, list[Delay]] = {}
    for delay in about.waits.delays:
        by_cause.setdefault(delay.cause, []).append(delay)
    for cause, delays in by_cause.items():
        whole = sum(each.waiting_s for each in delays)
        # A rank is the straggler where most waits are for it; what is left is spread over ranks.
        single = [
            each
            for each in delays
            if each.waiting_s >= _DOMINATES * whole and each.lost_s >= 0.5 * each.waiting_s / max(1, about.count - 1)
        ]
        for each in single:
            yield _late_rank(about, each)
        rest = (whole - sum(each.waiting_s for each in single)) / about.count
        if rest > 0:
            yield _imbalance(about, cause, rest, [each for each in delays if each not in single])


def _late_rank(about: _About, delay: Delay) -> Finding:
    kind, title, why, what = _RANK_CAUSES[delay.cause]
    label = about.labels[(delay.component, delay.rank)]
    numbers = ""
    mine, others = _spent_per_step(about, delay)
    if delay.cause != "idle" and others is not None and mine > _CLEARLY * others:
        numbers = f"{_begin(label)} spends {_time(mine)} per step on it, the others {_time(others)} (median). "
    elif delay.cause != "idle" and others is not None:
        kind, title, why, what = _LATER
        if delay.own_s > delay.others_s:
            numbers = (
                f"Before a call that others wait in, {label} spends {_time(delay.own_s)} on it; the waiting ranks "
                f"spend {_time(delay.others_s)}. "
            )
        numbers += "Over whole steps, it does not spend more on it than the others. "
    spread = (
        f" {_time(delay.indirect_s)} of that was indirect, through other waiting ranks." if delay.indirect_s else ""
    )
    if delay.cause == "idle" and not about.has_work:
        why = "The trace has only collectives, so what the rank did before them is unknown."
        what = "Profile the program with `fairmile trace record` to see whether the rank computes, reads or waits."
    where = f"{label}, {delay.calls:,} of its collectives"
    why = f"{numbers}{why} In total, they waited {_time(delay.waiting_s)}.{spread}"
    cause = _CAUSE_NAMES.get(delay.cause, delay.cause)
    return about.finding(kind, title.format(who=_begin(label), cause=cause), delay.lost_s, where, why, what)


def _spent_per_step(about: _About, delay: Delay) -> tuple[float, float | None]:
    """Return what a rank spends on a cause in a step, and what the others of its component do (median)."""
    name, mine, others = f"{delay.cause}_s", 0.0, []
    for each in about.times.ranks:
        spent = getattr(each.total, name) / max(1, each.steps)
        if (each.component, each.rank) == (delay.component, delay.rank):
            mine = spent
        elif each.component == delay.component:
            others.append(spent)
    return mine, float(np.median(others)) if others else None


def _imbalance(about: _About, cause: str, seconds: float, delays: Sequence[Delay]) -> Finding:
    ranked = sorted(delays, key=lambda each: -each.waiting_s)[:3]
    who = ", ".join(about.labels[(each.component, each.rank)] for each in ranked)
    name = _CAUSE_NAMES.get(cause, cause)
    by_step: dict[int, list[float]] = {}
    for step in about.times.steps:
        by_step.setdefault(step.step, []).append(getattr(step, f"{cause}_s"))
    low, high = (float(np.mean([pick(values) for values in by_step.values()])) for pick in (min, max))
    numbers = (
        f"{_begin(name)} per step is {_time(high)} on the slowest rank and {_time(low)} on the fastest (mean over "
        "steps). No single rank is always the slowest."
        if _time(high) != _time(low)
        else f"{_begin(name)} per step is the same on all ranks, but at different points of the step."
    )
    return about.finding(
        "imbalance",
        f"Ranks wait for each other: {name} differs",
        seconds,
        f"all ranks; mostly for {who}",
        f"{numbers} Each collective waits for the last rank.",
        "Balance the work per batch (bucket by length or size), or synchronize less: larger batches, local steps.",
    )


def _shared_input(about: _About) -> Iterator[Finding]:
    seconds = about.least("input_s")
    if seconds > 0:
        share = seconds / about.total_s
        yield about.finding(
            "input starvation",
            "Training waits for input" if about.count > 1 else "The program waits for input",
            seconds,
            "all ranks" if about.count > 1 else about.activity[0].label,
            f"Every rank waits idle for the next batch, at least {_time(seconds / max(1, about.steps))} per step "
            f"({_percent(share)} of the time).",
            "Use more loader workers, persistent_workers and prefetch_factor; cache decoded data; use faster storage. "
            "`fairmile predict time` predicts the rate that the loader must deliver.",
        )


def _communication(about: _About) -> Iterator[Finding]:
    slow, small, rest = [], [], []
    for each in about.waits.collectives:
        if each.ranks < 2:
            continue
        if _slowness(each, about.waits.collectives) is not None:
            slow.append(each)
        elif 0 <= each.bytes <= _SMALL_BYTES or each.operation == "barrier":
            small.append(each)
        else:
            rest.append(each)
    for each in slow:
        yield _slow_link(about, each)
    calls = sum(each.calls for each in small)
    per_step = calls / max(1, about.steps)
    if small and per_step >= 2:
        seconds = about.saved_s(small, 0.0, about.of_all_ranks(small, "exposed_s"))
        names = ", ".join(dict.fromkeys(each.operation for each in small))
        largest = max(each.bytes for each in small)  # of barriers it is not known
        yield about.finding(
            "small collectives",
            f"{per_step:,.0f} small collectives per step: latency-bound",
            seconds,
            f"{names} of up to {format_size(largest)}" if largest >= 0 else names,
            f"{calls:,} calls move at most {format_size(_SMALL_BYTES)} each and take "
            f"{_time(sum(each.transfer_s for each in small) / max(1, calls))} each, whatever their size.",
            "Combine them: flatten tensors into one buffer, use larger buckets, or reduce all metrics as one vector.",
        )
    else:
        rest += small
    yield from _exposed(about, rest)
    yield from _queued(about)


def _queued(about: _About) -> Iterator[Finding]:
    """Calls that all ranks have come to and whose data does not move yet, as Horovod's timeline tells."""
    queued = [each for each in about.waits.collectives if each.exposed_queued_s > 0]
    seconds = about.of_all_ranks(queued, "exposed_queued_s")
    if not queued or seconds <= 0:
        return
    calls = sum(each.calls for each in queued)
    top = max(queued, key=lambda each: each.exposed_queued_s)
    yield about.finding(
        "queued collectives",
        "Collectives are queued after all ranks have arrived",
        seconds,
        f"mostly {top.operation} of group {top.group!r}",
        f"{calls:,} calls wait {_time(sum(each.queued_s for each in queued) / calls)} each (mean) before their data "
        f"moves, {_time(seconds)} in total while no other transfer runs. Causes are the cycle time of the back end, "
        "data that is not computed yet, and copies to and from its buffer.",
        "Shorten HOROVOD_CYCLE_TIME, or fuse more tensors (HOROVOD_FUSION_THRESHOLD).",
    )


def _exposed(about: _About, rest: Sequence[CollectiveSummary]) -> Iterator[Finding]:
    exposed = about.of_all_ranks(rest, "exposed_s")
    if exposed <= 0:
        return
    seconds = about.saved_s(rest, 0.0, exposed)
    talk, hidden = about.mean("communication_s"), about.mean("overlap_s")
    top = max(rest, key=lambda each: each.exposed_s)
    size = f" of {format_size(top.bytes)}" if top.bytes >= 0 else ""
    overlap = hidden / talk if talk else 0.0
    advice = (
        "Send gradients during the backward pass: smaller DDP buckets (bucket_cap_mb), FSDP with prefetching, "
        "no synchronization before the optimizer."
        if overlap < 0.5
        else "Send less: bf16 gradients, gradient accumulation, a larger batch per rank; or a faster network."
    )
    title = "Communication is not overlapped with compute"
    meanwhile = f"happen while nothing is computed. {_percent(overlap)} of all communication is overlapped."
    if not about.has_work:
        title = "Communication takes time; overlap with compute is unknown"
        meanwhile = "were recorded. Their cost depends on concurrent compute, which was not recorded."
        advice = "Profile the program as well (`fairmile trace record`): that shows how much of it is overlapped."
    what = f"Transfers of {_time(exposed)}, without waits for late ranks,"
    if unseen := about.table.missing_ranks:
        title += ", or waits for a rank without a trace"
        names = ", ".join(map(str, unseen[:8])) + (", …" if len(unseen) > 8 else "")
        what = f"Transfers of {_time(exposed)}, including all waits for rank {names}, which has no trace,"
        advice = f"Add the trace of rank {names} to separate waits from transfers. {advice}"
    where = f"mostly {top.operation}{size} of group {top.group!r}, {top.calls:,} calls"
    yield about.finding("exposed communication", title, seconds, where, f"{what} {meanwhile}", advice)


def _slowness(each: CollectiveSummary, all_: Sequence[CollectiveSummary]) -> tuple[float, str] | None:
    """Return what a call should take and by what that is known, None where the call is not slow."""
    if each.model_s is not None and each.efficiency is not None and each.efficiency < _SLOW:
        return each.model_s, "the model of this network"
    same = [
        other.median_transfer_s
        for other in all_
        if other is not each
        and (other.operation, other.bytes, other.ranks) == (each.operation, each.bytes, each.ranks)
        and other.group != each.group
    ]
    if same and each.bytes > 0 and each.median_transfer_s > float(np.median(same)) / _SLOW:
        return float(np.median(same)), "the same call between other ranks"
    return None


def _slow_link(about: _About, each: CollectiveSummary) -> Finding:
    should_s, by = _slowness(each, about.waits.collectives) or (0.0, "")
    excess = 1 - should_s / each.median_transfer_s
    bandwidth = f", {format_size(round(each.bus_bytes_per_s))}/s" if each.bus_bytes_per_s else ""
    who = f"ranks {each.group}" if "→" in each.group else f"the ranks of {each.group!r}"
    size = f" of {format_size(each.bytes)}" if each.bytes >= 0 else ""
    seen = "traced " if about.table.missing_ranks else ""
    return about.finding(
        "slow link",
        f"Slow link between {who}",
        about.saved_s([each], 1 - excess, about.of_all_ranks([each], "exposed_s") * excess),
        f"{each.operation}{size}, {each.ranks} ranks, {each.calls:,} calls",
        f"A call takes {_time(each.median_transfer_s)}{bandwidth} once all {seen}ranks have arrived; {by} suggests "
        f"{_time(should_s)}.",
        "Check which network is used (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, UCX_TLS), the state of the links "
        "(nvidia-smi topo, ibstat), and other traffic on them; compare with `fairmile benchmark collectives`.",
    )


def _device(about: _About) -> Iterator[Finding]:
    if not about.has_device:
        return
    copies = about.mean("copies_s")
    if copies > 0:
        rows = about.table.of_kind(EventKind.MEMCPY) & about.table.on_device()
        names = [about.table.names[at] for at in np.unique(about.table.name[rows]).tolist()]
        pageable = any("pageable" in name.lower() for name in names)
        yield about.finding(
            "copies",
            "Copies between host and device stall the device",
            copies,
            "all ranks" if about.count > 1 else about.activity[0].label,
            f"{_time(copies)} of copies happen while nothing is computed"
            + ("; pageable memory is copied twice." if pageable else "."),
            "Pin memory in the loader (pin_memory=True), copy with non_blocking=True one batch ahead, keep data on "
            "the device.",
        )
    if about.synced_s > 0:
        count = int(np.count_nonzero(about.table.of_kind(EventKind.SYNC))) / about.count / max(1, about.steps)
        yield about.finding(
            "synchronisation",
            "Synchronization leaves the device idle",
            about.synced_s,
            f"{count:,.1f} synchronizing calls per step and rank",
            "After each such call, the device is idle until new work is issued.",
            "Look for .item(), .cpu(), nonzero() or printed tensors in the loop; log every n-th step; copy with "
            "non_blocking=True.",
        )
    yield from _layouts(about)
    waits = about.mean_in_steps([each.idle & each.sync for each in about.activity])
    if waits > 0.05 * about.total_s:
        yield about.finding(
            "waiting host",
            "The device is idle while the host waits in a synchronizing call",
            waits,
            "all ranks" if about.count > 1 else about.activity[0].label,
            f"For {_percent(waits / about.total_s)} of the time the host waits ({_sync_names(about)}) although no "
            "kernel or copy runs.",
            "It may wait for another process or device, or for the device to start (first use, lazily loaded kernels). "
            "Warm up before recording, or record the other processes as well.",
        )
    idle = about.mean("idle_s") - waits
    if idle > 0.05 * about.total_s:
        yield about.finding(
            "idle device",
            "The device is idle, and no host activity was recorded",
            idle,
            "all ranks" if about.count > 1 else about.activity[0].label,
            f"For {_percent(idle / about.total_s)} of the time the trace shows no activity on device or host.",
            "Python code outside operators, or other threads, may run: record with --stack, or add spans to the code.",
        )


def _sync_names(about: _About, most: int = 2) -> str:
    """Return the calls that the host waits in, the longest first."""
    table = about.table
    rows = np.flatnonzero(table.of_kind(EventKind.SYNC) & ~table.on_device())
    lengths = np.bincount(table.name[rows], table.duration_ns[rows].astype(np.float64), len(table.names))
    return ", ".join(table.names[at] for at in np.argsort(-lengths, kind="stable")[:most].tolist() if lengths[at] > 0)


def _layouts(about: _About) -> Iterator[Finding]:
    """Kernels with which cuDNN brings data into the order that its own kernels want."""
    table = about.table
    turning = [at for at, name in enumerate(table.names) if _TURNS.search(name)]
    rows = table.of_kind(EventKind.KERNEL) & np.isin(table.name, turning)
    if not rows.any():
        return
    ran = [each.rows[rows[each.rows]] for each in about.activity]
    seconds = about.mean_in_steps([spans(table.start_ns[mine], table.end_ns[mine]) for mine in ran])
    yield about.finding(
        "layouts",
        "Data is converted between memory layouts",
        seconds,
        f"{np.count_nonzero(rows) / about.count / max(1, about.steps):,.0f} kernels per step and rank",
        "Convolutions use channels-last layout; other layouts are converted before and after them.",
        "Use model.to(memory_format=torch.channels_last) and the same for the input (channels_last_3d for volumes).",
    )


def _host(about: _About) -> Iterator[Finding]:
    launch = about.mean("launch_s") - about.synced_s
    if launch <= 0.03 * about.total_s:
        return
    if not about.has_device:
        yield about.finding(
            "host overhead",
            "Framework overhead between operators",
            launch,
            "all ranks" if about.count > 1 else about.activity[0].label,
            f"{_percent(launch / about.total_s)} of the time is inside named blocks but outside any operator.",
            "Use fewer and larger operators: torch.compile, fused optimizers, larger batches.",
        )
        return
    long_ = _long_on_host(about, launch)
    if long_ is not None:
        name, seconds, each_s = long_
        yield about.finding(
            "host-bound",
            f"The device is idle while the host is in {name}",
            launch,
            "all ranks" if about.count > 1 else about.activity[0].label,
            f"The device is idle for {_percent(launch / about.total_s)} of the time while the host works, "
            f"{_time(seconds)} of it in {name} ({_time(each_s)} per call).",
            "Check what it does: first use of a device, allocation or copies of memory, work that the device could do. "
            "Do it once, ahead of time, or in another thread.",
        )
        return
    rows = about.table.of_kind(EventKind.KERNEL) & about.table.on_device()
    lengths = about.table.duration_ns[rows] * NS
    count = len(lengths) / about.count / max(1, about.steps)
    tiny = float((lengths < _TINY_KERNEL_S).mean()) if len(lengths) else 0.0
    yield about.finding(
        "launch-bound",
        "The device waits for the host to issue kernels",
        launch,
        f"{count:,.0f} kernels per step and rank, median {_time(float(np.median(lengths)))}",
        f"{_percent(tiny)} of the kernels are shorter than {_time(_TINY_KERNEL_S)}, about the time to issue one. "
        f"The device is idle for {_percent(launch / about.total_s)} of the time while the host prepares the next.",
        "Use torch.compile (mode='reduce-overhead'), CUDA graphs, fused or foreach optimizers, or larger batches.",
    )


def _long_on_host(about: _About, launch_s: float) -> tuple[str, float, float] | None:
    """Return what the host does for most of the time that devices wait for it, and for how long in all and each call.

    None where calls are short: then it is their number that costs.
    """
    table = about.table
    sums = np.zeros(len(table.names), np.int64)
    for each in about.activity:
        sums += time_by_name(table, each, each.parts["launch"])
    if not len(sums):
        return None
    top = int(sums.argmax())
    seconds = float(sums[top]) * NS / about.count
    each_s = seconds * about.count / max(1, int(np.count_nonzero(table.name == top)))
    return (table.names[top], seconds, each_s) if seconds > 0.5 * launch_s and each_s >= _LONG_CALL_S else None


def _drained(table: EventTable, each: Activity) -> Spans:
    """Return when a device had nothing to do after the host had waited for it."""
    rows = each.rows[(table.kind[each.rows] == EventKind.SYNC) & ~on_device(table, each.rows)]
    busy = each.device_busy
    if not len(rows) or len(busy) < 2:
        return nothing()
    ends = table.end_ns[rows]
    at = np.searchsorted(busy.ends, ends, side="right")
    gaps = np.unique(at[(at > 0) & (at < len(busy))])
    gaps = gaps[np.isin(gaps, at[busy.starts[np.minimum(at, len(busy) - 1)] > ends])]
    return spans(busy.ends[gaps - 1], busy.starts[gaps])


def _shared_checkpoints(about: _About) -> Iterator[Finding]:
    seconds = about.least("checkpoint_s")
    if seconds > 0:
        yield about.finding(
            "checkpoint",
            "Training stops while checkpoints are written",
            seconds,
            "all ranks" if about.count > 1 else about.activity[0].label,
            f"Every rank spends at least {_time(seconds)} writing and computes nothing meanwhile.",
            "Use asynchronous or sharded checkpoints, or write them less often.",
        )


def _coupled(about: _About, coupled: CouplingAnalysis | None) -> Iterator[Finding]:
    if coupled is None:
        return
    for waiter, row in zip(coupled.components, coupled.matrix, strict=True):
        for giver, seconds in zip(coupled.components, row, strict=True):
            if seconds <= 0 or giver is waiter:
                continue
            keys = [
                each.key
                for each in coupled.exchanges
                if {each.giver, each.taker} == {waiter.name, giver.name} and each.taker_waits_s + each.giver_waits_s > 0
            ]
            yield about.finding(
                "coupling",
                f"{_begin(_part(waiter.name))} waits for {_part(giver.name)}",
                seconds / waiter.ranks,
                f"exchange of {', '.join(keys[:3])}",
                f"{_begin(_part(waiter.name))} is ready before {_part(giver.name)}; exchanges cost it "
                f"{_percent(waiter.cost)} of its steps.",
                f"Give {_part(giver.name)} more resources or {_part(waiter.name)} fewer, exchange less often, or "
                "continue with an older version.",
                base_s=waiter.span_s,
                share_of=f"the time of {_part(waiter.name)}",
            )


def _exchanges(about: _About, coupled: CouplingAnalysis | None) -> Iterator[Finding]:
    if coupled is None:
        return
    for each in coupled.components:
        moving = each.exchange_s - each.waits_s
        if moving < _MOVES_LONG * each.span_s or each.cost < _MOVES_LONG:
            continue
        keys = [one.key for one in coupled.exchanges if each.name in (one.giver, one.taker)]
        yield about.finding(
            "exchange",
            f"{_begin(_part(each.name))} spends its time moving data",
            moving,
            f"exchange of {', '.join(keys[:3])}",
            f"Exchanges take {_percent(each.cost)} of its steps, {_time(moving)} of it without waiting for others.",
            "Exchange less data or less often, avoid conversions and copies, or overlap it with compute.",
            base_s=each.span_s,
            share_of=f"the time of {_part(each.name)}",
        )
    for old in coupled.exchanges:
        if old.versions_behind >= 1:
            yield about.finding(
                _STALE,
                f"{_begin(_part(old.taker))} gets stale data: {old.key} is {old.versions_behind:.1f} versions behind",
                0.0,
                f"exchange of {old.key}",
                f"When {_part(old.taker)} gets it, {_part(old.giver)} has put {old.versions_behind:.1f} newer versions "
                f"(mean; at most {old.most_versions_behind}). The data is {_time(old.age_s)} old.",
                f"Get the newest version, or let {_part(old.giver)} put less often.",
            )


def _begin(text: str) -> str:
    """Return a text as a sentence begins with it; names of components keep their letters."""
    return text[:1].upper() + text[1:]


def _part(name: str) -> str:
    return f"the {name}" if name else "the program"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _time(seconds: float) -> str:
    return format_duration(seconds)
