"""Paths as callers give them: a text or a path, one or several."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

AnyPath = str | os.PathLike[str]


def as_paths(given: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """Return one path or several as a list."""
    return [Path(given)] if isinstance(given, (str, os.PathLike)) else [Path(each) for each in given]
