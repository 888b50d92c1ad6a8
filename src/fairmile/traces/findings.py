"""What costs time, in plain words: each finding says how many seconds, where, why, and what to try.

Seconds are of the whole trace, by what would be gained were the cause gone and everything else the same; two findings
may gain less together than apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from fairmile.base.units import format_duration, format_size
from fairmile.traces.activity import Activity
from fairmile.traces.breakdown import NS, Breakdown
from fairmile.traces.coupling import CouplingAnalysis, keys_of_exchanges
from fairmile.traces.events import EventKind, EventTable
from fairmile.traces.evidence import LONG_CALL_NS, Evidence, Finding, sentence_start
from fairmile.traces.finding_events import UsedEvents, events_of_calls, events_overlapping, events_within, gaps
from fairmile.traces.intervals import spans
from fairmile.traces.rank_findings import HANG, hangs, late_ranks
from fairmile.traces.replay import Replay
from fairmile.traces.self_time import time_by_name
from fairmile.traces.waiting import CollectiveSummary, Waiting

_LEAST = 0.01  # share of the time from which something is worth a finding
_SMALL_BYTES = 64 << 10
_SLOW = 0.5  # of the model's speed
_TINY_KERNEL_S = 10e-6
_MOVES_LONG = 0.1  # of the time of its steps that a component spends on moving data
_UNRECORDED = 0.05  # of the time, from which it is a finding that nothing was recorded
_STALE = "old data"
_WITHOUT_TIME = (HANG, _STALE)  # what is told whatever it costs
_TURNS = re.compile(r"nchwToNhwc|nhwcToNchw|nhwc2nchw|nchw2nhwc", re.IGNORECASE)


def findings(
    table: EventTable,
    rank_activity: Sequence[Activity],
    times: Breakdown,
    waits: Waiting,
    coupled: CouplingAnalysis | None,
    replay: Replay | None = None,
) -> tuple[Finding, ...]:
    """Return what costs time, the dearest first; a replay tells what a change of the communication would save."""
    evidence = Evidence(table, rank_activity, times, waits, replay)
    if not times.ranks:
        return ()
    if evidence.total_s <= 0:  # who waits in the first collective of all has no time yet
        return tuple(hangs(evidence))
    all_ = [
        *hangs(evidence),
        *late_ranks(evidence),
        *_shared_input(evidence),
        *_communication(evidence),
        *_compilation(evidence),
        *_device(evidence),
        *_host(evidence),
        *_unrecorded(evidence),
        *_shared_checkpoints(evidence),
        *_coupled(evidence, coupled),
        *_exchanges(evidence, coupled),
    ]
    kept = [each for each in all_ if each.share >= _LEAST or each.kind in _WITHOUT_TIME]
    return tuple(sorted(kept, key=lambda each: (each.kind != HANG, -each.seconds, each.kind, each.where)))


def _shared_input(evidence: Evidence) -> Iterator[Finding]:
    seconds = evidence.least("input_s")
    if seconds > 0:
        share = seconds / evidence.total_s
        yield evidence.finding(
            "input starvation",
            "Training waits for input" if evidence.count > 1 else "The program waits for input",
            seconds,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"Every rank waits idle for the next batch, at least {format_duration(seconds / max(1, evidence.steps))} "
            f"per step ({_percent(share)} of the time).",
            "Use more loader workers, persistent_workers and prefetch_factor; cache decoded data; use faster storage. "
            "`fairmile predict time` predicts the rate that the loader must deliver.",
            events=evidence.events_within("input"),
        )


def _compilation(evidence: Evidence) -> Iterator[Finding]:
    seconds = evidence.mean_in_steps(evidence.compiling)
    if seconds > 0:
        rows = evidence.compiles
        yield evidence.finding(
            "compilation",
            "Programs are compiled within the steps",
            seconds,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"For {_percent(seconds / evidence.total_s)} of the time, programs are traced and compiled, not run.",
            "Warm up before recording. If it happens in every step, shapes or Python values change from step to step: "
            "pad to a few sizes, and look with jax.log_compiles() or TORCH_LOGS=recompiles.",
            events=events_overlapping(evidence.table, evidence.activity, evidence.compiling, rows),
        )


def _communication(evidence: Evidence) -> Iterator[Finding]:
    slow, small, rest = [], [], []
    for each in evidence.waits.collectives:
        if each.ranks < 2:
            continue
        if _slowness(each, evidence.waits.collectives) is not None:
            slow.append(each)
        elif 0 <= each.bytes <= _SMALL_BYTES or each.operation == "barrier":
            small.append(each)
        else:
            rest.append(each)
    for each in slow:
        yield _slow_link(evidence, each)
    calls = sum(each.calls for each in small)
    per_step = calls / max(1, evidence.steps)
    if small and per_step >= 2:
        seconds = evidence.saved_s(small, 0.0, evidence.of_all_ranks(small, "exposed_s"))
        names = ", ".join(dict.fromkeys(each.operation for each in small))
        largest = max(each.bytes for each in small)  # of barriers it is not known
        yield evidence.finding(
            "small collectives",
            f"{per_step:,.0f} small collectives per step: latency-bound",
            seconds,
            f"{names} of up to {format_size(largest)}" if largest >= 0 else names,
            f"{calls:,} calls move at most {format_size(_SMALL_BYTES)} each and take "
            f"{format_duration(sum(each.transfer_s for each in small) / max(1, calls))} each, whatever their size.",
            "Combine them: flatten tensors into one buffer, use larger buckets, or reduce all metrics as one vector.",
            events=events_of_calls(evidence.waits, small, "exposed_transfer"),
        )
    else:
        rest += small
    yield from _exposed(evidence, rest)
    yield from _queued(evidence)
    yield from _messages(evidence)


def _messages(evidence: Evidence) -> Iterator[Finding]:
    """Messages that do not tell which other one they belong to: waiting and transfer are one."""
    table = evidence.table
    rows = table.of_kind(EventKind.P2P) & ~table.on_device()
    if evidence.count < 2 or not rows.any() or any("→" in each.group for each in evidence.waits.collectives):
        return
    ran = [each.rows[rows[each.rows]] for each in evidence.activity]
    moments = [
        spans(table.start_ns[mine], table.end_ns[mine]) - each.compute
        for mine, each in zip(ran, evidence.activity, strict=True)
    ]
    lengths = np.bincount(table.name[rows], table.duration_ns[rows].astype(np.float64), len(table.names))
    by_compute = sorted(evidence.times.ranks, key=lambda each: each.total.compute_s)
    least, most = by_compute[0], by_compute[-1]
    unequal = ""
    if most.total.compute_s > 1.1 * least.total.compute_s:
        unequal = (
            f" {sentence_start(most.label)} computes longest, {format_duration(most.total.compute_s)}, "
            f"{least.label} {format_duration(least.total.compute_s)}: the others probably wait for it."
        )
    seconds = evidence.mean_in_steps(moments)
    yield evidence.finding(
        "messages",
        "Ranks are in messages and do not compute",
        seconds,
        f"mostly {table.names[int(np.argmax(lengths))]}, {np.count_nonzero(rows):,} calls",
        f"For {_percent(seconds / evidence.total_s)} of the time, ranks send or receive, or wait for the other side."
        + unequal,
        "Balance the work of the ranks; start receives early (MPI_Irecv) and compute while messages travel.",
        events=events_overlapping(table, evidence.activity, moments, rows),
    )


def _queued(evidence: Evidence) -> Iterator[Finding]:
    """Calls that all ranks have come to and whose data does not move yet, as Horovod's timeline tells."""
    queued = [each for each in evidence.waits.collectives if each.exposed_queued_s > 0]
    seconds = evidence.of_all_ranks(queued, "exposed_queued_s")
    if not queued or seconds <= 0:
        return
    calls = sum(each.calls for each in queued)
    top = max(queued, key=lambda each: each.exposed_queued_s)
    yield evidence.finding(
        "queued collectives",
        "Collectives are queued after all ranks have arrived",
        seconds,
        f"mostly {top.operation} of group {top.group!r}",
        f"{calls:,} calls wait {format_duration(sum(each.queued_s for each in queued) / calls)} each (mean) before "
        "their data "
        f"moves, {format_duration(seconds)} in total while no other transfer runs. Causes are the cycle time of the "
        "back end, data that is not computed yet, and copies to and from its buffer.",
        "Shorten HOROVOD_CYCLE_TIME, or fuse more tensors (HOROVOD_FUSION_THRESHOLD).",
        events=events_of_calls(evidence.waits, queued, "exposed_queue"),
    )


def _exposed(evidence: Evidence, rest: Sequence[CollectiveSummary]) -> Iterator[Finding]:
    exposed = evidence.of_all_ranks(rest, "exposed_s")
    if exposed <= 0:
        return
    seconds = evidence.saved_s(rest, 0.0, exposed)
    talk, hidden = evidence.mean("communication_s"), evidence.mean("overlap_s")
    top = max(rest, key=lambda each: each.exposed_s)
    size = f" of {format_size(top.bytes)}" if top.bytes >= 0 else ""
    overlap = hidden / talk if talk else 0.0
    has_training = any(each.format != "meter" for each in evidence.table.processes)
    early = (
        "Send gradients during the backward pass: smaller DDP buckets (bucket_cap_mb), FSDP with prefetching, "
        "no synchronization before the optimizer."
        if has_training
        else "Start collectives before their result is needed (MPI_Iallreduce, then MPI_Wait), or do fewer of them."
    )
    less = (
        "Send less: bf16 gradients, gradient accumulation, a larger batch per rank; or a faster network."
        if has_training
        else "Send less, in fewer messages, or use a faster network."
    )
    advice = early if overlap < 0.5 else less
    title = "Communication is not overlapped with compute"
    meanwhile = f"happen while nothing is computed. {_percent(overlap)} of all communication is overlapped."
    if not evidence.has_work:
        title = "Communication takes time; overlap with compute is unknown"
        meanwhile = "were recorded. Their cost depends on concurrent compute, which was not recorded."
        advice = "Profile the program as well (`fairmile trace record`): that shows how much of it is overlapped."
    what = f"Transfers of {format_duration(exposed)}, without waits for late ranks,"
    if unseen := evidence.table.missing_ranks:
        title += ", or waits for a rank without a trace"
        names = ", ".join(map(str, unseen[:8])) + (", …" if len(unseen) > 8 else "")
        what = f"Transfers of {format_duration(exposed)}, including all waits for rank {names}, which has no trace,"
        advice = f"Add the trace of rank {names} to separate waits from transfers. {advice}"
    where = f"mostly {top.operation}{size} of group {top.group!r}, {top.calls:,} calls"
    used = events_of_calls(evidence.waits, rest, "exposed_transfer")
    yield evidence.finding("exposed communication", title, seconds, where, f"{what} {meanwhile}", advice, events=used)


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


def _slow_link(evidence: Evidence, each: CollectiveSummary) -> Finding:
    should_s, by = _slowness(each, evidence.waits.collectives) or (0.0, "")
    excess = 1 - should_s / each.median_transfer_s
    bandwidth = f", {format_size(round(each.bus_bytes_per_s))}/s" if each.bus_bytes_per_s else ""
    who = f"ranks {each.group}" if "→" in each.group else f"the ranks of {each.group!r}"
    size = f" of {format_size(each.bytes)}" if each.bytes >= 0 else ""
    seen = "traced " if evidence.table.missing_ranks else ""
    return evidence.finding(
        "slow link",
        f"Slow link between {who}",
        evidence.saved_s([each], 1 - excess, evidence.of_all_ranks([each], "exposed_s") * excess),
        f"{each.operation}{size}, {each.ranks} ranks, {each.calls:,} calls",
        f"A call takes {format_duration(each.median_transfer_s)}{bandwidth} once all {seen}ranks have arrived; {by} "
        f"suggests {format_duration(should_s)}.",
        "Check which network is used (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, UCX_TLS), the state of the links "
        "(nvidia-smi topo, ibstat), and other traffic on them; compare with `fairmile benchmark collectives`.",
        events=events_of_calls(evidence.waits, [each], "exposed_transfer"),
    )


def _device(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.has_device:
        return
    copies = evidence.mean("copies_s")
    if copies > 0:
        rows = evidence.table.of_kind(EventKind.MEMCPY) & evidence.table.on_device()
        names = [evidence.table.names[at] for at in np.unique(evidence.table.name[rows]).tolist()]
        pageable = any("pageable" in name.lower() for name in names)
        yield evidence.finding(
            "copies",
            "Copies between host and device stall the device",
            copies,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"{format_duration(copies)} of copies happen while nothing is computed"
            + ("; pageable memory is copied twice." if pageable else "."),
            "Pin memory in the loader (pin_memory=True), copy with non_blocking=True one batch ahead, keep data on "
            "the device.",
            events=evidence.events_within("copies"),
        )
    if evidence.synced_s > 0:
        count = int(np.count_nonzero(evidence.table.of_kind(EventKind.SYNC))) / evidence.count / max(1, evidence.steps)
        yield evidence.finding(
            "synchronisation",
            "Synchronization leaves the device idle",
            evidence.synced_s,
            f"{count:,.1f} synchronizing calls per step and rank",
            "After each such call, the device is idle until new work is issued.",
            "Look for .item(), .cpu(), nonzero() or printed tensors in the loop; log every n-th step; copy with "
            "non_blocking=True.",
            events=gaps(evidence.table, evidence.activity, evidence.drained),
        )
    yield from _layouts(evidence)
    drained = evidence.drained
    stuck = [each.idle & each.sync for each in evidence.activity]
    waits = evidence.mean_in_steps(stuck)
    if waits > 0.05 * evidence.total_s:
        yield evidence.finding(
            "waiting host",
            "The device is idle while the host waits in a synchronizing call",
            waits,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"For {_percent(waits / evidence.total_s)} of the time the host waits ({_sync_names(evidence)}) although "
            "no kernel or copy runs.",
            "It may wait for another process or device, or for the device to start (first use, lazily loaded kernels). "
            "Warm up before recording, or record the other processes as well.",
            events=events_within(evidence.table, evidence.activity, stuck),
        )
    rest = [each.idle - each.sync - gap for each, gap in zip(evidence.activity, drained, strict=True)]
    idle = evidence.mean_in_steps(rest)
    if idle > 0.05 * evidence.total_s:
        yield evidence.finding(
            "idle device",
            "The device is idle, and no host activity was recorded",
            idle,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"For {_percent(idle / evidence.total_s)} of the time the trace shows no activity on device or host.",
            "Python code outside operators, or other threads, may run: record with --stack, or add spans to the code.",
            events=gaps(evidence.table, evidence.activity, rest),
        )


def _sync_names(evidence: Evidence, most: int = 2) -> str:
    """Return the calls that the host waits in, the longest first."""
    table = evidence.table
    rows = np.flatnonzero(table.of_kind(EventKind.SYNC) & ~table.on_device())
    lengths = np.bincount(table.name[rows], table.duration_ns[rows].astype(np.float64), len(table.names))
    return ", ".join(table.names[at] for at in np.argsort(-lengths, kind="stable")[:most].tolist() if lengths[at] > 0)


def _layouts(evidence: Evidence) -> Iterator[Finding]:
    """Kernels with which cuDNN brings data into the order that its own kernels want."""
    table = evidence.table
    turning = [at for at, name in enumerate(table.names) if _TURNS.search(name)]
    rows = table.of_kind(EventKind.KERNEL) & np.isin(table.name, turning)
    if not rows.any():
        return
    ran = [each.rows[rows[each.rows]] for each in evidence.activity]
    moments = [spans(table.start_ns[mine], table.end_ns[mine]) for mine in ran]
    seconds = evidence.mean_in_steps(moments)
    yield evidence.finding(
        "layouts",
        "Data is converted between memory layouts",
        seconds,
        f"{np.count_nonzero(rows) / evidence.count / max(1, evidence.steps):,.0f} kernels per step and rank",
        "Convolutions use channels-last layout; other layouts are converted before and after them.",
        "Use model.to(memory_format=torch.channels_last) and the same for the input (channels_last_3d for volumes).",
        events=events_overlapping(table, evidence.activity, moments, rows),
    )


def _unrecorded(evidence: Evidence) -> Iterator[Finding]:
    """Time of a program without a device in which no rank recorded anything, as far as all ranks have it."""
    if evidence.has_device or not evidence.has_work:
        return
    seconds = evidence.least("idle_s")
    if seconds <= _UNRECORDED * evidence.total_s:
        return
    yield evidence.finding(
        "unrecorded time",
        "No activity was recorded",
        seconds,
        "all ranks" if evidence.count > 1 else evidence.activity[0].label,
        f"For {_percent(seconds / evidence.total_s)} of the time, the trace shows no operator, input, copy or "
        "communication on any rank. Python code, a sleep or another process may run.",
        "Record with --stack, or add spans to the code.",
        events=gaps(evidence.table, evidence.activity, [each.idle for each in evidence.activity]),
    )


def _host(evidence: Evidence) -> Iterator[Finding]:
    launches = [
        each.parts["launch"] - drained - compiling
        for each, drained, compiling in zip(evidence.activity, evidence.drained, evidence.compiling, strict=True)
    ]
    launch = evidence.mean_in_steps(launches)
    if launch <= 0.03 * evidence.total_s:
        return
    if not evidence.has_device:
        yield evidence.finding(
            "host overhead",
            "Framework overhead between operators",
            launch,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"{_percent(launch / evidence.total_s)} of the time is inside named blocks but outside any operator.",
            "Use fewer and larger operators: torch.compile, fused optimizers, larger batches.",
            events=events_within(evidence.table, evidence.activity, launches),
        )
        return
    long_ = _long_on_host(evidence, launch)
    if long_ is not None:
        name, seconds, each_s = long_
        yield evidence.finding(
            "host-bound",
            f"The device is idle while the host is in {name}",
            launch,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"The device is idle for {_percent(launch / evidence.total_s)} of the time while the host works, "
            f"{format_duration(seconds)} of it in {name} ({format_duration(each_s)} per call).",
            "Check what it does: first use of a device, allocation or copies of memory, work that the device could do. "
            "Do it once, ahead of time, or in another thread.",
            events=events_within(evidence.table, evidence.activity, launches),
        )
        return
    rows = evidence.table.of_kind(EventKind.KERNEL) & evidence.table.on_device()
    lengths = evidence.table.duration_ns[rows] * NS
    count = len(lengths) / evidence.count / max(1, evidence.steps)
    tiny = float((lengths < _TINY_KERNEL_S).mean()) if len(lengths) else 0.0
    yield evidence.finding(
        "launch-bound",
        "The device waits for the host to issue kernels",
        launch,
        f"{count:,.0f} kernels per step and rank, median {format_duration(float(np.median(lengths)))}",
        f"{_percent(tiny)} of the kernels are shorter than {format_duration(_TINY_KERNEL_S)}, about the time to issue "
        "one. "
        f"The device is idle for {_percent(launch / evidence.total_s)} of the time while the host prepares the next.",
        "Use torch.compile (mode='reduce-overhead'), CUDA graphs, fused or foreach optimizers, or larger batches.",
        events=events_within(evidence.table, evidence.activity, launches),
    )


def _long_on_host(evidence: Evidence, launch_s: float) -> tuple[str, float, float] | None:
    """Return what the host does for most of the time that devices wait for it, and for how long in all and each call.

    None where calls are short: then it is their number that costs.
    """
    table = evidence.table
    sums = np.zeros(len(table.names), np.int64)
    for each in evidence.activity:
        sums += time_by_name(table, each, each.parts["launch"])
    if not len(sums):
        return None
    top = int(sums.argmax())
    seconds = float(sums[top]) * NS / evidence.count
    each_s = seconds * evidence.count / max(1, int(np.count_nonzero(table.name == top)))
    return (table.names[top], seconds, each_s) if seconds > 0.5 * launch_s and each_s >= LONG_CALL_NS * NS else None


def _shared_checkpoints(evidence: Evidence) -> Iterator[Finding]:
    seconds = evidence.least("checkpoint_s")
    if seconds > 0:
        yield evidence.finding(
            "checkpoint",
            "Training stops while checkpoints are written",
            seconds,
            "all ranks" if evidence.count > 1 else evidence.activity[0].label,
            f"Every rank spends at least {format_duration(seconds)} writing and computes nothing meanwhile.",
            "Use asynchronous or sharded checkpoints, or write them less often.",
            events=evidence.events_within("checkpoint"),
        )


def _coupled(evidence: Evidence, coupled: CouplingAnalysis | None) -> Iterator[Finding]:
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
            yield evidence.finding(
                "coupling",
                f"{sentence_start(_part(waiter.name))} waits for {_part(giver.name)}",
                seconds / waiter.ranks,
                f"exchange of {', '.join(keys[:3])}",
                f"{sentence_start(_part(waiter.name))} is ready before {_part(giver.name)}; exchanges cost it "
                f"{_percent(waiter.cost)} of its steps.",
                f"Give {_part(giver.name)} more resources or {_part(waiter.name)} fewer, exchange less often, or "
                "continue with an older version.",
                events=_exchanged(evidence, waiter.name, keys),
                base_s=waiter.span_s,
                share_of=f"the time of {_part(waiter.name)}",
            )


def _exchanges(evidence: Evidence, coupled: CouplingAnalysis | None) -> Iterator[Finding]:
    if coupled is None:
        return
    for each in coupled.components:
        moving = each.exchange_s - each.waits_s
        if moving < _MOVES_LONG * each.span_s or each.cost < _MOVES_LONG:
            continue
        keys = [one.key for one in coupled.exchanges if each.name in (one.giver, one.taker)]
        yield evidence.finding(
            "exchange",
            f"{sentence_start(_part(each.name))} spends its time moving data",
            moving,
            f"exchange of {', '.join(keys[:3])}",
            f"Exchanges take {_percent(each.cost)} of its steps, {format_duration(moving)} of it without waiting for "
            "others.",
            "Exchange less data or less often, avoid conversions and copies, or overlap it with compute.",
            events=_exchanged(evidence, each.name, keys),
            base_s=each.span_s,
            share_of=f"the time of {_part(each.name)}",
        )
    for old in coupled.exchanges:
        if old.versions_behind >= 1:
            yield evidence.finding(
                _STALE,
                f"{sentence_start(_part(old.taker))} gets stale data: {old.key} is {old.versions_behind:.1f} versions "
                "behind",
                0.0,
                f"exchange of {old.key}",
                f"When {_part(old.taker)} gets it, {_part(old.giver)} has put {old.versions_behind:.1f} newer versions "
                f"(mean; at most {old.most_versions_behind}). The data is {format_duration(old.age_s)} old.",
                f"Get the newest version, or let {_part(old.giver)} put less often.",
                events=_exchanged(evidence, old.taker, [old.key]),
            )


def _exchanged(evidence: Evidence, component: str, keys: Sequence[str]) -> UsedEvents:
    """Return the exchanges of a component under some keys, each with its time."""
    table = evidence.table
    mine = table.of_kind(EventKind.EXCHANGE) & np.isin(keys_of_exchanges(table), list(keys))
    rows = np.flatnonzero(mine & (table.component == table.components.index(component)))
    return UsedEvents(rows, np.maximum(table.end_ns[rows] - table.start_ns[rows], 0).astype(np.float64))


def _part(name: str) -> str:
    return f"the {name}" if name else "the program"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
