from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairmile.base.errors import Integrity
from fairmile.traces.analyze import analyze
from fairmile.traces.events import EventKind
from fairmile.traces.readers.meter import read
from fairmile.traces.reading import read_traces


def log(folder: Path, *lines: dict[str, Any], name: str = "events.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def writer(pid: int, rank: int | None = None, **more: Any) -> dict[str, Any]:
    return {"writer": {"host": "n1", "rank": rank, "boot": "b", "wall_ns": 10**18, "clock_ns": 1000, **more}, "p": pid}


def test_spans_of_each_rank_stand_on_the_clock_of_the_wall_with_their_kind(tmp_path: Path) -> None:
    file = log(
        tmp_path,
        writer(1, 0),
        {"spans": "step", "at": [1000, 90, 1100, 95], "n": [7, 8], "p": 1},
        {"spans": "forward", "at": [1010, 40], "thread": 0, "p": 1},
        {"spans": "all_reduce", "at": [1060, 20], "with": {"bytes": 64, "dtype": "float"}, "p": 1},
        {"spans": "load_data", "at": [1105, 5], "p": 1},
        {"event": "checkpoint", "at": 1199, "p": 1},
        {"log": {"loss": 0.25}, "step": 3, "at": 1150, "p": 1},
        writer(2, 1),
        {"spans": "forward", "at": [1005, 30], "thread": 3, "p": 2},
    )
    table = read(file)
    assert table.validate() == [] and table.ranks == [0, 1]
    mine = table.select(table.of_rank(0))
    found = {(mine.name_of(row), EventKind(int(mine.kind[row])), int(mine.step[row])) for row in range(len(mine))}
    assert found == {
        ("step", EventKind.PHASE, 7), ("step", EventKind.PHASE, 8), ("forward", EventKind.REGION, 7),
        ("all_reduce", EventKind.COLLECTIVE, 7), ("load_data", EventKind.IO, 8), ("checkpoint", EventKind.MARKER, -1),
        ("loss", EventKind.COUNTER, 8),
    }  # fmt: skip
    assert int(mine.start_ns[mine.named("forward")][0]) == 10**18 + 10
    row = int(np.flatnonzero(mine.of_kind(EventKind.COLLECTIVE))[0])
    assert int(mine.bytes[row]) == 64 and mine.attributes["dtype"].get(row) == "float"
    assert [lane.label for lane in table.lanes if lane.rank == 1] == ["thread 3"]


def test_exchanges_between_components_keep_key_version_bytes_and_waiting(tmp_path: Path) -> None:
    put = {"spans": "put field", "at": [10, 5, 30, 5], "exchange": {"how": "put", "key": "field", "peer": "trainer"}}
    file = log(
        tmp_path,
        writer(1, 0, component="solver"),
        {**put, "bytes": [4096, 4096], "version": [1, 2], "wait": [-1, 3], "p": 1},
        writer(2, 0, component="trainer"),
        {"spans": "get field", "at": [12, 9], "exchange": {"how": "get", "key": "field"}, "version": [1], "p": 2},
        {"counter": "queue", "at": [20, 25], "is": [3, 4.5], "p": 2},
    )
    table = read(file)
    assert sorted(table.components) == ["solver", "trainer"]
    solver = table.select(table.of_rank(0, "solver"))
    assert solver.kind.tolist() == [EventKind.EXCHANGE] * 2
    assert solver.bytes.tolist() == [4096, 4096] and solver.sequence.tolist() == [1, 2]
    assert solver.attribute("key").tolist() == ["field", "field"]
    assert solver.attribute("wait_ns").tolist() == [None, 3]
    trainer = table.select(table.of_rank(0, "trainer"))
    assert trainer.value[trainer.of_kind(EventKind.COUNTER)].tolist() == [3.0, 4.5]
    assert table.missing() == []


def test_processes_without_a_rank_stand_outside_when_others_have_one(tmp_path: Path) -> None:
    channels = [{"name": "gpu0.power", "unit": "W"}]
    file = log(
        tmp_path,
        writer(1, 0),
        {"spans": "forward", "at": [1, 2], "p": 1},
        writer(9),
        {"channels": channels, "watch": "9-1", "p": 9},
        {"sample": [71.5], "at": 19, "watch": "9-1", "p": 9},
    )
    table = read(file)
    row = int(np.flatnonzero(table.of_kind(EventKind.COUNTER))[0])
    assert table.name_of(row) == "gpu0.power (W)" and float(table.value[row]) == 71.5
    assert table.components[table.component[row]] == "outside"
    assert table.components[table.component[int(np.flatnonzero(table.named("forward"))[0])]] == ""


def test_epochs_are_no_steps_where_finer_ones_are_there(tmp_path: Path) -> None:
    both = log(
        tmp_path / "a",
        writer(1, 0),
        {"spans": "epoch", "at": [0, 100], "p": 1},
        {"spans": "step", "at": [0, 50, 50, 50], "p": 1},
    )
    assert sorted(read(both).step[read(both).of_kind(EventKind.PHASE)].tolist()) == [0, 1]
    alone = log(tmp_path / "b", writer(1, 0), {"spans": "epoch", "at": [0, 100, 100, 50], "p": 1})
    assert read(alone).step.tolist() == [0, 1]


def test_a_solver_that_times_its_steps_and_puts_between_them_is_busy(tmp_path: Path) -> None:
    put = {"spans": "put field", "at": [20, 1, 41, 1, 62, 1], "exchange": {"how": "put", "key": "field"}}
    file = log(
        tmp_path,
        writer(1, component="solver"),
        {"spans": "step", "at": [0, 20, 21, 20, 42, 20], "p": 1},
        {**put, "bytes": [8, 8, 8], "version": [0, 1, 2], "p": 1},
    )
    found = analyze(read_traces(file))
    (rank,) = found.breakdown.ranks
    assert (rank.total.compute_s, rank.total.exchange_s) == (pytest.approx(60e-9), pytest.approx(3e-9))
    assert rank.total.idle_s == 0 and found.step_s == pytest.approx(21e-9)
    assert found.coupling is not None and found.coupling.components[0].compute_s == pytest.approx(60e-9)
    assert ("step", 3) in [(each.name, each.calls) for each in found.names]


def test_logs_of_all_hosts_of_a_run_are_one_and_half_a_line_is_told(tmp_path: Path) -> None:
    log(tmp_path, writer(1, 0), {"spans": "forward", "at": [1, 2], "p": 1})
    other = log(tmp_path, writer(1, 1), {"spans": "forward", "at": [1, 2], "p": 1}, name="events.n2.jsonl")
    with other.open("a") as stream:
        stream.write('{"spans": "forw')
    table = read_traces(tmp_path)
    assert table.ranks == [0, 1]
    assert any("skipped 1 unreadable lines" in note for note in table.notes)


def test_a_log_that_nobody_wrote_to_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Integrity, match=r"events\.jsonl has no lines of a meter"):
        read(log(tmp_path))
