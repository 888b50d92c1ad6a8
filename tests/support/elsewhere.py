"""Where tests that record runs begin: not in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run keeps its code, which would be the 2,000 files of the repository."""
    monkeypatch.chdir(tmp_path)
