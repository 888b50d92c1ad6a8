"""Whatever a table holds, an analysis gives what can be told of it and never breaks."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from cases import for_each
from trace_making import Training

from fairmile.base.errors import NotFound
from fairmile.traces.analyze import analyze
from fairmile.traces.events import ON_DEVICE, EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.replay import Replay

NAMES: dict[EventKind, tuple[str, ...]] = {
    EventKind.REGION: ("aten::mm", "main", "torch.save", "Optimizer.step#SGD.step", "c10d::allreduce_"),
    EventKind.PHASE: ("ProfilerStep#1", "epoch 2"),
    EventKind.COLLECTIVE: ("gloo:all_reduce", "MPI_Bcast", "MPI_Reduce", "MPI_Barrier", "unheard of"),
    EventKind.P2P: ("MPI_Send", "MPI_Recv", "sendrecv"),
    EventKind.EXCHANGE: ("put x", "get x"),
    EventKind.IO: ("enumerate(DataLoader).__next__", "read", "fwrite"),
}


def nonsense(seed: int) -> EventTable:
    """A table that keeps the rules of its columns and none of a program: events in any order, few of them matched."""
    rng = random.Random(seed)
    rows, ranks, parts = Rows(), rng.randint(1, 4), ["", "solver"][: rng.randint(1, 2)]
    groups = [None, RankGroup("a", tuple(range(ranks))), RankGroup("b", (0,)), RankGroup("c", (), size=8)]
    kinds = rng.sample(list(EventKind), rng.randint(1, len(EventKind)))
    for _ in range(rng.randint(1, 80)):
        kind = rng.choice(kinds)
        far = kind in ON_DEVICE and rng.random() < 0.6
        lane = Lane(rng.randrange(ranks), f"lane {rng.randrange(2)}", far, rng.choice(parts))
        start = rng.randrange(-1000, 100_000)
        columns = {"sequence": rng.randrange(4), "step": rng.randrange(-1, 3), "bytes": rng.choice([0, 1, 1 << 20])}
        chosen = {name: value for name, value in columns.items() if rng.random() < 0.5}
        told: dict[str, Any] = {"root": rng.randrange(5), "peer": rng.randrange(5), "key": "k"}
        rows.add(
            kind,
            rng.choice(NAMES.get(kind, ("something",))),
            start,
            start + rng.choice([-5, 0, 1, 1000, 50_000]),
            lane,
            group=rng.choice(groups) if kind == EventKind.COLLECTIVE else None,
            with_={name: value for name, value in told.items() if rng.random() < 0.5},
            **chosen,
        )
    return rows.table(Process(rank, world=ranks + 1, host=f"host {rank % 2}") for rank in range(ranks))


@for_each("seed", range(120))
def test_a_table_without_sense_is_analysed_as_far_as_it_goes(seed: int) -> None:
    table = nonsense(seed)
    found = analyze(table)
    json.dumps(found.to_dict(), allow_nan=False)
    for each in found.breakdown.steps:
        parts = [
            each.compute_s, each.exposed_communication_s, each.exchange_s, each.copies_s, each.checkpoint_s,
            each.input_s, each.launch_s, each.idle_s,
        ]  # fmt: skip
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(each.total_s, abs=1e-12)
    assert found.missing_ranks
    assert Replay(table).run().step_s >= 0


def test_a_trace_says_what_it_could_not_find() -> None:
    table = Training().table()
    found = analyze(table.select(table.of_kind(EventKind.REGION, EventKind.COLLECTIVE)))
    assert found.steps == 1
    assert any("marks no steps" in note for note in found.notes)


@for_each(
    "marking, note",
    [
        ((), "the trace marks no steps, and no data loader or optimizer marks them: it counts as one step"),
        ((0, 1), "rank 2 marks no steps, and no data loader or optimizer marks them: it counts as one step"),
        (
            (2,),
            "rank 0, rank 1 mark no steps, and no data loader or optimizer marks them: each counts as one step",
        ),
    ],
)
def test_a_note_on_steps_agrees_with_how_many_ranks_mark_none(marking: tuple[int, ...], note: str) -> None:
    table = Training(ranks=3).table()
    marked = table.of_kind(EventKind.PHASE, EventKind.IO) & np.isin(table.rank, marking)
    assert note in analyze(table.select(table.of_kind(EventKind.REGION, EventKind.COLLECTIVE) | marked)).notes


def test_a_note_on_ranks_without_a_trace_agrees_with_how_many_they_are() -> None:
    table = Training(ranks=3).table()
    for kept, said in (([0, 1], "rank 2: waits for it appear"), ([0], "ranks 1, 2: waits for them appear")):
        some = table.select(np.isin(table.rank, kept))
        some.processes = [each for each in some.processes if each.rank in kept]
        assert any(f"no trace of {said}" in note for note in analyze(some).notes)


def test_a_crowded_time_line_shows_what_fills_most_of_each_pixel() -> None:
    crowded = Training(ranks=1, steps=250, kernels=1, transfer_ms=lambda step: 20).table()
    whole = analyze(crowded).timelines[0].rows[0]
    assert sum(map(len, whole.parts.values())) <= 801
    length = {part: sum(end - start for start, end in pieces) for part, pieces in whole.parts.items()}
    assert length["communication"] > length["compute"] > 0


def test_ranks_on_clocks_far_apart_are_still_analysed() -> None:
    table = Training(ranks=2).table()
    hours = (table.rank == 1) * 3_600_000_000_000
    table.start_ns += hours
    table.end_ns += hours
    found = analyze(table)
    assert [each.steps for each in found.breakdown.ranks] == [5, 5]
    assert found.breakdown.ranks[1].total.compute_s == pytest.approx(5 * 0.011)


def test_a_trace_of_moments_alone_has_no_time() -> None:
    rows = Rows()
    rows.add(EventKind.MARKER, "here", 5, 5, Lane(0, "main"))
    found = analyze(rows.table([Process(0)]))
    assert found.total_s == 0 and found.findings == ()


def test_nothing_to_analyse_is_an_error_that_says_so() -> None:
    with pytest.raises(NotFound, match="no events"):
        analyze(EventTable.of())
