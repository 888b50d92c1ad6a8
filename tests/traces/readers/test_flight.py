from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from fairmile.base.errors import Integrity
from fairmile.traces.events import EventKind
from fairmile.traces.readers.flight import read


def entry(number: int, **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce", "input_sizes": ((1000,),), "input_dtypes": ["Float"],
        "output_sizes": ((1000,),), "output_dtypes": ["Float"], "state": "completed", "time_created_ns": 5_000 * number,
        "time_discovered_started_ns": 5_000 * number + 100, "time_discovered_completed_ns": 5_000 * number + 900,
    } | more  # fmt: skip


DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [
        entry(1),
        entry(2, state="scheduled", time_discovered_started_ns=None, time_discovered_completed_ns=None),
        entry(3, is_p2p=True, p2p_seq_id=4, profiling_name="nccl:send 1->0"),
    ],
}


@pytest.mark.parametrize("packed", [True, False])
def test_a_dump_tells_number_size_state_and_time_of_each_collective(tmp_path: Path, packed: bool) -> None:
    file = tmp_path / "nccl_trace_rank_1"
    file.write_bytes(pickle.dumps(DUMP) if packed else json.dumps(DUMP).encode())
    table = read(file)
    assert table.ranks == [1] and table.processes[0].world == 2 and table.missing_ranks == [0]
    assert table.kind.tolist() == [EventKind.COLLECTIVE, EventKind.COLLECTIVE, EventKind.P2P]
    assert table.sequence.tolist() == [1, 2, 4]
    assert table.bytes.tolist() == [4000] * 3
    assert list(zip(table.start_ns.tolist(), table.end_ns.tolist(), strict=True))[:2] == [
        (5_100, 5_900),
        (10_000, 10_000),
    ]
    assert table.attribute("state").tolist() == ["completed", "scheduled", "completed"]
    assert table.attributes["peer"].get(2) == 0
    assert table.groups[0].ranks == (0, 1)
    assert table.notes == ["nccl_trace_rank_1: 1 of 3 collectives have no end time; their duration is set to 0"]


@pytest.mark.parametrize("packed", [True, False])
def test_an_empty_dump_that_tells_its_rank_is_a_process_without_collectives(tmp_path: Path, packed: bool) -> None:
    file = tmp_path / "nccl_trace_rank_1"
    empty = DUMP | {"entries": []}
    file.write_bytes(pickle.dumps(empty) if packed else json.dumps(empty).encode())
    table = read(file)
    assert len(table) == 0 and table.ranks == [1] and table.processes[0].world == 2
    assert table.notes == ["nccl_trace_rank_1: the flight recorder of rank 1 has no collectives"]


def test_an_empty_dump_that_does_not_tell_its_rank_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "dump"
    file.write_text(json.dumps(DUMP | {"entries": []}), encoding="utf-8")
    with pytest.raises(Integrity, match="dump has no flight recorder entries"):
        read(file)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil"),))


def test_a_pickle_that_wants_any_object_is_refused_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps({"entries": [entry(1)], "x": Evil()}))
    with pytest.raises(Integrity, match="nccl_trace_rank_0 is not a flight recorder dump: it refers to"):
        read(file)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("data", [b"", b"{", b"\x80\x04", b"7", b'{"entries": []}', b"\x80\x04cos\nsystem\n."])
def test_what_is_no_dump_is_an_error_with_the_name_of_the_file(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(data)
    with pytest.raises(Integrity, match="nccl_trace_rank_0"):
        read(file)
