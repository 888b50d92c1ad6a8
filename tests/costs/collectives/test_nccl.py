from __future__ import annotations

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.links import Link, Topology
from fairmile.costs.collectives.nccl import COLLECTIVES, Fabric, candidates, choose

A100 = Fabric("ampere", 8, channels=24, bus_gb_per_s=235.0)
V100 = Fabric("volta", 8, channels=12, bus_gb_per_s=135.0)
H100 = Fabric("hopper", 8, channels=16, bus_gb_per_s=370.0, has_multicast=True)


def test_short_messages_go_by_ll_and_long_ones_by_simple() -> None:
    assert choose("all_reduce", 1024, A100).protocol == "LL"
    assert choose("all_reduce", 8e6, A100).protocol == "LL128"
    last = choose("all_reduce", 1e9, A100)
    assert (last.algorithm, last.protocol) == ("ring", "Simple")


def test_eight_v100_change_their_protocol_where_the_public_tables_jump() -> None:
    """From 13 to 17 MiB eight V100 became quicker: 313 µs, then 285 µs."""
    assert choose("all_reduce", 13 * 2**20, V100).protocol == "LL128"
    assert choose("all_reduce", 17 * 2**20, V100).protocol == "Simple"


def test_a_time_is_latency_plus_bytes_over_bandwidth() -> None:
    found = next(
        each for each in candidates("all_reduce", 1e6, A100) if (each.algorithm, each.protocol) == ("ring", "LL")
    )
    latency_us = 6.6 + 14 * 0.6
    bandwidth = min(87.7, 235 / 2) * 8 / 14
    assert found.time_s == pytest.approx((latency_us + 1e6 / (1000 * bandwidth)) * 1e-6)


def test_candidates_come_in_the_order_of_their_times_and_the_first_is_chosen() -> None:
    found = candidates("all_reduce", 1e6, A100)
    assert [each.time_s for each in found] == sorted(each.time_s for each in found)
    assert choose("all_reduce", 1e6, A100) == found[0]
    assert {each.algorithm for each in found} == {"ring", "tree"}


def test_over_many_nodes_trees_take_short_messages() -> None:
    many = Fabric("ampere", 512, nodes=128, channels=8, bus_gb_per_s=235.0, network_gb_per_s=90.0)
    assert choose("all_reduce", 1e5, many).algorithm == "tree"
    assert choose("all_reduce", 1e5, many).time_s < next(
        each.time_s for each in candidates("all_reduce", 1e5, many) if each.algorithm == "ring"
    )
    assert choose("all_gather", 1e5, many).algorithm == "ring"


def test_switches_that_add_are_used_where_they_are() -> None:
    assert choose("all_reduce", 1e9, H100).algorithm == "nvls"
    without = Fabric("hopper", 8, channels=16, bus_gb_per_s=370.0)
    assert choose("all_reduce", 1e9, without).algorithm == "ring"
    assert choose("all_reduce", 1e9, H100).time_s < choose("all_reduce", 1e9, without).time_s
    assert all(each.algorithm != "nvls" for each in candidates("broadcast", 1e9, H100))


def test_without_nvlink_there_is_no_ll128() -> None:
    found = candidates("all_reduce", 1e7, Fabric("ampere", 4, channels=2, bus_gb_per_s=20, has_nvlink=False))
    assert {each.protocol for each in found} == {"LL", "Simple"}


def test_one_rank_on_each_node_gathers_by_pat_when_it_is_short() -> None:
    spread = Fabric("hopper", 16, nodes=16, channels=4, bus_gb_per_s=370.0, network_gb_per_s=48.0)
    assert {each.algorithm for each in candidates("all_gather", 1e5, spread)} == {"ring", "pat"}


@for_each("architecture", ["volta", "ampere", "hopper", "blackwell"])
@for_each("collective", COLLECTIVES)
def test_every_architecture_has_times_that_grow(architecture: str, collective: str) -> None:
    for nodes in (1, 2, 16):
        fabric = Fabric(architecture, 8 * nodes, nodes, network_gb_per_s=48.0)  # type: ignore[arg-type]
        times = [choose(collective, size, fabric).time_s for size in (8, 1e4, 1e6, 1e8, 1e10)]
        assert times == sorted(times)
        assert times[0] > 0


def test_the_fabric_follows_from_a_topology() -> None:
    topology = Topology(4, Link(3e-6, 1 / 240e9), Link(5e-6, 1 / 24e9), "all to all", rails=4)
    here = Fabric.of(topology, "ampere", 4)
    assert (here.bus_gb_per_s, here.has_nvlink, here.has_multicast) == (pytest.approx(240), True, False)
    assert Fabric.of(topology, "ampere", 64, 16).network_gb_per_s == pytest.approx(96)


def test_what_nccl_does_not_have_is_told() -> None:
    with pytest.raises(UsageError, match="no model of all_to_all"):
        choose("all_to_all", 1e6, A100)
    with pytest.raises(UsageError, match="4 ranks, 8 nodes"):
        Fabric("ampere", 4, nodes=8)
    assert choose("all_reduce", 1e6, Fabric("ampere", 1)).time_s == 0
