from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec")

from made_once import made_once
from trace_files import BASE_NS, kineto_events, write_kineto

from fairmile.base.errors import Integrity
from fairmile.traces.events import EventKind, EventTable, RankGroup
from fairmile.traces.readers.kineto import read
from fairmile.traces.reading import read_traces

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL()"


def row_of(table: EventTable, name: str, step: int = 0) -> int:
    return int(np.flatnonzero(table.named(name) & (table.step == step))[0])


def test_times_are_nanoseconds_since_the_epoch_with_nothing_lost(tmp_path: Path) -> None:
    table = read(write_kineto(tmp_path, 0))
    row = row_of(table, "gemm")
    assert int(table.start_ns[row]) == BASE_NS + 5_000_100_000
    assert int(table.duration_ns[row]) == 200_250


def test_every_category_has_its_kind(tmp_path: Path) -> None:
    table = read(write_kineto(tmp_path, 0))
    kinds = {table.name_of(row): EventKind(int(table.kind[row])) for row in range(len(table))}
    assert kinds == {
        "ProfilerStep#0": EventKind.PHASE,
        "ProfilerStep#1": EventKind.PHASE,
        "enumerate(DataLoader)#x": EventKind.IO,
        "aten::mm": EventKind.REGION,
        "cudaLaunchKernel": EventKind.LAUNCH,
        "gemm": EventKind.KERNEL,
        "Memcpy HtoD": EventKind.MEMCPY,
        NCCL: EventKind.COLLECTIVE,
        "cudaDeviceSynchronize": EventKind.SYNC,
        "[memory]": EventKind.MEMORY,
    }


def test_an_nccl_kernel_carries_group_size_number_and_type_of_its_collective(tmp_path: Path) -> None:
    table = read(write_kineto(tmp_path, 0))
    row = row_of(table, NCCL)
    assert table.groups[table.group[row]] == RankGroup("0", (0, 1), "nccl", 2)
    assert (int(table.bytes[row]), int(table.sequence[row])) == (4000, 40)
    assert table.attributes["dtype"].get(row) == "Float"


def test_kernels_name_their_launch_and_belong_to_its_step(tmp_path: Path) -> None:
    events = kineto_events(0)
    late = next(each for each in events if each["name"] == "gemm")
    late["ts"] += 1000  # runs in the time of the next step
    table = read(write_kineto(tmp_path, 0, events=events))
    kernel = row_of(table, "gemm", 0)
    launch = row_of(table, "cudaLaunchKernel", 0)
    assert table.correlation[kernel] == table.correlation[launch] == 1
    assert int(table.start_ns[kernel]) > int(table.end_ns[row_of(table, "ProfilerStep#0")])


def test_lanes_tell_streams_from_threads(tmp_path: Path) -> None:
    table = read(write_kineto(tmp_path, 1))
    lanes = {lane.label: (lane.on_device, lane.rank, lane.device) for lane in table.lanes}
    assert lanes == {"main": (False, 1, -1), "stream 7": (True, 1, 1), "stream 20": (True, 1, 1)}
    assert table.on_device().sum() == 6


def test_memory_events_hold_what_was_freed_and_what_is_left(tmp_path: Path) -> None:
    table = read(write_kineto(tmp_path, 0))
    row = int(np.flatnonzero(table.of_kind(EventKind.MEMORY))[0])
    assert (int(table.bytes[row]), float(table.value[row])) == (-1024, 5000.0)
    assert np.isnan(table.value[row_of(table, "gemm")])


def test_a_gzipped_trace_is_the_same(tmp_path: Path) -> None:
    plain = write_kineto(tmp_path, 0)
    packed = tmp_path / "other" / "rank0.json.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    one, other = read(plain), read(packed)
    assert one.start_ns.tolist() == other.start_ns.tolist() and one.names == other.names


def test_without_word_of_the_rank_the_name_of_the_file_tells_it(tmp_path: Path) -> None:
    table = read(write_kineto(tmp_path, 0, name="trace_rank_3.json", distributedInfo=None))
    assert table.ranks == [3]
    assert table.processes[0].world == -1


def test_an_old_trace_in_whole_microseconds_since_the_epoch_keeps_them(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1_790_857_031_000_007, "dur": 3}]
    table = read(write_kineto(tmp_path, 0, events=events, baseTimeNanoseconds=None))
    assert table.start_ns.tolist() == [1_790_857_031_000_007_000]


def test_events_that_end_before_they_start_are_moments_and_told(tmp_path: Path) -> None:
    events = kineto_events(0)
    events[5]["dur"] = -7
    table = read(write_kineto(tmp_path, 0, events=events))
    assert table.validate() == []
    assert "rank0.json: 1 events end before they start; their duration is set to 0" in table.notes


def test_events_in_any_order_give_the_same_table(tmp_path: Path) -> None:
    one = read(write_kineto(tmp_path, 0))
    other = read(write_kineto(tmp_path / "b", 0, events=kineto_events(0)[::-1]))
    assert one.start_ns.tolist() == other.start_ns.tolist()
    assert one.step.tolist() == other.step.tolist()
    assert one.notes == []
    assert other.notes == ["rank0.json: sorted its events, which were out of order"]


def test_streams_and_threads_that_are_mixed_in_a_file_are_in_order(tmp_path: Path) -> None:
    host = [each for each in kineto_events(0, steps=range(20)) if each["pid"] == 100]
    device = [each for each in kineto_events(0, steps=range(20)) if each["pid"] == 0]
    mixed = [each for pair in zip(device[len(device) // 2 :], host, strict=False) for each in pair]
    assert read(write_kineto(tmp_path, 0, events=mixed)).notes == []


def test_odd_types_and_numbers_cost_nothing(tmp_path: Path) -> None:
    events = kineto_events(0)
    for each in events:
        if each["name"] == "gemm":
            each["args"]["correlation"] = "1"
        if each["name"] == "Memcpy HtoD":
            each["args"]["bytes"] = 10**30
    table = read(write_kineto(tmp_path, 0, events=events))
    assert table.correlation[row_of(table, "gemm")] == 1
    assert len(table) == 18


def test_a_trace_without_one_event_of_a_profile_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Integrity, match=r"rank0\.json has no events of a PyTorch profile"):
        read(write_kineto(tmp_path, 0, events=[]))


def test_messages_are_told_from_collectives(tmp_path: Path) -> None:
    about = {"Collective name": "send", "dtype": "BFloat16", "In msg nelems": 10, "Src Rank": 0, "Dst Rank": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv()", "pid": 0, "tid": 20, "ts": 1, "dur": 2}
    table = read(write_kineto(tmp_path, 0, events=[{**kernel, "args": about}]))
    assert table.kind.tolist() == [EventKind.P2P]
    assert table.bytes.tolist() == [20]
    assert table.attributes["peer"].get(0) == 1


def test_our_own_marks_put_a_trace_on_the_clock_of_the_wall_and_are_left_out(tmp_path: Path) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": "fairmile.clock 0", "pid": 100, "tid": 100, "ts": 50, "dur": 2}
    wall_ns = BASE_NS + 51_000 + 7_000_000
    ours = {
        "boot": "b",
        "host": "h",
        "component": "trainer",
        "clocks": [{"name": "fairmile.clock 0", "wall_ns": wall_ns}],
    }
    table = read(write_kineto(tmp_path, 0, events=[*kineto_events(0), mark], fairmile=ours))
    assert int(table.start_ns[row_of(table, "gemm")]) == BASE_NS + 5_000_100_000 + 7_000_000
    assert not table.named("fairmile.clock 0").any()
    assert table.notes == []
    assert (table.processes[0].boot, table.processes[0].host, table.components) == ("b", "h", ["trainer"])


@pytest.mark.parametrize(("hours", "how"), [(3, "behind"), (-3, "ahead of")])
def test_a_clock_that_our_marks_tell_to_be_hours_off_is_mended_and_told(tmp_path: Path, hours: int, how: str) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": "fairmile.clock 0", "pid": 100, "tid": 100, "ts": 50, "dur": 2}
    wall_ns = BASE_NS + 51_000 + hours * 3_600_000_000_000
    ours = {"clocks": [{"name": "fairmile.clock 0", "wall_ns": wall_ns}]}
    table = read(write_kineto(tmp_path, 0, events=[mark, *kineto_events(0)], fairmile=ours))
    assert table.notes == [f"rank0.json: the profiler's clock was 3h {how} wall-clock time: corrected"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    import traced_training

    return made_once(tmp_path_factory, "traced-training", traced_training.run_ranks)


@pytest.mark.thorough
def test_of_a_real_gloo_program_every_collective_is_matched_on_both_ranks(real: Path) -> None:
    table = read_traces([real / "collectives_rank0.json", real / "collectives_rank1.json"])
    assert table.validate() == [] and table.ranks == [0, 1] and table.missing() == []
    lists = []
    for rank in (0, 1):
        rows = np.flatnonzero(table.of_rank(rank) & table.of_kind(EventKind.COLLECTIVE))
        rows = rows[np.argsort(table.sequence[rows])]
        assert table.sequence[rows].tolist() == list(range(8))
        lists.append([(table.name_of(row), int(table.bytes[row]), int(table.step[row])) for row in rows.tolist()])
    one_step = [("gloo:all_reduce", 4000), ("gloo:all_reduce", 4000), ("gloo:all_gather", 8000), ("gloo:barrier", -1)]
    assert lists[0] == lists[1] == [(*each, step) for step in (1, 2) for each in one_step]
    # Nobody leaves before the last one came.
    for number in range(8):
        rows = np.flatnonzero(table.of_kind(EventKind.COLLECTIVE) & (table.sequence == number))
        assert table.end_ns[rows].min() >= table.start_ns[rows].max() or table.name_of(int(rows[0])) != "gloo:barrier"


@pytest.mark.thorough
def test_of_a_real_gloo_program_messages_know_their_peer(real: Path) -> None:
    table = read_traces(real / "collectives_rank*.json", format="kineto")
    messages = np.flatnonzero(table.of_kind(EventKind.P2P)).tolist()
    found = {(table.name_of(row), int(table.rank[row]), table.attributes["peer"].get(row)) for row in messages}
    assert found == {("gloo:send", 0, 1), ("gloo:recv", 1, 0)}


@pytest.mark.thorough
def test_real_dumps_of_the_flight_recorder_are_read_as_json_and_as_pickle(real: Path) -> None:
    by_json = read_traces([real / "flight_rank_0.json", real / "flight_rank_1.json"])
    by_pickle = read_traces([real / "flight_rank_0", real / "flight_rank_1"])
    assert by_json.ranks == by_pickle.ranks == [0, 1]
    assert by_json.sequence.tolist() == by_pickle.sequence.tolist()
    assert json.dumps(by_json.start_ns.tolist()) == json.dumps(by_pickle.start_ns.tolist())
    names = [by_json.name_of(row) for row in np.flatnonzero(by_json.of_rank(0) & by_json.of_kind(EventKind.COLLECTIVE))]
    assert names[-4:] == ["gloo:all_reduce", "gloo:all_reduce", "gloo:all_gather", "gloo:barrier"]
