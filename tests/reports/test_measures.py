"""The numbers of a run and how people read them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from cases import for_each
from run_making import make_run, metric_document

from fairmile.reports.inference import estimate
from fairmile.reports.measures import (
    between,
    deviation,
    estimate_text,
    interval,
    known_names,
    measures,
    percent,
    results_only,
    unit_of,
    unknown_metric,
)


def test_a_run_has_its_own_metrics_and_time_energy_and_memory(tmp_path: Path) -> None:
    run = make_run(tmp_path, metrics={"loss": 0.25}, elapsed_s=2.0, energy_j=None, max_rss_bytes=4096)
    found = measures(run)
    assert {name: each.value for name, each in found.items()} == {"loss": 0.25, "elapsed_s": 2, "max_rss_bytes": 4096}
    assert found["elapsed_s"].unit == "s"


def test_a_direction_that_nobody_declared_is_taken_from_the_name(tmp_path: Path) -> None:
    found = measures(make_run(tmp_path, metrics={"val_loss": 1.0, "accuracy": 1.0, "colour": 1.0}))
    assert [found[name].better for name in ("val_loss", "accuracy", "colour")] == ["lower", "higher", ""]


def test_a_declared_direction_stands(tmp_path: Path) -> None:
    run = make_run(tmp_path, metrics={"loss": metric_document(1.0, better="higher")})
    assert measures(run)["loss"].better == "higher"


def test_a_metric_that_is_named_like_one_of_the_record_wins(tmp_path: Path) -> None:
    assert measures(make_run(tmp_path, metrics={"elapsed_s": 99.0}))["elapsed_s"].value == 99


def test_the_own_metrics_are_named_first(tmp_path: Path) -> None:
    assert known_names([make_run(tmp_path, metrics={"loss": 1.0})]) == [
        "loss",
        "elapsed_s",
        "energy_j",
        "max_rss_bytes",
    ]


@pytest.mark.parametrize(
    ("unit", "value"), [("TFLOP/s", 0.5), ("GFLOPS", 500.0), ("FLOP/s", 5e11)], ids=["tera", "giga", "plain"]
)
def test_a_rate_of_operations_is_also_given_per_watt(tmp_path: Path, unit: str, value: float) -> None:
    rate = {"gemm": metric_document(value, unit=unit), "loss": metric_document(1.0)}
    run = make_run(tmp_path, metrics=rate, elapsed_s=10.0, energy_j=2500.0)
    per_watt = measures(run)["gemm_per_watt"]
    assert (per_watt.value, per_watt.unit, per_watt.better) == (pytest.approx(2.0), "GFLOPS/W", "higher")
    assert "loss_per_watt" not in measures(run)


def test_without_energy_nothing_is_given_per_watt(tmp_path: Path) -> None:
    run = make_run(tmp_path, metrics={"gemm": metric_document(1.0, unit="GFLOPS")}, energy_j=None)
    assert "gemm_per_watt" not in measures(run)


@for_each(
    "mean, half, unit, text",
    [
        (0.12345, 0.0123, "", "0.123 ± 0.012"),
        (30.612, 0.34, "s", "30.61 ± 0.34 s"),
        (7046.2, 40.0, "J", "7,046 ± 40 J"),
        (3.0 * 1024**3, 0.0, "bytes", "3 ± 0 GiB"),
        (5.0, None, "s", "5 s"),
        (math.nan, 1.0, "", "NaN"),
    ],
)
def test_a_mean_is_rounded_to_where_its_interval_begins(mean: float, half: float | None, unit: str, text: str) -> None:
    assert interval(mean, half, unit) == text


@for_each(
    "value, text",
    [(0.5, "+50 %"), (-0.00236, "−0.236 %"), (0.0, "0 %"), (None, ""), (40.2, "+4,020 %"), (250.0, "+25,000 %")],
)
def test_fractions_are_percentages(value: float | None, text: str) -> None:
    assert percent(value) == text


@for_each(
    "low, high, unit, text",
    [
        (0.05657, 0.1462, "s", "0.05657 … 0.1462 s"),
        (-0.02, 0.03, "s", "−20 … 30 ms"),
        (8000.0, 10000.0, "J", "8 … 10 kJ"),
        (60.0, 180.0, "s", "60 s … 3m"),
        (1024.0, 3.0 * 1024**2, "bytes", "0.0009766 … 3 MiB"),
        (0.0, 0.5, "", "0 … 0.5"),
        (None, 0.5, "", ""),
    ],
)
def test_both_ends_of_an_interval_are_told_in_one_unit(
    low: float | None, high: float | None, unit: str, text: str
) -> None:
    assert between(low, high, unit) == text


def test_a_large_percentage_gets_no_sign_where_none_is_wanted() -> None:
    assert [percent(value, signed=False) for value in (0.5, 250.0)] == ["50 %", "25,000 %"]


@for_each(
    "sd, mean, unit, text",
    [
        (0.01805, 0.101, "s", "0.018 s"),
        (95_539.0, 11.27 * 1024**2, "bytes", "0.091 MiB"),
        (0.0, 3.0, "", "0"),
        (None, 3.0, "s", ""),
    ],
)
def test_a_deviation_is_told_in_the_unit_of_its_mean(sd: float | None, mean: float, unit: str, text: str) -> None:
    assert deviation(sd, mean, unit) == text


def test_a_name_carries_its_unit() -> None:
    assert [unit_of(name) for name in ("elapsed_s", "energy_j", "memory_bytes", "loss")] == ["s", "J", "bytes", ""]


def test_an_unknown_metric_is_answered_with_the_nearest() -> None:
    error = unknown_metric("los", ["loss", "accuracy"])
    assert "'los'" in str(error)
    assert error.hint == "did you mean 'loss'?"
    assert unknown_metric("x", ["loss", "accuracy"]).hint == "they have loss, accuracy"


SPREAD = (0.0, 0.5, 0.1, 0.4, 0.2, 0.3, 0.25)


@for_each(
    "values, text",
    [
        ([0.5], "0.5"),
        ([0.4, 0.6], "0.5 (0.4 to 0.6)"),
        ([0.4, 0.5, 0.9], "0.6 (0.4 to 0.9)"),
        ([0.5, 0.5, 0.5], "0.5"),
        ([0.5] * 7, "0.5 ± 0"),
        ([10 + each for each in SPREAD], "10.25 ± 0.16"),
        (SPREAD, "0.25 ± 0.16"),
        ([0.0] * 6 + [0.7], "0.1 (0 … 0.3447)"),
    ],
)
def test_few_values_are_told_by_their_range_and_an_interval_ends_where_the_quantity_does(
    values: list[float], text: str
) -> None:
    assert estimate_text(estimate(values, bounds=(0.0, math.inf))) == text


def test_counters_are_no_results() -> None:
    assert results_only(["epoch", "loss", "Iteration", "elapsed_s"]) == ["loss"]
