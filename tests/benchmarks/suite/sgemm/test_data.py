"""SGEMM's table in its published forms, its splits, and what is said of broken files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.sgemm.data import COLUMNS, make_table, read_table, split
from fairmile.benchmarks.suite.sgemm.kernels import PARAMETERS

TABLE = make_table(1, rows=60)


def write(file: Path, header: str = ",".join(COLUMNS)) -> Path:
    rows = [
        ",".join([*map(str, kernel), *(f"{time:.2f}" for time in times)])
        for kernel, times in zip(TABLE.settings, TABLE.times_ms, strict=True)
    ]
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


@pytest.mark.parametrize("form", ["csv", "folder", "zip"])
def test_the_published_table_is_read(tmp_path: Path, form: str) -> None:
    (tmp_path / "data").mkdir()
    file = write(tmp_path / "data" / "sgemm_product.csv")
    given = {"csv": file, "folder": tmp_path / "data", "zip": tmp_path / "sgemm.zip"}[form]
    if form == "zip":
        with zipfile.ZipFile(given, "w") as archive:
            archive.write(file, "sgemm_product_dataset/sgemm_product.csv")
            archive.writestr("sgemm_product_dataset/Readme.txt", "about")
    table = read_table(given)
    assert (table.settings == TABLE.settings).all()
    assert np.allclose(table.times_ms, TABLE.times_ms, atol=0.006)


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"holds no sgemm_product\.csv"):
        read_table(tmp_path)
    with pytest.raises(UsageError, match="no column 'SB'"):
        read_table(write(tmp_path / "a.csv", ",".join(COLUMNS).replace("SB", "S_B")))
    file = write(tmp_path / "b.csv")
    file.write_text(file.read_text().replace(f"\n{TABLE.settings[0, 0]},", "\n17,", 1))
    with pytest.raises(UsageError, match="MWG is 17, expected one of 16, 32, 64, 128"):
        read_table(file)
    file.write_text(",".join(COLUMNS) + "\n1,2,three\n")
    with pytest.raises(Integrity, match="is damaged"):
        read_table(file)
    file.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(Integrity, match="cannot be read as a table"):
        read_table(file)


def test_the_test_part_does_not_depend_on_how_much_is_learned_from() -> None:
    table = make_table(1, rows=300)
    little, much = split(table, 0.05, "", 3), split(table, 0.67, "", 3)
    assert (little.test == much.test).all()
    assert (len(little.train), len(much.train), len(much.test)) == (15, 201, 99)


def test_a_value_can_be_left_out_of_training() -> None:
    parts = split(make_table(1, rows=300), 0.3, "KWG=32", 3)
    at = PARAMETERS.index("KWG")
    assert set(parts.test[:, at]) == {32}
    assert set(parts.train[:, at]) == {16}


@pytest.mark.parametrize(
    ("text", "message"), [("KGW=32", "no kernel parameter named 'KGW'"), ("KWG=64", "KWG is one of 16, 32, not '64'")]
)
def test_a_value_that_does_not_exist_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(make_table(1, rows=30), 0.3, text, 3)
