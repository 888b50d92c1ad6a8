from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec")

from trace_files import kineto_events, write_kineto

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.traces.analyze import analyze
from fairmile.traces.events import EventKind
from fairmile.traces.reading import FORMATS, format_of, read_traces


def test_a_folder_a_pattern_and_a_list_give_the_same_table(tmp_path: Path) -> None:
    files = [write_kineto(tmp_path, rank) for rank in (0, 1)]
    (tmp_path / "notes.txt").write_text("not a trace", encoding="utf-8")
    (tmp_path / ".rank2.json").write_text("{", encoding="utf-8")
    tables = [read_traces(each) for each in (tmp_path, str(tmp_path / "*.json"), files)]
    assert {len(table) for table in tables} == {36}
    assert all(table.ranks == [0, 1] and table.validate() == [] for table in tables)


def test_many_processes_read_the_same_as_one(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_kineto(tmp_path, rank)
    one, two = read_traces(tmp_path), read_traces(tmp_path, workers=2)
    assert one.start_ns.tolist() == two.start_ns.tolist() and one.names == two.names
    assert one.attribute("dtype").tolist() == two.attribute("dtype").tolist()


def test_ranks_without_a_trace_are_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        write_kineto(tmp_path, rank, world=4)
    table = read_traces(tmp_path)
    assert table.missing_ranks == [1, 3]
    assert "2 of 4 ranks have no trace: ranks 1, 3" in table.notes


def test_an_unknown_file_is_an_error_that_names_the_formats(tmp_path: Path) -> None:
    file = tmp_path / "trace.nsys-rep"
    file.write_bytes(b"\x00\x01\x02")
    with pytest.raises(UsageError, match=r"trace\.nsys-rep is not a trace in a known format") as error:
        read_traces(file)
    assert all(name in (error.value.hint or "") for name in FORMATS.names())


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no trace format named 'kinetto'; did you mean 'kineto'"):
        read_traces(write_kineto(tmp_path, 0), format="kinetto")


@pytest.mark.parametrize("place", ["none.json", "*.json", ""])
def test_where_nothing_lies_the_error_says_so(tmp_path: Path, place: str) -> None:
    with pytest.raises(NotFound, match=r"(no trace found in|no such file: )"):
        read_traces(tmp_path / place)


def test_one_broken_file_of_many_is_left_out_and_told(tmp_path: Path) -> None:
    write_kineto(tmp_path, 0)
    write_kineto(tmp_path, 1, events=[])
    table = read_traces(tmp_path)
    assert table.ranks == [0]
    assert any(note.startswith("skipped: ") and "rank1.json has no events" in note for note in table.notes)
    assert "1 of 2 ranks have no trace: rank 1" in table.notes


def test_broken_files_alone_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(Integrity, match=r"rank1\.json has no events"):
        read_traces(write_kineto(tmp_path, 1, events=[]))


def test_a_trace_that_was_cut_off_keeps_its_whole_events(tmp_path: Path) -> None:
    write_kineto(tmp_path, 0)
    file = write_kineto(tmp_path, 1)
    text = file.read_text(encoding="utf-8")
    file.write_text(text[: text.rindex("cudaDeviceSynchronize")], encoding="utf-8")
    table = read_traces(tmp_path)
    assert int(np.count_nonzero(table.of_rank(1))) == 16
    assert any(note.startswith("rank1.json is truncated: no complete event after byte ") for note in table.notes)


def test_two_files_that_claim_one_rank_are_told_by_their_names(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_kineto(tmp_path, 0, name=f"rank{rank}.json")
    table = read_traces(tmp_path)
    assert table.ranks == [0, 1]
    assert "2 files claim rank 0; ranks are taken from the file names: [0, 1]" in table.notes
    assert {lane.rank for lane in table.lanes} == {0, 1}


def test_two_files_that_claim_one_rank_and_nothing_tells_more_leave_one(tmp_path: Path) -> None:
    write_kineto(tmp_path, 0, name="a.json")
    write_kineto(tmp_path, 0, name="b.json", events=kineto_events(0)[:8])
    table = read_traces(tmp_path)
    assert len(table) == 18
    assert "a.json, b.json all claim rank 0: skipped b.json" in table.notes


def test_files_of_the_same_name_are_told_by_their_folders(tmp_path: Path) -> None:
    write_kineto(tmp_path / "a", 0)
    write_kineto(tmp_path / "b", 0, events=kineto_events(0)[:8])
    write_kineto(tmp_path, 0, name="cut.json", events=kineto_events(0)[:6])
    claimed = "a/rank0.json, b/rank0.json, cut.json all claim rank 0: skipped b/rank0.json, cut.json"
    assert claimed in read_traces(tmp_path).notes


def test_files_that_are_called_like_traces_and_hold_none_are_named(tmp_path: Path) -> None:
    write_kineto(tmp_path, 0, world=1)
    for name, data in {
        "empty.json": b"",
        "list.json": b"[]",
        "text.json": b"hello",
        "rnd.json.gz": b"\x00\x07",
    }.items():
        (tmp_path / name).write_bytes(data)
    for name, data in {"recording.json": b'{"command": []}', "notes.txt": b"hello", "model.bin": b"\x00"}.items():
        (tmp_path / name).write_bytes(data)
    passed_over = "skipped files that are not traces: empty.json, list.json, rnd.json.gz, text.json"
    assert read_traces(tmp_path).notes == [passed_over]


def test_a_folder_with_nothing_but_such_files_names_them(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b"")
    with pytest.raises(NotFound, match="no trace found in") as raised:
        read_traces(tmp_path)
    assert "skipped files that are not traces: rank0.json; known formats: kineto" in (raised.value.hint or "")


def test_a_flight_recorder_is_known_by_its_content_whatever_its_name(tmp_path: Path) -> None:
    entry = {"collective_seq_id": 1, "process_group": ("0", ""), "profiling_name": "nccl:all_reduce"}
    (tmp_path / "dump_3").write_bytes(pickle.dumps({"entries": [entry | {"time_created_ns": 5}]}, protocol=2))
    (tmp_path / "weights_3").write_bytes(pickle.dumps({"layer": [1.0]}))
    assert format_of(tmp_path / "dump_3") == "flight" and format_of(tmp_path / "weights_3") is None
    assert read_traces(tmp_path).ranks == [3]


def test_windows_of_one_rank_one_after_the_other_are_all_kept(tmp_path: Path) -> None:
    write_kineto(tmp_path, 0, name="rank0.a.json", events=kineto_events(0, steps=range(2)))
    write_kineto(tmp_path, 0, name="rank0.b.json", events=kineto_events(0, steps=range(8, 10)))
    table = read_traces(tmp_path)
    assert sorted(set(table.step[table.of_kind(EventKind.PHASE)].tolist())) == [0, 1, 8, 9]
    assert not any("claim" in note for note in table.notes)


def test_ranks_that_recorded_other_steps_are_told(tmp_path: Path) -> None:
    write_kineto(tmp_path, 0, events=kineto_events(0, steps=range(0, 3)))
    write_kineto(tmp_path, 1, events=kineto_events(1, steps=range(1, 4)))
    table = read_traces(tmp_path)
    sentence = "the ranks recorded different steps and have steps 1 to 2 in common (rank 0: 0 to 2; rank 1: 1 to 3)"
    assert sentence in table.notes
    # The library's own numbers match what both have.
    numbers = [
        set(table.sequence[table.of_rank(rank) & table.of_kind(EventKind.COLLECTIVE)].tolist()) for rank in (0, 1)
    ]
    assert len(numbers[0] & numbers[1]) == 2


def test_a_profile_takes_the_component_that_the_meter_of_its_process_told(tmp_path: Path) -> None:
    write_kineto(tmp_path, 0, world=1, host_name="n1")
    lines = [
        {"writer": {"host": "n1", "rank": 0, "component": "trainer", "wall_ns": 10**18, "clock_ns": 0}, "p": 100},
        {"spans": "forward", "at": [1, 2], "p": 100},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    table = read_traces(tmp_path)
    assert {table.components[number] for number in np.unique(table.component).tolist()} == {"trainer"}


def test_the_log_of_a_process_that_is_traced_has_its_rank_and_others_stand_outside(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_kineto(tmp_path, rank, host_name="n1")
    lines = [
        {"writer": {"host": "n1", "wall_ns": 10**18, "clock_ns": 0}, "p": 101},
        {"spans": "forward", "at": [1, 2], "p": 101},
        {"writer": {"host": "n1", "wall_ns": 10**18, "clock_ns": 0}, "p": 7},
        {"event": "started", "at": 1, "p": 7},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    table = read_traces(tmp_path)
    found = {}
    for name in ("forward", "started"):
        row = int(np.flatnonzero(table.named(name))[0])
        found[name] = (table.components[table.component[row]], int(table.rank[row]))
    assert found == {"forward": ("", 1), "started": ("outside", 0)}


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ('{"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}', "a.json", "kineto"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op"}], "schemaVersion": 1}', "a.json", "kineto"),
        ('{"traceEvents": [{"ph": "X"}]}', "a.json", "chrome"),
        ('[{"ph": "X"}]', "a.json", "chrome"),
        ('[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE"}', "a.json", "horovod"),
        ('{"entries": [{"collective_seq_id": 1}], "version": "2.10"}', "a", "flight"),
        ('{"entries": [], "version": "1.2"}', "archive.har", None),
        ('{"writer": {"host": "x"}, "p": 1}\n', "events.jsonl", "meter"),
        ('{"recording": 1}', "recording.json", None),
        ("hello", "a.json", None),
        ("", "a.json", None),
    ],
)
def test_the_content_tells_the_format(tmp_path: Path, text: str, name: str, expected: str | None) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    assert format_of(file) == expected


def profile(*more: Any, **head: Any) -> dict[str, Any]:
    events = [{**SPAN, "ts": 5.0}, *({**SPAN, **each} for each in more), {**SPAN, "ts": 15.0}]
    return {"deviceProperties": [], "baseTimeNanoseconds": 10**18, **head, "traceEvents": events}


def spread(**more: Any) -> dict[str, Any]:
    return {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, **more}}


SPAN = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
PLAIN = {"ph": "X", "name": "work", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
REDUCE = {"cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 9.0}
CALL = {"Collective name": "allreduce", "Seq": 10**12, "In msg nelems": 10**20, "dtype": "Float", "Group size": 2}


@pytest.mark.parametrize(
    ("trace", "events"),
    [
        (profile(**spread(world_size=10**12)), 2),
        (profile(**spread(rank=10**12)), 2),
        (profile(**spread(rank=-7)), 2),
        (profile(baseTimeNanoseconds=10**30), 2),
        (profile({"cat": "user_annotation", "name": "ProfilerStep#99999999999999", "ts": 9.0}), 3),
        (profile({**REDUCE, "args": CALL}, **spread()), 3),
        (profile({**REDUCE, "args": CALL, "ts": 1e300}, **spread()), 2),
        (profile({"ts": "nan"}, {"ts": 1e300}), 2),
        ({"traceEvents": [PLAIN, {**PLAIN, "ts": "nan"}, {**PLAIN, "ts": "inf"}, {**PLAIN, "dur": 1e300}]}, 1),
        ({"traceEvents": [PLAIN, {**PLAIN, "name": "step 20261116123456"}]}, 2),
        (
            {
                "traceEvents": [
                    PLAIN,
                    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "rank 99999999999"}},
                ]
            },
            1,
        ),
        ({"traceEvents": [PLAIN, {"ph": "C", "name": "c", "ts": 2, "args": {"v": 10**400}}]}, 2),
    ],
)
def test_a_number_that_cannot_be_costs_no_more_than_what_it_stands_for(
    tmp_path: Path, trace: dict[str, Any], events: int
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(trace), encoding="utf-8")
    table = read_traces(file)
    found = analyze(table)
    assert (found.events, found.ranks, table.validate()) == (events, ("rank 0",), [])
    assert found.span_s < 1e-3 and len(found.missing_ranks) <= 1


def test_a_timeline_with_a_rank_that_no_machine_has_is_read_without_it(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1},
        {"ph": "X", "name": "99999999999", "ts": 2, "dur": 0},
        {"ph": "X", "name": "1", "ts": 2, "dur": 0},
        {"ph": "E", "ts": 3},
        {"ph": "B", "name": "ALLREDUCE", "ts": 4},
        {"ph": "E", "ts": 5},
    ]
    (tmp_path / "horovod.json").write_text(json.dumps([{**each, "pid": 1} for each in events]), encoding="utf-8")
    assert read_traces(tmp_path / "horovod.json").ranks == [0, 1]


@pytest.mark.parametrize(
    "entry",
    [
        {"duration_ms": float("inf")},
        {"input_dtypes": {"a": 1}, "input_sizes": [5]},
        {"input_dtypes": ["Float"], "input_sizes": [5]},
        {"time_created_ns": 10**30},
    ],
)
def test_a_flight_recorder_that_says_odd_things_of_a_call_still_tells_the_call(
    tmp_path: Path, entry: dict[str, Any]
) -> None:
    told = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "time_created_ns": 5, **entry}
    file = tmp_path / "trace_rank_3.json"
    file.write_text(json.dumps({"pg_config": {}, "entries": [told]}), encoding="utf-8")
    assert read_traces(file).ranks == [3]


@pytest.mark.parametrize(
    "data",
    [b"\x80\x04K\x01K\x02a.", b"\x80\x04}}b.", b"\x80\x04Nr\xff\xff\xff\x7f.", b"\x80\x04X", b"\x80\x04cos\nsystem\n."],
)
def test_a_pickle_that_is_no_dump_is_a_sentence_and_takes_no_memory(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "trace_rank_0").write_bytes(data)
    with pytest.raises(Integrity, match="trace_rank_0"):
        read_traces(tmp_path / "trace_rank_0")


def test_a_link_that_leads_back_is_not_followed(tmp_path: Path) -> None:
    file = write_kineto(tmp_path, 0)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert len(read_traces(tmp_path)) == len(read_traces(file))


def test_a_trace_that_counts_from_its_own_start_stands_beside_that_of_the_same_rank(tmp_path: Path) -> None:
    profiled = read_traces(write_kineto(tmp_path, 0))
    (tmp_path / "more.json").write_text(json.dumps({"traceEvents": [PLAIN, {**PLAIN, "ts": 9.0}]}), encoding="utf-8")
    both = read_traces(tmp_path)
    assert any(note.startswith("more.json has only relative times") for note in both.notes)
    assert int(both.start_ns[both.named("work")].min()) == int(both.start_ns.min()) == int(profiled.start_ns.min())
    assert analyze(both).span_s < 1
