from __future__ import annotations

import math

import pytest
from cases import for_each
from collective_programs import Algorithm, two_trees
from message_simulation import Blocks, Simulation

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.formulas import (
    algorithms,
    best,
    bus_factor,
    collective_name,
    collectives,
    cost,
)
from fairmile.costs.collectives.links import Link, Topology

RANKS = range(2, 18)
HOCKNEY = Link(3e-6, 1e-9, 5e-10)
LOGGP = Link(3e-6, 1e-9, gap_s=8e-7)
SIZE = 100_000.0
SEGMENTS = 16

# collective, algorithm, the program that the simulation runs
EXACT = [
    ("all_reduce", "ring", "ring_all_reduce"),
    ("all_reduce", "recursive_doubling", "recursive_doubling_all_reduce"),
    ("all_reduce", "rabenseifner", "rabenseifner"),
    ("reduce_scatter", "ring", "ring_reduce_scatter"),
    ("reduce_scatter", "pairwise", "pairwise_reduce_scatter"),
    ("all_gather", "ring", "ring_all_gather"),
    ("all_gather", "recursive_doubling", "recursive_doubling_all_gather"),
    ("all_gather", "bruck", "bruck_all_gather"),
    ("all_gather", "spread", "spread_all_gather"),
    ("broadcast", "binomial", "binomial_broadcast"),
    ("broadcast", "scatter_all_gather", "scatter_all_gather"),
    ("broadcast", "chain", "chain_broadcast"),
    ("broadcast", "flat", "flat_broadcast"),
    ("reduce", "rabenseifner", "reduce_rabenseifner"),
    ("all_to_all", "pairwise", "pairwise_all_to_all"),
    ("all_to_all", "bruck", "bruck_all_to_all"),
    ("all_to_all", "spread", "spread_all_to_all"),
    ("barrier", "dissemination", "dissemination"),
]
# Formulas that count rounds in step where ranks in truth run ahead, or a pipeline's filling: least and most of
# simulated over formula.
NEAR = [
    ("all_reduce", "binomial", "binomial_all_reduce", 0.94, 1.0),
    ("all_reduce", "double_tree", "double_tree_all_reduce", 0.8, 1.05),
    ("reduce_scatter", "recursive_halving", "recursive_halving_reduce_scatter", 0.87, 1.0),
    ("broadcast", "double_tree", "double_tree_broadcast", 0.87, 1.0),
    ("reduce", "binomial", "binomial_reduce", 0.9, 1.0),
    ("reduce", "chain", "chain_reduce", 0.75, 1.0),
    ("reduce", "double_tree", "double_tree_reduce", 0.7, 1.0),
]
EVERYTHING = [(*row, 1.0, 1.0) for row in EXACT] + NEAR


def simulated(collective: str, program: str, ranks: int, link: Link) -> Simulation:
    size = 0.0 if collective == "barrier" else SIZE
    algorithm = Algorithm(ranks, size, link, SEGMENTS)
    return Simulation(ranks, link, getattr(algorithm, program))


def is_right(collective: str, rank: int, ranks: int, held: Blocks) -> bool:
    everyone = frozenset(range(ranks))
    if collective == "all_reduce":
        return bool(held) and all(parts == everyone for parts in held.values())
    if collective == "reduce":
        return rank > 0 or (bool(held) and all(parts == everyone for parts in held.values()))
    if collective == "reduce_scatter":
        return held == {rank: everyone}
    if collective == "all_gather":
        return held == {each: frozenset([each]) for each in range(ranks)}
    if collective == "broadcast":
        return bool(held) and all(parts == frozenset([0]) for parts in held.values())
    if collective == "all_to_all":
        return held == {(each, rank): frozenset([each]) for each in range(ranks)}
    return held == {"seen": everyone}


@for_each("ranks", RANKS)
@for_each("collective, algorithm, program, least, most", EVERYTHING)
def test_a_formula_gives_the_time_that_its_messages_take(
    collective: str, algorithm: str, program: str, least: float, most: float, ranks: int
) -> None:
    simulation = simulated(collective, program, ranks, HOCKNEY)
    time_s = simulation.run()
    size = 0.0 if collective == "barrier" else SIZE
    formula_s = cost(collective, algorithm, size, ranks, HOCKNEY, segments=SEGMENTS)
    assert all(is_right(collective, rank, ranks, held) for rank, held in enumerate(simulation.held))
    assert least * (1 - 1e-9) <= time_s / formula_s <= most * (1 + 1e-9)


@for_each("ranks", [2, 4, 8, 16])
@for_each("collective, algorithm, program", [row[:3] for row in NEAR if row[1] not in ("double_tree", "chain")])
def test_with_a_power_of_two_ranks_only_pipelines_are_off(
    collective: str, algorithm: str, program: str, ranks: int
) -> None:
    time_s = simulated(collective, program, ranks, HOCKNEY).run()
    assert time_s == pytest.approx(cost(collective, algorithm, SIZE, ranks, HOCKNEY))


@for_each("ranks", RANKS)
@for_each(
    "collective, algorithm, program",
    [
        ("all_gather", "spread", "spread_all_gather"),
        ("all_to_all", "spread", "spread_all_to_all"),
        ("broadcast", "binomial", "binomial_broadcast"),
        ("broadcast", "flat", "flat_broadcast"),
        ("broadcast", "chain", "chain_broadcast"),
        ("all_reduce", "ring", "ring_all_reduce"),
    ],
)
def test_by_loggp_messages_that_do_not_depend_on_each_other_follow_at_the_gap(
    collective: str, algorithm: str, program: str, ranks: int
) -> None:
    time_s = simulated(collective, program, ranks, LOGGP).run()
    assert time_s == pytest.approx(cost(collective, algorithm, SIZE, ranks, LOGGP, segments=SEGMENTS))
    slower = Link(LOGGP.alpha_s, LOGGP.beta_s_per_byte)
    assert time_s <= cost(collective, algorithm, SIZE, ranks, slower, segments=SEGMENTS) * (1 + 1e-9)


@for_each("ranks", RANKS)
def test_rings_send_no_byte_more_than_they_must(ranks: int) -> None:
    simulation = simulated("all_reduce", "ring_all_reduce", ranks, HOCKNEY)
    simulation.run()
    assert simulation.bytes_sent == pytest.approx([SIZE * bus_factor("all_reduce", ranks)] * ranks)


@for_each("ranks", range(3, 18))
def test_in_two_trees_nearly_nobody_has_children_in_both(ranks: int) -> None:
    (_, first), (_, second) = two_trees(ranks)
    busy = [rank for rank in range(1, ranks) if first[rank] and second[rank]]
    assert len(busy) <= 1 - ranks % 2


def test_every_algorithm_but_those_in_switches_and_on_nodes_is_simulated() -> None:
    told = {(collective, algorithm) for collective, algorithm, *_ in EVERYTHING}
    others = {
        (collective, algorithm)
        for collective in collectives()
        for algorithm in algorithms(collective)
        if (collective, algorithm) not in told
    }
    assert {algorithm for _, algorithm in others} == {
        "in_network",
        "two_level",
        "direct",
        "faces",
        "by_dimension",
        "binomial",  # of the barrier
    }


def test_the_ring_costs_what_the_textbook_says() -> None:
    link = Link(1e-6, 2e-10, 1e-10)
    ranks, size = 6, 1.2e6
    share = (ranks - 1) / ranks * size
    wanted = 2 * (ranks - 1) * 1e-6 + 2 * share * 2e-10 + share * 1e-10
    assert cost("all_reduce", "ring", size, ranks, link) == pytest.approx(wanted)


def test_rabenseifner_folds_what_is_more_than_a_power_of_two() -> None:
    link = Link(1e-6, 2e-10, 1e-10)
    size = 1e6
    power = cost("all_reduce", "rabenseifner", size, 8, link)
    share = 7 / 8 * size
    assert power == pytest.approx(6e-6 + 2 * share * 2e-10 + share * 1e-10)
    fold = 2 * 1e-6 + 2 * size * 2e-10 + size * 1e-10
    assert cost("all_reduce", "rabenseifner", size, 11, link) == pytest.approx(power + fold)


def test_a_pipeline_takes_the_number_of_segments_that_is_quickest() -> None:
    for collective, algorithm in [("broadcast", "chain"), ("all_reduce", "double_tree"), ("reduce", "double_tree")]:
        chosen = cost(collective, algorithm, 1e7, 12, HOCKNEY)
        tried = [cost(collective, algorithm, 1e7, 12, HOCKNEY, segments=count) for count in range(1, 400)]
        assert chosen == pytest.approx(min(tried), rel=0.01)


def test_long_messages_go_around_rings_and_short_ones_by_doubling() -> None:
    assert best("all_reduce", 100, 16, HOCKNEY).algorithm == "recursive_doubling"
    assert best("all_reduce", 1e9, 7, HOCKNEY).algorithm == "ring"
    assert best("all_to_all", 16, 64, HOCKNEY).algorithm == "bruck"
    assert best("all_to_all", 1e9, 64, HOCKNEY).algorithm in ("pairwise", "spread")


def test_a_switch_that_adds_is_taken_only_where_it_is_named() -> None:
    assert best("all_reduce", 1e6, 8, HOCKNEY).algorithm != "in_network"
    chosen = best("all_reduce", 1e6, 8, HOCKNEY, among=("ring", "in_network"))
    assert chosen.algorithm == "in_network"
    assert chosen.time_s == pytest.approx(3e-6 + 1e6 * 1e-9)


def test_two_levels_scatter_inside_reduce_between_and_gather_inside() -> None:
    intra, inter = Link(1e-6, 1e-11), Link(5e-6, 4e-11)
    topology = Topology(4, intra, inter, rails=4)
    size, nodes = 8e8, 8
    inside = 2 * (3 * 1e-6 + 3 / 4 * size * 1e-11)
    between = best("all_reduce", size / 4, nodes, inter).time_s
    assert cost("all_reduce", "two_level", size, 32, topology) == pytest.approx(inside + between)


def test_ranks_share_the_adapters_of_their_node() -> None:
    intra, inter = Link(1e-6, 1e-12), Link(5e-6, 4e-11)
    many, one = Topology(4, intra, inter, rails=4), Topology(4, intra, inter, rails=1)
    assert many.inter_shared.beta_s_per_byte == pytest.approx(4e-11)
    assert one.inter_shared.beta_s_per_byte == pytest.approx(1.6e-10)
    assert many.inter_ring.beta_s_per_byte == pytest.approx(1e-11)
    ratio = cost("all_reduce", "ring", 1e9, 32, one) / cost("all_reduce", "ring", 1e9, 32, many)
    assert ratio == pytest.approx(4, rel=0.02)


def test_on_one_node_only_its_own_links_count() -> None:
    topology = Topology(8, HOCKNEY, Link(1.0, 1.0))
    for collective in ("all_reduce", "all_gather", "broadcast", "all_to_all", "barrier", "reduce"):
        plain = min(cost(collective, each, 1e6, 8, HOCKNEY) for each in algorithms(collective) if each != "two_level")
        assert best(collective, 1e6, 8, topology).time_s <= best(collective, 1e6, 8, HOCKNEY).time_s * (1 + 1e-9)
        assert best(collective, 1e6, 8, topology).time_s >= plain * (1 - 1e-9)


@for_each("collective", collectives())
def test_nothing_is_quicker_with_more_bytes_and_one_rank_waits_for_nobody(collective: str) -> None:
    topology = Topology(4, HOCKNEY, Link(9e-6, 3e-9))
    for algorithm in algorithms(collective):
        assert cost(collective, algorithm, 1e6, 1, topology) == 0
        times = [cost(collective, algorithm, size, 12, topology) for size in (0, 1e3, 1e6, 1e9)]
        assert times == sorted(times)
        assert times[0] > 0


def test_above_its_limit_a_message_first_asks() -> None:
    link = Link(1e-6, 1e-9, eager_limit_bytes=4096)
    assert cost("point_to_point", "direct", 4096, 2, link) == pytest.approx(1e-6 + 4096e-9)
    assert cost("point_to_point", "direct", 4097, 2, link) == pytest.approx(3e-6 + 4097e-9)


@pytest.mark.parametrize(("said", "meant"), [("AllReduce", "all_reduce"), ("all-to-all", "all_to_all")])
def test_collectives_are_known_under_the_names_of_their_libraries(said: str, meant: str) -> None:
    assert collective_name(said) == meant


def test_what_cannot_be_is_told() -> None:
    with pytest.raises(UsageError, match="no collective named 'all_redcue'") as found:
        cost("all_redcue", "ring", 1, 2, HOCKNEY)
    assert "all_reduce" in str(found.value.hint)
    with pytest.raises(UsageError, match="broadcast has no algorithm named 'ring'"):
        cost("broadcast", "ring", 1, 2, HOCKNEY)
    with pytest.raises(UsageError, match="0 ranks"):
        cost("broadcast", "chain", 1, 0, HOCKNEY)
    with pytest.raises(UsageError, match="needs a topology"):
        cost("all_reduce", "two_level", 1, 4, HOCKNEY)
    with pytest.raises(UsageError, match="alpha_s"):
        Link(math.nan, 1.0)
    with pytest.raises(UsageError, match="0 ranks and 1 adapters"):
        Topology(0, HOCKNEY, HOCKNEY)
