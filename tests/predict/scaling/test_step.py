"""Machines, how groups share adapters, and collectives by two bandwidths."""

from __future__ import annotations

import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.costs.devices import device
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.scaling.step import NodeModel, TwoLevelLinks, device_of_partition, machine_of
from fairmile.systems.model import Gpu, Partition


def test_a_partition_says_gpus_adapters_and_memory() -> None:
    partition = Partition(gpu=Gpu(count=4, model="A100", memory_gib=40), interconnect="4 × InfiniBand HDR")
    machine = machine_of(partition)
    assert (machine.gpus_per_node, machine.rails, machine.memory_bytes) == (4, 4, 40 * 2**30)
    assert machine.power_w is None


def test_a_partition_without_gpus_is_refused() -> None:
    with pytest.raises(UsageError, match="has no GPUs"):
        machine_of(Partition(cores=48))


def test_data_parallel_ranks_stand_a_tensor_group_apart() -> None:
    machine = NodeModel(gpus_per_node=8)
    assert machine.data_nodes(Layout(data=8)) == 1
    assert machine.data_nodes(Layout(data=64)) == 8
    assert machine.data_nodes(Layout(data=16, tensor=4)) == 8
    assert machine.data_nodes(Layout(data=4, tensor=8)) == 4
    assert machine.data_nodes(Layout(data=4, tensor=16)) == 4
    assert machine.nodes(9) == 2


def test_groups_share_adapters_only_where_there_are_fewer_than_senders() -> None:
    rich, poor = NodeModel(gpus_per_node=8, rails=8), NodeModel(gpus_per_node=8, rails=2)
    layout = Layout(data=16, tensor=8)
    assert rich.sharing(layout, 16) == 1.0
    assert poor.sharing(layout, 16) == 4.0
    assert poor.sharing(Layout(data=8), 1) == 1.0


def test_an_all_reduce_is_a_scatter_and_a_gather() -> None:
    links = TwoLevelLinks(100e9, 50e9, latency_s=1e-6, call_s=1e-5)
    parts = [links.time_s(name, 1e9, 32, nodes=8) for name in ("reduce_scatter", "all_gather")]
    assert links.time_s("all_reduce", 1e9, 32, nodes=8) == pytest.approx(sum(parts) - 1e-5)
    inside = 3e-6 + 0.75 * 1e9 / 100e9
    between = 3e-6 + 7 / 8 * 1e9 / 50e9
    assert parts[0] == pytest.approx(1e-5 + inside + between)
    assert links.time_s("all_reduce", 1e9, 1) == 0


def test_a_collective_without_formula_is_refused() -> None:
    with pytest.raises(UsageError, match="all_to_all"):
        TwoLevelLinks(1e9, 1e9).time_s("all_to_all", 1.0, 2)


def test_a_device_of_the_table_says_what_it_can_do_and_draws() -> None:
    known = device("h200")
    machine = NodeModel(gpus_per_node=4).with_device(known)
    assert machine.gpus_per_node == 4
    assert machine.peak_flops == known.peak("bfloat16")
    assert (machine.memory_bytes, machine.power_w) == (known.memory_bytes, known.max_w)
    assert machine.bandwidth_bytes_per_s == known.bandwidth_bytes_per_s
    partition = Partition(gpu=Gpu(count=4, model="H200", memory_gib=100), interconnect="InfiniBand NDR")
    assert machine_of(partition, known).memory_bytes == 100 * 2**30
    more = partition.model_copy(update={"gpu": Gpu(count=4, model="H200", memory_gib=141)})
    assert machine_of(more, known).memory_bytes == known.memory_bytes < 141 * 2**30


@for_each(
    "model, memory, slug",
    [
        ("A100", 40, "a100-40gb"),
        ("A100", 80, "a100-80gb"),
        ("Tesla V100", 16, "v100-16gb"),
        ("MI250X (one die)", 64, "mi250x-gcd"),
        ("H100", None, "h100-sxm"),
        ("GC200", None, None),
    ],
)
def test_the_device_of_a_partition_is_found_by_its_name_and_memory(
    model: str, memory: float | None, slug: str | None
) -> None:
    found = device_of_partition(Partition(gpu=Gpu(count=4, model=model, memory_gib=memory)))
    assert (found.slug if found else None) == slug
    assert device_of_partition(Partition(cores=4)) is None
