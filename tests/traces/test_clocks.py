from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairmile.traces.clocks import align_clocks
from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows

S, MS, US = 1_000_000_000, 1_000_000, 1_000
HOUR = 3600 * S


def training(
    offsets_ns: list[int],
    *,
    drift: float = 0.0,
    count: int = 60,
    hosts: list[str] | None = None,
    boots: list[str] | None = None,
    since_epoch: bool = True,
    collectives: bool = True,
    jitter_ns: int = 5 * US,
) -> EventTable:
    """Return ranks that meet every 100 ms; clocks are wrong by an offset, the last one's drifts as well."""
    random = np.random.default_rng(3)
    rows = Rows()
    world = len(offsets_ns)
    group = RankGroup("0", tuple(range(world)))
    for rank, offset in enumerate(offsets_ns):
        rate = drift if rank == world - 1 else 0.0
        for number in range(count):
            leave = 10**18 + number * 100 * MS + int(random.integers(0, jitter_ns))
            enter = leave - int(random.integers(1, 30)) * MS
            times = [moment + offset + round(rate * (moment - 10**18)) for moment in (enter, leave)]
            kind = EventKind.COLLECTIVE if collectives else EventKind.REGION
            rows.add(kind, "gloo:all_reduce", times[0], times[1], Lane(rank, "main"), group=group, sequence=number)
            rows.add(EventKind.PHASE, "step", times[0] - 9 * MS, times[1], Lane(rank, "main"), step=number)
    hosts = hosts or [f"n{rank}" for rank in range(world)]
    boots = boots or [""] * world
    return rows.table(
        Process(rank, host=hosts[rank], boot=boots[rank], since_epoch=since_epoch) for rank in range(world)
    )


def apart_ns(table: EventTable, one: int = 0, other: int = 1) -> np.ndarray:
    exits = [table.end_ns[table.of_rank(rank) & (table.named("gloo:all_reduce"))] for rank in (one, other)]
    return np.abs(exits[0] - exits[1])


def test_clocks_that_are_hours_off_are_found_and_mended_and_told() -> None:
    table = align_clocks(training([0, 2 * HOUR, -3 * HOUR]))
    assert apart_ns(table).max() < 20 * US and apart_ns(table, 0, 2).max() < 20 * US
    assert table.notes == [
        "the clock of rank 1 was 2h ahead of rank 0: corrected",
        "the clock of rank 2 was 3h behind rank 0: corrected",
    ]
    assert abs(table.processes[1].offset_ns + 2 * HOUR) < 20 * US


def test_small_offsets_between_hosts_are_mended_silently() -> None:
    table = align_clocks(training([0, 400 * US]))
    assert apart_ns(table).max() < 20 * US
    assert table.notes == []


def test_a_clock_that_drifts_is_straightened() -> None:
    table = align_clocks(training([0, 50 * MS], drift=40e-6, count=200))
    assert apart_ns(table).max() < 20 * US
    assert table.processes[1].drift == pytest.approx(-40e-6, rel=0.02)
    assert "and drifts by -40" in table.notes[0]


def test_scatter_of_the_exits_is_no_drift() -> None:
    table = align_clocks(training([0, 3 * MS], count=200, jitter_ns=300 * US))
    assert table.processes[1].drift == 0.0
    assert np.median(apart_ns(table)) < 150 * US


@pytest.mark.parametrize(("hosts", "boots"), [(["n1", "n1"], ["", ""]), (["a", "b"], ["x", "x"])])
def test_processes_that_share_a_clock_stay_as_they_are(hosts: list[str], boots: list[str]) -> None:
    table = training([0, 2 * MS], hosts=hosts, boots=boots)
    assert align_clocks(table) is table


def test_even_on_one_host_a_clock_cannot_be_hours_off() -> None:
    table = align_clocks(training([0, HOUR], hosts=["n1", "n1"]))
    assert apart_ns(table).max() < 20 * US


def test_times_since_the_start_of_each_trace_are_put_together_by_collectives() -> None:
    table = align_clocks(training([-(10**18), -(10**18) - 5 * S], since_epoch=False))
    assert apart_ns(table).max() < 20 * US


def test_without_collectives_the_clock_on_the_wall_has_to_do_and_it_is_said() -> None:
    table = training([0, 5 * MS], collectives=False)
    aligned = align_clocks(table)
    assert aligned.start_ns.tolist() == table.start_ns.tolist()
    assert aligned.notes == ["rank 1 shares no collective with rank 0: aligned by wall-clock time"]


def test_without_collectives_steps_find_a_clock_that_is_hours_off() -> None:
    aligned = align_clocks(training([0, 7 * HOUR], collectives=False))
    assert np.median(apart_ns(aligned)) < 40 * MS
    assert aligned.notes[0] == "rank 1 is aligned by the start of the steps it shares with rank 0"
    assert any("was 7h ahead of rank 0: corrected" in note for note in aligned.notes)


def test_ranks_that_meet_only_by_way_of_others_are_reached(tmp_path: Path) -> None:
    rows = Rows()
    offsets = [0, HOUR, 5 * HOUR]
    for name, members in (("a", (0, 1)), ("b", (1, 2))):
        for number in range(5):
            for rank in members:
                leave = 10**18 + number * S + offsets[rank] + (S // 2 if name == "b" else 0)
                group = RankGroup(name, members)
                rows.add(
                    EventKind.COLLECTIVE, "allreduce", leave - MS, leave, Lane(rank, "x"), group=group, sequence=number
                )
    table = align_clocks(rows.table(Process(rank, host=f"n{rank}") for rank in range(3)))
    ends = [sorted(table.end_ns[table.of_rank(rank)].tolist()) for rank in range(3)]
    assert ends[0] == ends[1][::2] and ends[2] == ends[1][1::2]


def test_a_broadcast_does_not_move_clocks() -> None:
    rows = Rows()
    for rank, leave in ((0, 10), (1, 50 * MS)):
        rows.add(
            EventKind.COLLECTIVE, "gloo:broadcast", 0, leave, Lane(rank, "x"), group=RankGroup("0", (0, 1)), sequence=0
        )
    table = rows.table(Process(rank, host="n1") for rank in range(2))
    assert align_clocks(table).end_ns.tolist() == [10, 50 * MS]
