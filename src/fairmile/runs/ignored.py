"""Whether a program is sure to read none of its arguments, by its files alone: nothing is run.

Only what is certain counts. A Python program is read with the modules beside it that it imports: none of them names a
way to arguments, and all else that they import is known to take none. A shell script has no `$1`, `$@` or the like. Of
any other program nothing is known.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fairmile.runs.arguments import PARAMS

_MOST_FILES, _MOST_BYTES = 200, 1 << 20
_WORDS = ("argv", "cmdline", PARAMS)
# Modules of Python that read arguments, or run what is not seen here.
_READERS = frozenset(
    {
        *("argparse", "code", "ctypes", "doctest", "fileinput", "getopt", "idlelib", "imp", "importlib", "optparse"),
        *("pdb", "pkgutil", "profile", "cProfile", "runpy", "timeit", "tkinter", "trace", "unittest"),
    }
)
_RUNS_TEXT = frozenset({"exec", "eval", "__import__", "compile"})
# Packages of science that leave the arguments of a program alone.
_PLAIN = frozenset(
    {
        *("numpy", "scipy", "pandas", "polars", "xarray", "dask", "sklearn", "statsmodels", "matplotlib", "seaborn"),
        *("torch", "torchvision", "torchaudio", "jax", "jaxlib", "flax", "optax", "einops", "transformers", "datasets"),
        *("h5py", "netCDF4", "zarr", "pyarrow", "PIL", "cv2", "yaml", "tqdm", "networkx", "sympy", "numba", "xgboost"),
    }
)
_SHELLS = (".sh", ".bash", ".zsh", ".ksh")
_POSITIONAL = re.compile(r"\$\{?[!#]?[1-9@*#]|\bgetopts?\b|\bshift\b|\bBASH_ARGV\b|\beval\b|^\s*(?:\.|source)\s", re.M)


def ignores_arguments(script: Path) -> bool:
    """Tell whether a program is sure to read no argument; False where that cannot be known."""
    if script.suffix in _SHELLS:
        text = _text(script)
        return text is not None and not _POSITIONAL.search(text) and PARAMS not in text
    return script.suffix == ".py" and all(_is_plain(text) for text in _modules(script))


def _modules(script: Path) -> Iterator[str | None]:
    """Yield the text of a Python file and of the modules beside it that it imports; None for what cannot be read."""
    waiting, seen = [script], {script}
    while waiting:
        text = _text(waiting.pop())
        yield text
        for name in _imports(text) if text is not None else ():
            for file in _beside(name, script.parent):
                if file not in seen:
                    seen.add(file)
                    waiting.append(file)
        if len(seen) > _MOST_FILES:
            yield None
            return


def _is_plain(text: str | None) -> bool:
    """Tell whether a module is sure to read no argument itself, nor to import a module elsewhere that may."""
    if text is None or any(word in text for word in _WORDS):
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return not any(isinstance(node, ast.Name) and node.id in _RUNS_TEXT for node in ast.walk(tree))


def _imports(text: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            # What a package imports from itself is among the files of that package.
            yield from [(node.module or "").partition(".")[0]] if not node.level else []


def _beside(name: str, folder: Path) -> list[Path]:
    """Return the files of a module beside the program; for one elsewhere that may read arguments, one that is none."""
    if (file := folder / f"{name}.py").is_file():
        return [file]
    if (folder / name).is_dir():
        return list((folder / name).rglob("*.py"))
    is_plain = name in _PLAIN or (name in sys.stdlib_module_names and name not in _READERS)
    return [] if is_plain else [folder / name / "unknown.py"]


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8") if file.stat().st_size <= _MOST_BYTES else None
    except (OSError, ValueError):
        return None
