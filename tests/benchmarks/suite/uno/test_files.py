"""CANDLE's file of tables of pandas, and what is said of broken ones."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.uno.files import PARTS, read_screen
from fairmile.benchmarks.suite.uno.screens import Screen


def table(file: h5py.File, name: str, columns: dict[str, np.ndarray], names: dict[str, list[str]]) -> None:
    """Write a table as pandas does: blocks of columns, whose names are pickled lists in attributes."""
    kinds = [(key, each.dtype, each.shape[1:]) for key, each in columns.items()]
    rows = np.empty(len(next(iter(columns.values()))), [("index", "i8"), *kinds])
    rows["index"] = np.arange(len(rows))
    for key, each in columns.items():
        rows[key] = each
    made = file.create_dataset(f"{name}/table", data=rows, compression="gzip", chunks=(min(7, len(rows)),))
    for key, each in names.items():
        listed = "".join(f"V{text}\np{at + 1}\na" for at, text in enumerate(each))
        made.attrs[f"{key}_kind"] = np.bytes_(f"(lp0\n{listed}.")


def write(path: Path, screen: Screen, *, target: str = "AUC") -> Path:
    with h5py.File(path, "w") as file:
        for number, part in enumerate(PARTS):
            at = slice(number * 40, number * 40 + 40)
            cell, drug = screen.cell[at], screen.drug[at]
            named = [[f"CCLE.{a}".encode(), f"CTRP.{b}".encode()] for a, b in zip(cell, drug, strict=True)]
            blocks = {"values_block_0": screen.auc[at, None], "values_block_1": np.array(named)}
            table(file, f"y_{part}", blocks, {"values_block_0": [target], "values_block_1": ["Sample", "Drug1"]})
            table(file, f"x_{part}_0", {"values_block_0": screen.cells[cell]}, {})
            table(file, f"x_{part}_1", {"values_block_0": screen.drugs[drug]}, {})
    return path


def test_features_are_kept_once_for_each_cell_line_and_drug(tmp_path: Path, screen: Screen) -> None:
    write(tmp_path / "top_21_auc_1fold.uno.h5", screen)
    found = read_screen(tmp_path)
    assert len(found.cells) == len(np.unique(screen.cell[:120]))
    assert np.array_equal(found.cells[found.cell], screen.cells[screen.cell[:120]])
    assert np.array_equal(found.drugs[found.drug], screen.drugs[screen.drug[:120]])
    assert np.array_equal(found.auc, screen.auc[:120])
    assert found.part.tolist() == [0] * 40 + [1] * 40 + [2] * 40


def test_a_broken_file_is_named(tmp_path: Path, screen: Screen) -> None:
    with pytest.raises(NotFound, match=r"holds no \.h5 file"):
        read_screen(tmp_path)
    with pytest.raises(UsageError, match="y_train has no column 'AUC'; found IC50, Sample, Drug1"):
        read_screen(write(tmp_path / "a.h5", screen, target="IC50"))
    file = write(tmp_path / "b.h5", screen)
    with h5py.File(file, "a") as opened:
        del opened["x_val_1"]
    with pytest.raises(UsageError, match="no table 'x_val_1'"):
        read_screen(file)
    with h5py.File(file, "a") as opened:
        opened["x_val_1"] = opened["x_train_1"]
        del opened["x_test_0"]
        table(opened, "x_test_0", {"values_block_0": screen.cells[:3]}, {})
    with pytest.raises(Integrity, match="x_test_0 has 3 rows, expected 40"):
        read_screen(file)
    (tmp_path / "c.h5").write_bytes(b"no HDF5")
    with pytest.raises(Integrity, match="cannot be read as HDF5"):
        read_screen(tmp_path / "c.h5")
    with h5py.File(tmp_path / "d.h5", "w") as opened:
        opened["other"] = 1
    with pytest.raises(UsageError, match="no table 'y_train'; found other"):
        read_screen(tmp_path / "d.h5")
