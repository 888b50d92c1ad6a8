"""Fields over time in files that others read, too."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from fairmile.base.errors import Integrity, SystemFailure, UsageError
from fairmile.benchmarks.suite.miniweather.archive import DRY, Film, opened, written


@pytest.fixture
def film() -> Film:
    found = Film(np.array([50.0, 150.0, 250.0]), np.array([25.0, 75.0]), attributes={"case": "thermal", "nx": 3})
    for number in range(4):
        found.add(10.0 * number, {name: np.arange(6.0).reshape(2, 3) + number for name in DRY})
    return found


def test_a_film_comes_back_as_it_was_written(film: Film, tmp_path: Path) -> None:
    with written(tmp_path / "a.h5") as file:
        film.write(file)

    with opened(tmp_path / "a.h5") as file:
        found = Film.read(file, DRY, tmp_path / "a.h5")

    assert found.times_s == [0, 10, 20, 30]
    np.testing.assert_array_equal(found["theta"], film["theta"])
    assert found["theta"].shape == (4, 3, 2)
    assert found.attributes == {"case": "thermal", "nx": 3}
    assert [each.name for each in tmp_path.iterdir()] == ["a.h5"]


def test_netcdf_reads_it_with_its_dimensions(film: Film, tmp_path: Path) -> None:
    netcdf = pytest.importorskip("netCDF4")
    with written(tmp_path / "a.h5") as file:
        film.write(file)

    with netcdf.Dataset(tmp_path / "a.h5") as found:
        assert found["wwnd"].dimensions == ("t", "x", "z")
        assert found["wwnd"].units == "m s-1"
        assert found.case == "thermal"
        np.testing.assert_array_equal(found["x"][:], film.x_m)


def test_the_same_film_gives_the_same_bytes(film: Film, tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        with written(tmp_path / name) as file:
            film.write(file)

    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_what_fails_half_way_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), written(tmp_path / "a.h5") as file:
        file["x"] = np.zeros(3)
        raise KeyError("midway")

    assert not list(tmp_path.iterdir())


def test_a_field_that_is_missing_or_does_not_fit_is_named(film: Film, tmp_path: Path) -> None:
    with written(tmp_path / "a.h5") as file:
        film.write(file)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["theta"]
        with pytest.raises(UsageError, match=r"a\.h5 has no dataset 'theta'"):
            Film.read(file, DRY, tmp_path / "a.h5")
        file["theta"] = np.zeros((4, 2, 3))
        with pytest.raises(UsageError, match=r"theta is \(4, 2, 3\), expected \(4, 3, 2\)"):
            Film.read(file, DRY, tmp_path / "a.h5")


def test_an_error_of_what_computes_the_values_is_not_taken_for_one_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match="no compiler"), written(tmp_path / "film.h5"):
        raise SystemFailure("no compiler")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_cut_or_damaged_inside_is_told(tmp_path: Path) -> None:
    file = tmp_path / "film.h5"
    with h5py.File(file, "w") as handle:
        handle.create_dataset("inputs", data=np.arange(5000.0), chunks=True, compression="gzip")
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(Integrity, match="cannot be read as HDF5"), opened(file):
        pass
    with h5py.File(file.with_name("whole.h5"), "w") as handle:
        made = handle.create_dataset("inputs", data=np.arange(5000.0), chunks=True, compression="gzip")
        at = made.id.get_chunk_info(0).byte_offset
    data = bytearray(file.with_name("whole.h5").read_bytes())
    data[at : at + 50] = bytes(50)
    file.write_bytes(data)
    with pytest.raises(Integrity, match="cannot be read as HDF5"), opened(file) as handle:
        handle["inputs"][:]
