"""Paths as callers give them: a text or a path, one or several."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

AnyPath = str | os.PathLike[str]


def as_sources(given: AnyPath | Iterable[AnyPath]) -> list[AnyPath]:
    """Return one path or web address, or several, as a list; a `Path` would lose a slash of an address."""
    return [given] if isinstance(given, (str, os.PathLike)) else list(given)


def as_paths(given: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """Return one path or several as a list."""
    return [Path(each) for each in as_sources(given)]
