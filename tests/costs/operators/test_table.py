"""The file of measured operators: it reads back, and a damaged one says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmile.base.errors import Integrity, NotFound
from fairmile.costs.operators.table import OperatorTiming, TableOrigin, append_rows, read_rows, write_table

ROWS = [
    OperatorTiming('aten.mm.default|2*f32[8,8]|[["@0","@1"]]', "f32[8,8]", ("grid", "unet"), 12.5, 14.0, 9.25, 4096),
    OperatorTiming("aten.item.default|f32[]|[[]]", "", (), problem="waits for the device"),
]
ABOUT = TableOrigin("NVIDIA H200", "580.159.04", "2.11.0+cu130", "2026-11-16")


@pytest.mark.parametrize("name", ["h200.csv", "h200.csv.gz"])
def test_a_table_reads_back(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name, ROWS, ABOUT)
    assert read_rows(tmp_path / name) == (ABOUT, ROWS)


def test_rows_are_added_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "part.csv"
    append_rows(path, ROWS[:1])
    append_rows(path, ROWS[1:])
    append_rows(path, [])
    assert read_rows(path)[1] == ROWS


def test_a_table_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no table"):
        read_rows(tmp_path / "none.csv")
    path = tmp_path / "h200.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(Integrity, match="is not a table of measured operators"):
        read_rows(path)
    packed = tmp_path / "h200.csv.gz"
    write_table(packed, ROWS, ABOUT)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(Integrity, match="is damaged"):
        read_rows(packed)


def test_a_bad_row_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "h200.csv"
    append_rows(path, ROWS)
    path.write_text(path.read_text().replace("12.5", "fast"))
    with pytest.raises(Integrity, match=r"h200.csv:2: not a measured operator"):
        read_rows(path)
