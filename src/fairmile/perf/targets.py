"""What a prediction is asked for: code that builds a step, a benchmark or model of the catalog, or a description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.yaml import load_located
from fairmile.perf.memory.closed_forms import Cnn, Gnn, Rnn, Transformer, parse_description

_DESCRIPTIONS = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Target:
    """A file with the function that builds a step, or a description where there is no code."""

    name: str
    file: Path | None = None
    function: str = "build"
    description: Transformer | Cnn | Rnn | Gnn | None = None


def find_target(text: str, step_of: Callable[[str], Path]) -> Target:
    """Return what `text` names; `step_of` knows the files of benchmarks and models."""
    path, _, function = text.rpartition(":")
    if path.endswith(".py"):
        if not function.isidentifier():
            raise UsageError(f"{text}: {function!r} cannot be the name of a function", hint="give FILE.py:FUNCTION")
        return Target(text, _existing(path), function)
    if text.endswith(".py"):
        return Target(text, _existing(text))
    if text.endswith(_DESCRIPTIONS):
        file = _existing(text)
        data = load_located(file.read_text(encoding="utf-8"), file=text).data
        if isinstance(data, dict) and "@type" not in data:
            return Target(text, description=parse_description(data, file=text))
    return Target(text, step_of(text))


def _existing(path: str) -> Path:
    file = Path(path)
    if not file.is_file():
        raise NotFound(f"there is no file {path}", hint="expected FILE.py:FUNCTION, a description, or a name to search")
    return file.absolute()
