"""What a prediction is asked for: code that builds a step, a benchmark or model of the catalog, or a description."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.yaml import load_located
from fairmile.predict.memory.descriptions import Cnn, Gnn, Rnn, Transformer, parse_description

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
        if not isinstance(located.data, dict):
            what = "is empty" if located.data is None else "names no fields"
            raise UsageError(f"{text} describes no model: it {what}", hint="begin with its kind, as kind: transformer")
        if "@type" not in located.data:  # as cards have
            return Target(text, description=parse_description(located.data, file=text, line_of=located.line))
    return Target(text, step_of(text), batch_argument=_BATCH)


def parameters_of(target: Target) -> Mapping[str, Any]:
    """Return the parameters of a target's function with their defaults, None where there is none or it is no constant.

    The file is read, not run: there is nothing to tell of a function that it does not define itself.
    """
    if target.file is None:
        return {}
    try:
        parsed = ast.parse(_text(target.file))
    except (SyntaxError, ValueError):
        return {}  # whoever runs it says where it is wrong
    for each in parsed.body:
        if isinstance(each, ast.FunctionDef) and each.name == target.function:
            arguments = each.args
            plain = [*arguments.posonlyargs, *arguments.args]
            defaults = [*[None] * (len(plain) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
            names = [one.arg for one in (*plain, *arguments.kwonlyargs)]
            return {name: _constant(value) for name, value in zip(names, defaults, strict=True)}
    return {}


def _constant(value: ast.expr | None) -> Any:
    return value.value if isinstance(value, ast.Constant) else None


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
