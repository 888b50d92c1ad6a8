from __future__ import annotations

import base64
import json
import math
import pickle
from array import array
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.meter.lines import Channel, Column, channels_line, event_files, number, number_text, read_log

WRITER = {"writer": {"host": "n1", "rank": 0, "wall_ns": 1_000_000, "clock_ns": 1000}, "p": 7}


def write(file: Path, *lines: Any) -> Path:
    file.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))
    return file


def test_times_become_those_of_the_clock_on_the_wall(tmp_path: Path) -> None:
    file = write(
        tmp_path / "events.jsonl",
        WRITER,
        {"spans": "epoch", "at": [1100, 5, 1200, 6], "thread": 2, "p": 7, "with": {"n": 3}},
        {"spans": "epoch", "at": [1300, 7], "thread": 2, "p": 7},
        {"event": "checkpoint", "at": 1400, "with": {"file": "x"}, "p": 7},
        {"log": {"loss": 0.25, "rate": "NaN"}, "step": 3, "at": 1500, "p": 7},
    )
    log = read_log([file])
    (spans,) = log.spans
    assert (spans.name, spans.thread, spans.writer.rank, spans.writer.host) == ("epoch", 2, 0, "n1")
    assert list(spans.starts_ns) == [1_000_100, 1_000_200, 1_000_300]
    assert list(spans.durations_ns) == [5, 6, 7]
    assert spans.attributes == [{"n": 3}, {"n": 3}, None]
    assert (log.events[0].name, log.events[0].at_ns, log.events[0].attributes) == (
        "checkpoint",
        1_000_400,
        {"file": "x"},
    )
    assert [(each.name, each.step, each.at_ns) for each in log.metrics] == [
        ("loss", 3, 1_000_500),
        ("rate", 3, 1_000_500),
    ]
    assert log.metrics[0].value == 0.25 and math.isnan(log.metrics[1].value)
    assert log.damaged == 0


def test_many_calls_stand_as_base64_of_starts_and_ends(tmp_path: Path) -> None:
    text = base64.b64encode(array("q", [1100, 1105, 1200, 1206]).tobytes()).decode()
    (spans,) = read_log([write(tmp_path / "e", WRITER, {"spans": "x", "at": text, "p": 7})]).spans
    assert (list(spans.starts_ns), list(spans.durations_ns)) == ([1_000_100, 1_000_200], [5, 6])


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "7",
        '"text"',
        "{}",
        '{"p": 7}',
        '{"p": 8, "event": "of nobody", "at": 1}',
        '{"p": [7], "event": "x", "at": 1}',
        '{"p": 7, "spans": "x", "at": [1]}',
        '{"p": 7, "spans": "x", "at": [1, 1e400]}',
        '{"p": 7, "spans": "x", "at": [1, 99999999999999999999]}',
        '{"p": 7, "spans": "x", "at": "AAAA"}',
        '{"p": 7, "spans": "x", "at": "?"}',
        '{"p": 7, "event": "x", "at": "noon"}',
        '{"p": 7, "log": {"loss": "high"}, "at": 1}',
        '{"p": 7, "log": {"loss": true}, "at": 1}',
        '{"p": 7, "log": {"loss": 1}, "step": "first", "at": 1}',
        '{"p": 7, "log": [1], "at": 1}',
        '{"p": 7, "sample": [1], "watch": "w", "at": 1}',
        '{"p": 7, "counter": "q", "at": [1, 2], "is": [1]}',
        '{"p": 7, "counter": "q", "at": [1], "is": ["many"]}',
        '{"p": 7, "spans": "put k", "at": [1, 2], "exchange": {"how": "sell", "key": "k"}}',
        '{"p": 7, "spans": "put k", "at": [1, 2], "exchange": {"how": "put", "key": "k"}, "bytes": [1, 2]}',
        '{"p": 7, "spans": "x", "at": [1, 2], "n": []}',
        '{"p": 7, "about": ["grid"]}',
        '{"p": 7, "named": "halo"}',
        '{"p": 7, "event": "never", "at": NaN}',
        '{"p": 7, "event": "far", "at": 1e400}',
        '{"p": 7, "event": "far", "at": 1000000000000000000000000}',
        '{"p": 7, "event": "e", "at": 1, "with": 5}',
        '{"p": 7, "log": {"loss": 1}, "at": NaN}',
        '{"p": 7, "spans": "x", "at": [1, 2], "with": [3]}',
        '{"p": 8, "writer": {"host": "n1", "rank": 0, "wall_ns": 1e30, "clock_ns": 0}}',
        '{"p": "8", "writer": {"host": "n1", "rank": 0, "wall_ns": 1, "clock_ns": 0}}',
        "[" * 100_000,
        "\x00\x00\x00",
    ],
)
def test_a_line_that_cannot_be_read_is_counted_and_costs_no_other(tmp_path: Path, line: str) -> None:
    log = read_log([write(tmp_path / "e", WRITER, line, {"event": "after", "at": 1, "p": 7})])
    assert (log.damaged, [event.name for event in log.events], log.metrics) == (1, ["after"], [])
    assert all(len(spans.starts_ns) == len(spans.durations_ns) == 0 for spans in log.spans)


@pytest.mark.parametrize("rank", ["zero", -3, 1 << 40, 1.5, True])
def test_a_rank_that_cannot_be_one_is_not_known(tmp_path: Path, rank: Any) -> None:
    writer = {"writer": {**WRITER["writer"], "rank": rank}, "p": 7}  # type: ignore[dict-item]
    log = read_log([write(tmp_path / "e", writer, {"event": "after", "at": 1, "p": 7})])
    assert (log.damaged, log.events[0].writer.rank) == (0, None)


def test_a_last_line_that_a_crash_cut_off_and_bytes_that_are_no_text_are_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "e", WRITER, {"event": "one", "at": 1, "p": 7})
    with open(file, "ab") as stream:
        stream.write(b'\xff\xfe\n\n   \n{"event": "tw')
    log = read_log([file])
    assert ([event.name for event in log.events], log.damaged) == (["one"], 2)


def test_a_number_of_a_process_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    again = {"writer": {"host": "n1", "rank": 1, "wall_ns": 9_000_000, "clock_ns": 1000}, "p": 7}
    calls = {"spans": "x", "at": [1100, 5], "p": 7}
    log = read_log([write(tmp_path / "e", WRITER, calls, again, calls)])
    assert [(spans.writer.rank, list(spans.starts_ns)) for spans in log.spans] == [(0, [1_000_100]), (1, [9_000_100])]


def test_two_meters_of_one_process_are_one_writer(tmp_path: Path) -> None:
    def said(wall: int, clock: int, began: int) -> dict[str, Any]:
        told = {"host": "n1", "rank": 0, "boot": "a", "wall_ns": wall, "clock_ns": clock, "began": began}
        return {"writer": told | {"component": f"number {began}"}, "p": 7}

    calls = {"spans": "x", "at": [1100, 5], "p": 7}
    log = read_log([write(tmp_path / "e", said(1_000_000, 1000, 1), calls, said(1_000_050, 1050, 1), calls)])
    assert len(log.writers) == 1 and [list(spans.starts_ns) for spans in log.spans] == [[1_000_100, 1_000_100]]
    log = read_log([write(tmp_path / "f", said(1_000_000, 1000, 1), calls, said(1_000_050, 1050, 2), calls)])
    assert len(log.spans) == 2 and list(log.components.values()) == ["number 1", "number 2"]


def test_an_exchange_that_says_little_is_told_as_not_known(tmp_path: Path) -> None:
    line = {"spans": "get k", "at": [1100, 5, 1200, 6], "exchange": {"how": "get", "key": "k"}, "p": 7}
    (spans,) = read_log(
        [write(tmp_path / "e", WRITER, line, line | {"exchange": {"how": "get", "key": "k", "peer": ""}})]
    ).spans
    assert spans.exchange is not None and spans.exchange.peer == ""
    assert list(spans.exchange.bytes) == list(spans.exchange.versions) == list(spans.exchange.waits_ns) == [-1] * 4


def test_processes_of_one_start_of_a_host_keep_their_order_when_the_clock_is_set(tmp_path: Path) -> None:
    def said(pid: int, boot: str, wall: int, clock: int) -> dict[str, Any]:
        return {"writer": {"host": "n1", "rank": None, "boot": boot, "wall_ns": wall, "clock_ns": clock}, "p": pid}

    file = write(
        tmp_path / "e",
        said(1, "a", 1_000_000, 1000),
        {"event": "first", "at": 1500, "p": 1},
        said(2, "a", 200_000, 2000),  # the clock was set back
        {"event": "second", "at": 2500, "p": 2},
        said(3, "b", 5_000_000, 10),  # the machine started again
        {"event": "third", "at": 20, "p": 3},
    )
    assert [event.at_ns for event in read_log([file]).events] == [1_000_500, 1_001_500, 5_000_010]


def test_samples_come_back_by_channel_and_a_failed_reading_is_none(tmp_path: Path) -> None:
    channels = [
        Channel("gpu0.power", "W", source="nvml", scope="device 0"),
        Channel("cpu.energy", "J", "counter", wraps_at=9.0),
    ]
    file = write(
        tmp_path / "e",
        WRITER,
        channels_line(channels, "7-1", 7).rstrip(),
        {"sample": [71.5, 3], "at": 1100, "watch": "7-1", "p": 7},
        {"sample": [None, 4], "at": 1200, "watch": "7-1", "p": 7},
        {"sample": [1], "at": 1300, "watch": "7-1", "p": 7},
    )
    log = read_log([file])
    (samples,) = log.samples
    assert samples.channels == tuple(channels)
    assert list(samples.at_ns) == [1_000_100, 1_000_200]
    assert (samples.column("gpu0.power"), samples.column("cpu.energy")) == ([71.5, None], [3, 4])
    assert log.damaged == 1


def test_a_long_log_has_every_sample_in_its_place(tmp_path: Path) -> None:
    channels = [Channel("a", "W"), Channel("b", "W"), Channel("c", "W")]
    count = 30_000
    rows = ({"sample": [n, None, n / 2], "at": 1000 + n, "watch": "7-1", "p": 7} for n in range(count))
    file = write(tmp_path / "e", WRITER, channels_line(channels, "7-1", 7).rstrip(), *rows)
    (samples,) = read_log([file]).samples
    assert list(samples.column("a")) == list(range(count))
    assert list(samples.column("c")) == [n / 2 for n in range(count)]
    assert set(samples.column("b")) == {None} and len(samples.column("b")) == len(samples.at_ns) == count


def test_a_sample_that_is_wrong_somewhere_leaves_no_column_ahead_of_another(tmp_path: Path) -> None:
    channels = [Channel("a", "W"), Channel("b", "W")]
    bad = ([1.0, "many"], [1.0, [2.0]], [1.0], [1.0, 2.0, 3.0], 5, None, {"a": 1, "b": 2})
    lines: list[Any] = [{"sample": values, "at": 1100, "watch": "7-1", "p": 7} for values in bad]
    lines += [{"sample": [1.0, 2.0], "at": at, "watch": "7-1", "p": 7} for at in ("soon", 1e30, 2**70, None)]
    odd = [{"sample": [10**400, "NaN"], "at": 1200, "watch": "7-1", "p": 7}]
    file = write(tmp_path / "e", WRITER, channels_line(channels, "7-1", 7).rstrip(), *lines, *odd)
    log = read_log([file])
    (samples,) = log.samples
    assert log.damaged == len(lines)
    assert list(samples.at_ns) == [1_000_200] and samples.columns == [[math.inf], [None]]


def test_a_column_is_a_list_of_numbers_and_nones_in_eight_bytes_each() -> None:
    column = Column([1.5, None, 3.0])
    column.append(None)
    assert column == [1.5, None, 3.0, None] and column != [1.5, 0.0, 3.0, None] and column != 1.5
    assert (column[0], column[-1], column[1:3], len(column)) == (1.5, None, [None, 3.0], 4)
    assert repr(column) == "Column([1.5, None, 3.0, None])"
    assert column == pickle.loads(pickle.dumps(column))


def test_the_logs_of_all_hosts_are_found_and_one_that_is_not_there_is_empty(tmp_path: Path) -> None:
    for name in ("events.jsonl", "events.n2.jsonl", "other.jsonl"):
        write(tmp_path / name, WRITER)
    found = event_files(tmp_path)
    assert [file.name for file in found] == ["events.jsonl", "events.n2.jsonl"]
    assert len(read_log([*found, tmp_path / "missing"]).writers) == 2


@for_each("value", [0.0, -1.5, math.inf, -math.inf, math.nan])
def test_every_number_survives_json(value: float) -> None:
    assert repr(number(json.loads(json.dumps(number_text(value), allow_nan=False)))) == repr(value)
