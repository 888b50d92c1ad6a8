"""Scenes as published, and the patches that are cut from them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.cloudmask.files import cut, list_scenes, read_scene, scaled, write_scene
from fairmile.benchmarks.suite.cloudmask.scenes import make_scene


def test_a_scene_comes_back_as_it_was_written(tmp_path: Path) -> None:
    scene = make_scene(1, 16, seed=1)
    write_scene(tmp_path / "night" / "S3A_1.hdf", scene)
    read = read_scene(tmp_path / "night" / "S3A_1.hdf")
    for name in ("refs", "bts", "bayes"):
        assert np.array_equal(getattr(read, name), getattr(scene, name))
    assert not read.is_day


def test_whole_scenes_validate_and_those_of_the_publisher_test(tmp_path: Path) -> None:
    for number in range(5):
        write_scene(tmp_path / "training" / "day" / f"S3A_{number}.hdf", make_scene(0, 8, seed=1))
    write_scene(tmp_path / "inference" / "day" / "S3A_9.hdf", make_scene(0, 8, seed=1))
    listing = list_scenes(tmp_path, 0.8, seed=1)
    assert (len(listing.train), len(listing.validation)) == (4, 1)
    assert [file.name for file in listing.test] == ["S3A_9.hdf"]
    assert list_scenes(tmp_path, 0.8, seed=1) == listing
    with pytest.raises(NotFound, match="holds 0 scenes"):
        list_scenes(tmp_path / "elsewhere", 0.8, seed=1)


def test_channels_are_scaled_as_published_and_what_is_missing_is_zero() -> None:
    scene = make_scene(0, 8, seed=1)
    scene.refs[0, 0, 2] = np.nan
    published, differences = scaled(scene, differences=False), scaled(scene, differences=True)
    assert published[0, 0, 5] == 0
    assert published[1, 1, 1] == pytest.approx((scene.bts[1, 1, 1] - 270) / 22, abs=1e-3)
    assert published[1, 1, 3] == pytest.approx(scene.refs[1, 1, 0] - 0.5, abs=1e-3)
    assert differences[1, 1, 0] == pytest.approx(4 * (scene.bts[1, 1, 0] - scene.bts[1, 1, 1]) / 22, abs=1e-2)
    assert np.array_equal(published[..., 3:], differences[..., 3:])


def test_patches_do_not_overlap_and_the_far_edge_is_dropped() -> None:
    image = np.arange(5 * 7).reshape(5, 7, 1)
    patches = cut(image, 2)
    assert patches.shape == (6, 2, 2, 1)
    assert patches[1, ..., 0].tolist() == [[2, 3], [9, 10]]
    assert patches[3, ..., 0].tolist() == [[14, 15], [21, 22]]
    with pytest.raises(UsageError, match="a scene of 5 x 7 pixels has none of 8"):
        cut(image, 8)


def test_what_is_no_scene_is_refused_with_file_and_field(tmp_path: Path) -> None:
    file = tmp_path / "S3A_1.hdf"
    with h5py.File(file, "w") as content:
        content["refs"] = np.zeros((4, 4, 6), np.float32)
        content["bts"] = np.zeros((4, 5, 3), np.float32)
        content["bayes"] = np.zeros((4, 4, 1), np.float32)
    with pytest.raises(UsageError, match=r"S3A_1.hdf: field 'bts': expected \(4, 4, 3\), found \(4, 5, 3\)"):
        read_scene(file)
    with h5py.File(file, "w") as content:
        content["refs"] = np.zeros((4, 4, 6), np.float32)
    with pytest.raises(UsageError, match="no dataset or attribute 'bts'; found refs"):
        read_scene(file)
    file.write_bytes(b"no HDF5")
    with pytest.raises(Integrity, match="is not an HDF5 file"):
        read_scene(file)
