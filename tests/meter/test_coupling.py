from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairmile.meter
from fairmile.base.errors import UsageError
from fairmile.meter import Meter
from fairmile.meter.coupling import Coupling
from fairmile.meter.lines import Exchange, Log, Spans, read_log
from fairmile.meter.trace import trace_text


@pytest.fixture
def meter(tmp_path: Path) -> Iterator[Meter]:
    with Meter(tmp_path / "events.jsonl") as meter:
        yield meter


@pytest.fixture
def coupling(meter: Meter) -> Coupling:
    return Coupling(meter)


def written(meter: Meter) -> Log:
    meter.flush()
    assert meter.file is not None
    log = read_log([Path(meter.file)])
    assert log.damaged == 0
    return log


def exchanged(log: Log, name: str) -> tuple[Spans, Exchange]:
    (found,) = [spans for spans in log.spans if spans.name == name]
    assert found.exchange is not None
    return found, found.exchange


def test_an_exchange_tells_what_went_where_and_how_long_it_waited(meter: Meter, coupling: Coupling) -> None:
    with coupling.exchange("get", "field", peer="solver", version=7) as got:
        got.ready()
        got.bytes = 4096
    with coupling.exchange("get", "field", peer="solver"):
        pass
    spans, exchange = exchanged(written(meter), "get field")
    assert (exchange.how, exchange.key, exchange.peer) == ("get", "field", "solver")
    assert list(exchange.bytes) == [4096, -1] and list(exchange.versions) == [7, -1]
    assert 0 <= exchange.waits_ns[0] <= spans.durations_ns[0] and exchange.waits_ns[1] == -1


def test_more_exchanges_than_a_list_holds_are_all_there_in_order(meter: Meter, coupling: Coupling) -> None:
    count = 5000
    for version in range(count):
        with coupling.exchange("put", "field", peer="trainer", bytes=8 * version, version=version):
            pass
    spans, exchange = exchanged(written(meter), "put field")
    assert list(exchange.versions) == list(range(count))
    assert list(exchange.bytes) == [8 * version for version in range(count)]
    assert list(spans.starts_ns) == sorted(spans.starts_ns) and set(exchange.waits_ns) == {-1}
    assert [(each.name, each.count) for each in meter.summary()] == [("put field", count)]


def test_exchanges_inside_of_each_other_and_those_that_fail_are_told(meter: Meter, coupling: Coupling) -> None:
    with pytest.raises(KeyError), coupling.exchange("put", "a", version=1):
        with coupling.exchange("put", "a", version=2):
            pass
        raise KeyError
    spans, exchange = exchanged(written(meter), "put a")
    assert list(exchange.versions) == [2, 1]
    assert spans.starts_ns[1] <= spans.starts_ns[0]


def test_a_key_for_each_step_needs_no_memory_for_each(meter: Meter, coupling: Coupling) -> None:
    for step in range(1000):
        with coupling.exchange("put", f"field {step}", bytes=step):
            pass
    assert len(meter._threads_calls) < 300
    log = written(meter)
    assert {spans.name: list(spans.exchange.bytes) for spans in log.spans if spans.exchange} == {
        f"put field {step}": [step] for step in range(1000)
    }


def test_exchanges_of_threads_are_theirs(meter: Meter, coupling: Coupling) -> None:
    def work(number: int) -> None:
        for _ in range(700):
            with coupling.exchange("put", "k", version=number):
                pass
            coupling.sample("n", number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = written(meter)
    assert sorted(list(each.exchange.versions) for each in log.spans if each.exchange) == [
        [number] * 700 for number in range(3)
    ]
    assert len({each.thread for each in log.spans}) == 3
    assert sorted(list(each.values) for each in log.counters) == [[float(number)] * 700 for number in range(3)]


def test_a_counter_keeps_every_value(meter: Meter, coupling: Coupling) -> None:
    values = [1, 2.5, True, math.inf, -math.inf, 10**400, *range(1000)]
    for value in values:
        coupling.sample("queue", value)
    coupling.sample("other", math.nan)
    log = written(meter)
    queue, other = log.counters
    assert list(queue.values) == [1.0, 2.5, 1.0, math.inf, -math.inf, math.inf, *map(float, range(1000))]
    assert math.isnan(other.values[0]) and list(queue.at_ns) == sorted(queue.at_ns)
    assert '"queue"' in trace_text(log)
    assert meter.summary() == []  # a counter is not a timer


def test_turns_of_a_loop_keep_their_number(meter: Meter, coupling: Coupling) -> None:
    for iteration in range(3000):
        with coupling.phase("step", iteration):
            pass
    with coupling.phase("outer", 1), coupling.phase("outer", 2):
        pass
    log = written(meter)
    step, outer = log.spans
    assert step.attributes == [{"n": iteration} for iteration in range(3000)]
    assert outer.attributes == [{"n": 2}, {"n": 1}] and outer.starts_ns[1] <= outer.starts_ns[0]
    assert [(each.name, each.count) for each in meter.summary()] == [("step", 3000), ("outer", 2)]


def test_a_component_and_facts_are_those_of_the_process(meter: Meter, coupling: Coupling) -> None:
    coupling.component("solver")
    coupling.metadata(grid="64x64", steps=10)
    coupling.component("trainer")
    log = written(meter)
    (writer,) = log.writers
    assert (log.components, log.about) == ({writer: "trainer"}, {writer: {"grid": "64x64", "steps": "10"}})
    assert "trainer" in trace_text(log) or not log.spans


def test_the_environment_names_the_component_of_an_unchanged_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRMILE_EVENTS", str(tmp_path / "e.jsonl"))
    monkeypatch.setenv("FAIRMILE_COMPONENT", "loader")
    with fairmile.meter._ProcessMeter() as meter:
        meter.event("x")
    assert list(read_log([tmp_path / "e.jsonl"]).components.values()) == ["loader"]


def test_a_forked_process_tells_its_own(meter: Meter, coupling: Coupling) -> None:
    with coupling.exchange("put", "k", version=1):
        pass
    child = os.fork()
    if child == 0:
        try:
            with coupling.exchange("put", "k", version=2):
                pass
            meter.flush()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    log = written(meter)
    found = {spans.writer.pid: list(spans.exchange.versions) for spans in log.spans if spans.exchange}
    assert found == {os.getpid(): [1], child: [2]}


def test_outside_of_a_run_nothing_is_kept_for_ever() -> None:
    meter = Meter()
    coupling = Coupling(meter)
    for _ in range(3000):
        with coupling.exchange("put", "k", bytes=1 << 70):
            pass
        coupling.sample("n", 1)
    assert meter.summary()[0].count == 3000


def test_bytes_that_nobody_has_are_the_most_there_are(meter: Meter, coupling: Coupling) -> None:
    with coupling.exchange("put", "k", bytes=1 << 70):
        pass
    assert list(exchanged(written(meter), "put k")[1].bytes) == [(1 << 63) - 1]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda c: c.exchange("send", "k"), "not a kind of exchange"),
        (lambda c: c.exchange("put", 3), "must be strings"),
        (lambda c: c.component(""), "not a component name"),
        (lambda c: c.sample(3, 1), "not a counter name"),
        (lambda c: c.phase(3, 1), "not a timer name"),
        (lambda c: c.phase("step", 1.5), "iteration is 1.5"),
        (lambda c: c.sample("n", "many"), "is a string"),
        (lambda c: c.exchange("put", "k", bytes=1.5).__exit__(None, None, None), "bytes is 1.5"),
    ],
)
def test_what_cannot_be_told_is_refused(coupling: Coupling, wrong: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        wrong(coupling)


def test_the_module_has_them_all_and_nothing_else() -> None:
    for name in ("component", "exchange", "metadata", "phase", "sample"):
        assert getattr(fairmile.meter, name).__self__._meter is fairmile.meter.current()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fairmile.meter.nothing  # noqa: B018
