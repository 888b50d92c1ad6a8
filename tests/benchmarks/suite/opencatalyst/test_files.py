"""Structures in the files that OC20 publishes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound
from fairmile.benchmarks.suite.opencatalyst.files import list_files, read_structures, write_structures
from fairmile.benchmarks.suite.opencatalyst.structures import Structure

FRAME = """2
Lattice="4.0 0.0 0.0 0.0 5.0 0.0 0.0 0.0 20.0" Properties=species:S:1:pos:R:3:move_mask:L:1:tags:I:1:forces:R:3 \
energy=-12.5 free_energy=-12.5 pbc="T T T"
Cu 0.0 0.0 1.0 F 0 0.1 0.0 -0.2
O  1.0 2.0 3.0 T 2 -0.1 0.0 0.2
"""


def test_a_published_frame_is_read_with_its_reference_energy(tmp_path: Path) -> None:
    (tmp_path / "0.extxyz").write_text(FRAME)
    (tmp_path / "0.txt").write_text("random1234,frame56,-10.25\n")
    (found,) = read_structures(list_files(tmp_path)[0])
    assert (found.energy, found.system) == (-2.25, "random1234")
    assert list(found.numbers) == [29, 8]
    assert list(found.free) == [False, True]
    assert np.array_equal(found.forces, [[0.1, 0, -0.2], [-0.1, 0, 0.2]])
    assert np.array_equal(found.cell, np.diag([4.0, 5.0, 20.0]))


@pytest.mark.parametrize("name", ["0.extxyz", "0.extxyz.xz"])
def test_what_is_written_is_read_again(tmp_path: Path, structures: list[Structure], name: str) -> None:
    write_structures(tmp_path / name, structures, reference_energy=-3.0)
    for was, found in zip(structures, read_structures([tmp_path / name]), strict=True):
        assert found.energy == pytest.approx(was.energy, abs=1e-6)
        assert np.allclose(found.forces, was.forces, atol=1e-7)
        assert np.array_equal(found.numbers, was.numbers)
        assert np.array_equal(found.free, was.free)


def test_files_to_validate_with_lie_in_a_folder_of_their_own(tmp_path: Path, structures: list[Structure]) -> None:
    for part in ("s2ef_train_200K", "s2ef_val_id"):
        (tmp_path / part).mkdir()
        write_structures(tmp_path / part / "0.extxyz", structures)
    train, validation = list_files(tmp_path)
    assert [each.parent.name for each in (*train, *validation)] == ["s2ef_train_200K", "s2ef_val_id"]


def test_some_structures_come_evenly_from_all_files(tmp_path: Path, structures: list[Structure]) -> None:
    for number in range(2):
        write_structures(tmp_path / f"{number}.extxyz", structures)
    found = [each.energy for each in read_structures(list_files(tmp_path)[0], most=4)]
    assert found == pytest.approx([structures[0].energy, structures[1].energy] * 2, abs=1e-6)


@pytest.mark.parametrize("text", [FRAME[:-20], FRAME.replace("forces:R:3", "else:R:3"), FRAME.replace("Cu", "Qq")])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.extxyz").write_text(text)
    with pytest.raises(Integrity, match="cannot be read as frames"):
        list(read_structures([tmp_path / "0.extxyz"]))


def test_a_folder_without_structures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no"):
        list_files(tmp_path)
