"""Logs as curves, epochs and phases."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_making import make_run, training_events

from fairmile.meter.lines import Log
from fairmile.reports.curves import Curve, curves, epochs, merged, over_epochs, thinned, timeline

WRITER = {"writer": {"host": "n1", "rank": 0, "wall_ns": 0, "clock_ns": 0}, "p": 1}
S = 1_000_000_000


def log_of(tmp_path: Path, *lines: dict[str, Any]) -> Log:
    return make_run(tmp_path, events=[WRITER, *lines]).log()


def test_a_metric_is_a_curve_over_its_steps(tmp_path: Path) -> None:
    found = curves(log_of(tmp_path, *({"log": {"loss": 1 / n}, "step": n, "at": n, "p": 1} for n in (3, 1, 2))))
    assert found["loss"].xs == (1, 2, 3)
    assert found["loss"].ys == (1, 1 / 2, 1 / 3)


def test_a_step_that_is_logged_again_counts_as_it_was_last(tmp_path: Path) -> None:
    lines = [{"log": {"loss": value}, "step": 1, "at": at, "p": 1} for at, value in enumerate((5.0, 4.0))]
    assert curves(log_of(tmp_path, *lines))["loss"].ys == (4.0,)


def test_values_without_a_step_are_numbered(tmp_path: Path) -> None:
    lines = [{"log": {"loss": 1.0}, "at": at, "p": 1} for at in range(3)]
    assert curves(log_of(tmp_path, *lines))["loss"].xs == (0, 1, 2)


def test_of_many_ranks_the_first_speaks(tmp_path: Path) -> None:
    other = {"writer": {"host": "n1", "rank": 1, "wall_ns": 0, "clock_ns": 0}, "p": 2}
    lines = [{"log": {"loss": float(pid)}, "step": 1, "at": 1, "p": pid} for pid in (1, 2)]
    assert curves(log_of(tmp_path, other, *lines))["loss"].ys == (1.0,)


def test_nan_stays_in_the_curve_and_is_counted(tmp_path: Path) -> None:
    lines = [{"log": {"loss": value}, "step": n, "at": n, "p": 1} for n, value in enumerate([1.0, "NaN", "Infinity"])]
    assert curves(log_of(tmp_path, *lines))["loss"].not_finite == 2


def test_epochs_are_the_spans_of_that_name_with_their_numbers(tmp_path: Path) -> None:
    lines = [{"spans": "epoch", "at": [n * S, 2 * S], "p": 1, "with": {"n": n}} for n in (1, 2, 3)]
    found = epochs(log_of(tmp_path, *lines))
    assert found is not None
    assert (found.xs, found.ys) == ((1, 2, 3), (2, 2, 2))


def test_epochs_without_numbers_are_counted(tmp_path: Path) -> None:
    found = epochs(log_of(tmp_path, {"spans": "train epoch", "at": [0, S, S, 2 * S], "p": 1}))
    assert found is not None
    assert (found.xs, found.ys) == ((0, 1), (1, 2))


def test_without_a_timer_there_are_no_epochs(tmp_path: Path) -> None:
    assert epochs(log_of(tmp_path, {"spans": "load", "at": [0, S], "p": 1})) is None


def test_batches_are_placed_within_the_epoch_they_were_logged_in() -> None:
    epoch = Curve("time per epoch", (0, 1), (10.0, 10.0), (0.0, 10.0))
    batches = Curve("loss", tuple(range(4)), (4, 3, 2, 1), (2.5, 7.5, 12.5, 20.0))
    assert over_epochs(batches, epoch).xs == (0.25, 0.75, 1.25, 2.0)


def test_values_once_an_epoch_stay_where_they_are() -> None:
    epoch = Curve("time per epoch", (0, 1), (10.0, 10.0), (0.0, 10.0))
    values = Curve("loss", (0, 1), (4, 3), (10.0, 20.0))
    assert over_epochs(values, epoch) is values


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5000), st.integers(10, 2000))
def test_a_thinned_curve_keeps_its_extremes_and_ends(ys: list[float], most: int) -> None:
    xs = [float(at) for at in range(len(ys))]
    few_x, few_y = thinned(xs, ys, most)
    assert len(few_x) <= max(most, 1)
    assert few_x == sorted(few_x)
    assert (min(few_y), max(few_y)) == (min(ys), max(ys))
    assert (few_x[0], few_x[-1]) == (xs[0], xs[-1])


def test_a_million_points_become_two_thousand_with_the_spike() -> None:
    ys = [0.0] * 1_000_000
    ys[123_456] = 7.0
    few_x, few_y = thinned(range(1_000_000), ys)
    assert len(few_x) <= 2000
    assert few_y[few_x.index(123_456)] == 7.0


def test_phases_come_with_the_longest_first(tmp_path: Path) -> None:
    found = timeline(make_run(tmp_path, events=training_events(epochs=3)).log())
    assert found is not None
    assert [(phase.name, phase.calls) for phase in found.phases] == [("epoch", 3), ("load", 1), ("validate", 3)]
    assert found.phases[1].intervals == ((0.0, 2.0),)


def test_the_innermost_phase_is_the_one_that_began_last(tmp_path: Path) -> None:
    lines = [{"spans": "outer", "at": [0, 10 * S], "p": 1}, {"spans": "inner", "at": [2 * S, 3 * S], "p": 1}]
    found = timeline(log_of(tmp_path, *lines))
    assert found is not None
    assert found.segments == ((0, 2, "outer"), (2, 5, "inner"), (5, 10, "outer"))


def test_power_is_taken_as_measured_and_only_once_for_a_device(tmp_path: Path) -> None:
    channels = [
        {"name": "gpu0.energy", "unit": "J", "kind": "counter", "source": "nvml", "scope": "device 0"},
        {"name": "gpu0.power", "unit": "W", "source": "nvml", "scope": "device 0"},
    ]
    samples = [{"sample": [10.0 * n, 10.5], "at": n * S, "watch": "w", "p": 1} for n in range(4)]
    found = timeline(log_of(tmp_path, {"channels": channels, "watch": "w", "p": 1}, *samples))
    assert found is not None
    assert [(trace.channel.name, set(trace.watts)) for trace in found.traces] == [("gpu0.power", {10.5})]


def test_a_counter_of_joules_tells_power_also_when_it_begins_anew(tmp_path: Path) -> None:
    channels = [
        {"name": "cpu", "unit": "J", "kind": "counter", "source": "rapl", "scope": "socket 0", "wraps_at": 100.0}
    ]
    samples = [{"sample": [value], "at": n * S, "watch": "w", "p": 1} for n, value in enumerate([80.0, 95.0, 10.0])]
    found = timeline(log_of(tmp_path, {"channels": channels, "watch": "w", "p": 1}, *samples))
    assert found is not None
    assert found.traces[0].watts == (15, 15, 15, 15)


def test_an_empty_log_has_no_time_line() -> None:
    assert timeline(Log()) is None


def test_intervals_that_nearly_touch_become_one() -> None:
    assert merged([(3, 4), (0, 1), (1.05, 2)], 0.1) == ((0, 2), (3, 4))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_readings_that_failed_are_left_out_of_a_trace(tmp_path: Path, value: float) -> None:
    channels = [{"name": "p", "unit": "W", "source": "s", "scope": "node"}]
    text = "NaN" if math.isnan(value) else "Infinity"
    samples = [{"sample": [each], "at": n * S, "watch": "w", "p": 1} for n, each in enumerate([1.0, None, text, 2.0])]
    found = timeline(log_of(tmp_path, {"channels": channels, "watch": "w", "p": 1}, *samples))
    assert found is not None
    assert found.traces[0].watts == (1.0, 2.0)


def test_power_of_the_moment_goes_before_a_running_mean(tmp_path: Path) -> None:
    channels = [
        {"name": name, "unit": "W", "source": "nvml", "scope": "device 0"}
        for name in ("gpu0.power", "gpu0.power_instant")
    ]
    samples = [{"sample": [100.0, 300.0], "at": at * S, "watch": "w", "p": 1} for at in range(3)]
    found = timeline(log_of(tmp_path, {"channels": channels, "watch": "w", "p": 1}, *samples))
    assert found is not None
    assert [(trace.channel.name, trace.watts[0]) for trace in found.traces] == [("gpu0.power_instant", 300.0)]
