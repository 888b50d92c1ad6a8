from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.cosmoflow.files import (
    CUBE,
    Cubes,
    FileCubes,
    Universe,
    cube_name,
    list_part,
    read_cubes,
    read_listed,
    split,
    spread,
    write_cube,
    write_maps,
    write_universe,
)
from fairmile.benchmarks.suite.cosmoflow.tfrecord import make_example, write_records
from fairmile.benchmarks.suite.cosmoflow.universes import NAMES, REDSHIFTS, Generator, unit_to_physical

COUNTS, UNIT = Generator(8).make(range(5))


def test_a_whole_universe_keeps_all_its_fields(tmp_path):
    given = Universe(COUNTS[0], UNIT[0], 17, dataset_tag="2019_05_4parE", universe_tag="ics_a17")
    write_universe(tmp_path / "u.hdf5", given)
    with h5py.File(tmp_path / "u.hdf5") as file:
        assert sorted(file) == ["full", "namePar", "physPar", "redshifts", "unitPar"]
        assert file["full"].dtype == np.int16
        assert dict(file.attrs) == {"dataset tag": "2019_05_4parE", "seed": 17, "universe tag": "ics_a17"}
        assert [name.decode() for name in file["namePar"][:].tolist()] == list(NAMES)
        assert np.allclose(file["redshifts"], REDSHIFTS)
        assert np.allclose(file["physPar"], unit_to_physical(UNIT[0]))
    (cube,), (unit,) = read_cubes(tmp_path / "u.hdf5")
    assert np.array_equal(cube, COUNTS[0])
    assert np.array_equal(unit, UNIT[0])


def test_a_universe_without_parameters_is_refused_with_file_and_field(tmp_path):
    file = tmp_path / "u.hdf5"
    write_universe(file, Universe(COUNTS[0], UNIT[0], 1))
    with h5py.File(file, "a") as content:
        del content["unitPar"]
    with pytest.raises(UsageError, match=r"u\.hdf5: no dataset or attribute 'unitPar'"):
        read_cubes(file)


def test_parameters_may_be_attributes(tmp_path):
    file = tmp_path / "u.hdf5"
    write_universe(file, Universe(COUNTS[0], UNIT[0], 1))
    with h5py.File(file, "a") as found:
        del found["unitPar"]
        found.attrs["unitPar"] = UNIT[0]
    assert np.array_equal(read_cubes(file)[1][0], UNIT[0])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("x", COUNTS[0].astype(np.float32), "field 'x': expected int16, found float32"),
        ("x", COUNTS[0][:4], r"field 'x': expected .*, found \(4, 8, 8, 4\)"),
        ("x", COUNTS[0][0], r"field 'x': expected .*, found \(8, 8, 4\)"),
        ("y", UNIT[0][:3], r"field 'y': expected 4 floats, found float32 of \(3\)"),
        ("y", np.arange(4), "field 'y': expected 4 floats, found int64"),
        (
            "y",
            np.array([0.3, 0.8, 0.96, 70.0]),
            "field 'y': expected 4 normalised parameters .*, found 0.3, 0.8, 0.96, 70",
        ),
        ("y", np.array([0.3, np.nan, 0.9, 0.1]), "field 'y': expected 4 normalised parameters .*, found 0.3, nan"),
    ],
)
def test_a_field_of_the_wrong_kind_is_told(tmp_path, name, value, said):
    file = tmp_path / "c.hdf5"
    write_cube(file, COUNTS[0], UNIT[0])
    with h5py.File(file, "a") as found:
        del found[name]
        found[name] = value
    with pytest.raises(UsageError, match=said):
        read_cubes(file)


def test_a_group_in_the_place_of_a_field_is_told(tmp_path):
    file = tmp_path / "c.hdf5"
    write_cube(file, COUNTS[0], UNIT[0])
    with h5py.File(file, "a") as found:
        del found["x"]
        found.create_group("x")
    with pytest.raises(UsageError, match=r"c\.hdf5: field 'x': expected a dataset, found a group"):
        read_cubes(file)


def test_a_field_whose_bytes_are_damaged_is_told(tmp_path):
    file = tmp_path / "u.hdf5"
    write_universe(file, Universe(COUNTS[0], UNIT[0], 1))
    with h5py.File(file) as found:
        chunk = found["full"].id.get_chunk_info(0)
    content = bytearray(file.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    file.write_bytes(content)
    with pytest.raises(Integrity, match=r"u\.hdf5: field 'full' is damaged"):
        read_cubes(file)


def test_a_file_that_is_no_hdf5_is_told(tmp_path):
    (tmp_path / "c.hdf5").write_bytes(b"something else")
    with pytest.raises(Integrity, match=r"c\.hdf5 is not an HDF5 file"):
        read_cubes(tmp_path / "c.hdf5")
    with pytest.raises(NotFound):
        read_cubes(tmp_path / "d.hdf5")


@pytest.mark.parametrize("suffix", ["tfrecord", "hdf5"])
def test_a_cube_comes_back_from_either_layout(tmp_path, suffix):
    file = tmp_path / f"{cube_name('32115', 22309462, 7)}.{suffix}"
    assert file.name == f"32115_univ_ics_2019-03_a22309462_007.{suffix}"
    write_cube(file, COUNTS[1], UNIT[1])
    x, y = read_cubes(file)
    assert x.dtype == np.int16
    assert np.array_equal(x, COUNTS[1:2])
    assert np.array_equal(y, UNIT[1:2])


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"y": UNIT[0]}, "feature 'x' is missing; found y"),
        ({"x": bytes(8 * 27)}, "feature 'y' is missing"),
        ({"x": bytes(8 * 28), "y": UNIT[0]}, "feature 'x': 224 bytes are not a cube"),
        ({"x": b"", "y": UNIT[0]}, "feature 'x': 0 bytes are not a cube"),
        ({"x": bytes(8 * 27), "y": UNIT[0][:2]}, "feature 'y': expected 4 parameters, found 2"),
        ({"x": UNIT[0], "y": UNIT[0]}, "feature 'x': expected bytes"),
        ({"x": bytes(8 * 27), "y": b"1234"}, "feature 'y': expected floats"),
    ],
)
def test_a_record_with_wrong_features_is_told(tmp_path, features, said):
    write_records(tmp_path / "c.tfrecord", [make_example(features)])
    with pytest.raises(UsageError, match=rf"c\.tfrecord: {said}"):
        read_cubes(tmp_path / "c.tfrecord")


def test_a_file_without_records_or_with_cubes_of_two_sizes_is_told(tmp_path):
    file = tmp_path / "c.tfrecord"
    write_records(file, [])
    with pytest.raises(Integrity, match=r"c\.tfrecord: expected cubes of one size, found no record"):
        read_cubes(file)
    write_records(file, [make_example({"x": bytes(8 * edge**3), "y": UNIT[0]}) for edge in (2, 3)])
    with pytest.raises(Integrity, match=r"found \(2, 2, 2, 4\), \(3, 3, 3, 4\)"):
        read_cubes(file)


def test_some_of_many_cubes_lie_evenly_apart_so_that_they_are_of_many_universes():
    assert spread(3, 12) == [0, 4, 8]
    assert spread(5, 7) == [0, 1, 2, 4, 5]
    assert spread(9, 4) == spread(4, 4) == [0, 1, 2, 3]


def test_a_universe_is_cut_into_cubes_and_nothing_is_lost():
    full = np.arange(8**3 * 4, dtype=np.int16).reshape(8, 8, 8, 4)
    cubes = split(full, 4)
    assert cubes.shape == (8, 4, 4, 4, 4)
    assert np.array_equal(cubes[1], full[:4, :4, 4:])
    assert np.array_equal(cubes[6], full[4:, 4:, :4])
    with pytest.raises(UsageError, match="cubes of 3"):
        split(full, 3)
    assert CUBE == 128


def folder_of_cubes(place, suffix="tfrecord"):
    for number, (x, y) in enumerate(zip(COUNTS, UNIT, strict=True)):
        part = "train" if number < 3 else "validation"
        write_cube(place / part / f"{cube_name('1', 5, number)}.{suffix}", x, y)
    return place


@pytest.mark.parametrize("suffix", ["tfrecord", "hdf5"])
def test_a_folder_of_real_data_is_listed_in_order_and_read_by_number(tmp_path, suffix):
    data = folder_of_cubes(tmp_path, suffix)
    listing = list_part(data, "train")
    assert (len(listing), listing.edge, listing.channels) == (3, 8, 4)
    assert len(list_part(data, "train", 2)) == 2
    batch = FileCubes(listing, 3).batch(np.array([2, 0]))
    assert batch["x"].shape == (2, 4, 8, 8, 8)
    assert np.array_equal(np.moveaxis(batch["x"], 1, -1), COUNTS[[2, 0]])
    assert np.array_equal(batch["y"], UNIT[[2, 0]])


def test_whole_universes_are_read_as_cubes_too(tmp_path):
    for part in ("train", "validation"):
        write_universe(tmp_path / part / "u.hdf5", Universe(COUNTS[0], UNIT[0], 1))
    batch = FileCubes(list_part(tmp_path, "train"), 1).batch(np.array([0]))
    assert np.array_equal(np.moveaxis(batch["x"], 1, -1), COUNTS[:1])


def test_cubes_of_another_size_are_told(tmp_path):
    data = folder_of_cubes(tmp_path)
    odd = data / "train" / "z.tfrecord"
    write_cube(odd, COUNTS[0][:4, :4, :4], UNIT[0])
    with pytest.raises(UsageError, match=r"z\.tfrecord: field 'x': expected \(1, 8, 8, 8, 4\)"):
        read_listed(list_part(data, "train"), odd)


def test_a_folder_that_is_none_is_told(tmp_path):
    with pytest.raises(NotFound, match="has no folder train/"):
        list_part(tmp_path, "train")
    (tmp_path / "train").mkdir()
    with pytest.raises(NotFound, match=r"has no file that ends in \.tfrecord"):
        list_part(tmp_path, "train")


def test_memory_maps_give_the_same_batches_as_the_device(tmp_path):
    write_maps(tmp_path, "train", iter([(COUNTS[:2], UNIT[:2]), (COUNTS[2:], UNIT[2:])]), 4)
    cubes = Cubes.mapped(tmp_path, "train")
    assert len(cubes) == 4
    assert cubes.size_bytes == 4 * (8**3 * 4 * 2 + 16)
    mapped = cubes.batch(np.array([3, 1]))
    held = cubes.resident(torch.device("cpu")).batch(torch.tensor([3, 1]))
    assert torch.equal(mapped["x"], held["x"])
    assert np.array_equal(mapped["x"].permute(0, 2, 3, 4, 1).numpy(), COUNTS[[3, 1]])
    assert np.array_equal(mapped["y"], held["y"].numpy())
    assert mapped["x"].is_contiguous(memory_format=torch.channels_last_3d)
