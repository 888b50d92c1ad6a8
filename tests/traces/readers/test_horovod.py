from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec")

from fairmile.traces.analyze import analyze
from fairmile.traces.events import EventKind
from fairmile.traces.reading import format_of, read_traces
from fairmile.traces.replay import WhatIf, replay

# As Horovod writes it: tensors are processes, a tick for each rank that is ready, no number of a thread.
TIMELINE = """[
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad/dense"}},
{"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1},
{"ph": "X", "name": "0", "ts": 100, "pid": 1, "dur": 0},
{"ph": "X", "name": "2", "ts": 150, "pid": 1, "dur": 0},
{"ph": "X", "name": "1", "ts": 900, "pid": 1, "dur": 0},
{"ph": "E", "ts": 905, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 910, "pid": 1},
{"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 912, "pid": 1},
{"ph": "E", "ts": 920, "pid": 1},
{"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 921, "pid": 1},
{"ph": "E", "ts": 990, "pid": 1},
{"ph": "E", "ts": 1000, "pid": 1, "args": {"dtype": "float32", "shape": "[10, 5]"}},
{"ph": "i", "name": "CYCLE_START", "ts": 1001, "s": "g"}"""


@pytest.mark.parametrize("end", ["]", "", ","])
def test_each_rank_has_the_collective_from_when_it_was_ready_to_the_common_end(tmp_path: Path, end: str) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(TIMELINE + end, encoding="utf-8")
    assert format_of(file) == "horovod"
    table = read_traces(file)
    rows = np.flatnonzero(table.of_kind(EventKind.COLLECTIVE))
    rows = rows[np.argsort(table.rank[rows])]
    assert table.rank[rows].tolist() == [0, 1, 2]
    assert table.start_ns[rows].tolist() == [100_000, 900_000, 150_000]
    assert table.end_ns[rows].tolist() == [1_000_000] * 3
    assert table.bytes[rows].tolist() == [200] * 3
    assert table.groups[table.group[rows[0]]].ranks == (0, 1, 2)
    assert table.attributes["arrivals"].get(int(rows[0])) == {0: 100_000, 2: 150_000, 1: 900_000}
    assert table.notes == ["timeline.json was recorded by rank 0: for other ranks it has only the time they were ready"]


def test_phases_lie_in_the_lane_of_their_tensor(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(TIMELINE + "]", encoding="utf-8")
    table = read_traces(file)
    rows = np.flatnonzero(table.of_kind(EventKind.SYNC, EventKind.MEMCPY, EventKind.REGION))
    found = {table.name_of(row): (table.kind[row], int(table.duration_ns[row])) for row in rows.tolist()}
    assert found == {
        "NEGOTIATE_ALLREDUCE": (EventKind.SYNC, 805_000),
        "ALLREDUCE": (EventKind.REGION, 90_000),
        "MEMCPY_IN_FUSION_BUFFER": (EventKind.MEMCPY, 8_000),
        "NCCL_ALLREDUCE": (EventKind.REGION, 69_000),
    }
    assert table.lanes[table.lane[rows[table.kind[rows] == EventKind.REGION][0]]].on_device  # a named range, no work
    assert {table.lanes[lane].label for lane in table.lane[rows].tolist()} == {"grad/dense"}


def late_by_3_ms(rank: int, calls: int = 5) -> str:
    """A timeline of two ranks, one of which is always 3 ms late, and of nothing but collectives."""
    lines = ['{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad/w1"}}']
    for at in range(0, calls * 10_000, 10_000):
        lines += [
            f'{{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": {at}, "pid": 1}}',
            f'{{"ph": "X", "name": "{1 - rank}", "ts": {at + 10}, "pid": 1, "dur": 0}}',
            f'{{"ph": "X", "name": "{rank}", "ts": {at + 3010}, "pid": 1, "dur": 0}}',
            f'{{"ph": "E", "ts": {at + 3011}, "pid": 1}}',
            f'{{"ph": "B", "name": "ALLREDUCE", "ts": {at + 3011}, "pid": 1}}',
            f'{{"ph": "B", "name": "NCCL_ALLREDUCE", "ts": {at + 3100}, "pid": 1}}',
            f'{{"ph": "E", "ts": {at + 4000}, "pid": 1}}',
            f'{{"ph": "E", "ts": {at + 4010}, "pid": 1, "args": {{"dtype": "float32", "shape": "[1000000]"}}}}',
        ]
    return "[" + ",\n".join(lines) + "]"


@pytest.mark.parametrize("late", [0, 1])
def test_negotiation_is_no_work_and_who_is_late_is_named(tmp_path: Path, late: int) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(late_by_3_ms(late), encoding="utf-8")
    table = read_traces(file)
    found = analyze(table)
    assert [each.total.compute_s for each in found.breakdown.ranks] == [0, 0]
    assert [each.total.overlap_s for each in found.breakdown.ranks] == [0, 0]
    (state,) = (each for each in found.waiting.states if each.state == "Wait at NxN")
    assert (state.rank, state.calls) == (1 - late, 5)
    assert state.exposed_s == state.seconds == pytest.approx(0.015)
    assert {each.last for each in found.waiting.worst} == {f"rank {late}"}
    first = found.findings[0]
    assert (first.kind, first.title) == ("late rank", f"Rank {late} is late for no recorded reason")
    assert "has only collectives" in first.why
    without = replay(table, WhatIf(without_straggler=("", late)))
    assert without.step_s == pytest.approx(without.measured_step_s - 0.015, rel=0.1)


def test_a_timeline_does_not_tell_what_communication_is_hidden(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(late_by_3_ms(1), encoding="utf-8")
    (finding,) = (each for each in analyze(read_traces(file)).findings if each.kind == "exposed communication")
    assert finding.title == "Communication takes time; overlap with compute is unknown"
    assert "hidden" not in finding.why


def test_a_timeline_that_was_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(TIMELINE[: TIMELINE.index('"ts": 990')], encoding="utf-8")
    table = read_traces(file)
    assert not table.of_kind(EventKind.COLLECTIVE).any()
    assert any("is truncated" in note for note in table.notes)
    assert any("skipped 2 phases that never end" in note for note in table.notes)


def one_call(*phases: tuple[str, int, int], operation: str = "ALLREDUCE") -> str:
    """A timeline of two ranks, both ready at 100 µs; the phases lie within an operation from 200 to 1000 µs."""
    lines = [
        '{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "w"}}',
        f'{{"ph": "B", "name": "NEGOTIATE_{operation}", "ts": 90, "pid": 1}}',
        *(f'{{"ph": "X", "name": "{rank}", "ts": 100, "pid": 1, "dur": 0}}' for rank in (0, 1)),
        '{"ph": "E", "ts": 110, "pid": 1}',
        f'{{"ph": "B", "name": "{operation}", "ts": 200, "pid": 1}}',
    ]
    for name, start, end in phases:
        lines += [f'{{"ph": "B", "name": "{name}", "ts": {start}, "pid": 1}}', f'{{"ph": "E", "ts": {end}, "pid": 1}}']
    lines.append('{"ph": "E", "ts": 1000, "pid": 1, "args": {"dtype": "float32", "shape": "[1000]"}}')
    return "[" + ",\n".join(lines) + "]"


QUEUE = (("QUEUE", 200, 400), ("WAIT_FOR_DATA", 400, 500), ("WAIT_FOR_OTHER_TENSOR_DATA", 500, 550))
FUSION = (("INIT_FUSION_BUFFER", 550, 560), ("MEMCPY_IN_FUSION_BUFFER", 560, 600))


@pytest.mark.parametrize(
    ("phases", "transfer_us"),
    [
        ((*QUEUE, *FUSION, ("NCCL_ALLREDUCE", 600, 900), ("MEMCPY_OUT_FUSION_BUFFER", 900, 1000)), 300),
        ((*QUEUE, ("MPI_ALLREDUCE", 550, 1000)), 450),
        ((("NCCL_REDUCESCATTER", 300, 400), ("MPI_ALLREDUCE", 400, 700), ("NCCL_ALLGATHER", 700, 800)), 500),
        ((("GLOO_ALLREDUCE", 250, 950),), 700),
        ((*QUEUE, *FUSION, ("MEMCPY_OUT_FUSION_BUFFER", 900, 1000)), 300),  # a library that is not named
        ((), 800),
    ],
)
def test_only_the_operation_of_the_library_is_transfer(
    tmp_path: Path, phases: tuple[tuple[str, int, int], ...], transfer_us: int
) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(one_call(*phases), encoding="utf-8")
    found = analyze(read_traces(file))
    (call,) = found.waiting.collectives
    assert call.transfer_s * 1e6 == pytest.approx(transfer_us)
    assert call.queued_s * 1e6 == pytest.approx(900 - transfer_us)
    assert call.exposed_queued_s + call.exposed_s == pytest.approx(900e-6)
    (waits,) = found.waiting.calls
    assert (waits.wait + waits.queue + waits.transfer + waits.completion == 900_000).all()


def test_a_small_reduction_behind_a_large_one_is_quick_and_the_large_one_costs_the_time(tmp_path: Path) -> None:
    lines = []
    for at in range(0, 3_000_000, 300_000):
        for tensor in (1, 2):
            lines += [f'{{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": {at}, "pid": {tensor}}}']
            lines += [f'{{"ph": "X", "name": "{r}", "ts": {at + 5}, "pid": {tensor}, "dur": 0}}' for r in (0, 1)]
            lines += [f'{{"ph": "E", "ts": {at + 10}, "pid": {tensor}}}']
        for tensor, begin, end, shape in ((1, 20, 250_000, 26_000_000), (2, 250_010, 250_510, 172)):
            lines += [
                f'{{"ph": "B", "name": "ALLREDUCE", "ts": {at + begin}, "pid": {tensor}}}',
                f'{{"ph": "B", "name": "MPI_ALLREDUCE", "ts": {at + begin}, "pid": {tensor}}}',
                f'{{"ph": "E", "ts": {at + end}, "pid": {tensor}}}',
                f'{{"ph": "E", "ts": {at + end}, "pid": {tensor}, '
                f'"args": {{"dtype": "float32", "shape": "[{shape}]"}}}}',
            ]
    file = tmp_path / "timeline.json"
    file.write_text("[" + ",\n".join(lines) + "]", encoding="utf-8")
    found = analyze(read_traces(file))
    small = next(each for each in found.waiting.collectives if each.bytes == 688)
    assert small.median_transfer_s == pytest.approx(500e-6)
    assert not [each for each in found.findings if each.kind == "small collectives"]
    (costs,) = (each for each in found.findings if each.kind == "exposed communication")
    assert costs.seconds == pytest.approx(10 * 0.2505, rel=0.01)
