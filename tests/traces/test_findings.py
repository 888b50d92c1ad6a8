"""Findings name exactly what was planted, and its seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from cases import for_each
from trace_making import MS, Training, coupled, steady

from fairmile.base.errors import NotFound
from fairmile.traces.analyze import TraceAnalysis, analyze
from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.evidence import Finding
from fairmile.traces.waiting import mean_over_ranks


@dataclass(frozen=True)
class Even:
    """A model by which every call takes the same time."""

    seconds: float

    def time_s(self, collective: str, size_bytes: float, ranks: int, /, *, nodes: int = 1) -> float:
        return self.seconds


def of_kind(analysis: TraceAnalysis, kind: str) -> Finding:
    found = [each for each in analysis.findings if each.kind == kind]
    assert len(found) == 1, [each.title for each in analysis.findings]
    return found[0]


@pytest.mark.parametrize("device", [False, True])
def test_a_straggler_is_named_with_what_it_costs(device: bool) -> None:
    found = analyze(Training(device=device, compute_ms=lambda rank, step: 15 if rank == 3 else 10).table())
    first = found.findings[0]
    assert first.kind == "straggler" and first.title.startswith("Rank 3 ")
    assert first.seconds == pytest.approx(5 * 0.005, rel=1e-6)
    assert first.share == pytest.approx(0.025 / 0.095, rel=1e-6)
    assert "16 ms per step" in first.why and "11 ms" in first.why
    assert "straggler" not in [each.kind for each in found.findings[1:]]


@pytest.mark.parametrize("device", [False, True])
def test_a_rank_whose_input_comes_late_is_named_for_its_input(device: bool) -> None:
    found = analyze(Training(device=device, input_ms=lambda rank, step: 8 if rank == 1 else 1).table())
    first = found.findings[0]
    assert first.kind == "input starvation" and first.title.startswith("Rank 1 ")
    assert first.seconds == pytest.approx(5 * 0.007, rel=1e-6)
    assert "straggler" not in {each.kind for each in found.findings}


def test_input_that_all_wait_for_is_one_finding_of_all() -> None:
    found = analyze(Training(input_ms=steady(20)).table())
    first = found.findings[0]
    assert (first.kind, first.where) == ("input starvation", "all ranks")
    assert first.seconds == pytest.approx(5 * 0.020)


def test_a_straggler_costs_its_whole_delay_also_where_transfers_overlap() -> None:
    def made(slow: float) -> EventTable:
        return Training(
            ranks=8, device=True, kernels=12, buckets=4, transfer_ms=lambda step: 5.5,
            compute_ms=lambda rank, step: slow if rank == 3 else 24,
        ).table()  # fmt: skip

    found = analyze(made(29))
    truth = (found.step_s - analyze(made(24)).step_s) * 5
    assert truth == pytest.approx(0.025)
    assert of_kind(found, "straggler").seconds == pytest.approx(truth, rel=1e-6)


def test_imbalance_without_one_slow_rank_is_told_as_such() -> None:
    found = analyze(Training(steps=8, compute_ms=lambda rank, step: 15 if (rank + step) % 4 == 0 else 10).table())
    finding = of_kind(found, "imbalance")
    assert finding.seconds == pytest.approx(8 * 0.005 * 3 / 4, rel=1e-6)
    assert "16 ms on the slowest rank and 11 ms on the fastest" in finding.why
    assert "straggler" not in {each.kind for each in found.findings}


def test_a_link_slower_than_its_model_is_told_with_the_excess() -> None:
    found = analyze(Training(transfer_ms=lambda step: 12).table(), model=Even(0.002))
    finding = of_kind(found, "slow link")
    assert finding.seconds == pytest.approx(5 * 0.010, rel=1e-6)
    assert "12 ms" in finding.why and "2 ms" in finding.why
    assert "exposed communication" not in {each.kind for each in found.findings}


def test_a_link_that_keeps_up_with_its_model_is_no_finding() -> None:
    found = analyze(Training(transfer_ms=lambda step: 2.5).table(), model=Even(0.002))
    assert "slow link" not in {each.kind for each in found.findings}


def test_without_a_model_a_slow_pair_stands_out_among_equal_pairs() -> None:
    rows, now = Rows(), 0
    for _ in range(4):
        for source, target in ((0, 1), (2, 3), (4, 5)):
            length = (9 if source == 2 else 3) * MS
            for rank, name, peer in ((source, "MPI_Send", target), (target, "MPI_Recv", source)):
                lane = Lane(rank, "main")
                rows.add(EventKind.REGION, "aten::mm", now, now + 10 * MS, lane)
                told = {"peer": peer}
                rows.add(EventKind.P2P, name, now + 10 * MS, now + 10 * MS + length, lane, bytes=1 << 20, with_=told)
        now += 30 * MS
    found = analyze(rows.table(Process(rank) for rank in range(6)))
    assert of_kind(found, "slow link").title == "Slow link between ranks 2→3"


def test_exposed_communication_says_how_much_is_hidden() -> None:
    found = analyze(Training(transfer_ms=lambda step: 30).table())
    finding = found.findings[0]
    assert finding.kind == "exposed communication"
    assert finding.seconds == pytest.approx(5 * 0.030)
    assert "0 % of all communication is overlapped" in finding.why


def test_many_small_collectives_are_told_as_latency() -> None:
    table = Training(buckets=4, size_bytes=2048, transfer_ms=lambda step: 3).table()
    finding = of_kind(analyze(table), "small collectives")
    assert finding.title.startswith("4 small collectives per step")
    assert finding.seconds > 0


def device_trace(add: Callable[[Rows, Lane, Lane, int], None], length_ms: float = 10) -> EventTable:
    """Five steps of a device, each made by `add(rows, main, stream, start)`."""
    rows, main, stream = Rows(), Lane(0, "main"), Lane(0, "stream 7", True, device=0)
    for step in range(5):
        start = round(step * length_ms * MS)
        add(rows, main, stream, start)
        rows.add(EventKind.PHASE, f"ProfilerStep#{step}", start, start + round(length_ms * MS), main, step=step)
    return rows.table([Process(0)]).with_steps()


def test_tiny_kernels_behind_a_busy_host_are_launch_bound() -> None:
    def add(rows: Rows, main: Lane, stream: Lane, start: int) -> None:
        for kernel in range(100):
            at = start + kernel * MS // 10
            rows.add(EventKind.REGION, "aten::add", at, at + 90_000, main)
            rows.add(EventKind.KERNEL, "add", at + 90_000, at + 95_000, stream)

    finding = of_kind(analyze(device_trace(add)), "launch-bound")
    assert finding.seconds == pytest.approx(5 * 0.009, rel=0.02)
    assert "100 kernels per step" in finding.where and "CUDA graphs" in finding.what_to_try


def test_copies_that_hold_up_the_device_are_told() -> None:
    def add(rows: Rows, main: Lane, stream: Lane, start: int) -> None:
        rows.add(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", start, start + 3 * MS, stream)
        rows.add(EventKind.KERNEL, "gemm", start + 3 * MS, start + 10 * MS, stream)

    finding = of_kind(analyze(device_trace(add)), "copies")
    assert finding.seconds == pytest.approx(5 * 0.003)
    assert "pageable" in finding.why and "pin_memory" in finding.what_to_try


def test_kernels_that_only_turn_data_are_told_with_the_layout_that_spares_them() -> None:
    def add(rows: Rows, main: Lane, stream: Lane, start: int) -> None:
        turn = "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float>(params, __half const*)"
        rows.add(EventKind.KERNEL, turn, start, start + 2 * MS, stream)
        rows.add(EventKind.KERNEL, "implicit_gemm", start + 2 * MS, start + 10 * MS, stream)

    finding = of_kind(analyze(device_trace(add)), "layouts")
    assert finding.seconds == pytest.approx(5 * 0.002)
    assert finding.where == "1 kernels per step and rank" and "channels_last" in finding.what_to_try


COMPILATIONS = ("PjRtCpuClient::Compile", "$compiler.py:387 compile_or_get_cached", "XlaCompilationCache::Compile")


@for_each("name", COMPILATIONS)
def test_steps_that_compile_programs_are_told_so_and_are_not_slow_to_launch(name: str) -> None:
    def add(rows: Rows, main: Lane, stream: Lane, start: int) -> None:
        rows.add(EventKind.KERNEL, "gemm", start, start + 4 * MS, stream)
        rows.add(EventKind.REGION, name, start + 3 * MS, start + 9 * MS, main)
        rows.add(EventKind.REGION, "backend_compile_and_load", start + 4 * MS, start + 8 * MS, main)
        rows.add(EventKind.KERNEL, "gemm", start + 9 * MS, start + 10 * MS, stream)

    found = analyze(device_trace(add))
    finding = of_kind(found, "compilation")
    assert finding.seconds == pytest.approx(5 * 0.005)
    assert {each.name for each in finding.events} == {name}, "not what lies within it"
    assert {each.kind for each in found.findings} == {"compilation"}


@for_each("name", ["Torch-Compiled Region: 0/0", "CompiledFunctionBackward", "aten::mm"])
def test_running_what_was_compiled_is_no_compilation(name: str) -> None:
    def add(rows: Rows, main: Lane, stream: Lane, start: int) -> None:
        rows.add(EventKind.REGION, name, start, start + 9 * MS, main)
        rows.add(EventKind.KERNEL, "gemm", start + 8 * MS, start + 10 * MS, stream)

    assert "compilation" not in {each.kind for each in analyze(device_trace(add)).findings}


def test_synchronising_calls_that_drain_the_device_are_told() -> None:
    def add(rows: Rows, main: Lane, stream: Lane, start: int) -> None:
        rows.add(EventKind.KERNEL, "gemm", start, start + 6 * MS, stream)
        rows.add(EventKind.SYNC, "cudaStreamSynchronize", start + MS, start + 6 * MS + 1000, main)
        rows.add(EventKind.KERNEL, "gemm", start + 8 * MS, start + 10 * MS, stream)

    finding = of_kind(analyze(device_trace(add)), "synchronisation")
    assert finding.seconds == pytest.approx(5 * 0.002, rel=1e-3)


def test_an_idle_device_without_a_busy_host_is_told() -> None:
    def add(rows: Rows, main: Lane, stream: Lane, start: int) -> None:
        rows.add(EventKind.KERNEL, "gemm", start, start + 6 * MS, stream)

    assert of_kind(analyze(device_trace(add)), "idle device").seconds == pytest.approx(5 * 0.004)


def test_a_checkpoint_of_one_rank_is_what_the_others_wait_for() -> None:
    rows, group = Rows(), RankGroup("all", (0, 1))
    for rank in (0, 1):
        main, now = Lane(rank, "main"), 0
        for step in range(4):
            begin = now
            rows.add(EventKind.REGION, "aten::mm", now, now + 10 * MS, main)
            if rank == 0 and step == 2:
                rows.add(EventKind.REGION, "torch.save", now + 10 * MS, now + 40 * MS, main)
            enter = now + (40 if rank == 0 and step == 2 else 10) * MS
            leave = begin + (41 if step == 2 else 11) * MS
            rows.add(EventKind.COLLECTIVE, "gloo:all_reduce", enter, leave, main, group=group, sequence=step)
            rows.add(EventKind.PHASE, f"ProfilerStep#{step}", begin, leave, main, step=step)
            now = leave
    finding = of_kind(analyze(rows.table([Process(0), Process(1)])), "checkpoint")
    assert finding.title.startswith("Rank 0 writes a checkpoint")
    assert finding.seconds == pytest.approx(0.030, rel=1e-6)


def test_a_trainer_that_waits_for_its_solver_is_told() -> None:
    finding = of_kind(analyze(coupled()), "coupling")
    assert finding.title == "The trainer waits for the solver"
    assert finding.seconds == pytest.approx(0.010 + 5 * 0.006)
    assert "field" in finding.where


def test_data_that_is_several_versions_old_is_told_though_nobody_waits() -> None:
    rows = Rows()
    for version in range(4):
        told = {"key": "field", "how": "put"}
        solver = Lane(0, "main", component="solver")
        rows.add(
            EventKind.EXCHANGE, "put field", version * MS, (version + 1) * MS, solver, sequence=version, with_=told
        )
        told = {"key": "field", "how": "get"}
        at, trainer = (10 + 10 * version) * MS, Lane(0, "main", component="trainer")
        rows.add(EventKind.EXCHANGE, "get field", at, at + 9 * MS, trainer, sequence=version, with_=told)
    found = analyze(rows.table([Process(0, "solver"), Process(0, "trainer")]))
    old = of_kind(found, "old data")
    assert old.title == "The trainer gets stale data: field is 1.5 versions behind"
    assert "at most 3" in old.why and "22.5 ms old" in old.why
    moving = next(each for each in found.findings if each.kind == "exchange")
    assert moving.title == "The trainer spends its time moving data"
    assert moving.seconds == pytest.approx(0.036)


def dumped(*calls: int, state: str = "scheduled", format: str = "flight") -> TraceAnalysis:
    """The dumps of ranks that came to so many collectives."""
    rows, group = Rows(), RankGroup("dp", tuple(range(len(calls))), "nccl")
    for rank, count in enumerate(calls):
        for call in range(count):
            told = {"state": "completed" if call < min(calls) else state}
            lane, at = Lane(rank, "collectives"), 10 * call * MS
            rows.add(
                EventKind.COLLECTIVE, "nccl:all_reduce", at, at + 3 * MS, lane,
                group=group, sequence=call, bytes=4096, with_=told,
            )  # fmt: skip
    return analyze(rows.table([Process(rank, format=format, world=len(calls)) for rank in range(len(calls))]))


def test_a_rank_that_never_came_to_a_collective_is_the_first_finding() -> None:
    first = dumped(5, 4, 5).findings[0]
    assert (first.kind, first.title) == ("hang", "Rank 1 never called nccl:all_reduce of 4.0 KiB")
    assert first.where == "group 'dp'; called by ranks 0, 2"
    assert "The dump of rank 1 lacks it and everything after it in this group." in first.why
    assert "until the timeout" in first.why


def test_a_collective_that_is_done_elsewhere_is_no_wait_for_ever() -> None:
    assert "the dump may be older" in dumped(5, 4, state="completed").findings[0].why


@pytest.mark.parametrize(("calls", "format"), [((5, 5), "flight"), ((5, 4), "kineto")])
def test_ranks_that_all_came_or_whose_profilers_ended_apart_do_not_hang(calls: tuple[int, ...], format: str) -> None:
    assert "hang" not in {each.kind for each in dumped(*calls, format=format).findings}


@pytest.mark.parametrize(("state", "hangs"), [("completed", []), ("scheduled", ["Rank 1 never called nccl:barrier"])])
def test_a_rank_that_has_forgotten_a_group_came_to_what_was_completed_in_it(state: str, hangs: list[str]) -> None:
    rows, seldom, often = Rows(), RankGroup("seldom", (0, 1)), RankGroup("often", (0, 1))
    for rank in (0, 1):
        lane = Lane(rank, "collectives")
        for call in range(5):
            at, told = (10 + 10 * call) * MS, {"state": "completed"}
            rows.add(EventKind.COLLECTIVE, "nccl:all_reduce", at, at + MS, lane, group=often, sequence=call, with_=told)
    for call, name, how in ((0, "nccl:broadcast", "completed"), (1, "nccl:barrier", state)):
        lane, at, told = Lane(0, "collectives"), 60 * call * MS, {"state": how}
        rows.add(EventKind.COLLECTIVE, name, at, at + MS, lane, group=seldom, sequence=call, with_=told)
    found = analyze(rows.table([Process(rank, format="flight", world=2) for rank in (0, 1)])).findings
    assert [each.title for each in found if each.kind == "hang"] == hangs


def test_a_rank_with_an_empty_dump_never_came_to_the_first_collective_though_no_time_has_passed() -> None:
    rows = Rows()
    told = {"state": "scheduled"}
    rows.add(
        EventKind.COLLECTIVE, "nccl:all_reduce", 5, 5, Lane(0, "collectives"),
        group=RankGroup("dp", (0, 1)), sequence=0, with_=told,
    )  # fmt: skip
    (hang,) = analyze(rows.table([Process(rank, format="flight", world=2) for rank in (0, 1)])).findings
    assert (hang.kind, hang.title, hang.share) == ("hang", "Rank 1 never called nccl:all_reduce", 0)


def test_a_finding_on_communication_says_that_a_rank_without_a_trace_may_be_waited_for() -> None:
    rows, group = Rows(), RankGroup("0", (0, 1))
    for call in range(5):
        rows.add(EventKind.REGION, "aten::mm", 10 * call * MS, (10 * call + 4) * MS, Lane(0, "main"))
        times = (10 * call + 4) * MS, (10 * call + 10) * MS
        rows.add(EventKind.COLLECTIVE, "gloo:all_reduce", *times, Lane(0, "main"), group=group, bytes=1 << 20)
    finding = of_kind(analyze(rows.table([Process(0, world=2)])), "exposed communication")
    assert finding.title.endswith("or waits for a rank without a trace")
    assert finding.why.startswith("Transfers of 30 ms, including all waits for rank 1, which has no trace, happen")
    assert finding.what_to_try.startswith("Add the trace of rank 1")


def test_components_keep_the_letters_of_their_names() -> None:
    table = coupled()
    names = {"solver": "OpenFOAM", "trainer": "myCNN", "": ""}
    table.components = [names[each] for each in table.components]
    table.lanes = [replace(each, component=names[each.component]) for each in table.lanes]
    table.processes = [replace(each, component=names[each.component]) for each in table.processes]
    finding = of_kind(analyze(table), "coupling")
    assert finding.title == "The myCNN waits for the OpenFOAM" and finding.why.startswith("The myCNN is ready before")


def test_many_barriers_are_told_without_a_size_that_they_do_not_have() -> None:
    rows, group = Rows(), RankGroup("0", (0, 1))
    for rank in (0, 1):
        for call in range(6):
            rows.add(EventKind.REGION, "aten::mm", call * MS, call * MS + MS // 2, Lane(rank, "main"))
            rows.add(
                EventKind.COLLECTIVE,
                "MPI_Barrier",
                call * MS + MS // 2,
                (call + 1) * MS,
                Lane(rank, "main"),
                group=group,
            )
    finding = of_kind(analyze(rows.table([Process(0, world=2), Process(1, world=2)])), "small collectives")
    assert finding.where == "barrier"


def test_findings_come_with_the_dearest_first_and_shares_of_the_whole() -> None:
    found = analyze(Training(compute_ms=lambda rank, step: 10 + rank, input_ms=steady(4)).table())
    seconds = [each.seconds for each in found.findings]
    assert len(seconds) >= 3 and seconds == sorted(seconds, reverse=True)
    for each in found.findings:
        assert each.share == pytest.approx(each.seconds / found.total_s)
        assert each.why and each.where and each.what_to_try


def test_a_perfect_training_has_no_finding_but_what_it_must_pay() -> None:
    found = analyze(Training(input_ms=steady(0), transfer_ms=lambda step: 0.05).table())
    assert found.findings == ()


def test_a_trace_without_events_is_said_to_be_empty() -> None:
    with pytest.raises(NotFound, match="the trace has no events"):
        analyze(EventTable.of())


def test_a_long_operator_of_the_host_is_named_and_not_called_idle() -> None:
    rows = Rows()
    main, stream = Lane(0, "main"), Lane(0, "stream 7", True, device=0)
    rows.add(EventKind.REGION, "aten::sort", 0, 100 * MS, main)
    rows.add(EventKind.LAUNCH, "cudaLaunchKernel", 100 * MS, 101 * MS, main)
    rows.add(EventKind.KERNEL, "gemm", 101 * MS, 120 * MS, stream)
    found = analyze(rows.table([Process(0)])).findings
    assert [each.kind for each in found] == ["host-bound"]
    assert found[0].title == "The device is idle while the host is in aten::sort"
    assert found[0].seconds == pytest.approx(0.101)


def test_a_host_that_waits_for_an_idle_device_is_not_said_to_do_nothing() -> None:
    rows = Rows()
    main, stream = Lane(0, "main"), Lane(0, "stream 7", True, device=0)
    rows.add(EventKind.KERNEL, "gemm", 0, 10 * MS, stream)
    rows.add(EventKind.SYNC, "cudaStreamSynchronize", 10 * MS, 90 * MS, main)
    rows.add(EventKind.KERNEL, "gemm", 90 * MS, 100 * MS, stream)
    kinds = {each.kind: each for each in analyze(rows.table([Process(0)])).findings}
    assert "idle device" not in kinds
    assert "cudaStreamSynchronize" in kinds["waiting host"].why


def test_a_rank_is_said_to_compute_longer_only_with_numbers_that_say_so() -> None:
    """Rank 1 has more work before the call and less behind it: over a step it computes less than the others."""
    rows = Rows()
    group = RankGroup("default", (0, 1, 2))
    for step in range(5):
        begin = step * 30 * MS
        for rank in range(3):
            lane, early, late = Lane(rank, "main"), (8 if rank == 1 else 2) * MS, (1 if rank == 1 else 10) * MS
            rows.add(EventKind.REGION, "aten::mm", begin, begin + early, lane, step=step)
            rows.add(EventKind.COLLECTIVE, "all_reduce", begin + early, begin + 10 * MS, lane, group=group,
                     sequence=step, bytes=1 << 20, step=step)  # fmt: skip
            rows.add(EventKind.REGION, "aten::mm", begin + 10 * MS, begin + 10 * MS + late, lane, step=step)
            rows.add(EventKind.PHASE, f"ProfilerStep#{step}", begin, begin + 20 * MS, lane, step=step)
    found = analyze(rows.table(Process(rank, world=3) for rank in range(3)))
    (first,) = (each for each in found.findings if each.where.startswith("rank 1, ") and "compute" in each.title)
    assert first.title == "Rank 1 reaches its collectives late: compute before them takes longer"
    assert "rank 1 spends 8 ms on it; the waiting ranks spend 2 ms" in first.why
    assert "does not spend more on it than the others" in first.why


def random_program(seed: int) -> EventTable:
    """Ranks in groups of two and of all, calls that overlap, steps that leave time out, and components."""
    rng = np.random.default_rng(seed)
    ranks, rows = int(rng.integers(2, 5)), Rows()
    component = "solver" if seed % 3 == 0 else ""
    groups = [
        RankGroup("all", tuple(range(ranks))),
        *(RankGroup(f"pair {at}", (at, at + 1)) for at in range(ranks - 1)),
    ]
    lanes = [Lane(rank, "main", component=component) for rank in range(ranks)]
    now = 0
    for call in range(int(rng.integers(3, 30))):
        group = groups[int(rng.integers(len(groups)))]
        enters = {rank: now + int(rng.integers(0, 20 * MS)) for rank in group.ranks}
        end = max(enters.values()) + int(rng.integers(0, 5 * MS))
        for rank, enter in enters.items():
            work = int(rng.integers(0, 10 * MS))
            if rng.random() < 0.8:
                rows.add(EventKind.REGION, "aten::mm", max(0, enter - work), enter, lanes[rank])
            size = (64, 4 << 20)[int(rng.integers(2))]
            lane = Lane(rank, "talk", component=component)
            rows.add(EventKind.COLLECTIVE, "all_reduce", enter, end, lane, group=group, bytes=size)
        now += int(rng.integers(0, 15 * MS))
        if rng.random() < 0.5:
            for lane in lanes:
                rows.add(EventKind.PHASE, f"step {call}", now, now + int(rng.integers(1, 10 * MS)), lane, step=call)
        if component and rng.random() < 0.7:
            told = {"key": "field", "how": ("put", "get")[int(rng.integers(2))]}
            asked = now + int(rng.integers(0, 5 * MS))
            part = ("solver", "trainer")[told["how"] == "get"]
            rows.add(EventKind.EXCHANGE, f"{told['how']} field", asked, asked + int(rng.integers(0, 40 * MS)),
                     Lane(0, "main", component=part), with_=told)  # fmt: skip
    processes = [Process(rank, component, world=ranks) for rank in range(ranks)]
    return rows.table([*processes, Process(0, "trainer")] if component else processes)


@for_each("seed", range(80))
def test_no_share_is_more_than_all_whatever_ranks_did(seed: int) -> None:
    found = analyze(random_program(seed))
    for each in found.findings:
        assert 0 <= each.share <= 1 and each.seconds >= 0
    for rank in found.breakdown.ranks:
        waited = sum(each.exposed_s for each in found.waiting.states
                     if (each.component, each.rank) == (rank.component, rank.rank) and "NxN" in each.state
                     and "Completion" not in each.state)  # fmt: skip
        assert waited <= found.span_s + 1e-12
    talk = mean_over_ranks(found.waiting.collectives, "exposed_s", len(found.ranks))
    talk += mean_over_ranks(found.waiting.collectives, "exposed_wait_s", len(found.ranks))
    assert talk <= found.total_s + 1e-12
    for part in found.coupling.components if found.coupling else ():
        assert 0 <= part.waits_s <= part.exchange_s + 1e-12 and 0 <= part.cost <= 1 + 1e-12
    assert sum(seconds for _, seconds in found.critical.by_part) <= found.critical.total_s + 1e-12
