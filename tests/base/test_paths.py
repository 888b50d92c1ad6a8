"""Paths as callers give them, and the files of programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fairmile.base.paths import find_program


def make(file: Path, mode: int = 0o755) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(mode)
    return file


def test_the_first_folder_of_the_path_that_has_a_program_gives_it(tmp_path: Path) -> None:
    make(tmp_path / "a" / "tide", 0o644)
    (tmp_path / "b" / "tide").mkdir(parents=True)
    program = make(tmp_path / "c" / "tide")
    make(tmp_path / "d" / "tide")
    path = os.pathsep.join(str(tmp_path / each) for each in ("missing", "a", "b", "c", "d"))
    assert find_program("tide", path) == str(program) == shutil.which("tide", path=path)
    assert find_program("ebb", path) == ""


def test_a_name_with_a_folder_is_a_path(tmp_path: Path) -> None:
    program = make(tmp_path / "tide")
    assert find_program(str(program), "/nowhere") == str(program)
    assert find_program(str(tmp_path / "ebb"), "/nowhere") == ""


def test_without_a_path_that_of_this_process_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make(tmp_path / "tide")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_program("tide") == str(program)


def test_a_name_that_no_file_can_have_is_no_program() -> None:
    assert find_program("ti\0de", "/bin") == ""
