from __future__ import annotations

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.costs.collectives.fit import fit_points
from fairmile.costs.collectives.formulas import collectives
from fairmile.costs.collectives.links import Link, Topology
from fairmile.costs.collectives.tables import MeasuredPoint
from fairmile.costs.collectives.times import CollectiveModel
from fairmile.systems.model import Gpu, Partition

BOOSTER = Partition(gpu=Gpu(count=4, model="A100"), interconnect="4 × InfiniBand HDR")
LUMI = Partition(gpu=Gpu(count=8, model="MI250X (one die)", vendor="amd"), interconnect="4 × Slingshot 11, 200 Gbit/s")
CLUSTER = Partition(cores=48, interconnect="InfiniBand EDR")


def test_a_gpu_node_reaches_what_its_links_carry() -> None:
    model = CollectiveModel.from_partition(BOOSTER)
    assert model.bus_bytes_per_s("all_reduce", 1e9, 4) == pytest.approx(230e9, rel=0.05)
    assert model.bus_bytes_per_s("all_reduce", 1e9, 64, nodes=16) == pytest.approx(96e9, rel=0.1)


def test_nvidia_gpus_take_what_nccl_takes_and_others_what_is_quickest() -> None:
    assert CollectiveModel.from_partition(BOOSTER).choice("all_reduce", 1e9, 4).algorithm == "ring Simple"
    assert CollectiveModel.from_partition(BOOSTER).choice("all_reduce", 1e4, 64, nodes=16).algorithm == "tree LL"
    assert CollectiveModel.from_partition(LUMI).choice("all_reduce", 1e9, 8).algorithm == "ring"
    assert CollectiveModel.from_partition(CLUSTER).choice("all_reduce", 64, 48).algorithm == "recursive_doubling"


@for_each("partition", [BOOSTER, LUMI, CLUSTER])
@for_each("collective", collectives())
def test_every_collective_has_a_time_that_grows_with_bytes_and_nodes(partition: Partition, collective: str) -> None:
    model = CollectiveModel.from_partition(partition)
    here = model.topology.ranks_per_node
    times = [model.time_s(collective, size, here) for size in (1, 1e4, 1e6, 1e9)]
    assert times == sorted(times)
    assert times[0] > 0
    if collective != "halo":
        assert model.time_s(collective, 1e6, 64 * here, nodes=64) >= model.time_s(collective, 1e6, here) * 0.99


def test_the_network_is_felt_when_the_same_ranks_are_spread() -> None:
    model = CollectiveModel.from_partition(BOOSTER)
    assert model.time_s("all_reduce", 1e8, 4, nodes=4) > model.time_s("all_reduce", 1e8, 4, nodes=1)


def test_some_of_eight_v100_form_fewer_rings() -> None:
    model = CollectiveModel.from_partition(Partition(gpu=Gpu(count=8, model="Tesla V100")))
    bus = {ranks: model.bus_bytes_per_s("all_reduce", 1e9, ranks) / 1e9 for ranks in range(2, 9)}
    for ranks, measured in {2: 22.6, 3: 45, 4: 85.4, 5: 37, 6: 46, 7: 87, 8: 134.5}.items():
        assert bus[ranks] == pytest.approx(measured, rel=0.06)


def test_one_rank_needs_no_time_and_bad_numbers_are_told() -> None:
    model = CollectiveModel.from_partition(BOOSTER)
    assert model.time_s("all-reduce", 1e9, 1) == 0
    with pytest.raises(UsageError, match="cannot place 4 ranks on 8 nodes"):
        model.time_s("all_reduce", 1, 4, nodes=8)
    with pytest.raises(UsageError, match="no collective"):
        model.time_s("all_broken", 1, 4)


def test_what_was_measured_on_a_node_is_used_there() -> None:
    points = [MeasuredPoint("all-reduce", 1e6 * size, 4, 1e-4 + 1e-3 * size) for size in (1, 2, 4, 8, 16)]
    topology = Topology(4, Link(1e-6, 1e-10), Link(2e-6, 4e-10))
    model = CollectiveModel.from_fit(fit_points(points), topology, notes=("measured",))
    assert model.choice("all_reduce", 3e6, 4).algorithm == "fit"
    assert model.time_s("all_reduce", 3e6, 4) == pytest.approx(3.1e-3, rel=0.01)
    assert model.choice("all_reduce", 3e6, 8, nodes=2).algorithm != "fit"
    assert model.choice("all_gather", 3e6, 4).algorithm != "fit"
    assert model.notes == ("measured",)
