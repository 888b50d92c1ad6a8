"""A workspace of its own for each test, and a folder to write flows into."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.flows.flows import Flows
from fairmile.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace below the test's folder; the person stands in `here`."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    environ = {**os.environ, "HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home")}
    environ.pop("FAIRMILE_EVENTS", None)
    return Workspace.open(environ=environ, cwd=here)


@pytest.fixture
def flows(workspace: Workspace) -> Flows:
    return workspace.flows


@pytest.fixture
def write(workspace: Workspace) -> Callable[[str], Path]:
    """Write a flow file, which is returned."""

    def write(text: str) -> Path:
        file = Path("flow.yaml").absolute()
        file.write_text(text)
        return file

    return write
