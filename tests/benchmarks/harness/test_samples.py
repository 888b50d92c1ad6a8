from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
import zarr

from fairmile.base.errors import Integrity, NotFound, Unsupported, UsageError
from fairmile.benchmarks.harness.samples import ArraySamples, Field, FileSamples, open_samples, throughput

COUNT = 50
X = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 6)
Y = np.arange(COUNT, dtype=np.int64) * 10


def hdf5(folder: Path) -> Path:
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(7, 6))
        file["y"] = Y
    return folder / "data.h5"


def many_hdf5(folder: Path) -> Path:
    place = folder / "many"
    place.mkdir()
    for number, (begin, end) in enumerate([(0, 20), (20, 21), (21, COUNT)]):
        with h5py.File(place / f"part{number}.hdf5", "w") as file:
            file["x"], file["y"] = X[begin:end], Y[begin:end]
    return place


def big_endian(folder: Path) -> Path:
    with h5py.File(folder / "big.h5", "w") as file:
        file["x"], file["y"] = X.astype(">f4"), Y.astype(">i8")
    return folder / "big.h5"


def npz(folder: Path) -> Path:
    np.savez(folder / "data.npz", x=X, y=Y)
    return folder / "data.npz"


def compressed_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "small.npz", x=X, y=Y)
    return folder / "small.npz"


def npy_folder(folder: Path) -> Path:
    place = folder / "arrays"
    place.mkdir()
    np.save(place / "x.npy", np.asfortranarray(X))
    np.save(place / "y.npy", Y)
    return place


def zarr_group(folder: Path) -> Path:
    group = zarr.open_group(str(folder / "data.zarr"), mode="w")
    for name, values in (("x", X), ("y", Y)):
        array = group.create_array(name, shape=values.shape, chunks=(8, *values.shape[1:]), dtype=values.dtype)
        array[:] = values
    return folder / "data.zarr"


def table() -> Any:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 6)
    return pa.table({"x": lists, "y": pa.array(Y)})


def feather(folder: Path) -> Path:
    pyarrow.feather.write_feather(table(), folder / "data.feather", compression="uncompressed", chunksize=9)
    return folder / "data.feather"


def parquet(folder: Path) -> Path:
    pyarrow.parquet.write_table(table(), folder / "data.parquet", row_group_size=9)
    return folder / "data.parquet"


FORMATS = [hdf5, many_hdf5, big_endian, npz, compressed_npz, npy_folder, zarr_group, feather, parquet]


@pytest.fixture(params=FORMATS, ids=lambda make: make.__name__)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make: Callable[[Path], Path] = request.param
    return make(tmp_path)


def test_every_format_gives_the_same_samples_in_the_order_asked_for(path: Path) -> None:
    samples = open_samples(path, ["x", "y"])
    assert len(samples) == COUNT
    assert samples.size_bytes == X.nbytes + Y.nbytes
    asked = [
        np.arange(COUNT),
        np.random.default_rng(1).permutation(COUNT),  # all, mixed
        np.arange(18, 24),  # one stretch
        np.array([40, 3, 19, 20, 21, 3, 40]),  # scattered, some twice
        np.array([30, 28, 25]),  # close to each other
        np.array([49]),
    ]
    for numbers in asked:
        batch = samples.batch(numbers)
        assert np.array_equal(batch["x"], X[numbers])
        assert np.array_equal(batch["y"], Y[numbers])
        assert batch["x"].dtype == np.float32
        assert batch["x"].dtype.isnative
        torch.from_numpy(np.array(batch["x"]))
    samples.close()


def test_samples_come_to_a_device_as_a_whole(path: Path) -> None:
    there = open_samples(path).resident(torch.device("cpu"))
    numbers = torch.tensor([7, 3, 3])
    assert torch.equal(there.batch(numbers)["x"], torch.from_numpy(X)[numbers])
    assert torch.equal(there.batch(numbers)["y"], torch.from_numpy(Y)[numbers])


def test_a_field_that_is_missing_is_named_with_what_is_there(path: Path) -> None:
    with pytest.raises(NotFound, match=r"has no 'labels'") as failed:
        open_samples(path, ["x", "labels"])
    assert path.name in str(failed.value)
    assert "x" in str(failed.value.hint)


def test_a_shape_other_than_expected_is_named(path: Path) -> None:
    assert len(open_samples(path, [Field("inputs", "x", (6,)), Field("y", shape=())])) == COUNT
    assert len(open_samples(path, [Field("x", shape=(None,))])) == COUNT
    with pytest.raises(Integrity, match=r"a sample of 'x' is \[6\] where \[2, any\] was expected"):
        open_samples(path, [Field("x", shape=(2, None))])


def test_a_number_outside_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="has samples 0 to 49"):
        open_samples(path).batch(np.array([3, COUNT]))


def test_a_file_that_was_cut_off_is_said(tmp_path: Path) -> None:
    for make in (hdf5, npz, compressed_npz, feather, parquet):
        file = make(tmp_path)
        os.truncate(file, file.stat().st_size * 2 // 3)
        with pytest.raises(Integrity, match="cut off or damaged") as failed:
            open_samples(file)
        assert str(file) in str(failed.value)
    folder = npy_folder(tmp_path)
    os.truncate(folder / "x.npy", 500)
    with pytest.raises(Integrity, match=r"x\.npy cannot be read, it is cut off"):
        open_samples(folder)


def test_a_damaged_chunk_is_found_when_it_is_read(tmp_path: Path) -> None:
    place = zarr_group(tmp_path)
    chunk = next(each for each in (place / "x").rglob("*") if each.is_file() and each.suffix != ".json")
    chunk.write_bytes(b"no chunk")
    with pytest.raises(Integrity, match=r"data\.zarr: x cannot be read"):
        open_samples(place).batch(np.arange(COUNT))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compressor": {"id": "magic"}}, "damaged"),
        ({"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}]}, "'x' holds no numbers"),
        (
            {"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "pickle"}},
            "'x' holds Python objects, and reading them could run code",
        ),
    ],
    ids=["unknown codec", "texts", "pickles"],
)
def test_a_zarr_array_that_is_not_plain_numbers_is_refused_before_it_is_read(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    group = zarr.open_group(str(tmp_path / "data.zarr"), mode="w", zarr_format=2)
    group.create_array("x", shape=Y.shape, chunks=Y.shape, dtype=Y.dtype, compressors=None)[:] = Y
    file = tmp_path / "data.zarr" / "x" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(Integrity, match=said):
        open_samples(tmp_path / "data.zarr")


def test_one_file_can_be_one_sample_with_an_attribute_as_its_label(tmp_path: Path) -> None:
    volumes = np.arange(4 * 8, dtype=np.uint16).reshape(4, 2, 2, 2)
    for number, volume in enumerate(volumes):
        with h5py.File(tmp_path / f"universe{number}.h5", "w") as file:
            file["full"] = volume
            file.attrs["unitPar"] = [number / 4, -number / 4]
    fields = [Field("x", "full", (2, 2, 2)), Field("y", "@unitPar", (2,))]
    samples = open_samples(tmp_path, fields, one_per_file=True)
    assert len(samples) == 4
    batch = samples.batch(np.array([3, 0]))
    assert np.array_equal(batch["x"], volumes[[3, 0]])
    assert batch["y"].tolist() == [[0.75, -0.75], [0, 0]]
    with pytest.raises(NotFound, match="has no attribute 'physPar'"):
        open_samples(tmp_path, [Field("y", "@physPar")], one_per_file=True)
    samples.close()
    with h5py.File(tmp_path / "universe2.h5", "a") as file:
        del file.attrs["unitPar"]
    with pytest.raises(NotFound, match=r"universe2\.h5 has no attribute 'unitPar'"):
        open_samples(tmp_path, fields, one_per_file=True)
    with h5py.File(tmp_path / "universe1.h5", "a") as file:
        del file["full"]
        file["full"] = volumes[0, 0]
    with pytest.raises(Integrity, match=r"universe1\.h5: a sample of 'full' is \[2, 2\] where \[2, 2, 2\] was"):
        open_samples(tmp_path, fields[:1], one_per_file=True)


def test_of_more_files_than_are_kept_open_each_is_opened_when_it_is_read(tmp_path: Path) -> None:
    for number in range(70):
        with h5py.File(tmp_path / f"{number:03}.h5", "w") as file:
            file["x"] = np.full((2, 3), number, np.float32)
    samples = open_samples(tmp_path)
    assert samples.batch(np.array([139, 0, 71]))["x"][:, 0].tolist() == [69, 0, 35]
    (tmp_path / "035.h5").write_bytes(b"")
    with pytest.raises(Integrity, match=r"035\.h5 cannot be read"):
        samples.batch(np.array([71]))


def test_fields_that_differ_in_length_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=X, y=Y[:-1])
    with pytest.raises(Integrity, match="the fields differ in their number of samples: 50 of x, 49 of y"):
        open_samples(tmp_path / "odd.npz")
    with pytest.raises(UsageError, match="differ in length"):
        ArraySamples({"x": X, "y": Y[:-1]})


def test_what_holds_no_numbers_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "text.h5", "w") as file:
        file["x"] = ["a", "b"]
        file["one"] = 3.0
    with pytest.raises(Integrity, match="'x' holds no numbers"):
        open_samples(tmp_path / "text.h5", ["x"])
    with pytest.raises(Integrity, match="one is a single number"):
        open_samples(tmp_path / "text.h5", ["one"])
    pyarrow.parquet.write_table(pa.table({"x": ["a", "b"], "z": [1, None]}), tmp_path / "text.parquet")
    with pytest.raises(Integrity, match="column 'x' is of type string"):
        open_samples(tmp_path / "text.parquet", ["x"])
    with pytest.raises(Integrity, match="column 'z' has 1 missing values"):
        open_samples(tmp_path / "text.parquet", ["z"])
    np.savez(tmp_path / "objects.npz", x=np.array([{}, {}], dtype=object))
    with pytest.raises(Integrity, match=r"objects\.npz: x cannot be read"):
        open_samples(tmp_path / "objects.npz")


def test_what_is_no_samples_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="there are no samples at"):
        open_samples(tmp_path / "none")
    with pytest.raises(NotFound, match="holds no samples in a format that can be read"):
        open_samples(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(Unsupported, match="is in no format that can be read") as failed:
        open_samples(tmp_path / "notes.txt")
    assert ".h5" in str(failed.value.hint)
    file = hdf5(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(Unsupported, match="needs h5py") as failed:
        open_samples(file)
    assert failed.value.hint == "pip install h5py"


def test_memory_maps_are_not_read_before_they_are_asked_for(tmp_path: Path) -> None:
    samples: FileSamples = open_samples(npz(tmp_path))
    piece: Any = samples._fields["x"]._pieces[0]
    array = piece._array
    while array is not None and not isinstance(array, np.memmap):
        array = array.base
    assert isinstance(array, np.memmap)


@pytest.mark.parametrize("shuffle", [True, False])
def test_throughput_counts_what_was_read(path: Path, shuffle: bool) -> None:
    samples = open_samples(path)
    found = throughput(samples, 8, shuffle=shuffle)
    assert found.samples == COUNT
    assert found.size_bytes == samples.size_bytes
    assert found.samples_per_s == found.samples / found.took_s
    assert found.bytes_per_s == found.size_bytes / found.took_s
    assert throughput(samples, 8, batches=2).samples == 16
    assert throughput(samples, 8, limit_s=-1).samples == 8
