from __future__ import annotations

import asyncio
import json
import math
from array import array
from pathlib import Path
from typing import Any

import pytest

from fairmile.meter import Meter
from fairmile.meter.lines import Channel, Event, Log, Logged, Samples, Spans, Writer, read_log
from fairmile.meter.trace import trace_text, write_trace


def events(log: Log, phase: str = "") -> list[dict[str, Any]]:
    trace = json.loads(trace_text(log), parse_constant=lambda word: pytest.fail(word))
    return [each for each in trace["traceEvents"] if each["ph"] == phase or not phase]


def test_spans_nest_by_time_and_are_microseconds_since_the_first(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with Meter(file, rank=2) as meter, meter.span("outer"), meter.span("inner", n=3):
        pass
    write_trace(read_log([file]), tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    spans = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    outer, inner = spans
    assert (outer["name"], inner["name"], inner["args"]) == ("outer", "inner", {"n": 3})
    assert outer["ts"] == 0.0 < inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert outer["pid"] == inner["pid"] and outer["tid"] == inner["tid"] == 0
    names = [each["args"]["name"] for each in trace["traceEvents"] if each["name"] == "process_name"]
    assert len(names) == 1 and names[0].startswith("rank 2, ")


def test_everything_has_what_the_format_asks_for_and_stands_in_order() -> None:
    writer = Writer("n1", 5, None, 0, 0)
    log = Log(
        writers=[writer],
        spans=[Spans("s", writer, 1, array("q", [5000, 1000]), array("q", [10, 1500]), [None, None])],
        events=[Event("e", 3000, writer, {"x": math.inf})],
        metrics=[Logged("loss", 0.5, 1, 2000, writer), Logged("loss", math.nan, 2, 2500, writer)],
        samples=[Samples((Channel("power", "W"),), writer, array("q", [1500, 1600]), [[70.0, None]])],
    )
    found = events(log)
    shown = [each for each in found if each["ph"] != "M"]
    assert [(each["ph"], each["ts"]) for each in shown] == [("X", 0.0), ("C", 0.5), ("C", 1.0), ("i", 2.0), ("X", 4.0)]
    assert all({"name", "ph", "pid", "tid", "ts"} <= set(each) for each in found)
    assert shown[0]["dur"] == 1.5
    assert (shown[1]["name"], shown[1]["args"]) == ("power (W)", {"value": 70.0})
    assert shown[3]["s"] == "p" and shown[3]["args"] == {"x": "inf"}


def test_processes_of_one_number_on_two_hosts_stay_apart() -> None:
    writers = [Writer(host, 5, rank, 0, 0) for rank, host in enumerate(("n1", "n2"))]
    log = Log(writers=writers, events=[Event("e", 1, writer, {}) for writer in writers])
    assert len({each["pid"] for each in events(log, "i")}) == 2


def test_spans_of_one_thread_that_only_overlap_get_lanes_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"

    async def both(meter: Meter) -> None:
        async def task(first: float, second: float) -> None:
            await asyncio.sleep(first)
            with meter.span("task"):
                await asyncio.sleep(second)

        await asyncio.gather(task(0, 0.03), task(0.01, 0.1))

    with Meter(file) as meter:
        asyncio.run(both(meter))
    one, other = events(read_log([file]), "X")
    assert one["tid"] != other["tid"]


def test_an_empty_log_is_an_empty_trace() -> None:
    assert events(Log()) == []
