"""A data set in another format has the same values, or it is not published."""

from __future__ import annotations

import csv
import itertools
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pyarrow.parquet
import pytest
import zarr

from fairmile.base.errors import Conflict, Integrity, NotFound, SystemFailure, Unsupported, UsageError
from fairmile.catalog.converting import arrays as array_formats
from fairmile.catalog.converting import layout
from fairmile.catalog.converting.convert import ENDINGS, FORMATS, convert_file
from fairmile.workspace import Workspace

ROWS = 25
PLACES = ["Wick, north", "Ürd", "", "two\nlines", "007"]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few rows, so that every file has several, and the last one is shorter."""
    monkeypatch.setattr(layout, "BLOCK_BYTES", 700)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An HDF5 file of numbers, truth values, texts, a missing number and attributes."""
    random = np.random.default_rng(0)
    file = tmp_path / "source.h5"
    with h5py.File(file, "w") as out:
        out["x"] = random.normal(size=(ROWS, 3))
        out["x"][3, 1] = np.nan
        out["x"].attrs["units"] = "m"
        out["n"] = np.arange(ROWS) - 3
        out["ok"] = random.random(ROWS) > 0.5
        out.create_dataset("place", data=PLACES * 5, dtype=h5py.string_dtype())
        out.attrs["title"] = "Tides"
    return file


def read(file: Path) -> dict[str, Any]:
    """Return columns by name, as the format's own library reads them."""
    with h5py.File(file.with_name("source.h5")) as original:
        names = list(original)
    if file.suffix == ".npy":
        return {"x": np.load(file)}
    if file.suffix == ".h5":
        with h5py.File(file) as h5:
            return {each: (h5[each].asstr() if each == "place" else h5[each])[:] for each in names}
    if file.suffix == ".nc":
        with netCDF4.Dataset(file) as nc:
            return {each: np.asarray(nc[each][:]) for each in names}
    if file.suffix == ".zarr":
        group: Any = zarr.open_group(str(file), mode="r")
        return {each: group[each][:] for each in names}
    if file.suffix == ".parquet":
        table = pyarrow.parquet.read_table(file)
        return {each: np.array(table[each].to_pylist()) for each in names}
    with file.open(newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    x = [[float(row[f"x.{at}"]) for at in range(3)] for row in rows]
    return {"x": x, "place": [row["place"] for row in rows], **{n: [int(row[n]) for row in rows] for n in ("n", "ok")}}


@pytest.mark.usefixtures("small_blocks")
def test_every_format_converts_to_every_other_with_the_same_values(source: Path, tmp_path: Path) -> None:
    wanted = read(source)
    made = {}
    for to, (ending, *_) in ENDINGS.items():
        made[to] = tmp_path / f"first.{ending}"
        how: dict[str, Any] = {"arrays": ["x"]} if to == "npy" else {"lossy": to == "tfrecord"}
        assert convert_file(source, to, made[to], **how).verified
    for to, back in itertools.permutations(ENDINGS, 2):
        target = tmp_path / f"{to}-{back}.{ENDINGS[back][0]}"
        if back == "npy":  # holds one array
            array = "x.0" if to == "csv" else "x"
            assert convert_file(made[to], back, target, arrays=[array]).verified
            continue
        assert convert_file(made[to], back, target, lossy=True).verified, (to, back)
        if back == "tfrecord" or to in ("npy", "csv"):  # no library of its own here; other names
            continue
        values = read(target)
        for name in wanted:
            exact = wanted[name] if name != "x" or to != "tfrecord" else wanted[name].astype("f4")
            np.testing.assert_array_equal(values[name], exact, err_msg=f"{name} of {target.name}")
    assert list(tmp_path.glob(".*")) == [], "nothing half-written is left"


def test_attributes_stay_where_the_format_has_them_and_are_named_where_not(source: Path, tmp_path: Path) -> None:
    converted = convert_file(source, "netcdf", tmp_path / "a.nc")
    assert (converted.notes, [each.stored_as for each in converted.arrays if each.dtype == "bool"]) == ((), ["uint8"])
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        assert (file.title, file["x"].units) == ("Tides", "m")
    assert "attributes" in convert_file(source, "csv", tmp_path / "a.csv").notes[0]


def test_what_would_lose_values_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"TFRecord cannot hold x \(float64") as refused:
        convert_file(source, "tfrecord", tmp_path / "a.tfrecord")
    assert "--lossy" in str(refused.value.hint)
    rounded = convert_file(source, "tfrecord", tmp_path / "a.tfrecord", lossy=True)
    moved = next(each.largest_difference for each in rounded.arrays if each.name == "x")
    assert moved is not None
    assert 0 < moved < 1e-6
    with pytest.raises(Unsupported, match="texts differ in length"):
        convert_file(source, "npy", tmp_path / "a.npy", arrays=["place"])
    with pytest.raises(UsageError, match="npy holds one array, and there are 2"):
        convert_file(source, "npy", tmp_path / "a.npy", arrays=["x", "n"])
    with pytest.raises(NotFound, match="did you mean 'place'"):
        convert_file(source, "csv", tmp_path / "a.csv", arrays=["plaec"])
    with h5py.File(source, "a") as file:
        file["short"] = np.arange(3)
    with pytest.raises(UsageError, match="differ in length"):
        convert_file(source, "parquet", tmp_path / "a.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tfrecord", "source.h5"]


def test_a_file_that_reads_back_different_is_not_published(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(sink: Any, start: int, block: Any) -> None:
        for name, values in block.items():
            sink._arrays[name][start : start + len(values)] = values[::-1]

    monkeypatch.setattr(array_formats._Sink, "write", damage)
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(Conflict, match="already exists"):
        convert_file(source, "zarr", tmp_path / "a.zarr", arrays=["n"])
    with pytest.raises(Integrity, match="n reads back different from row 0 on"):
        convert_file(source, "zarr", tmp_path / "a.zarr", arrays=["n"], replace=True)
    assert [path.name for path in (tmp_path / "a.zarr").iterdir()] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "source.h5"]


def test_columns_of_csv_have_the_narrowest_type_that_keeps_them(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("whole,broken,code,gap\n1,1.5,007,2\n-2,1e3,12,\n")
    converted = convert_file(table, "hdf5", tmp_path / "a.h5")
    assert [each.dtype for each in converted.arrays] == ["int64", "float64", "text", "float64"]
    assert converted.notes == ("1 missing values of gap became NaN",)
    table.write_text("a,b\n1,2\n3\n")
    with pytest.raises(UsageError, match=r"a\.csv:3: 1 values, expected 2"):
        convert_file(table, "hdf5", tmp_path / "b.h5")


def test_a_damaged_tfrecord_is_named(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.tfrecord"
    convert_file(source, "tfrecord", file, arrays=["n"])
    data = file.read_bytes()
    for broken, message in (
        (data[:-3], "record 25 is truncated"),
        (data[:40] + bytes([data[40] ^ 1]) + data[41:], "checksum"),
    ):
        file.write_bytes(broken)
        with pytest.raises(Integrity, match=message):
            convert_file(file, "npy", tmp_path / "n.npy")


def test_memory_is_bounded_by_the_block_not_by_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1 << 16)
    np.save(tmp_path / "a.npy", np.arange(1 << 20, dtype="f4").reshape(-1, 64))  # 4 MiB
    for to in ("hdf5", "parquet"):
        convert_file(tmp_path / "a.npy", to, tmp_path / f"warm.{to}", replace=True)
        tracemalloc.start()
        convert_file(tmp_path / "a.npy", to, tmp_path / f"a.{to}.{ENDINGS[to][0]}")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20, f"{to}: {peak:,} bytes"


def test_reading_parquet_keeps_one_group_of_rows_not_the_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(65_536, 256)).astype("f4")  # 64 MiB in four groups of rows
    np.save(tmp_path / "a.npy", values)
    convert_file(tmp_path / "a.npy", "parquet", tmp_path / "a.parquet")
    source = FORMATS["parquet"]().open(tmp_path / "a.parquet")
    before = pyarrow.total_allocated_bytes()
    kept = [pyarrow.total_allocated_bytes() - before for _ in source.blocks([source.arrays[0].name], 1024)]
    assert len(kept) == 64
    assert max(kept) < values.nbytes / 2


def test_what_a_killed_conversion_left_goes_with_the_next(source: Path, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from fairmile.catalog.converting import convert\n"
        "convert._compare = lambda *args: os.kill(os.getpid(), signal.SIGKILL)\n"
        "convert.convert_file(Path(sys.argv[1]), 'zarr', Path(sys.argv[2]))\n"
    )
    target = tmp_path / "tide.zarr"
    killed = subprocess.run([sys.executable, "-c", program, str(source), str(target)])
    assert (killed.returncode, target.exists()) == (-signal.SIGKILL, False)
    assert len(list(tmp_path.glob(".tide.*"))) == 1
    another = tmp_path / f".tide.{os.getpid()}.zarr"  # of whom is not known
    another.mkdir()
    assert convert_file(source, "zarr", target).verified
    assert sorted(path.name for path in tmp_path.iterdir()) == [another.name, source.name, target.name]


@pytest.mark.parametrize("to", ENDINGS)
def test_a_target_that_cannot_be_written_is_named(source: Path, to: str) -> None:
    target = Path(f"/proc/level.{ENDINGS[to][0]}")
    with pytest.raises(SystemFailure, match=f"{target}"):
        convert_file(source, to, target, arrays=["n"])


def test_the_same_data_converted_again_keeps_its_card(tmp_path: Path) -> None:
    space = Workspace.open(environ={"FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}, cwd=tmp_path)
    file = tmp_path / "tide.csv"
    file.write_text("hour,level\n0,1.5\n")
    first, again = (space.datasets.convert(str(file), "parquet", out=tmp_path / name) for name in ("a.pq", "b.pq"))
    assert again.card == first.card
    assert "has the card" in again.notes[-1]
    stated = {"license": "https://spdx.org/licenses/CC-BY-4.0", "version": "1.0"}
    space.catalog.describe(file, kind="dataset", set=stated, add=True)
    space.datasets.convert("tide", "npy", arrays=["level"], out=tmp_path / "level.npy")
    with pytest.raises(Conflict, match=r"hour.npy was written, but the card .*@1.0-npy has other content"):
        space.datasets.convert("tide", "npy", arrays=["hour"], out=tmp_path / "hour.npy")


def test_the_new_file_has_a_card_that_says_what_it_was_derived_from(tmp_path: Path) -> None:
    environ = {"FAIRMILE_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    space = Workspace.open(environ=environ, cwd=tmp_path)
    (tmp_path / "tide.csv").write_text("hour,level\n0,1.5\n")
    stated = {"license": "https://spdx.org/licenses/CC-BY-4.0", "keywords": ["tide"], "version": "1.0"}
    described = space.catalog.describe(tmp_path / "tide.csv", kind="dataset", set=stated, add=True)
    planned = space.datasets.convert("tide", "npy", arrays=["level"], out=tmp_path / "level.npy", dry_run=True)
    assert (planned.verified, planned.card, (tmp_path / "level.npy").exists()) == (False, "", False)
    converted = space.datasets.convert("tide", "npy", arrays=["level"], out=tmp_path / "level.npy")
    card = space.catalog.get(converted.card)
    assert (card["wasDerivedFrom"], card.version, card.keywords) == (
        space.catalog.get(described.added).iri,
        "1.0-npy",
        ["tide"],
    )
    assert card.content == converted.content
    assert np.load(tmp_path / "level.npy").tolist() == [1.5]
