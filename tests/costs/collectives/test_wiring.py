from __future__ import annotations

import pytest
from cases import for_each

from fairmile.costs.collectives.wiring import wiring_of
from fairmile.systems.model import Gpu, Partition
from fairmile.systems.registry import Systems


def gpus(model: str, count: int, interconnect: str = "", vendor: str = "nvidia") -> Partition:
    return Partition(gpu=Gpu(count=count, model=model, vendor=vendor), interconnect=interconnect)  # type: ignore[arg-type]


def test_four_a100_with_four_adapters_are_read_from_their_partition() -> None:
    wiring = wiring_of(gpus("A100", 4, "4 × InfiniBand HDR"))
    topology = wiring.topology
    assert (topology.ranks_per_node, topology.kind, topology.rails) == (4, "all to all", 4)
    assert topology.intra.bytes_per_s == pytest.approx(300e9 * 0.77)
    assert topology.inter.bytes_per_s == pytest.approx(25e9 * 0.96)
    assert wiring.architecture == "ampere"
    assert any("InfiniBand HDR" in note for note in wiring.notes)
    assert any("vTrain" in note for note in wiring.notes)


@for_each(
    "text, rails, gbit_per_s",
    [
        ("2 × dual-port InfiniBand HDR100", 4, 100),
        ("4 × Slingshot 11, 200 Gbit/s", 4, 200),
        ("2 × InfiniBand, 200 Gbit/s", 2, 200),
        ("InfiniBand NDR200", 1, 200),
        ("InfiniBand NDR", 1, 400),
        ("Omni-Path", 1, 100),
    ],
)
def test_the_words_of_a_network_give_adapters_and_speed(text: str, rails: int, gbit_per_s: float) -> None:
    topology = wiring_of(gpus("A100", 4, text)).topology
    assert topology.rails == rails
    assert 0.9 <= topology.inter.bytes_per_s * 8 / 1e9 / gbit_per_s <= 1


def test_what_nobody_knows_is_assumed_and_said() -> None:
    wiring = wiring_of(gpus("Frobnicator 9", 2, "carrier pigeons"))
    assert wiring.topology.kind == "PCIe"
    assert any("Frobnicator 9" in note and "PCIe 4" in note for note in wiring.notes)
    assert any("carrier pigeons" in note for note in wiring.notes)
    assert wiring.architecture is None


def test_eight_v100_form_a_mesh_and_four_are_linked_in_pairs() -> None:
    assert wiring_of(gpus("Tesla V100", 8)).topology.kind == "cube mesh"
    assert wiring_of(gpus("Tesla V100", 4)).topology.kind == "all to all"
    assert wiring_of(gpus("H100", 8)).topology.kind == "NVSwitch"


def test_a_longer_name_wins_over_one_that_it_holds() -> None:
    assert wiring_of(gpus("GH200", 4)).topology.kind == "all to all"
    assert wiring_of(gpus("GB200", 4)).architecture == "blackwell"


def test_ranks_on_processors_talk_over_memory_and_reduce_themselves() -> None:
    topology = wiring_of(Partition(cores=48, interconnect="InfiniBand EDR")).topology
    assert (topology.ranks_per_node, topology.kind) == (48, "shared memory")
    assert topology.intra.gamma_s_per_byte > 0
    assert topology.inter.gamma_s_per_byte > 0


def test_every_built_in_partition_has_a_wiring() -> None:
    systems = Systems()
    seen = 0
    for name in systems.names():
        for partition in systems[name].partitions.values():
            wiring = wiring_of(partition)
            assert wiring.topology.intra.alpha_s > 0
            assert wiring.notes
            if partition.interconnect:
                assert not any("is not known" in note and "network" in note for note in wiring.notes)
            seen += 1
    assert seen > 20
