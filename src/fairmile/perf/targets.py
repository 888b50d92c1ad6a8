"""What a prediction is asked for: code that builds a step, a benchmark or model of the catalog, or a description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.yaml import load_located
from fairmile.perf.memory.closed_forms import Cnn, Gnn, Rnn, Transformer, parse_description

_DESCRIPTIONS = (".yaml", ".yml", ".json")
_BATCH = "batch_size"  # as all benchmarks call it


@dataclass(frozen=True)
class Target:
    """A file with the function that builds a step, or a description where there is no code."""

    name: str
    file: Path | None = None
    function: str = "build"
    description: Transformer | Cnn | Rnn | Gnn | None = None
    batch_argument: str = ""  # of the function, where its name is known


def find_target(text: str, step_of: Callable[[str], Path]) -> Target:
    """Return what `text` names; `step_of` knows the files of benchmarks and models."""
    path, code, function = text.partition(".py:")
    if code:
        if not function.isidentifier():
            raise UsageError(f"{text}: {function!r} cannot be the name of a function", hint="give FILE.py:FUNCTION")
        return Target(text, _existing(f"{path}.py"), function)
    if text.endswith(".py"):
        return Target(text, _existing(text))
    if text.endswith(_DESCRIPTIONS):
        file = _existing(text)
        located = load_located(_text(file), file=text)
        if not isinstance(located.data, dict) or "@type" not in located.data:  # as cards have
            return Target(text, description=parse_description(located.data, file=text, line_of=located.line))
    return Target(text, step_of(text), batch_argument=_BATCH)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"{file} cannot be read: {error}", hint="a description is a text in UTF-8") from error


def _existing(path: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise NotFound(f"there is no file {path}", hint="expected FILE.py:FUNCTION, a description, or a name to search")
    return file.absolute()
