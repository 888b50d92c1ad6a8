"""The critical path goes through waits to the rank that was waited for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from trace_making import MS, Training, coupled

from fairmile.traces.activity import activities
from fairmile.traces.analyze import analyze
from fairmile.traces.events import EventKind, Lane, Process, Rows
from fairmile.traces.intervals import one
from fairmile.traces.self_time import time_by_name


@pytest.mark.parametrize("device", [False, True])
def test_the_path_lies_on_the_straggler(device: bool) -> None:
    found = analyze(Training(device=device, compute_ms=lambda rank, step: 15 if rank == 2 else 10).table())
    path = found.critical
    assert path.total_s == pytest.approx(found.span_s)
    assert path.by_rank[0][0] == "rank 2" and path.by_rank[0][1] > 0.95 * path.total_s
    by_part = dict(path.by_part)
    assert by_part["compute"] == pytest.approx(5 * 0.016)
    assert by_part["communication"] == pytest.approx(5 * 0.002)
    assert by_part["input"] == pytest.approx(5 * 0.001)


def test_the_path_changes_ranks_with_who_is_late() -> None:
    found = analyze(Training(ranks=3, steps=6, compute_ms=lambda rank, step: 14 if rank == step % 3 else 10).table())
    assert {label for label, _ in found.critical.by_rank} == {"rank 0", "rank 1", "rank 2"}
    assert dict(found.critical.by_part)["compute"] == pytest.approx(6 * 0.015)
    ends = [(piece.start_ns, piece.end_ns) for piece in found.critical.pieces]
    assert all(before[1] == after[0] for before, after in pairwise(ends))


def test_time_by_name_on_the_path_adds_up_to_it() -> None:
    found = analyze(Training(compute_ms=lambda rank, step: 10 + rank).table())
    assert sum(seconds for _, seconds in found.critical.by_name) == pytest.approx(found.critical.total_s, rel=1e-6)


def test_the_path_crosses_from_the_trainer_to_the_solver_it_waits_for() -> None:
    by_rank = dict(analyze(coupled()).critical.by_rank)
    assert by_rank["solver 0"] == pytest.approx(0.065)
    assert by_rank["trainer 0"] == pytest.approx(0.005)


def test_a_moment_counts_for_the_innermost_event() -> None:
    rows = Rows()
    main = Lane(0, "main")
    for name, start, end in (("outer", 0, 10), ("middle", 2, 8), ("inner", 3, 5), ("inner", 6, 7), ("alone", 12, 15)):
        rows.add(EventKind.REGION, name, start * MS, end * MS, main)
    table = rows.table([Process(0)])
    (each,) = activities(table)
    sums = time_by_name(table, each, one(0, 20 * MS))
    assert {name: int(sums[table.names.index(name)]) // MS for name in table.names} == {
        "outer": 4, "middle": 3, "inner": 3, "alone": 3,
    }  # fmt: skip


def test_the_device_counts_before_the_host() -> None:
    rows = Rows()
    rows.add(EventKind.REGION, "aten::mm", 0, 10 * MS, Lane(0, "main"))
    rows.add(EventKind.KERNEL, "gemm", 4 * MS, 12 * MS, Lane(0, "stream", True))
    table = rows.table([Process(0)])
    (each,) = activities(table)
    sums = time_by_name(table, each, one(0, 20 * MS))
    assert [int(sums[table.names.index(name)]) // MS for name in ("gemm", "aten::mm")] == [8, 4]


def test_events_that_only_overlap_count_each_moment_once() -> None:
    rows, lane = Rows(), Lane(0, "main")
    for name, start, end in (("a", 0, 10), ("b", 1, 3), ("c", 2, 12), ("d", 4, 5)):
        rows.add(EventKind.REGION, name, start * MS, end * MS, lane)
    table = rows.table([Process(0)])
    (each,) = activities(table)
    sums = dict(zip(table.names, (time_by_name(table, each, one(0, 12 * MS)) / MS).tolist(), strict=True))
    assert sums["b"] <= 2 and sums["d"] == 1


def test_a_path_through_clocks_that_differ_is_no_longer_than_the_program() -> None:
    rows = Rows()
    for rank, (work, leave) in enumerate(((2, 8), (10, 12))):  # by its clock rank 0 leaves before rank 1 comes
        rows.add(EventKind.REGION, "aten::mm", 0, work * MS, Lane(rank, "main"))
        rows.add(EventKind.COLLECTIVE, "all_reduce", work * MS, leave * MS, Lane(rank, "main"))
        rows.add(EventKind.REGION, "aten::add", leave * MS, (14 if rank == 0 else 13) * MS, Lane(rank, "main"))
    found = analyze(rows.table([Process(0, world=2), Process(1, world=2)]))
    assert found.critical.total_s == pytest.approx(found.span_s)
