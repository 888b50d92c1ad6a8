"""Folders that take long to make, made once for all workers of a test session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairmile.base.files import Lock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of that name in the session's own, made by the first who asks; the others wait for it."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with Lock(folder.with_name(f"{name}.lock"), timeout_s=590):
        if not (mark := folder.with_name(f"{name}.made")).exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one who failed
            folder.mkdir()
            make(folder)
            mark.touch()
    return folder
