from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("otf2")

import otf2

from fairmile.base.errors import Integrity
from fairmile.traces.events import EventKind
from fairmile.traces.reading import read_traces


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two MPI ranks: a step with work, an all-reduce that rank 1 enters late, a message, a metric, one thread more."""
    folder = tmp_path / "archive"
    with otf2.writer.open(str(folder), timer_resolution=1_000_000) as trace:
        definitions = trace.definitions
        root = definitions.system_tree_node("machine")
        groups = [definitions.location_group(f"MPI Rank {rank}", system_tree_parent=root) for rank in (0, 1)]
        threads = [definitions.location("Master thread", group=group) for group in groups]
        world = definitions.group(
            "all", group_type=otf2.GroupType.COMM_LOCATIONS, paradigm=otf2.Paradigm.MPI, members=threads
        )
        members = definitions.group(
            "world", group_type=otf2.GroupType.COMM_GROUP, paradigm=otf2.Paradigm.MPI, members=threads
        )
        assert world is not members
        comm = definitions.comm("MPI_COMM_WORLD", group=members)
        region = {name: definitions.region(name) for name in ("solve", "MPI_Allreduce", "MPI_Send", "MPI_Recv")}
        power = definitions.metric("power", unit="W")
        number = definitions.parameter("iteration", parameter_type=otf2.ParameterType.INT64)
        for rank, thread in enumerate(threads):
            writer = trace.event_writer_from_location(thread)
            writer.enter(10, region["solve"])
            writer.parameter_int(10, number, 5)
            writer.enter(20 + 30 * rank, region["MPI_Allreduce"])
            writer.mpi_collective_begin(20 + 30 * rank)
            writer.mpi_collective_end(60, otf2.CollectiveOp.ALLREDUCE, comm, 0xFFFFFFFF, 800, 800)
            writer.leave(60, region["MPI_Allreduce"])
            writer.metric(65, power, 71.5)
            name = "MPI_Recv" if rank else "MPI_Send"
            writer.enter(70, region[name])
            if rank:
                writer.mpi_recv(80, 0, comm, 3, 128)
            else:
                writer.mpi_send(71, 1, comm, 3, 128)
            writer.leave(80, region[name])
            writer.leave(100, region["solve"])
    return folder


@pytest.mark.parametrize("name", ["", "traces.otf2"])
def test_regions_collectives_messages_metrics_and_parameters_are_read(archive: Path, name: str) -> None:
    table = read_traces(archive / name)
    assert table.validate() == [] and table.ranks == [0, 1]
    assert table.groups[0].ranks == (0, 1) and table.groups[0].name == "MPI_COMM_WORLD"
    begin = int(table.start_ns.min())
    late = table.select(table.of_rank(1))
    found = {
        late.name_of(row): (
            EventKind(int(late.kind[row])),
            int(late.start_ns[row]) - begin,
            int(late.end_ns[row]) - begin,
        )
        for row in range(len(late))
    }
    assert found == {
        "solve": (EventKind.PHASE, 0, 90_000),
        "MPI_Allreduce": (EventKind.COLLECTIVE, 40_000, 50_000),
        "MPI_Recv": (EventKind.P2P, 60_000, 70_000),
        "power": (EventKind.COUNTER, 55_000, 55_000),
    }
    assert set(late.step.tolist()) == {5}
    row = int(np.flatnonzero(late.of_kind(EventKind.COLLECTIVE))[0])
    assert (int(late.bytes[row]), int(late.sequence[row])) == (800, 0)
    row = int(np.flatnonzero(late.of_kind(EventKind.P2P))[0])
    assert (late.attributes["peer"].get(row), late.attributes["tag"].get(row), int(late.bytes[row])) == (0, 3, 128)


def test_a_broken_archive_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "traces.otf2").write_bytes(b"nothing")
    with pytest.raises(Integrity, match=r"traces\.otf2 is not an OTF2 archive"):
        read_traces(tmp_path / "traces.otf2")
