from __future__ import annotations

import csv
import io
import json
import math
import random
import statistics
from array import array
from typing import Any

import numpy
import pytest

import fairmile.meter.tally as tally_module
from fairmile.base import yaml
from fairmile.base.errors import UsageError
from fairmile.meter import Meter
from fairmile.meter.lines import Log, Logged, Spans, Writer
from fairmile.meter.summaries import (
    metric_documents,
    render,
    span_documents,
    summarise,
    summarise_metrics,
)
from fairmile.meter.tally import Tally


def writer(rank: int | None = None) -> Writer:
    return Writer("n1", 1 if rank is None else rank, rank, 0, 0)


def spans(name: str, durations: list[int], rank: int | None = None) -> Spans:
    starts = array("q", range(len(durations)))
    return Spans(name, writer(rank), 0, starts, array("q", durations), [None] * len(durations))


def metrics(*values: float, name: str = "loss", rank: int | None = None) -> list[Logged]:
    return [Logged(name, value, step, step, writer(rank)) for step, value in enumerate(values)]


def test_the_statistics_of_spans_are_those_of_numpy() -> None:
    draw = random.Random(1)
    durations = [draw.randrange(10**9) for _ in range(1001)]
    (found,) = summarise(Log(spans=[spans("x", durations[:400], 0), spans("x", durations[400:], 1)]))
    seconds = numpy.array(durations) / 1e9
    assert found.count == 1001 and found.rank is None
    assert found.total_s == pytest.approx(seconds.sum())
    assert (found.min_s, found.max_s) == (seconds.min(), seconds.max())
    assert found.mean_s == pytest.approx(seconds.mean())
    assert found.deviation_s == pytest.approx(statistics.stdev(durations) / 1e9)
    assert [found.p50_s, found.p95_s, found.p99_s] == pytest.approx(numpy.percentile(seconds, [50, 95, 99]).tolist())


def test_ranks_stand_by_themselves_on_request() -> None:
    log = Log(spans=[spans("x", [1], 0), spans("y", [5], 0), spans("x", [3, 4], 1)])
    found = summarise(log, by_rank=True)
    assert [(each.name, each.rank, each.count) for each in found] == [("x", 0, 1), ("y", 0, 1), ("x", 1, 2)]


def test_one_call_has_no_deviation() -> None:
    (found,) = summarise(Log(spans=[spans("x", [7])]))
    assert (found.count, found.deviation_s, found.p99_s) == (1, None, 7e-9)


def test_long_equal_times_have_no_deviation_from_rounding() -> None:
    (found,) = summarise(Log(spans=[spans("x", [10**15 + 1] * 1000)]))
    assert found.deviation_s == 0.0


def test_more_calls_than_memory_should_hold_keep_exact_sums_and_near_percentiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tally_module, "MOST_SAMPLES", 1000)
    draw = random.Random(2)
    durations = [draw.randrange(1000) for _ in range(20_000)]
    tally, at = Tally(), 0
    while at < len(durations):
        step = draw.randrange(1, 700)
        tally.add(array("q", durations[at : at + step]))
        at += step
    other = Tally(durations[:300])
    tally.merge(other)
    everything = durations + durations[:300]
    squares = sum(each * each for each in everything)
    assert tally.moments() == (len(everything), sum(everything), min(everything), max(everything), squares)
    assert not tally.exact and other.exact
    assert len(tally._samples) <= 1000
    assert tally.percentiles_ns([0.5])[0] == pytest.approx(500, abs=60)


def test_samples_are_thinned_evenly_over_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "MOST_SAMPLES", 100)
    tally = Tally()
    for start in range(0, 5000, 7):
        tally.add(array("q", range(start, min(start + 7, 5000))))
    stride = tally._stride
    assert stride == 64
    assert list(tally._samples) == list(range(0, 5000, stride))


def test_a_live_meter_is_summarised_like_its_log() -> None:
    meter = Meter(rank=3)
    for _ in range(5):
        with meter.span("x"):
            pass
    (found,) = summarise(meter, by_rank=True)
    assert (found.name, found.rank, found.count) == ("x", 3, 5)
    assert summarise(meter) == meter.summary()


def test_metrics_are_summarised_past_nan_and_infinity() -> None:
    (found,) = summarise_metrics(Log(metrics=metrics(4.0, math.nan, 1.0, math.inf, 2.0)), better={"loss": "lower"})
    assert (found.first, found.last, found.min, found.max) == (4.0, 2.0, 1.0, math.inf)
    assert found.mean == pytest.approx(7 / 3)
    assert (found.count, found.not_finite, found.at_best_step) == (5, 2, 2)


def test_the_best_step_needs_a_direction() -> None:
    log = Log(metrics=metrics(1.0, 3.0, 2.0))
    assert summarise_metrics(log)[0].at_best_step is None
    assert summarise_metrics(log, better={"loss": "higher"})[0].at_best_step == 1


def test_a_metric_of_nothing_but_nan_is_nan() -> None:
    (found,) = summarise_metrics(Log(metrics=metrics(math.nan, math.nan)), better={"loss": "lower"})
    assert all(math.isnan(value) for value in (found.first, found.last, found.min, found.max, found.mean))
    assert (found.count, found.at_best_step) == (2, None)


def test_metrics_of_huge_values_do_not_overflow() -> None:
    (found,) = summarise_metrics(Log(metrics=metrics(1.7e308, 1.7e308)))
    assert found.mean == 1.7e308


def test_the_record_of_a_run_keeps_the_last_value_and_that_of_rank_0() -> None:
    log = Log(metrics=[*metrics(9.0, 8.0, rank=1), *metrics(2.0, math.nan, rank=0), *metrics(5.0, name="only", rank=1)])
    assert metric_documents(log) == {
        "loss": {"value": "NaN", "first": 2.0, "min": 2.0, "max": 2.0, "mean": 2.0, "count": 2},
        "only": {"value": 5.0, "first": 5.0, "min": 5.0, "max": 5.0, "mean": 5.0, "count": 1},
    }
    document = span_documents(Log(spans=[spans("x", [1_000_000_000, 3_000_000_000])]))
    assert document["x"]["count"] == 2 and document["x"]["total_s"] == 4.0 and document["x"]["mean_s"] == 2.0
    assert set(document["x"]) == {
        "count", "total_s", "mean_s", "min_s", "max_s", "deviation_s", "p50_s", "p95_s", "p99_s"
    }  # fmt: skip


def summaries() -> list[Any]:
    meter = Meter()
    meter.start("still, running")
    return [*summarise(Log(spans=[spans("epoch", [10**9, 2 * 10**9])])), *meter.summary()]


def test_a_table_tells_times_with_units_and_what_still_runs() -> None:
    lines = render(summaries()).splitlines()
    assert lines[0].split() == [
        "name",
        "count",
        "running",
        "total",
        "mean",
        "min",
        "max",
        "deviation",
        "p50",
        "p95",
        "p99",
    ]
    assert "1.5 s" in lines[2] and lines[2].startswith("epoch")
    assert lines[3].startswith("still, running") and lines[3].count("–") == 7
    assert render([]) == ""


def test_plain_text_is_a_sentence_for_each() -> None:
    first, second = render(summaries(), "text").splitlines()
    assert first == "epoch: 2 calls, 3 s in total, 1.5 s on average, 1 s to 2 s"
    assert second == "still, running: 1 running"
    (metric,) = render(summarise_metrics(Log(metrics=metrics(1.0, 3.0))), "text").splitlines()
    assert metric == "loss: 2 values, first 1, last 3, 1 to 3, mean 2"


def test_csv_json_and_yaml_tell_the_same_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(render(summaries(), "csv"))))
    assert rows[0]["total_s"] == "3.0" and rows[1]["name"] == "still, running" and rows[1]["mean_s"] == ""
    from_json = json.loads(render(summaries(), "json"))
    assert from_json == yaml.load(render(summaries(), "yaml"))
    assert from_json[0]["p50_s"] == 1.5 and from_json[1]["running"] == 1


def test_json_has_no_bare_nan() -> None:
    text = render(summarise_metrics(Log(metrics=metrics(math.nan))), "json")
    assert json.loads(text, parse_constant=lambda word: pytest.fail(word))[0]["last"] == "NaN"


def test_a_form_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no form 'xml'"):
        render([], "xml")  # type: ignore[arg-type]
