"""Paths as callers give them, a text or a path, one or several; and the files of programs."""

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


def find_program(name: str, path: str | None = None) -> str:
    """Return the file that a program's name stands for in `path`, by default that of this process; else nothing.

    `shutil.which` does the same in five times as long, and each run asks for several programs.
    """
    if path is None:
        path = os.environ.get("PATH", os.defpath)
    if "\0" in name:
        return ""
    for folder in [""] if "/" in name else path.split(os.pathsep):
        file = os.path.join(folder, name)
        if os.access(file, os.X_OK) and not os.path.isdir(file):
            return file
    return ""
