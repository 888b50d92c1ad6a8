from __future__ import annotations

import math

import pytest
from message_simulation import Blocks, Program, Receive, Send, Simulation

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.formulas import cost
from fairmile.costs.collectives.halo import Halo, face_bytes, grid_of
from fairmile.costs.collectives.links import Link, Topology
from fairmile.costs.collectives.ranks import neighbours

LINK = Link(2e-6, 1e-9)


@pytest.mark.parametrize(
    ("ranks", "grid"), [(8, (2, 2, 2)), (12, (3, 2, 2)), (7, (7, 1, 1)), (64, (4, 4, 4)), (1, (1, 1, 1))]
)
def test_ranks_stand_on_the_most_even_grid(ranks: int, grid: tuple[int, ...]) -> None:
    assert grid_of(ranks) == grid


def test_a_block_sends_the_faces_that_lie_between_ranks() -> None:
    halo = Halo(shape=(64, 64, 32), ranks=(2, 4, 1), width=2, element_bytes=4, channels=3, periodic=True)
    assert halo.block == (32, 16, 32)
    first, second = 16 * 32 * 2 * 4 * 3, 32 * 32 * 2 * 4 * 3
    assert halo.faces() == ((0, first), (0, first), (1, second), (1, second))
    assert halo.bytes_sent() == 2 * (first + second)


def test_at_open_ends_two_ranks_share_one_face() -> None:
    assert len(Halo((10,), (2,)).faces()) == 1
    assert len(Halo((10,), (2,), periodic=True).faces()) == 2
    assert len(Halo((10,), (5,)).faces()) == 2


def test_faces_inside_a_node_use_its_links_and_others_share_the_network() -> None:
    topology = Topology(4, Link(1e-6, 1e-11), Link(5e-6, 1e-10), rails=2)
    halo = Halo((40, 40), (4, 4), element_bytes=1000, periodic=True)
    size = 10 * 1000.0
    # Neighbours in the last dimension share a node; those in the first do not, and 4 ranks share 2 adapters.
    inside = 2 * (1e-6 + size * 1e-11)
    outside = 2 * (5e-6 + size * 2e-10)
    assert halo.time_s(topology) == pytest.approx(max(inside, outside))
    assert halo.time_s(Topology(16, topology.intra, topology.inter)) == pytest.approx(4 * (1e-6 + size * 1e-11))


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 12, 27])
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
        cost("halo", each, 6000, 27, Link.loggp(2e-6, 1e-6, 1e-6, 1e-9)) for each in ("faces", "by_dimension")
    )
    assert in_turn > together
    assert math.isclose(cost("halo", "faces", 6000, 27, LINK), cost("halo", "by_dimension", 6000, 27, LINK))


def test_a_domain_that_cannot_be_cut_is_told() -> None:
    with pytest.raises(UsageError, match="dimensions differ"):
        Halo((10, 10), (2,))
    with pytest.raises(UsageError, match="a block would be empty"):
        Halo((2, 10), (4, 1))
