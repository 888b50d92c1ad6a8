from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import UsageError
from fairmile.runs.projection import project, walltime
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run
from fairmile.runs.results import Projection

S = 1_000_000_000


def make_run(
    folder: Path,
    elapsed_s: float,
    *,
    steps: Sequence[Sequence[float]] = (),
    span: str = "epoch",
    state: str = "done",
    host: str = "n1",
    apart_s: float = 0.0,
    packed: bool = False,
    name: str = "train",
    **params: Any,
) -> Run:
    """A finished run; each row of `steps` is a process, which starts `apart_s` after the one before."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for pid, row in enumerate(steps, 1):
        lines.append({"writer": {"host": host, "rank": pid - 1, "wall_ns": 10**18, "clock_ns": 0}, "p": pid})
        at, now = [], round((pid - 1) * apart_s * S)
        for each in row:
            at += [now, round(each * S)]
            now += round(each * S)
        lines.append({"spans": span, "at": at, "thread": 1, "p": pid})
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = {
        "format": "fairmile-run/1",
        "id": folder.name,
        "created": 1.0,
        "spec": {"name": name, "argv": ["train"], "params": params},
        "captured": {"hardware": {"host": host}},
        "result": {"state": state, "elapsed_s": elapsed_s},
    }
    return Run(RunRecord.from_dict(document), folder, packed)


def whole(tmp_path: Path, *points: tuple[int, float]) -> list[Run]:
    return [make_run(tmp_path / f"r{at}", took, epochs=epochs) for at, (epochs, took) in enumerate(points)]


# Whole runs


def test_two_whole_runs_give_a_line_and_say_that_nothing_tells_how_sure_it_is(tmp_path: Path) -> None:
    found = project(whole(tmp_path, (2, 14.0), (10, 30.0)), to=100)
    assert (found.seconds, found.per_step_s, found.fixed_s) == pytest.approx((210, 2, 10))
    assert (found.low, found.high) == (None, None)
    assert "two runs are too few for an interval" in found.warning
    assert found.basis == "a line through 2 runs of 2, 10 epochs"


def test_three_whole_runs_give_an_interval_that_is_the_weighted_textbook_one(tmp_path: Path) -> None:
    points = ((2, 14.2), (5, 19.7), (10, 30.3))
    found = project(whole(tmp_path, *points), to=40, level=0.9)
    weights = [1 / n for n, _ in points]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, points, strict=True)) / total
    mean_t = sum(w * t for w, (_, t) in zip(weights, points, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, points, strict=True))
    slope = sum(w * (n - mean_n) * (t - mean_t) for w, (n, t) in zip(weights, points, strict=True)) / spread
    residual = sum(w * (t - mean_t - slope * (n - mean_n)) ** 2 for w, (n, t) in zip(weights, points, strict=True))
    width = 6.313751515 * math.sqrt(residual * (40 + 1 / total + (40 - mean_n) ** 2 / spread))
    assert found.seconds == pytest.approx(mean_t + slope * (40 - mean_n))
    assert (found.low, found.high) == pytest.approx((found.seconds - width, found.seconds + width))
    assert found.warning == ""


def test_one_number_of_epochs_cannot_tell_the_fixed_part_from_an_epoch(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="all runs have 2 epochs") as caught:
        project(whole(tmp_path, (2, 14.0), (2, 14.1)), to=100)
    assert "with span('epoch')" in str(caught.value.hint)


def test_runs_that_take_no_longer_with_more_epochs_tell_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did not take longer"):
        project(whole(tmp_path, (2, 14.0), (10, 13.0)), to=100)


def test_a_fixed_part_below_nothing_is_said(tmp_path: Path) -> None:
    assert "start-up time is negative" in project(whole(tmp_path, (2, 1.0), (10, 9.0)), to=20).warning


def test_a_number_that_came_as_text_counts(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 14.0, epochs="2"), make_run(tmp_path / "b", 30.0, epochs="10")]
    assert project(runs, to=100).seconds == pytest.approx(210)


def test_runs_of_which_none_succeeded_tell_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none of these runs succeeded"):
        project([make_run(tmp_path, 14.0, epochs=2, state="failed")], to=100)


@pytest.mark.parametrize("value", [True, None, "many", 0, -3, 2.5, "inf", "nan"])
def test_what_is_no_number_of_epochs_is_no_point(tmp_path: Path, value: object) -> None:
    with pytest.raises(UsageError, match="no successful run has spans 'epoch' or a parameter 'epochs'"):
        project([make_run(tmp_path / "a", 14.0, epochs=value)], to=100)


# Timed steps


def test_one_run_with_timed_epochs_is_enough(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 5 + 4 + 2 * 3.0, steps=[[4.0, 3.0, 3.0]], epochs=3)
    found = project([run], to=100)
    # The first epoch is warm-up: 1 s of it and the 5 s beside the epochs are fixed.
    assert (found.seconds, found.per_step_s, found.fixed_s) == pytest.approx((306, 3, 6))
    assert (found.low, found.high) == pytest.approx((306, 306))
    assert found.warning == "only one run: the interval ignores the variation between runs"
    assert found.basis == (
        "2 timed epochs of 1 run, 3 s each (1 excluded as warm-up), plus 6 s for start-up and warm-up"
    )


def test_a_long_warm_up_is_found_and_paid_once(tmp_path: Path) -> None:
    steps = [9.0, 7.0, 5.0, *[3.0, 3.1, 2.9] * 3]
    found = project([make_run(tmp_path / "a", sum(steps) + 2, steps=[steps], epochs=12)], to=1000)
    assert found.per_step_s == pytest.approx(3.0)
    assert found.fixed_s == pytest.approx(2 + 6 + 4 + 2)


def test_an_epoch_that_is_slow_now_and_then_is_no_warm_up(tmp_path: Path) -> None:
    steps = [3.0, 3.0, 3.0, 3.0, 8.0] * 4  # it saves its state each fifth time
    found = project([make_run(tmp_path / "a", sum(steps), steps=[steps], epochs=20)], to=1000)
    assert found.per_step_s == pytest.approx(4.0, rel=0.02)
    assert found.high is not None and found.low is not None and found.low < 4000 < found.high


def test_the_interval_comes_from_the_scatter_of_the_epochs(tmp_path: Path) -> None:
    steps = [3.0, 2.9, 3.1, 2.9, 3.1]
    found = project([make_run(tmp_path / "a", sum(steps), steps=[steps], epochs=5)], to=50)
    width = 2.353363435 * math.sqrt(4 * 0.01 / 3 * (50 + 50**2 / 4))  # t of 3 degrees
    assert found.high == pytest.approx(found.seconds + width)


def test_two_timed_epochs_alone_tell_no_interval(tmp_path: Path) -> None:
    found = project([make_run(tmp_path / "a", 9.0, steps=[[4.0, 3.0]], epochs=2)], to=10)
    assert found.seconds == pytest.approx(2 + 1 + 30)
    assert found.high is None
    assert "too few steps" in found.warning


def test_runs_that_differ_from_one_another_widen_the_interval(tmp_path: Path) -> None:
    def spread(means: Sequence[float], name: str) -> float:
        rows = [[mean, mean - 0.01, mean + 0.01, mean] for mean in means]
        runs = [make_run(tmp_path / f"{name}{i}", sum(row), steps=[row], epochs=4) for i, row in enumerate(rows)]
        found = project(runs, to=100)
        assert found.low is not None and found.high is not None
        return found.high - found.low

    assert spread((2.5, 3.0, 3.5), "far") > 20 * spread((3.0, 3.0, 3.0), "near")


def test_ranks_do_a_step_together_and_the_slowest_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 10.0, steps=[[1.0, 1.0, 1.0], [1.0, 2.0, 2.0]], epochs=3)
    assert project([run], to=10).per_step_s == pytest.approx(2)


def test_attempts_one_after_the_other_did_different_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 100.0, steps=[[1.0, 1.0], [1.0, 1.0, 1.0]], apart_s=50.0, epochs=5)
    assert project([run], to=10).basis.startswith("4 timed epochs")


def test_batches_are_added_up_to_epochs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 10.0, steps=[[0.5] * 12], span="batch", epochs=3)
    assert project([run], to=10, span="batch").per_step_s == pytest.approx(2)


def test_spans_that_cannot_be_shared_out_are_not_used(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", 14.0, steps=[[0.5] * 3], epochs=2),
        make_run(tmp_path / "b", 30.0, steps=[[0.5] * 11], epochs=10),
    ]
    assert project(runs, to=100).basis.startswith("a line through 2 runs")


def test_the_spans_of_a_packed_run_are_not_needed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 14.0, epochs=2, packed=True), make_run(tmp_path / "b", 30.0, epochs=10)]
    assert project(runs, to=100).seconds == pytest.approx(210)


def test_steps_that_keep_getting_longer_are_said(tmp_path: Path) -> None:
    steps = [1 + 0.1 * at for at in range(10)]
    found = project([make_run(tmp_path / "a", sum(steps), steps=[steps], epochs=10)], to=20)
    assert "the epochs became longer by 53%" in found.warning


def test_a_far_goal_is_said(tmp_path: Path) -> None:
    assert "more than 100 times the longest run" in project(whole(tmp_path, (2, 14.0), (10, 30.0)), to=1001).warning


@pytest.mark.parametrize(("noise", "between"), [(0.1, 0.0), (0.05, 0.03), (0.3, 0.1)])
def test_the_interval_holds_the_truth_as_often_as_it_says(tmp_path: Path, noise: float, between: float) -> None:
    draw = random.Random(5)

    def drawn(count: int) -> tuple[list[float], float]:
        mean, fixed = 1 + draw.gauss(0, between), 5 + draw.gauss(0, 0.2)
        steps = [max(mean + draw.gauss(0, noise), 0.01) for _ in range(count)]
        steps[0] += 2
        return steps, fixed + sum(steps)

    inside, trials = 0, 120
    for _ in range(trials):
        runs = []
        for at, count in enumerate((5, 10, 10)):
            steps, elapsed_s = drawn(count)
            runs.append(make_run(tmp_path / f"r{at}", elapsed_s, steps=[steps], epochs=count))
        found, (_, truth) = project(runs, to=100, level=0.9), drawn(100)
        assert found.low is not None and found.high is not None
        inside += found.low <= truth <= found.high
    assert 0.84 <= inside / trials <= 0.99


PROGRAM = """
import json, sys, time
import numpy
events, epochs = sys.argv[1], int(sys.argv[2])
at = []
values = numpy.random.default_rng(0).random((64, 64))
for _ in range(epochs):
    start = time.monotonic_ns()
    values = numpy.tanh(values @ values.T / 64)
    at += [start, time.monotonic_ns() - start]
with open(events, "w") as stream:
    writer = {"host": "n1", "rank": None, "wall_ns": time.time_ns(), "clock_ns": time.monotonic_ns()}
    print(json.dumps({"writer": writer, "p": 1}), file=stream)
    print(json.dumps({"spans": "epoch", "at": at, "thread": 1, "p": 1}), file=stream)
"""


def test_short_runs_of_a_real_program_are_projected(tmp_path: Path) -> None:
    runs = []
    for epochs in (3, 6):
        folder = tmp_path / f"e{epochs}"
        run = make_run(folder, 1.0, epochs=epochs)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", PROGRAM, str(folder / "events.jsonl"), str(epochs)], check=True)
        run.record.result.elapsed_s = time.perf_counter() - start
        runs.append(run)
    found = project(runs, to=1000)
    assert "timed epochs of 2 runs" in found.basis
    assert found.per_step_s > 0
    assert found.low is not None and found.high is not None
    assert found.low <= found.seconds <= found.high


# What cannot be projected


def test_runs_that_failed_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    runs = [*whole(tmp_path, (2, 14.0), (10, 30.0)), make_run(tmp_path / "f", 1.0, epochs=50, state="failed")]
    found = project(runs, to=100)
    assert found.seconds == pytest.approx(210)
    assert "1 of 3 runs did not succeed" in found.warning


def test_runs_that_differ_in_more_than_the_epochs_are_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 14.0, epochs=2, batch=8), make_run(tmp_path / "b", 30.0, epochs=10, batch=16)]
    with pytest.raises(UsageError, match=r"differ in batch \(8, 16\)"):
        project(runs, to=100)


def test_another_seed_makes_no_difference(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 14.0, epochs=2, seed=1), make_run(tmp_path / "b", 30.0, epochs=10, seed=2)]
    assert project(runs, to=100).seconds == pytest.approx(210)


def test_runs_of_different_things_are_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 1.0, epochs=2), make_run(tmp_path / "b", 2.0, epochs=3, name="other")]
    with pytest.raises(UsageError, match="other, train"):
        project(runs, to=9)


def test_runs_from_different_machines_are_said(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", 14.0, epochs=2), make_run(tmp_path / "b", 30.0, epochs=10, host="n2")]
    assert "different machines (n1, n2)" in project(runs, to=100).warning


def test_no_run_projects_nothing() -> None:
    with pytest.raises(UsageError, match="no run to project from"):
        project([], to=10)


def test_impossible_wishes_are_refused(tmp_path: Path) -> None:
    runs = whole(tmp_path, (2, 14.0), (10, 30.0))
    with pytest.raises(UsageError, match="0 epochs"):
        project(runs, to=0)
    with pytest.raises(UsageError, match="confidence level"):
        project(runs, to=10, level=90)


# Wall time


def projection(seconds: float, high: float | None) -> Projection:
    return Projection(seconds, high and 0.0, high, 0.9, 100, seconds / 100, 0.0, "")


def test_the_wall_time_is_the_upper_end_and_a_margin_in_whole_minutes() -> None:
    assert walltime(projection(1000, 1100)) == 1260  # 1210 s
    assert walltime(projection(1000, 1100), margin=0) == 1140
    assert walltime(projection(1, 2)) == 60


def test_without_an_interval_the_margin_is_at_least_a_half() -> None:
    assert walltime(projection(1000, None)) == 1500
    assert walltime(projection(1000, None), margin=1.0) == 2040


def test_what_fits_but_for_the_rounding_gets_the_limit() -> None:
    assert walltime(projection(1000, 1100), limit_s=1250) == 1250


def test_more_than_the_partition_gives_is_refused_with_the_limit_and_what_would_fit() -> None:
    with pytest.raises(UsageError, match=r"100 steps need 20m 10s with the margin, but the limit is 10m") as caught:
        walltime(projection(1000, 1100), limit_s=600)
    assert str(caught.value.hint).startswith("about 49 steps fit")


def test_a_negative_margin_is_refused() -> None:
    with pytest.raises(UsageError, match="is negative"):
        walltime(projection(10, 11), margin=-0.1)
