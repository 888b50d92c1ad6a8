from __future__ import annotations

import math

import pytest
from cases import for_each
from message_simulation import Blocks, Program, Receive, Send, Simulation

from fairmile.costs.collectives.formulas import cost
from fairmile.costs.collectives.halo import face_bytes, grid_of
from fairmile.costs.collectives.links import Link
from fairmile.costs.collectives.ranks import neighbours

LINK = Link(2e-6, 1e-9)


@for_each("ranks, grid", [(8, (2, 2, 2)), (12, (3, 2, 2)), (7, (7, 1, 1)), (64, (4, 4, 4)), (1, (1, 1, 1))])
def test_ranks_stand_on_the_most_even_grid(ranks: int, grid: tuple[int, ...]) -> None:
    assert grid_of(ranks) == grid


@for_each("ranks", [2, 3, 4, 6, 8, 12, 27])
def test_the_formula_gives_the_time_that_faces_take(ranks: int) -> None:
    size = 60_000.0
    faces = face_bytes(size, ranks)

    def program(rank: int) -> Program:
        held: Blocks = {}
        around = neighbours(rank, ranks)
        for (to, _, tag), face in zip(around, faces, strict=True):
            yield Send(to, {(rank, tag): frozenset([rank])}, face)
        for _, source, _ in around:
            held.update((yield Receive(source)))
        return held

    simulation = Simulation(ranks, LINK, program)
    assert simulation.run() == pytest.approx(cost("halo", "faces", size, ranks, LINK))
    for rank in range(ranks):
        wanted = {(source, tag): frozenset([source]) for _, source, tag in neighbours(rank, ranks)}
        assert simulation.held[rank] == wanted


def test_what_is_sent_one_way_comes_from_the_other() -> None:
    for ranks in (2, 6, 8, 12):
        for rank in range(ranks):
            for to, _, tag in neighbours(rank, ranks):
                assert (rank, tag) in [(source, other) for _, source, other in neighbours(to, ranks)]


def test_one_dimension_after_the_other_costs_a_latency_each() -> None:
    together, in_turn = (
        cost("halo", each, 6000, 27, Link(4e-6, 1e-9, gap_s=1e-6)) for each in ("faces", "by_dimension")
    )
    assert in_turn > together
    assert math.isclose(cost("halo", "faces", 6000, 27, LINK), cost("halo", "by_dimension", 6000, 27, LINK))
