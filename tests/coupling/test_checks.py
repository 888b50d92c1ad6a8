"""Checks of a coupled simulation: drift of what is conserved, and inputs beyond what the model was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fairmile.coupling import Checks, Exchange, Solver
from fairmile.meter.lines import read_log


def exchange(rank: int, step: int, values: Sequence[float], size: int = 1) -> Exchange:
    return Exchange(Solver(rank, size), step, {"t": np.array(values)}, {})


def test_drift_is_that_of_the_sum_over_all_processes() -> None:
    checks = Checks(conserved={"heat": lambda fields: float(fields["t"].sum())})
    for step, (first, second) in enumerate([(3.0, 1.0), (1.0, 3.0), (3.0, 2.0), (2.0, 2.0)]):
        checks.see(exchange(0, step, [first], size=2))
        checks.see(exchange(1, step, [second], size=2))
    assert checks.drift == {"heat": 0.25}


def test_what_is_no_number_is_the_largest_drift() -> None:
    checks = Checks(conserved={"heat": lambda fields: float(fields["t"].sum())})
    for step, value in enumerate([1.0, math.nan]):
        checks.see(exchange(0, step, [value]))
    assert math.isnan(checks.drift["heat"])


def test_values_beyond_the_range_are_counted() -> None:
    checks = Checks(ranges={"t": (0.0, 1.0)})
    checks.see(exchange(0, 0, [0.0, 1.0, 1.5, math.nan]))
    assert checks.outside == {"t": 2}


def test_both_are_metrics_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairmile import meter

    log = tmp_path / "events.jsonl"
    monkeypatch.setattr(meter, "log", (own := meter.Meter(log)).log)
    checks = Checks(conserved={"heat": lambda fields: float(fields["t"].sum())}, ranges={"t": (0.0, 1.0)})
    for step, values in enumerate([[0.5, 0.5], [0.5, 1.5]]):
        checks.see(exchange(0, step, values))
    own.close()
    metrics = {(each.name, each.step): each.value for each in read_log([log]).metrics}
    assert metrics == {
        ("heat_drift", 0): 0.0,
        ("heat_drift", 1): 1.0,
        ("t_outside", 0): 0.0,
        ("t_outside", 1): 0.5,
    }


def test_steps_that_a_dead_process_never_completes_are_forgotten() -> None:
    import tracemalloc

    checks = Checks(conserved={"heat": lambda fields: float(fields["t"].sum())})
    sizes = []
    tracemalloc.start()
    for step in range(6000):  # the other of two processes has ended
        checks.see(exchange(0, step, [1.0], size=2))
        if step % 2000 == 1999:
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[2] < 1.1 * sizes[0]
    for step in (6000, 6001):
        for rank in (0, 1):
            checks.see(exchange(rank, step, [step - 5999.0], size=2))
    assert checks.drift == {"heat": 1.0}
