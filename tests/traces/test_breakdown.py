"""The time of a rank is cut into parts that exclude each other and add up."""

from __future__ import annotations

import numpy as np
import pytest
from cases import for_each
from trace_making import MS, Training, steady

from fairmile.traces.activity import activities
from fairmile.traces.breakdown import StepBreakdown, breakdown
from fairmile.traces.events import EventKind, EventTable, Lane, Process, Rows

MAIN, STREAM, SIDE = Lane(0, "main"), Lane(0, "stream 7", True, device=0), Lane(0, "stream 20", True, device=0)


def only(rows: Rows) -> EventTable:
    return rows.table([Process(0)])


def parts(step: StepBreakdown) -> float:
    return (
        step.compute_s
        + step.exposed_communication_s
        + step.exchange_s
        + step.copies_s
        + step.checkpoint_s
        + step.input_s
        + step.launch_s
        + step.idle_s
    )


def solver(*, within: str = "", put: bool = True, init_ms: int = 0) -> EventTable:
    """Three steps of 20 ms, each with a put of 1 ms behind it; `within` is the name of a span inside each step."""
    rows = Rows()
    if init_ms:
        rows.add(EventKind.REGION, "init", 0, init_ms * MS, MAIN)
    for step in range(3):
        at = (init_ms + step * 21) * MS
        rows.add(EventKind.PHASE, "step", at, at + 20 * MS, MAIN, step=step)
        if within:
            rows.add(EventKind.REGION, within, at, at + 5 * MS, MAIN, step=step)
        if put:
            rows.add(EventKind.EXCHANGE, "put field", at + 20 * MS, at + 21 * MS, MAIN, sequence=step)
    return only(rows)


@for_each("init_ms", [0, 7, 200])
def test_a_program_that_records_its_steps_alone_computes_in_them(init_ms: int) -> None:
    (rank,) = breakdown(activities(solver(init_ms=init_ms))).ranks
    assert (rank.steps, rank.step_s) == (3, pytest.approx(0.021))
    assert rank.total.compute_s == pytest.approx(0.060)
    assert rank.total.idle_s == 0


def test_a_step_does_not_hide_what_another_thread_communicates() -> None:
    rows = Rows()
    rows.add(EventKind.PHASE, "step", 0, 20 * MS, MAIN, step=0)
    rows.add(EventKind.COLLECTIVE, "all_reduce", 5 * MS, 12 * MS, Lane(0, "communication"))
    (step,) = breakdown(activities(only(rows))).steps
    assert (step.compute_s, step.overlap_s) == (pytest.approx(0.013), 0)
    assert step.exposed_communication_s == pytest.approx(0.007)


def test_a_frame_around_steps_alone_is_no_work() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "main", 0, 100 * MS, MAIN)
    for at in (0, 50):
        rows.add(EventKind.PHASE, "step", at * MS, (at + 40) * MS, MAIN, step=at // 50)
    assert activities(only(rows))[0].compute.length_ns == 80 * MS


def test_what_is_handed_over_between_two_steps_belongs_to_the_step_before() -> None:
    found = breakdown(activities(solver()))
    assert [each.exchange_s for each in found.steps] == [pytest.approx(0.001)] * 3
    assert [each.total_s for each in breakdown(activities(solver(put=False))).steps] == [pytest.approx(0.020)] * 3


def test_what_is_got_before_the_first_step_belongs_to_it() -> None:
    rows = Rows()
    rows.add(EventKind.EXCHANGE, "get field", 0, 2 * MS, MAIN, sequence=0)
    rows.add(EventKind.PHASE, "step", 2 * MS, 12 * MS, MAIN, step=0)
    (step,) = breakdown(activities(only(rows))).steps
    assert (step.exchange_s, step.total_s) == (pytest.approx(0.002), pytest.approx(0.012))


def test_what_is_sent_long_behind_a_step_is_not_of_it() -> None:
    rows = Rows()
    rows.add(EventKind.PHASE, "step", 0, 10 * MS, MAIN, step=0)
    rows.add(EventKind.EXCHANGE, "put result", 50 * MS, 60 * MS, MAIN, sequence=0)
    (step,) = breakdown(activities(only(rows))).steps
    assert (step.exchange_s, step.total_s) == (0, pytest.approx(0.010))


@pytest.mark.parametrize(("long_ms", "last_ms"), [(50, 151), (5_000, 200)])
def test_a_long_call_behind_the_last_step_counts_for_no_more_than_a_step(long_ms: int, last_ms: int) -> None:
    rows = Rows()
    for step in range(5):
        rows.add(EventKind.PHASE, f"ProfilerStep#{step}", step * 100 * MS, (step + 1) * 100 * MS, MAIN, step=step)
    rows.add(EventKind.COLLECTIVE, "gloo:barrier", 501 * MS, (501 + long_ms) * MS, Lane(0, "gloo worker"))
    found = breakdown(activities(only(rows)))
    assert [round(each.total_s * 1e3) for each in found.steps] == [100] * 4 + [last_ms]


def test_a_get_that_takes_longer_than_its_step_counts_whole_behind_each_of_them() -> None:
    rows = Rows()
    for step in range(3):
        at = step * 14 * MS
        rows.add(EventKind.PHASE, "step", at, at + 4 * MS, MAIN, step=step)
        rows.add(EventKind.EXCHANGE, "get field", at + 4 * MS, at + 14 * MS, MAIN, sequence=step)
    assert [each.exchange_s for each in breakdown(activities(only(rows))).steps] == [pytest.approx(0.010)] * 3


def test_where_something_finer_is_recorded_within_steps_it_alone_is_work() -> None:
    (rank,) = breakdown(activities(solver(within="assemble"))).ranks
    assert rank.total.compute_s == pytest.approx(0.015)
    assert rank.total.idle_s == pytest.approx(0.045)


def test_a_rank_without_steps_does_not_change_the_time_of_a_step() -> None:
    rows = Rows()
    for step in range(2):
        rows.add(
            EventKind.PHASE, "step", step * 10 * MS, (step + 1) * 10 * MS, Lane(0, "main", component="a"), step=step
        )
    rows.add(EventKind.REGION, "train", 0, 500 * MS, Lane(0, "main", component="b"))
    assert breakdown(activities(rows.table([Process(0, "a"), Process(0, "b")]))).step_s == pytest.approx(0.010)


@pytest.mark.parametrize("device", [False, True])
def test_parts_of_every_step_add_up_to_it(device: bool) -> None:
    table = Training(device=device, buckets=2, compute_ms=lambda rank, step: 7 + rank + step, shuffled=True).table()
    found = breakdown(activities(table))
    assert len(found.steps) == 20
    for step in found.steps:
        assert parts(step) == pytest.approx(step.total_s, abs=1e-12)


@pytest.mark.parametrize("device", [False, True])
def test_a_training_without_noise_is_cut_exactly_as_it_was_made(device: bool) -> None:
    found = breakdown(activities(Training(device=device, input_ms=steady(3)).table()))
    for rank in found.ranks:
        assert rank.steps == 5 and rank.steps_found_by == "the trace"
        assert rank.total.compute_s == pytest.approx(5 * 0.011)
        assert rank.total.input_s == pytest.approx(5 * 0.003)
        assert rank.total.exposed_communication_s == pytest.approx(5 * 0.002)
        assert rank.total.idle_s == pytest.approx(0, abs=1e-12)
    assert found.step_s == pytest.approx(0.016)


def test_communication_behind_compute_costs_nothing() -> None:
    rows = Rows()
    rows.add(EventKind.KERNEL, "gemm", 0, 10 * MS, STREAM)
    rows.add(EventKind.COLLECTIVE, "ncclDevKernel_AllReduce", 4 * MS, 13 * MS, SIDE)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.communication_s == pytest.approx(0.009)
    assert rank.total.overlap_s == pytest.approx(0.006)
    assert rank.total.exposed_communication_s == pytest.approx(0.003)


def naive_device(table: EventTable) -> dict[str, float]:
    """What HolisticTraceAnalysis does, moment by moment: kernels merged by kind, idle between first and last."""
    flags: dict[str, set[int]] = {"compute": set(), "communication": set(), "memory": set()}
    sorts = {
        EventKind.KERNEL: "compute",
        EventKind.COLLECTIVE: "communication",
        EventKind.MEMCPY: "memory",
        EventKind.MEMSET: "memory",
    }
    for row in np.flatnonzero(table.of_kind(*sorts) & table.on_device()).tolist():
        flags[sorts[EventKind(table.kind[row])]] |= set(range(int(table.start_ns[row]), int(table.end_ns[row])))
    busy = set().union(*flags.values())
    length = max(busy) + 1 - min(busy)
    return {
        "span_s": length,
        "idle_s": length - len(busy),
        "compute_s": len(flags["compute"]),
        "non_compute_s": len(busy) - len(flags["compute"]),
        "communication_s": len(flags["communication"]),
        "overlap_s": len(flags["communication"] & flags["compute"]),
    }


@for_each("seed", range(8))
def test_device_totals_are_those_of_holistic_trace_analysis(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = Rows()
    for _ in range(40):
        kind = (EventKind.KERNEL, EventKind.COLLECTIVE, EventKind.MEMCPY, EventKind.MEMSET)[int(rng.integers(4))]
        start = int(rng.integers(0, 900))
        rows.add(kind, "k", start, start + int(rng.integers(1, 30)), STREAM if kind != EventKind.COLLECTIVE else SIDE)
    rows.add(EventKind.KERNEL, "k", 950, 960, STREAM)
    table = only(rows)
    (rank,) = breakdown(activities(table)).ranks
    assert rank.device is not None
    for name, expected in naive_device(table).items():
        assert getattr(rank.device, name) * 1e9 == pytest.approx(expected), name


def test_an_idle_device_with_a_busy_host_is_launching_and_else_idle() -> None:
    rows = Rows()
    rows.add(EventKind.KERNEL, "a", 0, MS, STREAM)
    rows.add(EventKind.REGION, "aten::mm", 1 * MS, 4 * MS, MAIN)
    rows.add(EventKind.KERNEL, "b", 9 * MS, 10 * MS, STREAM)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.launch_s == pytest.approx(0.003)
    assert rank.total.idle_s == pytest.approx(0.005)


def test_operators_within_the_loader_are_input_and_not_compute() -> None:
    rows = Rows()
    rows.add(EventKind.IO, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 4 * MS, MAIN)
    rows.add(EventKind.REGION, "aten::stack", MS, 2 * MS, MAIN)
    rows.add(EventKind.REGION, "aten::mm", 4 * MS, 9 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.input_s == pytest.approx(0.004)
    assert rank.total.compute_s == pytest.approx(0.005)


def test_reading_in_a_thread_of_its_own_is_not_waiting_for_input() -> None:
    rows = Rows()
    rows.add(EventKind.IO, "next_batch", 0, MS, MAIN)
    rows.add(EventKind.REGION, "aten::mm", MS, 9 * MS, MAIN)
    rows.add(EventKind.IO, "read_batch", MS, 9 * MS, Lane(0, "loader", number=5))
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.input_s == pytest.approx(0.001)


def test_an_mpi_program_computes_wherever_it_is_not_in_mpi() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "main", 0, 20 * MS, MAIN)
    rows.add(EventKind.COLLECTIVE, "MPI_Allreduce", 5 * MS, 8 * MS, MAIN)
    rows.add(EventKind.IO, "MPI_File_write_all", 10 * MS, 14 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.compute_s == pytest.approx(0.013)
    assert rank.total.exposed_communication_s == pytest.approx(0.003)
    assert rank.total.checkpoint_s == pytest.approx(0.004)


def test_a_frame_around_finer_blocks_is_no_work() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "train", 0, 20 * MS, MAIN)
    rows.add(EventKind.REGION, "forward", 0, 7 * MS, MAIN)
    rows.add(EventKind.REGION, "backward", 9 * MS, 14 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.compute_s == pytest.approx(0.012)
    assert rank.total.idle_s == pytest.approx(0.008)


def test_recomputed_activations_are_no_checkpoint() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "aten::mm", 0, MS, MAIN)
    rows.add(EventKind.REGION, "CheckpointFunctionBackward", MS, 2 * MS, MAIN)
    rows.add(EventKind.REGION, "torch.save", 2 * MS, 5 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.checkpoint_s == pytest.approx(0.003)
    assert rank.total.compute_s == pytest.approx(0.002)


def test_without_marks_steps_are_found_by_the_loader() -> None:
    table = Training().table()
    found = breakdown(activities(table.select(table.kind != EventKind.PHASE)))
    assert {rank.steps_found_by for rank in found.ranks} == {"the data loader"}
    assert {rank.steps for rank in found.ranks} == {5}
    assert found.step_s == pytest.approx(0.014)


def test_a_trace_without_any_step_is_one_window() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "aten::mm", 0, 10 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.steps == 1 and rank.steps_found_by == "nothing"
    assert rank.total.total_s == pytest.approx(0.010)


def test_an_empty_table_has_no_ranks() -> None:
    assert breakdown(activities(EventTable.of())).ranks == ()


def test_a_process_that_only_took_samples_is_no_rank() -> None:
    rows = Rows()
    watcher = Lane(1, "watch")
    rows.add(EventKind.REGION, "aten::mm", 0, 5 * MS, MAIN)
    rows.add(EventKind.COUNTER, "host.cpu", 0, 0, watcher, value=50.0)
    both = rows.table([Process(0), Process(1)])
    assert [each.rank for each in activities(both)] == [0]
    alone = Rows()
    alone.add(EventKind.COUNTER, "host.cpu", 0, 0, MAIN, value=50.0)
    assert len(activities(only(alone))) == 1


def test_an_operator_of_any_length_is_recorded_work_of_the_host() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "aten::to", 0, 29_900 * MS, MAIN)
    rows.add(EventKind.REGION, "cudaMalloc", MS, 29_890 * MS, MAIN)
    rows.add(EventKind.LAUNCH, "cudaLaunchKernel", 29_901 * MS, 29_902 * MS, MAIN)
    rows.add(EventKind.KERNEL, "gemm", 29_902 * MS, 30_000 * MS, STREAM)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert rank.total.launch_s == pytest.approx(29.901)
    assert rank.total.idle_s == pytest.approx(0.001)


@pytest.mark.parametrize("name", ["assemble", "Solver::assemble()"])
def test_a_long_block_that_wraps_nothing_is_work_beside_short_ones(name: str) -> None:
    rows = Rows()
    rows.add(EventKind.REGION, name, 0, 18 * MS, MAIN)
    rows.add(EventKind.REGION, "solve", 19 * MS, 20 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert (rank.total.compute_s, rank.total.idle_s) == (pytest.approx(0.019), pytest.approx(0.001))


def test_only_what_wraps_all_of_its_thread_is_a_frame() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "main", 0, 20 * MS, MAIN)
    rows.add(EventKind.REGION, "setup", 0, 2 * MS, MAIN)
    rows.add(EventKind.REGION, "train", 2 * MS, 18 * MS, MAIN)
    rows.add(EventKind.REGION, "forward", 3 * MS, 12 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert (rank.total.compute_s, rank.total.idle_s) == (pytest.approx(0.018), pytest.approx(0.002))


def test_an_annotation_around_all_operators_is_a_frame_and_the_gaps_between_them_are_idle() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "my training", 0, 20 * MS, MAIN)
    rows.add(EventKind.REGION, "aten::mm", 0, 2 * MS, MAIN)
    rows.add(EventKind.KERNEL, "gemm", 2 * MS, 10 * MS, STREAM)
    rows.add(EventKind.REGION, "aten::mm", 18 * MS, 20 * MS, MAIN)
    (rank,) = breakdown(activities(only(rows))).ranks
    assert (rank.total.launch_s, rank.total.idle_s) == (pytest.approx(0.004), pytest.approx(0.008))


HOST = (
    EventKind.REGION,
    EventKind.PHASE,
    EventKind.IO,
    EventKind.SYNC,
    EventKind.LAUNCH,
    EventKind.COLLECTIVE,
    EventKind.EXCHANGE,
    EventKind.MEMCPY,
)
NAMES = ("main", "aten::mm", "train", "checkpoint", "Solver::run", "next_batch", "c10d::allreduce_")


def random_tree(rng: np.random.Generator, rows: Rows, lane: Lane, start: int, end: int, depth: int) -> None:
    """Add blocks within a window, each with blocks of its own."""
    edges = np.sort(rng.integers(start, end + 1, 2 * int(rng.integers(1, 4))))
    for begin, until in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        kind = HOST[int(rng.integers(len(HOST)))] if depth < 3 else EventKind.REGION
        name = NAMES[int(rng.integers(len(NAMES)))]
        rows.add(kind, name, begin, until, lane, step=int(rng.integers(3)) if kind == EventKind.PHASE else -1)
        if depth and until > begin:
            random_tree(rng, rows, lane, begin, until, depth - 1)


@for_each("seed", range(60))
def test_busy_and_idle_add_up_to_the_time_of_each_rank_and_nothing_is_negative(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = Rows()
    for lane in (MAIN, Lane(0, "other", number=2)):
        random_tree(rng, rows, lane, 0, 10_000, 3)
    for _ in range(int(rng.integers(0, 6)) * (seed % 2)):
        begin = int(rng.integers(0, 10_000))
        rows.add(EventKind.KERNEL, "k", begin, begin + int(rng.integers(1, 3_000)), STREAM)
    (each,) = activities(only(rows))
    busy = sum(part.length_ns for part in each.parts.values())
    assert busy + each.idle.length_ns == each.end_ns - each.start_ns
    for step in breakdown([each]).steps:
        assert parts(step) == pytest.approx(step.total_s, abs=1e-15)
        named = (getattr(step, name) for name in vars(step) if name.endswith("_s"))
        assert all(-1e-15 <= value <= step.total_s + 1e-15 for value in named)
    table = only(rows)
    operators = table.of_kind(EventKind.REGION) & np.array([table.names[at] == "aten::mm" for at in table.name], bool)
    unseen = each.idle - each.sync
    assert unseen.within(table.start_ns[operators], table.end_ns[operators]).sum() == 0  # an operator is never idle
