"""An asset with its bytes is a read-only folder, files with metadata, plain attributes and Arrow tables."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import pickle
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from extras import needs_extra
from store_filling import fill, open_store

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import FairmileError, NotFound, Unsupported, UsageError
from fairmile.catalog.access import LoadedAsset
from fairmile.catalog.card import Card
from fairmile.store.pools import Pool

Load = Callable[[Mapping[str, bytes | Path]], LoadedAsset]
TABLE = pa.table({"x": [1, 2, 3], "y": [0.5, 1.5, 2.5], "label": ["a", "b", "ü"]})


@pytest.fixture
def load(tmp_path: Path, card: Callable[..., dict[str, Any]], file: Callable[..., dict[str, Any]]) -> Load:
    """Put files into a store and return them as a loaded asset."""

    def make(files: Mapping[str, bytes | Path], **stated: Any) -> LoadedAsset:
        store = open_store(tmp_path, Pool("home", tmp_path / "home"))
        contents = {name: each.read_bytes() if isinstance(each, Path) else each for name, each in files.items()}
        root = fill(store, "asset", contents, pool="home").root
        body = card(distribution=[file(name, data, **stated) for name, data in contents.items()])
        return LoadedAsset(Card(body), root, store, lambda: tmp_path / "view")

    return make


def saved(write: Callable[..., Any], *arguments: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    write(out, *arguments, **options)
    return out.getvalue()


def csv_text(separator: str = ",") -> bytes:
    rows = [["x", "y", "label"], *([str(each) for each in row.values()] for row in TABLE.to_pylist())]
    return "".join(separator.join(row) + "\n" for row in rows).encode()


def json_lines() -> bytes:
    return b"".join(
        b'{"x": %d, "y": %g, "label": "%s"}\n' % (row["x"], row["y"], row["label"].encode())
        for row in TABLE.to_pylist()
    )


def arrow_stream(table: pa.Table = TABLE) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def arrow_file(table: pa.Table = TABLE, **options: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, **options)
    return out.getvalue().to_pybytes()


def parquet(table: pa.Table = TABLE) -> bytes:
    out = pa.BufferOutputStream()
    pa.parquet.write_table(table, out)
    return out.getvalue().to_pybytes()


def feather(table: pa.Table = TABLE) -> bytes:
    out = pa.BufferOutputStream()
    pa.feather.write_feather(table, out)
    return out.getvalue().to_pybytes()


TABLES = {
    "data.csv": csv_text(),
    "data.csv.gz": gzip.compress(csv_text()),
    "data.csv.bz2": bz2.compress(csv_text()),
    "data.tsv": csv_text("\t"),
    "data.jsonl": json_lines(),
    "data.ndjson.gz": gzip.compress(json_lines()),
    "data.parquet": parquet(),
    "data.feather": feather(),
    "data.arrow": arrow_file(),
    "data.arrows": arrow_stream(),
}


@pytest.fixture
def hdf5(tmp_path: Path) -> Path:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "Sample"
        file.attrs["numbers"] = np.arange(3, dtype="int32")
        group = file.create_group("run/one")
        group.attrs["flag"] = True
        data = group.create_dataset("x", data=np.arange(6, dtype=">f4"), chunks=(2,), compression="gzip")
        data.attrs["units"] = "m/s"
        group["vectors"] = np.arange(12, dtype="int64").reshape(6, 2)
        group["names"] = np.array(["a", "b", "c", "d", "e", "ü"], dtype=h5py.string_dtype())
        group["events"] = np.array([(i, i / 2) for i in range(6)], dtype=[("id", "i4"), ("energy", "f8")])
        file["image"] = np.zeros((4, 5, 6), dtype="uint8")
        file["other"] = np.zeros(9)
    return path


# Folder and files


def test_nothing_is_laid_before_a_path_is_asked_for(load: Load, tmp_path: Path) -> None:
    asset = load({"a.csv": csv_text(), "sub/b.bin": b"b" * 100_000})
    assert [file.name for file in asset.files] == ["a.csv", "sub/b.bin"]
    assert not (tmp_path / "view").exists()
    assert asset.path == tmp_path / "view"
    assert (asset.path / "sub/b.bin").read_bytes() == b"b" * 100_000


def test_the_files_of_the_folder_are_read_only(load: Load) -> None:
    asset = load({"a.txt": b"text"})
    assert stat.S_IMODE((asset.path / "a.txt").stat().st_mode) == 0o444


def test_the_path_of_a_single_file_is_still_its_folder(load: Load, tmp_path: Path) -> None:
    asset = load({"a.txt": b"text"})
    assert asset.path == tmp_path / "view"
    assert asset.file("a.txt") == tmp_path / "view" / "a.txt"
    assert asset.file("a.txt").read_bytes() == b"text"
    assert os.fspath(asset) == str(asset.path)


def test_files_have_size_digest_media_type_and_path(load: Load) -> None:
    asset = load({"a.csv": b"x\n1\n", "b.h5": b"no matter"})
    first, second = asset.files
    assert (first.name, first.size_bytes, first.sha256) == ("a.csv", 4, sha256_hex(b"x\n1\n"))
    assert (first.media_type, second.media_type) == ("text/csv", "application/x-hdf5")
    assert first.path.read_bytes() == b"x\n1\n"


def test_the_media_type_that_the_card_states_wins(load: Load) -> None:
    assert load({"a.csv": b""}, encodingFormat="text/x-own").files[0].media_type == "text/x-own"  # type: ignore[call-arg]


def test_a_file_that_is_not_there_names_the_nearest(load: Load) -> None:
    with pytest.raises(NotFound, match=r"has no file 'trian\.csv'; did you mean 'train\.csv'"):
        load({"train.csv": b"", "test.csv": b""}).file("trian.csv")


# Tables


@pytest.mark.parametrize("name", TABLES)
def test_every_tabular_format_becomes_the_same_table(load: Load, name: str) -> None:
    asset = load({name: TABLES[name], "README.md": b"text"})
    assert asset.table().to_pydict() == TABLE.to_pydict()
    assert asset.table(name, columns=["label", "x"]).to_pydict() == TABLE.select(["label", "x"]).to_pydict()


@pytest.mark.parametrize("name", TABLES)
def test_batches_make_up_the_table_and_have_no_more_rows_than_asked_for(load: Load, name: str) -> None:
    asset = load({name: TABLES[name]})
    batches = list(asset.batches(rows=2))
    assert [batch.num_rows for batch in batches] == [2, 1]
    assert pa.Table.from_batches(batches).to_pydict() == TABLE.to_pydict()
    chosen = pa.Table.from_batches(list(asset.batches(columns=["label", "x"])))
    assert chosen.to_pydict() == TABLE.select(["label", "x"]).to_pydict()


@pytest.mark.parametrize("name", TABLES)
def test_a_column_that_is_not_there_names_the_nearest(load: Load, name: str) -> None:
    asset = load({name: TABLES[name]})
    for read in (asset.table, lambda **options: list(asset.batches(**options))):
        with pytest.raises(NotFound, match=rf"^{name} has no column 'lable'; did you mean 'label'"):
            read(columns=["lable"])


@pytest.mark.parametrize("name", ["data.csv", "data.parquet", "data.feather", "data.arrow", "data.arrows"])
def test_a_table_without_rows_keeps_its_columns(load: Load, name: str) -> None:
    empty = TABLE.slice(0, 0)
    data = {
        "data.csv": b"x,y,label\n",
        "data.parquet": parquet(empty),
        "data.feather": feather(empty),
        "data.arrow": arrow_file(empty),
        "data.arrows": arrow_stream(empty),
    }[name]
    asset = load({name: data})
    assert asset.table().to_pydict() == {"x": [], "y": [], "label": []}
    assert asset.table(columns=["y"]).to_pydict() == {"y": []}


def test_a_file_that_is_packed_with_others_in_the_store_is_read_too(load: Load) -> None:
    files = {f"part{number:02}.csv": b"x\n%d\n" % number for number in range(40)}
    assert load(files).table("part07.csv").to_pydict() == {"x": [7]}


def test_arrow_files_are_mapped_and_not_copied(load: Load) -> None:
    asset = load({"data.arrow": arrow_file(pa.table({"x": np.arange(1_000_000)}))})
    before = pa.total_allocated_bytes()
    table = asset.table()
    assert table.num_rows == 1_000_000
    assert pa.total_allocated_bytes() - before < 100_000


def test_npy_arrays_are_mapped_and_not_copied(load: Load) -> None:
    asset = load({"data.npy": saved(np.save, np.arange(1_000_000))})
    before = pa.total_allocated_bytes()
    table = asset.table()
    assert table.column("values").to_numpy()[-1] == 999_999
    assert pa.total_allocated_bytes() - before < 100_000


def test_an_npy_array_is_one_column_whose_rows_are_lists_in_two_dimensions(load: Load) -> None:
    asset = load(
        {"one.npy": saved(np.save, np.array([1.5, np.nan])), "two.npy": saved(np.save, np.arange(6).reshape(3, 2))}
    )
    assert asset.table("one.npy").column("values").null_count == 0
    assert asset.table("two.npy").to_pydict() == {"values": [[0, 1], [2, 3], [4, 5]]}
    assert [batch.num_rows for batch in asset.batches("two.npy", rows=2)] == [2, 1]


def test_the_fields_of_a_structured_npy_array_are_columns(load: Load) -> None:
    data = np.array([(1, 0.5), (2, 1.5)], dtype=[("id", "i4"), ("energy", ">f8")])
    assert load({"a.npy": saved(np.save, data)}).table().to_pydict() == {"id": [1, 2], "energy": [0.5, 1.5]}


@pytest.mark.parametrize(
    "values",
    [
        np.array([True, False]),
        np.array([1, 2], dtype=">u2"),
        np.array([0.5, 1.5], dtype="float16"),
        np.array(["a", "ü"]),
        np.array([b"a", b"b"]),
        np.array(["2026-01-02", "2026-01-03"], dtype="datetime64[s]"),
        np.asfortranarray([[1, 2], [3, 4]]),
        np.array([], dtype="int8"),
    ],
    ids=lambda values: str(values.dtype),
)
def test_types_of_numpy_keep_their_values(load: Load, values: Any) -> None:
    assert load({"a.npy": saved(np.save, values)}).table().to_pydict() == {"values": values.tolist()}


@pytest.mark.parametrize("values", [np.zeros(2, dtype="complex128"), np.zeros(2, dtype="longdouble")])
def test_types_that_arrow_does_not_know_are_named(load: Load, values: Any) -> None:
    with pytest.raises(Unsupported, match=r"^a\.npy: values has the type .*, which Arrow does not support(?:\n|$)"):
        load({"a.npy": saved(np.save, values)}).table()


@pytest.mark.parametrize("values", [np.float64(1), np.zeros((2, 2, 2)), np.zeros((2, 0))])
def test_an_array_of_other_dimensions_is_no_table(load: Load, values: Any) -> None:
    with pytest.raises(UsageError, match=r"^a\.npy has no array of one or two dimensions(?:\n|$)"):
        load({"a.npy": saved(np.save, values)}).table()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_arrays_of_an_npz_are_columns_by_name(load: Load, save: Any) -> None:
    data = saved(save, x=np.arange(3), vectors=np.arange(6).reshape(3, 2), image=np.zeros((2, 2, 2)))
    asset = load({"a.npz": data})
    assert asset.table().to_pydict() == {"x": [0, 1, 2], "vectors": [[0, 1], [2, 3], [4, 5]]}
    assert asset.table(columns=["x"]).column_names == ["x"]
    with pytest.raises(UsageError, match=r"^a\.npz: image has the shape \(2, 2, 2\), but a column has one or two"):
        asset.table(columns=["image"])


def test_the_data_sets_of_hdf5_are_columns_by_path(load: Load, hdf5: Path) -> None:
    asset = load({"a.h5": hdf5})
    table = asset.table(columns=["/run/one/x", "run/one/vectors", "run/one/names", "run/one/events.energy"])
    assert table.to_pydict() == {
        "run/one/x": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        "run/one/vectors": [[i, i + 1] for i in range(0, 12, 2)],
        "run/one/names": ["a", "b", "c", "d", "e", "ü"],
        "run/one/events.energy": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5],
    }
    batches = list(asset.batches(columns=["run/one/x", "run/one/names"], rows=4))
    assert [batch.num_rows for batch in batches] == [4, 2]
    assert batches[1].to_pydict() == {"run/one/x": [4.0, 5.0], "run/one/names": ["e", "ü"]}


def test_data_sets_of_unequal_length_are_no_table_but_the_choice_is_shown(load: Load, hdf5: Path) -> None:
    with pytest.raises(UsageError, match="the arrays differ in length") as caught:
        load({"a.h5": hdf5}).table()
    assert "run/one/x (6,)" in str(caught.value.hint)
    assert "other (9,)" in str(caught.value.hint)


def test_wrong_names_of_data_sets_are_explained(load: Load, hdf5: Path) -> None:
    asset = load({"a.h5": hdf5})
    with pytest.raises(NotFound, match=r"has no column 'run/one/y'; did you mean 'run/one/x'"):
        asset.table(columns=["run/one/y"])
    with pytest.raises(UsageError, match=r"run/one/events consists of several fields: choose run/one/events\.id"):
        asset.table(columns=["run/one/events"])


def test_data_that_an_hdf5_file_takes_from_other_files_are_not_read(load: Load, tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.arange(4, dtype="f8").tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(4)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.create_dataset("outside", (4,), "f8", external=[(str(secret), 0, 32)])
        file["linked"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (4,))
        file.create_virtual_dataset("virtual", layout)
        file["own"] = np.arange(4)
    asset = load({"a.h5": tmp_path / "made.h5"})
    assert asset.table().column_names == ["own"]
    for name in ("outside", "linked", "virtual"):
        with pytest.raises(NotFound):
            asset.table(columns=[name])


@pytest.mark.parametrize("model", ["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"])
def test_the_variables_of_every_kind_of_netcdf_are_columns_as_they_are_stored(
    load: Load, tmp_path: Path, model: str
) -> None:
    asset = load({"a.nc": netcdf(tmp_path, model)})
    assert asset.table(columns=["time", "wind"]).to_pydict() == {"time": [0, 1, 2], "wind": [[1, 2], [3, 4], [-9, 6]]}


def netcdf(folder: Path, model: str) -> Path:
    path = folder / "made.nc"
    with netCDF4.Dataset(path, "w", format=model) as file:
        file.title = "Sample"
        file.createDimension("time", 3)
        file.createDimension("side", 2)
        file.createVariable("time", "i4", ("time",))[:] = [0, 1, 2]
        wind = file.createVariable("wind", "i2", ("time", "side"), fill_value=-9)
        wind.units = "m/s"
        wind.set_auto_maskandscale(False)
        wind[:] = [[1, 2], [3, 4], [-9, 6]]
        wind.scale_factor = 0.5
        if model == "NETCDF4":
            file.createGroup("inner").createVariable("z", "f8", ("time",))[:] = [0.0, 0.5, 1.0]
    return path


# Attributes


def test_hdf5_attributes_shapes_and_types_are_plain_data(load: Load, hdf5: Path) -> None:
    found = load({"a.h5": hdf5, "README.md": b"text"}).attributes()
    assert (found["format"], found["complete"]) == ("HDF5", True)
    assert found["attributes"] == {"title": "Sample", "numbers": [0, 1, 2]}
    assert found["items"]["/run/one"] == {"attributes": {"flag": True}}
    assert found["items"]["/run/one/x"] == {
        "shape": [6],
        "dtype": ">f4",
        "chunks": [2],
        "compression": "gzip",
        "attributes": {"units": "m/s"},
    }
    assert found["items"]["/image"] == {"shape": [4, 5, 6], "dtype": "uint8", "attributes": {}}


@pytest.mark.parametrize("model", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_netcdf_attributes_shapes_and_dimensions_are_plain_data(load: Load, tmp_path: Path, model: str) -> None:
    found = load({"a.nc": netcdf(tmp_path, model)}).attributes("a.nc")
    assert found["format"] == model
    assert found["attributes"] == {"title": "Sample"}
    assert found["dimensions"] == {"time": 3, "side": 2}
    assert found["items"]["/wind"] == {
        "shape": [3, 2],
        "dtype": "int16",
        "dimensions": ["time", "side"],
        "attributes": {"_FillValue": -9, "units": "m/s", "scale_factor": 0.5},
    }
    assert ("/inner/z" in found["items"]) == (model == "NETCDF4")


def test_odd_attributes_become_plain_data_too(load: Load, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w") as file:
        file.attrs["bytes"] = np.bytes_(b"caf\xe9")
        file.attrs["texts"] = ["a", "b"]
        file.attrs["nothing"] = h5py.Empty("f4")
        file.attrs["matrix"] = np.eye(2)
        file.attrs["pair"] = np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])
        file.attrs["reference"] = file.ref
        file.attrs["complex"] = 1 + 2j
    found = load({"a.h5": tmp_path / "made.h5"}).attributes()["attributes"]
    assert found["bytes"] == "caf\ufffd"
    assert found["texts"] == ["a", "b"]
    assert found["matrix"] == [[1.0, 0.0], [0.0, 1.0]]
    assert found["pair"] == [[1, 2.5]]
    assert all(isinstance(found[key], str) for key in ("nothing", "reference", "complex"))


@pytest.mark.thorough
def test_attributes_are_bounded_in_size(load: Load, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "made.h5", "w", libver="latest") as file:
        file.attrs["long"] = "x" * 50_000
        file.attrs["many"] = np.arange(5_000)
        for number in range(10_050):
            file.create_group(f"g{number}")
    found = load({"a.h5": tmp_path / "made.h5"}).attributes()
    assert found["attributes"]["long"] == "x" * 10_000 + "…"
    assert found["attributes"]["many"] == list(range(1_000))
    assert len(found["items"]) == 10_000
    assert not found["complete"]


# Which file


def test_the_name_may_be_left_out_only_where_one_file_suits(load: Load) -> None:
    with pytest.raises(UsageError, match=r"has 2 files of this kind \(table\)(?:\n|$)") as caught:
        load({"a.csv": b"", "b.csv": b"", "c.txt": b""}).table()
    assert caught.value.hint == "name one of a.csv, b.csv"
    with pytest.raises(NotFound, match="has no HDF5 or NetCDF file"):
        load({"c.txt": b"", "d.txt": b""}).attributes()


def test_a_file_of_another_kind_is_refused_with_its_path_as_the_way_out(load: Load) -> None:
    with pytest.raises(Unsupported, match=r"^cannot read c\.txt as table: unsupported format(?:\n|$)"):
        load({"c.txt": b"text"}).table("c.txt")
    with pytest.raises(Unsupported, match=r"^cannot read c\.txt as HDF5 or NetCDF file"):
        load({"c.txt": b"text"}).attributes()


@pytest.mark.parametrize("name", ["model.pkl", "model.pt", "model.pth", "model.joblib", "weights.CKPT"])
def test_pickles_are_never_loaded(load: Load, name: str) -> None:
    with pytest.raises(Unsupported, match=rf"^{name} is a pickle, which can run any code"):
        load({name: pickle.dumps([1])}).table()


@pytest.mark.parametrize(
    "data", [saved(np.save, np.array([{}], dtype=object)), pickle.dumps([1])], ids=["objects", "pickle"]
)
def test_an_npy_file_that_holds_a_pickle_is_refused(load: Load, data: bytes) -> None:
    with pytest.raises(UsageError, match=r"^a\.npy cannot be read: "):
        load({"a.npy": data}).table()


@pytest.mark.parametrize(
    "name", ["a.csv.gz", "a.jsonl", "a.parquet", "a.feather", "a.arrow", "a.npy", "a.npz", "a.h5", "a.nc"]
)
def test_a_file_that_is_not_what_its_name_says_is_one_clear_error(load: Load, name: str) -> None:
    asset = load({name: b"<!DOCTYPE html>\n" * 10})
    for read in (asset.table, lambda: list(asset.batches())):
        with pytest.raises(FairmileError, match=rf"^{name} cannot be read: "):
            read()


def test_a_column_whose_type_changes_late_is_one_clear_error_in_batches(load: Load) -> None:
    asset = load({"a.csv": b"x\n" + b"1\n" * 9_000_000 + b"text\n"})
    with pytest.raises(UsageError, match=r"^a\.csv cannot be read: "):
        list(asset.batches())


def test_a_batch_has_a_row_at_least(load: Load) -> None:
    with pytest.raises(UsageError, match="rows is 0, expected at least 1"):
        load({"a.csv": b"x\n"}).batches(rows=0)


@pytest.mark.parametrize(
    ("name", "module"), [("a.csv", "pyarrow"), ("a.npy", "pyarrow"), ("a.h5", "h5py"), ("a.nc", "netCDF4")]
)
def test_a_missing_library_says_how_to_install_it(
    load: Load, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    asset = load({name: b""})
    monkeypatch.setitem(sys.modules, module, None)
    with needs_extra("science", rf"^reading {name} needs {module}\n"):
        asset.table()
