"""Which files are parts of a program, and which are what tools keep for themselves, by their names."""

from __future__ import annotations

import os
import re

from fairmile.base.lazy import lazy_pattern

NOT_CODE = frozenset({".git", "__pycache__"})
_CACHES = NOT_CODE | {
    *(".venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"),
    *("node_modules", ".idea", ".vscode", ".DS_Store"),
}
_SOURCE = lazy_pattern(
    r"\.(?:pyx?|ipynb|[ch]|cc|cpp|cxx|hpp|cu|cuh|hip|f|f90|f95|jl|r|m|rs|go|java|scala|pl|lua|sh|bash|slurm|sbatch|cmake)",
    re.IGNORECASE,
)


def is_source(name: str) -> bool:
    """Tell whether a file that nobody committed looks like a part of a program, by its name."""
    return _SOURCE.fullmatch(os.path.splitext(name)[1]) is not None


def is_cache(path: str, *, is_file: bool = False) -> bool:
    """Tell whether a file or folder holds what tools keep for themselves, which no result depends on.

    What is known to be a file is not looked into.
    """
    name = os.path.basename(path)
    if name in _CACHES or name.endswith((".pyc", ".egg-info")):
        return True
    # The packages of an environment are recorded by themselves.
    return not is_file and os.path.isfile(f"{path}/pyvenv.cfg")
