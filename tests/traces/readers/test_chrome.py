from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec")

from fairmile.base.errors import Integrity
from fairmile.traces.events import EventKind, EventTable
from fairmile.traces.readers.chrome import read


def trace(tmp_path: Path, events: list[dict[str, Any]], *, name: str = "trace.json", array: bool = False) -> EventTable:
    file = tmp_path / name
    file.write_text(json.dumps(events if array else {"traceEvents": events}), encoding="utf-8")
    return read(file)


HERE = {"pid": 1, "tid": 2}


@pytest.mark.parametrize("array", [True, False])
def test_begin_and_end_pair_innermost_first(tmp_path: Path, array: bool) -> None:
    events = [
        {"ph": "B", "name": "outer", "ts": 1, **HERE},
        {"ph": "B", "name": "inner", "ts": 2.5, **HERE},
        {"ph": "E", "ts": 4, **HERE},
        {"ph": "E", "ts": 9, **HERE},
    ]
    table = trace(tmp_path, events, array=array)
    found = [(table.name_of(row), int(table.start_ns[row]), int(table.end_ns[row])) for row in range(2)]
    assert found == [("outer", 1000, 9000), ("inner", 2500, 4000)]


def test_events_out_of_order_are_put_in_order_before_they_are_paired(tmp_path: Path) -> None:
    events = [{"ph": "E", "ts": 4, **HERE}, {"ph": "B", "name": "a", "ts": 1, **HERE}]
    table = trace(tmp_path, events)
    assert table.duration_ns.tolist() == [3000]
    assert table.notes == []


def test_what_never_ends_lasts_to_the_end_and_what_never_began_is_left_out_and_both_are_told(tmp_path: Path) -> None:
    events = [
        {"ph": "E", "ts": 1, **HERE},
        {"ph": "B", "name": "open", "ts": 2, **HERE},
        {"ph": "X", "name": "x", "ts": 3, "dur": 7, "pid": 1, "tid": 3},
    ]
    table = trace(tmp_path, events)
    assert int(table.end_ns[table.named("open")][0]) == 10_000
    assert [note.partition(": ")[2] for note in table.notes] == [
        "1 events never end; they are extended to the end of the trace",
        "skipped 1 events that end without a start",
    ]


def test_moments_counters_and_spans_of_many_ranks_are_told_apart(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for pid in (10, 11):
        events += [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {pid - 10}, n1 {pid}"}},
            {"ph": "X", "name": "MPI_Allreduce", "ts": 5, "dur": 2, "pid": pid, "tid": 1, "args": {"bytes": 64}},
            {"ph": "X", "name": "step 4", "ts": 0, "dur": 9, "pid": pid, "tid": 1},
            {"ph": "i", "name": "here", "ts": 6, "pid": pid, "tid": 1},
            {"ph": "C", "name": "power", "ts": 7, "pid": pid, "args": {"value": 71.5}},
        ]
    table = trace(tmp_path, events)
    assert table.ranks == [0, 1] and table.validate() == []
    mine = table.select(table.of_rank(1))
    kinds = {mine.name_of(row): EventKind(int(mine.kind[row])) for row in range(len(mine))}
    assert kinds == {
        "step 4": EventKind.PHASE,
        "MPI_Allreduce": EventKind.COLLECTIVE,
        "here": EventKind.MARKER,
        "power": EventKind.COUNTER,
    }
    assert mine.bytes[mine.of_kind(EventKind.COLLECTIVE)].tolist() == [64]
    assert mine.value[mine.of_kind(EventKind.COUNTER)].tolist() == [71.5]
    assert set(mine.step.tolist()) == {4}


def test_arrows_give_both_ends_the_same_correlation(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": "send", "ts": 0, "dur": 10, "pid": 1, "tid": 1},
        {"ph": "X", "name": "other", "ts": 20, "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "name": "receive", "ts": 30, "dur": 10, "pid": 1, "tid": 2},
        {"ph": "s", "name": "flow", "cat": "f", "id": 7, "ts": 5, "pid": 1, "tid": 1},
        {"ph": "f", "bp": "e", "name": "flow", "cat": "f", "id": 7, "ts": 30, "pid": 1, "tid": 2},
    ]
    table = trace(tmp_path, events)
    by_name = {table.name_of(row): int(table.correlation[row]) for row in range(3)}
    assert by_name["send"] == by_name["receive"] >= 0
    assert by_name["other"] == -1


def test_asynchronous_events_pair_by_their_number(tmp_path: Path) -> None:
    events = [
        {"ph": "b", "cat": "io", "id": 1, "name": "read", "ts": 0, **HERE},
        {"ph": "b", "cat": "io", "id": 2, "name": "read", "ts": 1, **HERE},
        {"ph": "e", "cat": "io", "id": 1, "name": "read", "ts": 5, **HERE},
        {"ph": "e", "cat": "io", "id": 2, "name": "read", "ts": 9, **HERE},
    ]
    table = trace(tmp_path, events)
    assert table.duration_ns.tolist() == [5000, 8000]
    assert set(table.kind.tolist()) == {EventKind.IO}
    assert len(set(table.lane.tolist())) == 2


def test_one_file_without_names_is_the_rank_of_its_name(tmp_path: Path) -> None:
    table = trace(tmp_path, [{"ph": "X", "name": "a", "ts": 0, "dur": -1, **HERE}], name="rank7.json")
    assert np.unique(table.rank).tolist() == [7]
    assert table.notes == ["rank7.json: 1 events end before they start; their duration is set to 0"]


def test_names_alone_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(Integrity, match="holds no event"):
        trace(tmp_path, [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}])
