"""A workspace of its own for each test, and programs that runs execute."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from elsewhere import elsewhere

from fairmile.runs.runs import Runs
from fairmile.workspace import Workspace

__all__ = ["elsewhere"]  # a fixture, for every file


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace below the test's folder, which is also where the person stands."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    environ.pop("FAIRMILE_EVENTS", None)
    return Workspace.open(environ=environ, cwd=here)


@pytest.fixture
def runs(workspace: Workspace) -> Runs:
    return workspace.runs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("needs root to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
