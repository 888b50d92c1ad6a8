"""What a prediction is asked for: code that builds a step, a benchmark or model of the catalog, or a description."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.yaml import Located
from fairmile.predict.memory.descriptions import Cnn, Gnn, Rnn, Transformer, parse_description
from fairmile.resolve import Nouns, Resolver, Target, Word

_DESCRIPTIONS = (".yaml", ".yml", ".json")
_BATCH = "batch_size"  # as all benchmarks call it


@dataclass(frozen=True)
class Subject:
    """A file with the function that builds a step, or a description where there is no code."""

    name: str
    file: Path | None = None
    function: str = "build"
    description: Transformer | Cnn | Rnn | Gnn | None = None
    batch_argument: str = ""  # of the function, where its name is known


class _PythonFile(Resolver):
    """A file of Python, with the name of a function behind it where that is not `build`."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if word.path.suffix != ".py" or not word.path.is_file():
            return None
        function = "build" if word.function is None else word.function
        if not function.isidentifier():
            raise UsageError(f"{word.text}: {function!r} is not a function name", hint="write FILE.py:FUNCTION")
        return Target(word.text, "python-file", path=word.path.absolute(), function=function)


class _Description(Resolver):
    """A model described in YAML or JSON."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        located = word.located if word.text.endswith(_DESCRIPTIONS) else None
        if located is None or not (word.verb or (isinstance(located.data, dict) and "kind" in located.data)):
            return None
        return Target(word.text, "description", path=word.path, load=lambda: _described(word.text, located))


PYTHON_FILE = _PythonFile()
DESCRIPTION = _Description()


def _described(name: str, located: Located) -> Transformer | Cnn | Rnn | Gnn:
    if not isinstance(located.data, dict):
        what = "is empty" if located.data is None else "has no fields"
        raise UsageError(
            f"{name} is not a model description: it {what}", hint="start with the kind, such as kind: transformer"
        )
    return parse_description(located.data, file=name, line_of=located.line)


def subject_of(target: Target, step_of: Callable[[Target], Path]) -> Subject:
    """Return what a target builds; `step_of` knows the files of benchmarks and models."""
    if target.kind == "python-file":
        return Subject(target.word, target.path, target.function)
    if target.kind == "description":
        return Subject(target.word, description=target.content)
    return Subject(target.word, step_of(target), batch_argument=_BATCH)


def parameters_of(subject: Subject) -> Mapping[str, Any]:
    """Return the parameters of a subject's function with their defaults, None where there is none or it is no constant.

    The file is read, not run: there is nothing to tell of a function that it does not define itself.
    """
    if subject.file is None:
        return {}
    try:
        parsed = ast.parse(_text(subject.file))
    except (SyntaxError, ValueError):
        return {}  # whoever runs it says where it is wrong
    for each in parsed.body:
        if isinstance(each, ast.FunctionDef) and each.name == subject.function:
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
        raise NotFound(f"{file} cannot be read: {error}", hint="save it as UTF-8 text") from error
