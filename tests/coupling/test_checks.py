"""Checks of a coupled simulation: drift of what is conserved, and inputs beyond what the model was trained on."""

from __future__ import annotations

import math
import socket as sockets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from fairmile.coupling import Checks, Exchange, Solver
from fairmile.meter.lines import read_log


@pytest.fixture
def line() -> Iterator[sockets.socket]:
    with sockets.socket(sockets.AF_UNIX) as line:
        yield line


def exchange(line: sockets.socket, rank: int, step: int, values: Sequence[float], size: int = 1) -> Exchange:
    solver = Solver(rank, size, lag=0, every=1, line=line, slots=[])
    return Exchange(solver, step, {"t": np.array(values)}, {})


def test_drift_is_that_of_the_sum_over_all_processes(line: sockets.socket) -> None:
    checks = Checks(conserved={"heat": lambda fields: float(fields["t"].sum())})
    for step, (first, second) in enumerate([(3.0, 1.0), (1.0, 3.0), (3.0, 2.0), (2.0, 2.0)]):
        checks.see(exchange(line, 0, step, [first], size=2))
        checks.see(exchange(line, 1, step, [second], size=2))
    assert checks.drift == {"heat": 0.25}


def test_what_is_no_number_is_the_largest_drift(line: sockets.socket) -> None:
    checks = Checks(conserved={"heat": lambda fields: float(fields["t"].sum())})
    for step, value in enumerate([1.0, math.nan]):
        checks.see(exchange(line, 0, step, [value]))
    assert math.isnan(checks.drift["heat"])


def test_values_beyond_the_range_are_counted(line: sockets.socket) -> None:
    checks = Checks(ranges={"t": (0.0, 1.0)})
    checks.see(exchange(line, 0, 0, [0.0, 1.0, 1.5, math.nan]))
    assert checks.outside == {"t": 2}


def test_both_are_metrics_of_the_run(line: sockets.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairmile import meter

    log = tmp_path / "events.jsonl"
    monkeypatch.setattr(meter, "log", (own := meter.Meter(log)).log)
    checks = Checks(conserved={"heat": lambda fields: float(fields["t"].sum())}, ranges={"t": (0.0, 1.0)})
    for step, values in enumerate([[0.5, 0.5], [0.5, 1.5]]):
        checks.see(exchange(line, 0, step, values))
    own.close()
    metrics = {(each.name, each.step): each.value for each in read_log([log]).metrics}
    assert metrics == {
        ("heat_drift", 0): 0.0,
        ("heat_drift", 1): 1.0,
        ("t_outside", 0): 0.0,
        ("t_outside", 1): 0.5,
    }
