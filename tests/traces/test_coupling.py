"""Coupled programs: who waits for whom, what an exchange costs, how old what is taken is."""

from __future__ import annotations

import pytest
from trace_making import MS, Training, coupled

from fairmile.traces.activity import activities
from fairmile.traces.coupling import CouplingAnalysis, coupling
from fairmile.traces.events import EventKind, EventTable, Lane, Process, Rows


def found_in(table: EventTable) -> CouplingAnalysis:
    found = coupling(table, activities(table))
    assert found is not None
    return found


def two_parts(*events: tuple[str, str, float, float, int]) -> EventTable:
    """A table of exchanges: component, how, start and end in ms, version."""
    rows = Rows()
    for component, how, start, end, version in events:
        lane = Lane(0, "main", component=component)
        told = {"key": "weights", "how": how}
        times = (round(start * MS), round(end * MS))
        rows.add(EventKind.EXCHANGE, f"{how} weights", *times, lane, sequence=version, bytes=1 << 20, with_=told)
    return rows.table([Process(0, "solver"), Process(0, "trainer")])


def test_a_taker_that_asks_early_waits_for_the_giver() -> None:
    found = found_in(coupled(steps=6, solver_ms=10, trainer_ms=4))
    (exchange,) = found.exchanges
    assert (exchange.giver, exchange.taker, exchange.key, exchange.count) == ("solver", "trainer", "field", 6)
    assert exchange.taker_waits_s == pytest.approx(0.010 + 5 * 0.006)
    assert exchange.giver_waits_s == 0
    assert exchange.bytes == 6 * (8 << 20)
    assert found.names == ("solver", "trainer")
    assert found.matrix[1][0] == exchange.taker_waits_s and found.matrix[0][1] == 0


def test_bandwidth_is_of_moving_and_not_of_waiting() -> None:
    (exchange,) = found_in(coupled(move_ms=3)).exchanges
    assert exchange.bytes_per_s == pytest.approx((8 << 20) / 0.004)  # 1 ms to put it, 3 ms to get it


def test_the_cost_of_coupling_is_the_exchange_that_shows_over_the_steps() -> None:
    solver, trainer = found_in(coupled(steps=6, solver_ms=10, trainer_ms=4)).components
    assert solver.cost == pytest.approx(1 / 11)
    assert trainer.exchange_per_step_s == pytest.approx(0.046 / 6)
    assert trainer.cost == pytest.approx(0.046 / 0.070)
    assert trainer.waits_s == pytest.approx(0.040) and trainer.compute_s == pytest.approx(0.024)


def test_a_slow_taker_falls_behind_and_what_it_takes_is_old() -> None:
    table = two_parts(
        ("solver", "put", 0, 1, 0), ("solver", "put", 2, 3, 1), ("solver", "put", 4, 5, 2),
        ("trainer", "get", 6, 7, 0), ("trainer", "get", 8, 9, 2),
    )  # fmt: skip
    found = found_in(table)
    (exchange,) = found.exchanges
    assert exchange.most_versions_behind == 2 and exchange.versions_behind == 1
    assert exchange.age_s == pytest.approx((0.005 + 0.003) / 2)
    assert found.untaken == 1 and found.unmatched == 0


def test_a_giver_that_must_hand_over_waits_for_the_taker() -> None:
    (exchange,) = found_in(two_parts(("solver", "put", 0, 9, 0), ("trainer", "get", 8, 9, 0))).exchanges
    assert exchange.giver_waits_s == pytest.approx(0.008)
    assert exchange.taker_waits_s == 0


def test_a_wait_that_the_program_told_itself_counts() -> None:
    rows = Rows()
    for component, how, start, end, wait in (("solver", "put", 0, 1, 0), ("trainer", "get", 2, 9, 5 * MS)):
        told = {"key": "k", "how": how, "wait_ns": wait}
        lane = Lane(0, "main", component=component)
        rows.add(EventKind.EXCHANGE, how, start * MS, end * MS, lane, sequence=1, with_=told)
    (exchange,) = found_in(rows.table([Process(0, "solver"), Process(0, "trainer")])).exchanges
    assert exchange.taker_waits_s == pytest.approx(0.005)


def test_without_versions_the_nth_get_takes_the_nth_put() -> None:
    table = coupled()
    table.sequence[:] = -1
    assert found_in(table).exchanges == found_in(coupled()).exchanges


def test_a_get_of_what_nobody_put_is_counted() -> None:
    found = found_in(two_parts(("trainer", "get", 0, 1, 0), ("solver", "put", 0, 1, 7)))
    assert (found.unmatched, found.untaken, found.exchanges) == (1, 1, ())


def test_a_program_that_exchanges_nothing_has_no_coupling() -> None:
    table = Training().table()
    assert coupling(table, activities(table)) is None
