from __future__ import annotations

from cases import for_each

from fairmile.traces.events import EventKind
from fairmile.traces.readers.naming import bytes_of_type, kind_of_name, number_at_end, rank_in, step_of_name


@for_each(
    "name, kind",
    [
        ("MPI_Allreduce", EventKind.COLLECTIVE),
        ("MPI_Iallreduce", EventKind.COLLECTIVE),
        ("MPI_Reduce_scatter_block", EventKind.COLLECTIVE),
        ("MPI_Bcast", EventKind.COLLECTIVE),
        ("nccl:all_reduce", EventKind.COLLECTIVE),
        ("all_gather_into_tensor", EventKind.COLLECTIVE),
        ("barrier", EventKind.COLLECTIVE),
        ("c10d::broadcast_", EventKind.COLLECTIVE),
        ("functools.reduce", EventKind.REGION),
        ("tree_reduce", EventKind.REGION),
        ("scatter", EventKind.REGION),
        ("MPI_Send", EventKind.P2P),
        ("gloo:recv", EventKind.P2P),
        ("MPI_Waitall", EventKind.SYNC),
        ("MPI_File_write_all", EventKind.IO),
        ("load_batch", EventKind.IO),
        ("step", EventKind.PHASE),
        ("ProfilerStep#12", EventKind.PHASE),
        ("time step 7", EventKind.PHASE),
        ("stepwise", EventKind.REGION),
        ("forward", EventKind.REGION),
    ],
)
def test_a_name_tells_the_kind(name: str, kind: EventKind) -> None:
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
