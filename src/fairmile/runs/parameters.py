"""Whether a command uses what it is given: each parameter reaches its program, and each placeholder has a value."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.errors import InvalidDocument, Problem, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.paths import find_program
from fairmile.base.placeholders import names_in
from fairmile.base.source_files import is_source
from fairmile.base.words import closest
from fairmile.runs.arguments import PARAMS, declared_options, program_file

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec

# Programs of ours that take their parameters from there, whichever they are.
_BENCHMARKS = "fairmile.benchmarks"
_OWN_READERS = frozenset({_BENCHMARKS, "fairmile.sweeps.notebooks"})
UNSEEN_READER = (
    "; if it reads parameters where Fairmile cannot see it, add --reads-params (in a file: `reads_params: true`)"
)
_WORD = lazy_pattern(r"[\w./+-]+")
_IMPORT = lazy_pattern(r"^\s*(?:import|from)\s+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*)", re.MULTILINE)
_INTERPRETER = lazy_pattern(r"(?:python|pypy)[0-9.]*")
_MOST_FILES, _MOST_BYTES, _MOST_TEXT_BYTES = 500, 64 << 20, 1 << 20


def first_seed(spec: RunSpec) -> int | None:
    """Return the seed of the first of several repeats, from which the others count up.

    A benchmark without a seed starts at 0, as it does alone. Other programs get only a seed that somebody gave.
    """
    return 0 if spec.seed is None and _BENCHMARKS in spec.argv else spec.seed


def check_placeholders(spec: RunSpec, where: str) -> None:
    """Raise InvalidDocument with all placeholders of a command that stand for nothing; `where` says where it is."""
    known = {*spec.params, *(f"inputs.{name}" for name in spec.inputs), "run", "source", "python"}
    if spec.seed is not None:
        known.add("seed")
    problems = {}
    for name in names_in(spec.argv, known.__contains__):
        first = name.parts[0]
        if name.must and isinstance(first, str) and len(name.parts) == 1 and first not in known:
            message = f"{where or 'the command'}: {name.source} is not defined"
            problems[message] = Problem(message, hint=_way_to(first, name.source, known))
    if problems:
        raise InvalidDocument(list(problems.values()))


def _way_to(name: str, source: str, known: Collection[str]) -> str:
    """Return how a placeholder that stands for nothing gets a value."""
    if name == "seed":
        return "--seed gives it a value"
    if near := closest(name, sorted(known), 1):
        return f"did you mean {{{near[0]}}}?"
    if name.startswith("inputs."):
        return f"--data {name.removeprefix('inputs.')}=PATH gives it a value"
    return f"-p {name}=VALUE gives it a value; write \\{source} to keep the braces"


def unused_params(
    spec: RunSpec, names: Collection[str], environ: Mapping[str, str], *, sources: bool = False
) -> list[str]:
    """Return which of the parameters `names` never reach the program of a specification.

    A parameter is used where the command has a placeholder for it, and where the program reads FAIRMILE_PARAMS, as far
    as its files tell. With `sources` these are not here yet, so that nothing is known of them.
    """
    if not names or spec.reads_params or _OWN_READERS.intersection(spec.argv):
        return []
    filled = {part for name in names_in(spec.argv, names.__contains__) for part in name.parts}
    left = [name for name in names if name not in filled]
    if not left or (not sources and mentions(PARAMS, spec.argv, Path(spec.folder or "."), spec.code, environ)):
        return []
    return left


def check_used(unused: Sequence[str], spec: RunSpec, where: str) -> None:
    """Raise UsageError for parameters that a program would not see; `where` says where they stand."""
    if not unused:
        return
    name, command = unused[0], " ".join(word if len(word) < 40 else f"{word[:39]}…" for word in spec.argv)
    are = f"the parameters {', '.join(unused)}" if len(unused) > 1 else f"the parameter {name}"
    script = program_file(spec.argv, os.environ)
    if script and (declared := declared_options(Path(spec.folder or ".") / script)):
        near = closest(f"--{name}", sorted(declared), 1)
        raise UsageError(
            f"{where}{': ' if where else ''}nothing uses {are}: {script} has no argument --{name}",
            hint=f"{f'did you mean {near[0]}? ' if near else ''}`{command} --help` lists its arguments{UNSEEN_READER}",
        )
    raise UsageError(
        f"{where}{': ' if where else ''}nothing uses {are}: `{command}` has no {{{name}}} and does not read {PARAMS}",
        hint=f"pass it to the program, as `--{name} {{{name}}}`, or read the variable {PARAMS} (JSON) in the program"
        f"{UNSEEN_READER}",
    )


def mentions(
    mark: str, argv: Sequence[str], folder: Path, code: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> bool:
    """Tell whether a word stands in a command, or in the files of its program, as far as they are here."""
    if any(mark in word for word in argv):
        return True
    return any(mark.encode() in data for data in program_files(argv, folder, code, environ))


def program_files(
    argv: Sequence[str], folder: Path, code: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Iterator[bytes]:
    """Yield the content of the files that the command names, of those that they name or import, and of `code`."""
    waiting = [*_named(argv, folder, environ), *_declared(code, folder)]
    seen = set(waiting)
    while waiting and len(seen) < _MOST_FILES:
        file = waiting.pop()
        data = _content(file)
        yield data
        if b"\0" in data[:4096] or len(data) > _MOST_TEXT_BYTES:
            continue
        text = data.decode(errors="replace")
        for path in (*_files_in(text, (folder, file.parent)), *_imports_in(text, file, folder)):
            if path not in seen:
                seen.add(path)
                waiting.append(path)


def _named(argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files that a command names, in a word or inside one, as in `sh -c 'python train.py'`."""
    program = find_program(argv[0], environ.get("PATH")) if "/" not in argv[0] else ""
    if program and not program.startswith(("/usr/", "/bin/")) and not _INTERPRETER.fullmatch(Path(program).name):
        yield Path(program)
    for number, word in enumerate(argv):
        if number and argv[number - 1] == "-m":
            stem = word.replace(".", "/")
            yield from (file for end in (".py", "/__main__.py") if (file := folder / f"{stem}{end}").is_file())
        for text in {word, *_WORD.findall(word)}:
            file = folder / text
            if 0 < len(text) < 4096 and _is_file(file) and not _INTERPRETER.fullmatch(file.name):
                yield file


def _declared(code: Sequence[str], folder: Path) -> Iterator[Path]:
    for each in code:
        path = folder / each
        yield from [path] if path.is_file() else (file for file in path.rglob("*") if is_source(file.name))


def _files_in(text: str, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the source files that a text names: a script that another one starts or reads."""
    for word in {word for word in _WORD.findall(text) if is_source(word) and len(word) < 256}:
        yield from (file for folder in folders if _is_file(file := folder / word))


def _imports_in(text: str, file: Path, folder: Path) -> Iterator[Path]:
    """Yield the modules that lie beside a Python file, or in the folder that it runs in, and that it imports."""
    if file.suffix not in (".py", ".ipynb", ""):
        return
    words = {word.strip() for each in _IMPORT.findall(text) for word in each.split(",")}
    if any(word.startswith(".") for word in words):  # a package that looks at itself
        yield from file.parent.parent.glob(f"{file.parent.name}/**/*.py")
    for name in {word.partition(".")[0] for word in words} - {""}:
        for top in {file.parent, folder}:
            if (module := top / f"{name}.py").is_file():
                yield module
            elif (top / name).is_dir():
                yield from (top / name).rglob("*.py")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes() if file.stat().st_size <= _MOST_BYTES else b""
    except OSError:
        return b""
