"""Neighbours across the faces of periodic cells."""

from __future__ import annotations

import numpy as np
import pytest
from matscipy.neighbours import neighbour_list

from fairmile.benchmarks.suite.opencatalyst import neighbours
from fairmile.benchmarks.suite.opencatalyst.structures import Structure

EVERYWHERE = np.ones(3, bool)


def both(positions: np.ndarray, cell: np.ndarray, periodic: np.ndarray, cutoff: float) -> list[neighbours.Edges]:
    theirs = neighbour_list("ijS", positions=positions, cell=cell, pbc=periodic, cutoff=cutoff)
    ours = neighbours.by_numpy(positions, cell, periodic, cutoff)
    return [neighbours._sorted(*each) for each in (theirs, ours)]


@pytest.mark.parametrize("cutoff", [3.0, 6.0])
def test_numpy_finds_what_matscipy_finds(structures: list[Structure], cutoff: float) -> None:
    for each in structures:
        theirs, ours = both(each.positions, each.cell, EVERYWHERE, cutoff)
        assert all(np.array_equal(a, b) for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("periodic", [(True, True, False), (False, False, False)])
def test_they_agree_in_oblique_cells_and_for_atoms_outside(periodic: tuple[bool, ...]) -> None:
    random = np.random.default_rng(1)
    cell = np.array([[4.0, 0, 0], [2.0, 3.5, 0], [1.0, -1.0, 6.0]])
    positions = random.uniform(-9, 12, (20, 3))
    theirs, ours = both(positions, cell, np.array(periodic), 4.0)
    assert len(theirs.target) > 0
    assert all(np.array_equal(a, b) for a, b in zip(theirs, ours, strict=True))


def test_a_simple_cubic_crystal_has_six_nearest_neighbours() -> None:
    edges = neighbours.find_edges(np.zeros((1, 3)), 2.5 * np.eye(3), EVERYWHERE, 2.6)
    assert len(edges.target) == 6
    assert sorted(map(tuple, np.abs(edges.images))) == [(0, 0, 1)] * 2 + [(0, 1, 0)] * 2 + [(1, 0, 0)] * 2


def test_only_the_nearest_are_kept() -> None:
    positions = np.array([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]])
    edges = neighbours.find_edges(positions, 20 * np.eye(3), EVERYWHERE, 5, most=1)
    assert list(zip(edges.target, edges.source, strict=True)) == [(0, 1), (1, 0), (2, 1)]


def test_triplets_leave_out_the_way_back() -> None:
    edges = neighbours.find_edges(np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0]]), 20 * np.eye(3), EVERYWHERE, 1.1)
    incoming, outgoing = neighbours.find_triplets(edges.target, edges.source, np.zeros((len(edges.target), 3)))
    ways = [(edges.source[a], edges.source[b], edges.target[b]) for a, b in zip(incoming, outgoing, strict=True)]
    assert sorted(ways) == [(0, 1, 2), (2, 1, 0)]


def test_an_image_of_the_target_is_no_way_back() -> None:
    edges = neighbours.find_edges(np.zeros((1, 3)), 2.0 * np.eye(3), EVERYWHERE, 2.1)
    incoming, _ = neighbours.find_triplets(edges.target, edges.source, 2.0 * edges.images)
    assert len(incoming) == 6 * 5
