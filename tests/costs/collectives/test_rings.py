from __future__ import annotations

import pytest
from cases import for_each

from fairmile.costs.collectives.rings import DGX1_V100, cube_mesh_rings, ring_count


@for_each("ranks, rings", [(2, 1), (3, 2), (4, 4), (6, 2), (7, 4), (8, 6)])
def test_the_rings_of_a_cube_mesh_are_those_that_bandwidths_show(ranks: int, rings: float) -> None:
    """nccl-tests on V100 gives 23, 45, 85, 46, 87 and 135 GB/s: about 22.5 for each ring."""
    assert cube_mesh_rings(ranks) == rings


def test_a_fifth_gpu_is_reached_through_another_and_that_costs() -> None:
    assert 1 < cube_mesh_rings(5) < 2


def test_every_gpu_of_the_mesh_has_six_links() -> None:
    for gpu in range(8):
        assert sum(count for pair, count in DGX1_V100.items() if gpu in pair) == 6


def test_who_has_no_link_is_in_no_ring() -> None:
    assert ring_count({(0, 1): 2}, (0, 1, 2)) == 0
    assert ring_count({}, (0, 1)) == 0
    assert ring_count(DGX1_V100, (0,)) == 0


def test_links_between_all_pairs_make_as_many_rings_as_a_gpu_has_links() -> None:
    """Four A100 with four links to each other: 12 links each, and 12 rings."""
    pairs = {(a, b): 4 for a in range(4) for b in range(a + 1, 4)}
    assert ring_count(pairs, (0, 1, 2, 3)) == 12


def test_a_line_is_walked_back_through_its_middle() -> None:
    assert ring_count({(0, 1): 2, (1, 2): 2}, (0, 1, 2)) == pytest.approx(2 * 0.82)
