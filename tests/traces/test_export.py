from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec")

from trace_files import write_kineto

from fairmile.base.errors import Conflict
from fairmile.traces.events import EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.export import write_chakra, write_chrome, write_otf2
from fairmile.traces.reading import read_traces


@pytest.fixture
def table(tmp_path: Path) -> EventTable:
    for rank in (0, 1):
        write_kineto(tmp_path / "in", rank, host_name="n1")
    return read_traces(tmp_path / "in")


def events_of(table: EventTable, *, kinds: bool = True) -> list[tuple[object, ...]]:
    rows = np.flatnonzero(~table.of_kind(EventKind.MEMORY, EventKind.COUNTER))
    return sorted(
        (int(table.rank[row]), int(table.start_ns[row]), -int(table.end_ns[row]), table.name_of(row),
         int(table.kind[row]) if kinds else 0, table.lanes[table.lane[row]].label)
        for row in rows.tolist()
    )  # fmt: skip


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_chromes_format_comes_back_the_same(tmp_path: Path, table: EventTable, name: str) -> None:
    write_chrome(table, tmp_path / name)
    back = read_traces(tmp_path / name)
    assert events_of(back) == events_of(table)
    assert back.on_device().sum() == table.on_device().sum()
    assert back.bytes[back.of_kind(EventKind.COLLECTIVE)].tolist() == [4000] * 4
    assert back.step[back.of_kind(EventKind.KERNEL)].tolist() == [0, 0, 1, 1]


def test_an_otf2_archive_comes_back_with_regions_collectives_and_counters(tmp_path: Path, table: EventTable) -> None:
    pytest.importorskip("otf2")
    anchor = write_otf2(table, tmp_path / "archive")
    back = read_traces(anchor)
    # The library keeps the start of the trace as a float.
    shift = int(table.start_ns.min()) - int(back.start_ns.min())
    assert abs(shift) < 1000
    back.start_ns += shift
    back.end_ns += shift
    assert events_of(back, kinds=False) == events_of(table, kinds=False)
    assert back.bytes[back.of_kind(EventKind.COLLECTIVE)].tolist() == [4000] * 4
    assert back.groups[0].ranks == (0, 1)
    assert back.value[back.of_kind(EventKind.COUNTER)].tolist() == [5000.0] * 4


def test_an_archive_needs_a_folder_of_its_own(tmp_path: Path, table: EventTable) -> None:
    pytest.importorskip("otf2")
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "x").touch()
    with pytest.raises(Conflict, match="archive is not empty"):
        write_otf2(table, tmp_path / "archive")


def test_events_that_only_overlap_go_to_locations_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("otf2")
    rows = Rows()
    for start, end in ((0, 10), (5, 15), (6, 8)):
        rows.add(EventKind.REGION, f"{start}", start, end, Lane(0, "tasks"))
    back = read_traces(write_otf2(rows.table([Process(0)]), tmp_path / "archive"))
    lengths = {back.name_of(row): int(back.duration_ns[row]) for row in range(len(back))}
    assert lengths == {"0": 10, "5": 10, "6": 2}
    assert sorted(lane.label for lane in back.lanes) == ["tasks", "tasks (2)"]


def test_messages_keep_their_peer_in_an_archive(tmp_path: Path) -> None:
    pytest.importorskip("otf2")
    rows = Rows()
    group = RankGroup("0", (0, 1))
    rows.add(EventKind.P2P, "gloo:send", 0, 10, Lane(0, "x"), group=group, bytes=64, with_={"peer": 1})
    rows.add(EventKind.P2P, "gloo:recv", 0, 12, Lane(1, "x"), group=group, bytes=64, with_={"peer": 0})
    back = read_traces(write_otf2(rows.table([Process(0), Process(1)]), tmp_path / "archive"))
    assert {(int(back.rank[row]), back.attributes["peer"].get(row)) for row in range(2)} == {(0, 1), (1, 0)}
    assert back.bytes.tolist() == [64, 64] and set(back.kind.tolist()) == {EventKind.P2P}


def test_chakra_has_a_node_for_each_event_with_what_it_depends_on(tmp_path: Path, table: EventTable) -> None:
    files = write_chakra(table, tmp_path / "out")
    assert [file.name for file in files] == ["chakra.0.json", "chakra.1.json"]
    document = json.loads(files[0].read_text(encoding="utf-8"))
    nodes = {node["id"]: node for node in document["nodes"]}
    assert len(nodes) == 16  # without memory
    gemm = next(node for node in nodes.values() if node["name"] == "gemm")
    launch = nodes[gemm["data_deps"][0]]
    assert launch["name"] == "cudaLaunchKernel"
    assert nodes[launch["ctrl_deps"][0]]["name"] == "aten::mm"
    talk = next(node for node in nodes.values() if node["name"].startswith("nccl"))
    assert talk["type"] == 7
    assert {"name": "comm_size", "int64_val": 4000} in talk["attr"]
    assert {"name": "comm_type", "int64_val": 0} in talk["attr"]


def test_components_named_like_places_elsewhere_stay_in_the_folder(tmp_path: Path) -> None:
    rows = Rows()
    for component in ("../../out", "..//..//out", "a\nb", ".."):
        rows.add(EventKind.REGION, "x", 1, 2, Lane(0, "main", component=component))
    files = write_chakra(rows.table(), tmp_path / "in" / "here")
    assert {file.name.removesuffix(".chakra.0.json") for file in files} == {"a-b", "out", "out-2", "unnamed"}
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == set(files)
