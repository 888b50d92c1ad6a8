from __future__ import annotations

import pytest

from fairmile.traces.events import Kind
from fairmile.traces.readers.naming import bytes_of_type, kind_of_name, number_at_end, rank_in, step_of_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("MPI_Allreduce", Kind.COLLECTIVE),
        ("MPI_Iallreduce", Kind.COLLECTIVE),
        ("MPI_Reduce_scatter_block", Kind.COLLECTIVE),
        ("MPI_Bcast", Kind.COLLECTIVE),
        ("nccl:all_reduce", Kind.COLLECTIVE),
        ("all_gather_into_tensor", Kind.COLLECTIVE),
        ("barrier", Kind.COLLECTIVE),
        ("c10d::broadcast_", Kind.COLLECTIVE),
        ("functools.reduce", Kind.REGION),
        ("tree_reduce", Kind.REGION),
        ("scatter", Kind.REGION),
        ("MPI_Send", Kind.P2P),
        ("gloo:recv", Kind.P2P),
        ("MPI_Waitall", Kind.SYNC),
        ("MPI_File_write_all", Kind.IO),
        ("load_batch", Kind.IO),
        ("step", Kind.PHASE),
        ("ProfilerStep#12", Kind.PHASE),
        ("time step 7", Kind.PHASE),
        ("stepwise", Kind.REGION),
        ("forward", Kind.REGION),
    ],
)
def test_a_name_tells_the_kind(name: str, kind: Kind) -> None:
    assert kind_of_name(name) == kind


def test_numbers_are_found_in_names() -> None:
    assert [step_of_name(each) for each in ("ProfilerStep#12", "epoch_3", "step")] == [12, 3, -1]
    assert [rank_in(each) for each in ("rank3.json", "MPI Rank 12", "nccl_trace_rank_4", "frank7")] == [3, 12, 4, None]
    assert [number_at_end(each) for each in ("trace_3.pt.trace.json.gz", "dump12", "a.json")] == [3, 12, None]


def test_types_are_known_as_every_tool_writes_them() -> None:
    assert [bytes_of_type(each) for each in ("Float", "c10::BFloat16", "torch.float64", "long int", "?")] == [
        4,
        2,
        8,
        8,
        0,
    ]
