from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from left_open import nothing_left_open

import fairmile.meter
from fairmile.base.errors import UsageError
from fairmile.meter import Meter
from fairmile.meter.lines import Log, number_text, read_log
from fairmile.meter.summaries import metric_documents

ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("FAIRMILE_")} | {
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path))
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@pytest.fixture
def meter(file: Path) -> Iterator[Meter]:
    with Meter(file) as meter:
        yield meter


def read(meter: Meter) -> Log:
    meter.flush()
    assert meter.file is not None
    log = read_log([Path(meter.file)])
    assert log.damaged == 0
    return log


def python(program: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=ENVIRONMENT, check=True, **more
    )


def test_a_span_tells_when_it_began_and_how_long_it_took(meter: Meter) -> None:
    before = time.time_ns()
    with meter.span("epoch"):
        time.sleep(0.02)
    after = time.time_ns()
    (spans,) = read(meter).spans
    assert spans.name == "epoch"
    assert 20_000_000 <= spans.durations_ns[0] <= after - before
    assert before - 10**9 <= spans.starts_ns[0] <= after + 10**9  # the clocks are not read at the same moment
    assert list(spans.attributes) == [None]


def test_every_call_is_kept_few_or_many(meter: Meter) -> None:
    for count, name in ((3, "few"), (70_001, "many")):
        for _ in range(count):
            with meter.span(name):
                pass
    log = read(meter)
    found = {spans.name: spans for spans in log.spans}
    assert {name: len(spans.durations_ns) for name, spans in found.items()} == {"few": 3, "many": 70_001}
    starts = found["many"].starts_ns
    ends = [start + took for start, took in zip(starts, found["many"].durations_ns, strict=True)]
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert {each.name: each.count for each in meter.summary()} == {"few": 3, "many": 70_001}


def test_a_loop_that_outruns_the_flusher_writes_by_itself_and_keeps_every_call_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairmile.meter.meter.FLUSH_S", 3600.0)
    with Meter(file) as meter:
        for _ in range(60_000):
            meter.start("x")
            meter.stop("x")
        (written,) = read_log([file]).spans  # nobody asked for it
        assert 10_000 < len(written.starts_ns) < 60_000
        assert len(meter._waiting) < 10
        starts = read(meter).spans[0].starts_ns
        assert len(starts) == 60_000 and list(starts) == sorted(set(starts))
        assert meter.summary()[0].count == 60_000


def test_nested_spans_lie_inside_each_other_also_under_one_name(meter: Meter) -> None:
    with meter.span("a"), meter.span("b"), meter.span("a"):
        time.sleep(0.001)
    found = {spans.name: spans for spans in read(meter).spans}
    inner, outer = found["a"].starts_ns
    assert outer < found["b"].starts_ns[0] < inner
    assert found["a"].durations_ns[0] < found["b"].durations_ns[0] < found["a"].durations_ns[1]


def test_attributes_stand_with_their_call_and_count_in_the_summary(meter: Meter) -> None:
    with meter.span("epoch", n=3, rate=float("nan"), file=Path("/x"), deep={1: (2, {3})}):
        pass
    with meter.span("epoch"):
        pass
    (spans,) = read(meter).spans
    assert [each for each in spans.attributes if each] == [
        {"n": 3, "rate": "NaN", "file": "/x", "deep": {"1": [2, [3]]}}
    ]
    assert len(spans.durations_ns) == 2
    assert meter.summary()[0].count == 2


@pytest.mark.parametrize(
    "value",
    [0, -3, 10**25, 0.1, -1e300, 5e-324, "", "plain", 'a "b"', "back\\slash", "größe\n", "\x7f", "\ud800", True, None],
)
def test_an_attribute_comes_back_as_it_was_alone_or_beside_others(meter: Meter, value: Any) -> None:
    with meter.span("s", x=value), meter.span("t", **{'a "name"': value, "list": [value], "y": 1}):
        pass
    told = {spans.name: spans.attributes[0] for spans in read(meter).spans}
    assert told == {"s": {"x": value}, "t": {'a "name"': value, "list": [value], "y": 1}}
    assert told["s"] is not None and type(told["s"]["x"]) is type(value)


COLUMNS = {
    "whole": range(-5, 300),
    "beyond 64 bits": [10**25 + each for each in range(300)],
    "broken": [each / 7 for each in range(300)],
    "not finite": [float("nan"), float("inf"), float("-inf")] * 100,
    "texts": [f"part-{each}.h5" for each in range(300)],
    "texts of any kind": ['a "b"', "größe\n", "\ud800", "", "back\\slash"] * 60,
    "truths": [True, False, None] * 100,
    "mixed": [1, 0.5, "x", True, None] * 60,
}


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("name", ["n", "other"])
@pytest.mark.parametrize("count", [3, 300])
def test_attributes_of_few_and_of_many_calls_come_back_each_with_its_call(
    meter: Meter, name: str, values: list[Any], count: int
) -> None:
    given = list(values)[:count]
    for value in given:
        with meter.span("one", **{name: value}):
            pass
        with meter.span("two", **{name: value, "second": "x"}):
            pass
    one, two = read(meter).spans
    said = [number_text(value) if isinstance(value, float) else value for value in given]
    assert one.attributes == [{name: value} for value in said]
    assert two.attributes == [{name: value, "second": "x"} for value in said]
    assert [type((each or {})[name]) for each in one.attributes] == [type(value) for value in said]
    assert list(one.starts_ns) == sorted(one.starts_ns) and min(one.durations_ns) >= 0
    assert {each.name: each.count for each in meter.summary()} == {"one": count, "two": count}


def test_calls_of_one_name_may_have_other_attributes_or_none_each_time(meter: Meter) -> None:
    kinds: list[dict[str, Any]] = [{"n": 1}, {"a": 1}, {}, {"b": 2}, {"a": 3, "n": 2}, {"n": "x"}, {"list": [1]}]
    for _ in range(100):
        for attributes in kinds:
            with meter.span("x", **attributes):
                pass
    (spans,) = read(meter).spans
    assert len(spans.attributes) == 700
    for attributes in kinds:
        assert sum((each or {}) == attributes for each in spans.attributes) == 100
    assert meter.summary()[0].count == 700


def test_an_attribute_that_changes_later_is_told_as_it_was(meter: Meter) -> None:
    import numpy

    shape, array = [1, 2], numpy.zeros(2)
    with meter.span("x", shape=shape, array=array):
        shape.append(3)
    shape.append(4)
    array += 1
    assert read(meter).spans[0].attributes == [{"shape": [1, 2, 3], "array": [0, 0]}]


def test_a_number_of_more_digits_than_python_says_breaks_nothing(meter: Meter) -> None:
    for value in (16**5000, -(16**5000)):
        with meter.span("x", n=value), meter.span("y", n=1, m=value), meter.span("z", m=value, list=[value]):
            pass
    told = {spans.name: spans.attributes for spans in read(meter).spans}
    assert told["x"] == [{"n": hex(16**5000)}, {"n": hex(-(16**5000))}]
    assert told["y"][0] == {"n": 1, "m": hex(16**5000)} and told["z"][0] == {
        "m": hex(16**5000),
        "list": [hex(16**5000)],
    }


def test_spans_with_attributes_that_somebody_keeps_keep_theirs(meter: Meter) -> None:
    for name in ("n", "other"):
        first, second = meter.span("x", **{name: 1}), meter.span("x", **{name: 2})
        third = meter.span("x", **{name: 3})
        for span in (third, first, second, first):
            with span:
                pass
        with meter.span("x", **{name: 4}), first, meter.span("x", **{name: 5}), first:
            pass
    (spans,) = read(meter).spans
    told = [3, 1, 2, 1, 1, 5, 1, 4]
    assert [each["n"] for each in spans.attributes if each and "n" in each] == told
    assert [each["other"] for each in spans.attributes if each and "other" in each] == told


def test_one_block_serves_all_calls_of_a_name_that_nobody_keeps(meter: Meter) -> None:
    kinds = {type(meter.span("x", n=1)) for _ in range(3)} | {type(meter.span("x", other="a")) for _ in range(3)}
    assert len(kinds) == 1
    kept = meter.span("x", n=1)
    assert type(kept) in kinds and type(meter.span("x", n=2)) not in kinds


def test_a_stack_of_blocks_and_a_call_of_their_methods_time_spans_as_well(meter: Meter) -> None:
    with ExitStack() as stack:
        stack.enter_context(meter.span("x"))
        stack.enter_context(meter.span("x", n=1))
        stack.enter_context(meter.span("x", list=[1]))
    span = meter.span("x")
    span.__enter__()
    span.__exit__(None, None, None)
    (spans,) = read(meter).spans
    assert sorted(map(str, spans.attributes)) == ["None", "None", "{'list': [1]}", "{'n': 1}"]


def test_a_span_that_is_left_without_being_entered_harms_nothing(meter: Meter) -> None:
    meter.span("x").__exit__(None, None, None)
    with meter.span("x"):
        time.sleep(0.001)
    first, second = read(meter).spans[0].durations_ns
    assert first == 0 and second >= 1_000_000


def test_attributes_may_have_the_names_of_parameters(meter: Meter) -> None:
    with meter.span("s", name=1, self=2):
        pass
    meter.event("e", name=1, self=2)
    meter.log(self=3, name=4)
    log = read(meter)
    assert log.spans[0].attributes == [{"name": 1, "self": 2}]
    assert log.events[0].attributes == {"name": 1, "self": 2}
    assert {each.name: each.value for each in log.metrics} == {"self": 3, "name": 4}


def test_attributes_of_arrays_and_of_themselves_are_told_somehow(meter: Meter) -> None:
    import numpy

    circle: dict[str, Any] = {}
    circle["again"] = circle
    meter.event("e", array=numpy.arange(3), number=numpy.float32(0.5), circle=circle)
    told = read(meter).events[0].attributes
    assert told["array"] == [0, 1, 2] and told["number"] == 0.5 and "again" in told["circle"]


def test_a_span_that_fails_is_recorded_and_its_error_goes_on(meter: Meter) -> None:
    with pytest.raises(ZeroDivisionError), meter.span("x"):
        raise ZeroDivisionError
    assert len(read(meter).spans[0].durations_ns) == 1


def test_a_span_can_be_entered_again(meter: Meter) -> None:
    span = meter.span("x")
    for _ in range(2):
        with span:
            time.sleep(0.001)
    (spans,) = read(meter).spans
    assert len(spans.durations_ns) == 2
    assert spans.starts_ns[1] >= spans.starts_ns[0] + spans.durations_ns[0]


def test_a_span_can_be_entered_inside_itself(meter: Meter) -> None:
    span, other = meter.span("x"), meter.span("x")
    for _ in range(2):
        with span, other, span:
            with meter.span("x"):
                time.sleep(0.001)
            time.sleep(0.001)
    (spans,) = read(meter).spans
    assert len(spans.durations_ns) == 8
    for first in (0, 4):
        took, starts = spans.durations_ns[first : first + 4], spans.starts_ns[first : first + 4]
        assert list(took) == sorted(took) and took[0] >= 1_000_000 and took[1] >= 2_000_000
        assert list(starts) == sorted(starts, reverse=True)


def test_tasks_that_overlap_keep_their_own_times(meter: Meter) -> None:
    bounds: list[tuple[int, int]] = []

    async def task(first: float, second: float) -> None:
        await asyncio.sleep(first)
        outside = time.monotonic_ns()
        with meter.span("task"):
            inside = time.monotonic_ns()
            await asyncio.sleep(second)
            least = time.monotonic_ns() - inside
        bounds.append((least, time.monotonic_ns() - outside))

    async def both() -> None:
        await asyncio.gather(task(0, 0.05), task(0.02, 0.2))

    asyncio.run(both())
    (spans,) = read(meter).spans
    assert spans.starts_ns[0] < spans.starts_ns[1]  # the first to begin is the first to end
    assert all(least <= took <= most for took, (least, most) in zip(spans.durations_ns, bounds, strict=True))


def test_a_timed_function_returns_its_value_and_keeps_its_name(meter: Meter) -> None:
    @meter.timed("work")
    def work(number: int, *, plus: int) -> int:
        """Add."""
        return number + plus

    @meter.timed("work")
    async def wait() -> str:
        await asyncio.sleep(0.01)
        return "done"

    assert work(1, plus=2) == 3
    assert (work.__name__, work.__doc__) == ("work", "Add.")
    assert asyncio.iscoroutinefunction(wait)
    assert asyncio.run(wait()) == "done"
    (spans,) = read(meter).spans
    assert len(spans.durations_ns) == 2
    assert spans.durations_ns[1] >= 10_000_000


def test_a_function_is_timed_under_its_own_name_where_none_is_given(meter: Meter) -> None:
    @meter.timed
    def plain(number: int) -> int:
        return number + 1

    @meter.timed()
    def bracketed() -> str:
        return "done"

    class Net:
        @meter.timed
        def forward(self) -> str:
            return type(self).__name__

    @meter.timed
    async def wait() -> int:
        return 7

    assert (plain(1), bracketed(), Net().forward(), asyncio.run(wait())) == (2, "done", "Net", 7)
    assert plain.__name__ == "plain" and asyncio.iscoroutinefunction(wait)
    assert [spans.name for spans in read(meter).spans] == ["plain", "bracketed", "Net.forward", "wait"]


def test_what_is_neither_a_name_nor_a_function_is_refused_where_it_stands(meter: Meter) -> None:
    with pytest.raises(UsageError, match="7 is not a timer name"):
        meter.timed(7)  # type: ignore[call-overload]


def test_start_and_stop_make_a_span_and_may_be_nested(meter: Meter) -> None:
    meter.start("x")
    meter.start("x")
    time.sleep(0.001)
    inner, outer = meter.stop("x"), meter.stop("x")
    assert 0.001 <= inner < outer
    assert [took / 1e9 for took in read(meter).spans[0].durations_ns] == [inner, outer]


def test_a_stop_without_a_start_is_refused_by_name_and_harms_nothing(meter: Meter) -> None:
    with pytest.raises(UsageError, match="timer 'never' was stopped but is not running at all"):
        meter.stop("never")
    meter.start("x")
    meter.stop("x")
    with pytest.raises(UsageError, match="'x'"):
        meter.stop("x")
    assert [(each.name, each.count, each.running) for each in meter.summary()] == [("x", 1, 0)]
    assert len(read(meter).spans) == 1


def test_a_timer_of_another_thread_cannot_be_stopped_here(meter: Meter) -> None:
    meter.start("x")
    refused: list[str] = []

    def other() -> None:
        try:
            meter.stop("x")
        except UsageError as error:
            refused.append(error.message)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert refused == ["timer 'x' was stopped but is not running in this thread"]
    assert meter.stop("x") > 0


def test_a_timer_that_runs_shows_as_running(meter: Meter) -> None:
    meter.start("x")
    (summary,) = meter.summary()
    assert (summary.name, summary.count, summary.running, summary.mean_s) == ("x", 0, 1, None)
    meter.stop("x")
    (summary,) = meter.summary()
    assert (summary.count, summary.running) == (1, 0)


def test_a_name_that_is_no_text_is_refused(meter: Meter) -> None:
    with pytest.raises(UsageError, match="7 is not a timer name"):
        meter.span(7)  # type: ignore[arg-type]


def test_names_of_any_script_and_with_quotes_come_back(meter: Meter) -> None:
    names = ['a "b"', "größe\n", "時間", "\ud800"]
    for name in names:
        with meter.span(name):
            pass
        meter.event(name)
        meter.log(**{name: 1})
    log = read(meter)
    assert [spans.name for spans in log.spans] == names
    assert [event.name for event in log.events] == names
    assert [logged.name for logged in log.metrics] == names


def test_metrics_of_all_kinds_of_numbers_are_logged(meter: Meter) -> None:
    import numpy
    import torch

    meter.log(step=3, a=1, b=0.1, c=True, d=10**25)
    meter.log(a=float("nan"), b=float("inf"), c=float("-inf"))
    meter.log(
        step=numpy.int64(4),
        a=numpy.float32(0.5),
        b=numpy.int32(7),
        c=torch.tensor(2.5, requires_grad=True),
        d=torch.tensor([3]),
    )
    values = [(each.name, each.value, each.step) for each in read(meter).metrics]
    assert values[:4] == [("a", 1, 3), ("b", 0.1, 3), ("c", 1, 3), ("d", 10**25, 3)]
    assert math.isnan(values[4][1])
    assert values[5:7] == [("b", math.inf, None), ("c", -math.inf, None)]
    assert values[7:] == [("a", 0.5, 4), ("b", 7, 4), ("c", 2.5, 4), ("d", 3, 4)]


@pytest.mark.parametrize("value", ["0.5", b"1", None, [1], object()])
def test_a_metric_that_is_no_number_is_refused_by_name(meter: Meter, value: Any) -> None:
    with pytest.raises(UsageError, match="'loss'"):
        meter.log(loss=value)
    meter.log(loss=1)
    assert len(read(meter).metrics) == 1


def test_an_array_is_no_metric(meter: Meter) -> None:
    import torch

    with pytest.raises(UsageError, match="'loss'"):
        meter.log(loss=torch.zeros(2))


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"])
def test_the_rank_is_the_launchers(file: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for each in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"):
        monkeypatch.delenv(each, raising=False)
    assert Meter().rank is None
    monkeypatch.setenv(variable, "nonsense")
    assert Meter().rank is None
    monkeypatch.setenv(variable, "5")
    with Meter(file, host="n7") as meter:
        meter.event("x")
    (writer,) = read_log([file]).writers
    assert (writer.host, writer.rank, writer.pid) == ("n7", 5, os.getpid())
    assert Meter(rank=1).rank == 1


def test_four_threads_measure_one_name_at_the_same_time(meter: Meter) -> None:
    together = threading.Barrier(4)

    def work() -> None:
        together.wait()
        meter.start("explicit")
        for _ in range(5000):
            with meter.span("short"):
                pass
        time.sleep(0.05)
        meter.stop("explicit")
        with meter.span("attributed", n=1):
            pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with meter.span("short"):
        pass
    summary = {each.name: each for each in meter.summary()}
    assert {name: each.count for name, each in summary.items()} == {"explicit": 4, "short": 20_001, "attributed": 4}
    assert summary["explicit"].total_s >= 4 * 0.05
    log = read(meter)
    assert {spans.thread for spans in log.spans if spans.name == "explicit"} == {1, 2, 3, 4}
    assert {spans.thread: len(spans.durations_ns) for spans in log.spans if spans.name == "short"} == {
        0: 1, 1: 5000, 2: 5000, 3: 5000, 4: 5000
    }  # fmt: skip


def test_threads_that_are_gone_leave_their_times_but_no_lists(meter: Meter) -> None:
    def work() -> None:
        with meter.span("x"):
            pass

    for _ in range(50):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert meter.summary()[0].count == 50
    assert len(list(meter.tallies())) == 1


def test_outside_of_a_run_threads_that_come_and_go_leave_no_lists_either() -> None:
    meter = Meter()

    def work() -> None:
        with meter.span("request"):
            pass

    for _ in range(2000):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(meter._threads_calls) < 1000
    (found,) = meter.summary()
    assert found.count == 2000


def test_a_ctrl_c_while_it_writes_does_not_end_the_writing(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        monkeypatch.setattr("fairmile.meter.meter.os.write", whole)
        whole(descriptor, data)
        raise KeyboardInterrupt

    meter.event("first")
    monkeypatch.setattr("fairmile.meter.meter.os.write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        meter.flush()
    meter.event("second")
    assert [event.name for event in read(meter).events] == ["first", "second"]


def test_a_ctrl_c_while_calls_are_packed_does_not_end_the_packing(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing = Meter._drain

    def interrupted(self: Meter, *given: Any) -> None:
        monkeypatch.setattr(Meter, "_drain", packing)
        raise KeyboardInterrupt

    monkeypatch.setattr(Meter, "_drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(10_000):
            with meter.span("step"):
                pass
    with meter.span("step"):
        pass
    (spans,) = read(meter).spans
    assert len(spans.starts_ns) > 1


def test_outside_of_a_run_metrics_and_events_leave_nothing_behind() -> None:
    meter = Meter()
    for number in range(1000):
        meter.log(loss=0.5, step=number)
        meter.event("checkpoint", n=number)
    assert len(meter._waiting) == 0 and meter._flusher is None and meter._threads_calls == []


def test_a_number_beyond_all_floats_is_an_infinity_and_breaks_no_summary(meter: Meter) -> None:
    meter.log(huge=10**400, low=-(10**400), fine=3)
    log = read(meter)
    assert [each.value for each in log.metrics] == [math.inf, -math.inf, 3]
    assert metric_documents(log)["huge"]["value"] == "Infinity"


def test_forked_processes_share_the_file_and_write_only_what_is_their_own(meter: Meter, file: Path) -> None:
    for _ in range(100):
        with meter.span("parent"):
            pass
    meter.event("before")
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(2000):
                    with meter.span("child"):
                        pass
                for step in range(200):
                    meter.log(step=step, number=number)
                meter.flush()
                assert [each.name for each in meter.summary()] == ["child"]
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    with meter.span("parent"):
        pass
    log = read(meter)
    assert sorted(writer.pid for writer in log.writers) == sorted([os.getpid(), *children])
    found: dict[tuple[int, str], int] = {}
    for spans in log.spans:
        key = (spans.writer.pid, spans.name)
        found[key] = found.get(key, 0) + len(spans.durations_ns)
    assert found == {(os.getpid(), "parent"): 101} | {(child, "child"): 2000 for child in children}
    assert [event.writer.pid for event in log.events] == [os.getpid()]
    assert len(log.metrics) == 8 * 200
    assert {each.value for each in log.metrics} == set(range(8))


WORKERS = """
import multiprocessing, sys, warnings
warnings.simplefilter("error")
from fairmile.meter import Meter
meter = Meter(sys.argv[1])
def work(number):
    with meter.span("work"):
        return number
if __name__ == "__main__":
    meter.event("before")
    for method in ("fork",):
        context = multiprocessing.get_context(method)
        workers = [context.Process(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
"""


def test_workers_of_multiprocessing_write_all_before_they_end(file: Path) -> None:
    done = python(WORKERS, str(file))
    assert done.stderr == ""  # not even the warning of a fork with a second thread
    log = read_log([file])
    assert (log.damaged, len(log.events)) == (0, 1)
    assert [len(spans.durations_ns) for spans in log.spans] == [1, 1, 1]
    assert len(log.writers) == 4


def test_the_end_of_the_program_writes_the_rest(file: Path) -> None:
    python("import sys\nfrom fairmile.meter import Meter\nm = Meter(sys.argv[1])\nwith m.span('x'): pass", str(file))
    assert len(read_log([file]).spans[0].durations_ns) == 1


def test_a_meter_that_nobody_holds_any_more_writes_the_rest_and_lets_go_of_its_file(file: Path) -> None:
    with nothing_left_open():
        meter = Meter(file)
        with meter.span("x"):
            pass
        meter.flush()
        meter.event("late")
        del meter
        gc.collect()
    log = read_log([file])
    assert len(log.events) == 1 and len(log.spans) == 1


def test_without_a_flusher_lines_wait_for_flush_and_no_thread_runs(file: Path) -> None:
    meter = Meter(file, flusher=False)
    meter.event("started")
    assert meter._flusher is None and not file.exists()
    meter.flush()
    assert [event.name for event in read_log([file]).events] == ["started"]
    meter.event("ended")
    meter.close()
    assert [event.name for event in read_log([file]).events] == ["started", "ended"]


KILLED = """
import sys, time
from fairmile.meter import Meter
meter = Meter(sys.argv[1])
for step in range(1000):
    with meter.span("step"):
        meter.log(step=step, loss=1.0)
meter.flush()
print("flushed", flush=True)
while True:
    with meter.span("after"):
        meter.log(loss=2.0)
"""


def test_kill_9_loses_only_what_was_not_flushed(file: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file)], stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"flushed\n"
        size = file.stat().st_size
        deadline = time.monotonic() + 60
        while file.stat().st_size == size and time.monotonic() < deadline:  # it writes by itself
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    log = read_log([file])
    assert log.damaged <= 1
    steps = [spans for spans in log.spans if spans.name == "step"]
    assert sum(len(spans.durations_ns) for spans in steps) == 1000
    assert [each.step for each in log.metrics if each.value == 1.0] == list(range(1000))
    assert any(each.value == 2.0 for each in log.metrics)


FULL = """
import os, sys
from fairmile.meter import Meter
folder = sys.argv[1]
meter = Meter(folder + "/events.jsonl")
meter.log(step=0, early=1)
meter.flush()
with open(folder + "/ballast", "wb") as ballast:
    try:
        while True:
            os.write(ballast.fileno(), bytes(4096))
    except OSError:
        pass
for step in range(3000):
    meter.log(step=step, late=step)
with meter.span("during"):
    pass
meter.flush()
meter.flush()
failed = meter.failures
os.unlink(folder + "/ballast")
meter.flush()
with open(folder + "/events.jsonl") as stream:
    sys.stdout.write(f"{failed} {meter.failures}\\n" + stream.read())
"""


def test_a_full_disk_breaks_nothing_and_loses_nothing(tmp_path: Path) -> None:
    folder, copy = tmp_path / "small", tmp_path / "copy.jsonl"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {folder}"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "sh", "-c", mount], check=False).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'{mount} && "$@"', "_", sys.executable, "-c", FULL, str(folder)],
        capture_output=True, text=True, check=True, env=ENVIRONMENT,
    )  # fmt: skip
    counted, _, text = done.stdout.partition("\n")
    failed, failures = map(int, counted.split())
    assert failed >= 2 and failures >= failed
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr and "No space left on device" in done.stderr
    copy.write_text(text)
    log = read_log([copy])
    assert log.damaged <= 1  # the stump of a line that was written again
    assert [each.name for each in log.metrics[:1]] == ["early"]
    assert [each.value for each in log.metrics if each.name == "late"] == list(range(3000))
    assert [spans.name for spans in log.spans] == ["during"]
    (event,) = log.events
    assert event.name == "meter.write_failed" and event.attributes["lines_lost"] == 0


def test_a_folder_that_vanishes_breaks_nothing_and_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    meter = Meter(folder / "events.jsonl")
    meter.event("first")
    meter.flush()
    shutil.rmtree(folder)
    for _ in range(3):
        meter.event("lost?")
        with meter.span("x"):
            pass
        meter.flush()
    assert meter.failures == 3
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"cannot write {folder}/events.jsonl: its folder no longer exists" in told
    assert not folder.exists()
    folder.mkdir()
    meter.close()
    log = read_log([folder / "events.jsonl"])
    assert log.damaged == 0
    assert [event.name for event in log.events] == ["lost?"] * 3 + ["meter.write_failed"]
    assert log.events[-1].attributes == {"times": 3, "reason": "its folder no longer exists", "lines_lost": 0}
    assert sum(len(spans.durations_ns) for spans in log.spans) == 3


def test_a_file_that_is_removed_begins_anew_with_its_writer(meter: Meter, file: Path) -> None:
    meter.event("one")
    meter.flush()
    file.unlink()
    meter.event("two")
    assert [event.name for event in read(meter).events] == ["two"]


def test_a_folder_that_moves_takes_the_log_along(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with Meter(tmp_path / "a" / "events.jsonl") as meter:
        meter.event("one")
        meter.flush()
        (tmp_path / "a").rename(tmp_path / "b")
        meter.event("two")
    assert [event.name for event in read_log([tmp_path / "b" / "events.jsonl"]).events] == ["one", "two"]


def test_a_descriptor_that_somebody_closed_and_opened_is_not_written_to(tmp_path: Path, file: Path) -> None:
    meter = Meter(file)
    meter.event("one")
    meter.flush()
    number = meter._log._descriptor
    assert number is not None
    os.close(number)
    with ExitStack() as stack:
        other = stack.enter_context(open(tmp_path / "other", "wb"))
        assert other.fileno() == number
        meter.event("two")
        meter.close()
    assert (tmp_path / "other").read_bytes() == b""
    assert [event.name for event in read_log([file]).events] == ["one", "two"]


def test_a_line_that_another_process_left_without_an_end_costs_only_itself(meter: Meter, file: Path) -> None:
    meter.event("one")
    meter.flush()
    with open(file, "ab") as stream:
        stream.write(b'{"event": "cut o')
    meter.event("two")
    meter.flush()
    log = read_log([file])
    assert ([event.name for event in log.events], log.damaged) == (["one", "two"], 1)


def test_a_clock_that_is_set_back_moves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fairmile.meter.meter as module

    with Meter(file) as meter:
        with meter.span("before"):
            pass
        meter.flush()
        real = time.time_ns
        monkeypatch.setattr(module, "time_ns", lambda: real() - 3_600_000_000_000)
        with meter.span("after"):
            pass
    with Meter(file) as later, later.span("later"):
        pass
    log = read_log([file])
    starts = {spans.name: spans.starts_ns[0] for spans in log.spans}
    assert starts["before"] < starts["after"] < starts["later"] < starts["before"] + 60_000_000_000
    assert {spans.name: spans.durations_ns[0] >= 0 for spans in log.spans} == dict.fromkeys(starts, True)


def test_what_cannot_be_written_for_long_is_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fairmile.meter.log_file._MOST_HELD_BYTES", 10_000)
    folder = tmp_path / "gone"
    meter = Meter(folder / "events.jsonl")
    for number in range(1000):
        meter.event("e", n=number)
    meter.flush()
    assert meter.dropped > 500
    folder.mkdir()
    meter.close()
    events = read_log([folder / "events.jsonl"]).events
    assert [event.attributes["n"] for event in events[:-1]] == list(range(1000 - meter.dropped))
    assert events[-1].attributes["lines_lost"] == meter.dropped


def test_a_signal_handler_that_measures_and_flushes_in_the_middle_does_not_hang(file: Path) -> None:
    program = """
import signal, sys
from fairmile.meter import Meter
meter = Meter(sys.argv[1])
seen = 0
def handler(*_):
    global seen
    seen += 1
    with meter.span("x"):
        pass
    meter.flush()
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005)
count = 0
while seen < 200:
    with meter.span("x"):
        count += 1
    meter.flush()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
meter.close()
print(count + seen)
"""
    done = python(program, str(file), timeout=120)
    log = read_log([file])
    assert log.damaged == 0
    assert sum(len(spans.durations_ns) for spans in log.spans) == int(done.stdout)
    assert max(max(spans.durations_ns) for spans in log.spans) < 60_000_000_000


def test_without_a_file_spans_are_kept_for_the_summary_and_nothing_else(tmp_path: Path) -> None:
    meter = Meter()
    with meter.span("x", n=1), meter.span("x"):
        meter.log(loss=1)
        meter.event("e")
    meter.flush()
    assert meter.summary()[0].count == 2
    assert meter.file is None
    with pytest.raises(UsageError):
        meter.log(loss="text")
    meter.close()


PROCESS = """
import sys
from fairmile.meter import current, event, flush, log, span, start, stop, timed
with span("a"): pass
@timed("b")
def b(): return 7
assert b() == 7
start("c"); stop("c")
event("d", n=1)
log(step=1, e=2)
print(current().file)
"""


def test_the_meter_of_the_process_writes_where_the_run_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = os.uname().nodename
    for shared_by in ("", host):
        monkeypatch.setitem(ENVIRONMENT, "FAIRMILE_EVENTS", str(file))
        monkeypatch.setitem(ENVIRONMENT, "FAIRMILE_EVENTS_HOST", shared_by)
        assert python(PROCESS).stdout.strip() == str(file)
        log = read_log([file])
        assert [spans.name for spans in log.spans] == ["a", "b", "c"]
        assert (log.events[0].name, log.metrics[0].name, log.damaged) == ("d", "e", 0)
        file.unlink()
    monkeypatch.setitem(ENVIRONMENT, "FAIRMILE_EVENTS_HOST", "another")
    other = file.with_name(f"events.{host}.jsonl")
    assert python(PROCESS).stdout.strip() == str(other)
    assert other.exists() and not file.exists()


def test_the_meter_of_a_process_outside_of_a_run_writes_nothing(tmp_path: Path) -> None:
    assert python(PROCESS, cwd=tmp_path).stdout.strip() == "None"
    assert list(tmp_path.iterdir()) == []


def test_the_functions_of_the_module_are_those_of_one_meter() -> None:
    assert fairmile.meter.current() is fairmile.meter.current()
    assert fairmile.meter.span.__self__ is fairmile.meter.current()  # type: ignore[attr-defined]


def test_importing_the_meter_brings_nothing_heavy() -> None:
    program = "import sys; bare = set(sys.modules); import fairmile.meter; print(*sorted(set(sys.modules) - bare))"
    brought = set(python(program).stdout.split())
    assert "fairmile.meter.meter" in brought
    assert not brought & {"json", "dataclasses", "inspect", "pathlib", "logging", "asyncio", "fairmile.meter.lines"}


def test_a_ready_line_is_written_as_it_is(meter: Meter, file: Path) -> None:
    meter.append(json.dumps({"event": "foreign", "at": 1, "p": os.getpid()}) + "\n")
    assert read(meter).events[0].name == "foreign"
