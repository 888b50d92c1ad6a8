from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec")

from fairmile.perf.traces.events import Kind
from fairmile.perf.traces.reading import format_of, read_traces

# As Horovod writes it: tensors are processes, a tick for each rank that is ready, no number of a thread.
TIMELINE = """[
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad/dense"}},
{"name": "process_sort_index", "ph": "M", "pid": 1, "args": {"sort_index": 1}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1},
{"ph": "X", "name": "0", "ts": 100, "pid": 1, "dur": 0},
{"ph": "X", "name": "2", "ts": 150, "pid": 1, "dur": 0},
{"ph": "X", "name": "1", "ts": 900, "pid": 1, "dur": 0},
{"ph": "E", "ts": 905, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 910, "pid": 1},
{"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 912, "pid": 1},
{"ph": "E", "ts": 920, "pid": 1},
{"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 921, "pid": 1},
{"ph": "E", "ts": 990, "pid": 1},
{"ph": "E", "ts": 1000, "pid": 1, "args": {"dtype": "float32", "shape": "[10, 5]"}},
{"ph": "i", "name": "CYCLE_START", "ts": 1001, "s": "g"}"""


@pytest.mark.parametrize("end", ["]", "", ","])
def test_each_rank_has_the_collective_from_when_it_was_ready_to_the_common_end(tmp_path: Path, end: str) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(TIMELINE + end, encoding="utf-8")
    assert format_of(file) == "horovod"
    table = read_traces(file)
    rows = np.flatnonzero(table.of_kind(Kind.COLLECTIVE))
    rows = rows[np.argsort(table.rank[rows])]
    assert table.rank[rows].tolist() == [0, 1, 2]
    assert table.start_ns[rows].tolist() == [100_000, 900_000, 150_000]
    assert table.end_ns[rows].tolist() == [1_000_000] * 3
    assert table.bytes[rows].tolist() == [200] * 3
    assert table.groups[table.group[rows[0]]].ranks == (0, 1, 2)
    assert table.attributes["arrivals"].get(int(rows[0])) == {0: 100_000, 2: 150_000, 1: 900_000}
    assert table.notes == ["timeline.json is what rank 0 saw: of other ranks it tells only when they were ready"]


def test_phases_lie_in_the_lane_of_their_tensor(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(TIMELINE + "]", encoding="utf-8")
    table = read_traces(file)
    rows = np.flatnonzero(table.of_kind(Kind.REGION))
    found = {table.name_of(row): int(table.duration_ns[row]) for row in rows.tolist()}
    assert found == {
        "NEGOTIATE_ALLREDUCE": 805_000,
        "ALLREDUCE": 90_000,
        "MEMCPY_IN_FUSION_BUFFER": 8_000,
        "NCCL_ALLREDUCE": 69_000,
    }
    assert {table.lanes[lane].label for lane in table.lane[rows].tolist()} == {"grad/dense"}


def test_a_timeline_that_was_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(TIMELINE[: TIMELINE.index('"ts": 990')], encoding="utf-8")
    table = read_traces(file)
    assert not table.of_kind(Kind.COLLECTIVE).any()
    assert any("is cut off" in note for note in table.notes)
    assert any("2 phases begin and never end" in note for note in table.notes)
