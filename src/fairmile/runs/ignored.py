"""Whether a program is sure to ignore or refuse its arguments, by its files alone: nothing is run.

Only what is certain counts. A Python program is read with the modules beside it that it imports: none of them names a
way to arguments, and all else that they import is known to take none. A shell script has no `$1`, `$@` or the like. Of
any other program nothing is known. A Python file refuses an option that it does not declare where it alone fills the
parser of argparse that reads them all.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.words import did_you_mean
from fairmile.runs.arguments import PARAMS, declared_options, program_file, read_arguments

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
# Ways by which a parser of argparse takes options that its file does not declare.
_OPEN_PARSER = ("parse_known", "argv", "parents", "fromfile", "prefix_chars")
_PARSERS = ("ArgumentParser", "add_argument_group", "add_mutually_exclusive_group", "add_subparsers", "add_parser")
_SHELLS = (".sh", ".bash", ".zsh", ".ksh")
_POSITIONAL = lazy_pattern(
    r"\$\{?[!#]?[1-9@*#]|\bgetopts?\b|\bshift\b|\bBASH_ARGV\b|\beval\b|^\s*(?:\.|source)\s", re.M
)


def check_arguments(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str], where: str = "", *, otherwise: str = ""
) -> None:
    """Raise UsageError for arguments that a program is sure to ignore or to refuse; `otherwise` ends the hint."""
    arguments = read_arguments(argv, folder, environ)
    script = program_file(argv, environ) if arguments else ""
    if not script:
        return
    place = f"{where}: " if where else ""
    if ignores_arguments(folder / script):
        are = ", ".join(dict.fromkeys(f"--{each.name}" for each in arguments))
        hint = f"leave them out, or read them in {os.path.basename(script)}{_reader(script)}"
        raise UsageError(f"{place}nothing uses {are}: {script} reads no arguments", hint=hint + otherwise)
    if refused := refused_options(folder / script, [each.option for each in arguments]):
        near = did_you_mean(refused[0], sorted(declared_options(folder / script)))
        sentence = f"{place}{script} has no argument {refused[0]}" + (f"; {near}" if near else "")
        raise UsageError(sentence, hint=f"`{_help(argv, script)}` lists its arguments")


def _help(argv: Sequence[str], script: str) -> str:
    return shlex.join([*argv[: list(argv).index(script) + 1], "--help"]) if script in argv else f"{script} --help"


def _reader(script: str) -> str:
    return ", for example with argparse" if script.endswith(".py") else ""


def ignores_arguments(script: Path) -> bool:
    """Tell whether a program is sure to read no argument; False where that cannot be known."""
    if script.suffix in _SHELLS:
        text = _text(script)
        return text is not None and not _POSITIONAL.search(text) and PARAMS not in text
    return script.suffix == ".py" and all(_is_plain(text) for text in _modules(script))


def refused_options(script: Path, options: Iterable[str]) -> list[str]:
    """Return which long options the parser of a Python file is sure to refuse; none where that cannot be known."""
    text = _text(script) if script.suffix == ".py" else None
    if text is None or "ArgumentParser" not in text or not _is_closed(text):
        return []
    known = [*declared_options(script), "--help"]
    # argparse takes the beginning of an option for the option.
    return [each for each in options if each.startswith("--") and not any(flag.startswith(each) for flag in known)]


def _is_closed(text: str) -> bool:
    """Tell whether a module alone fills its parsers, with literal options, and lets them read all arguments."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    adding = [call for call in calls if _called(call) == "add_argument"]
    is_literal = all(call.args and all(isinstance(each, ast.Constant) for each in call.args) for call in adding)
    if any(word in text for word in _OPEN_PARSER) or not is_literal or not _is_plain_code(tree):
        return False
    parsers = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) in _PARSERS
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    # A parser that is handed on may be filled elsewhere.
    own = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    handed_on = any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in parsers and id(node) not in own
        for node in nodes
    )
    reads_all = any(_called(call) == "parse_args" and not call.args and not call.keywords for call in calls)
    made = [call for call in calls if _called(call) == "ArgumentParser"]
    return bool(parsers) and len(made) == 1 and reads_all and not handed_on


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_plain_code(tree: ast.AST) -> bool:
    """Tell whether a module runs no text as code."""
    return not any(isinstance(node, ast.Name) and node.id in _RUNS_TEXT for node in ast.walk(tree))


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
    return _is_plain_code(tree)


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
