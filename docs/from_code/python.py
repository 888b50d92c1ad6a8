"""The Python reference: every public name with its signature and docstring."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache, cached_property
from typing import Any

import fairmile
from fairmile.base.results import Result, Results
from fairmile.testing.schemas import commands, result_types
from fairmile.workspace import Workspace
from from_code.markdown import code, directive, page, table, toctree

_NAME = re.compile(r"(?<![\w.])[A-Z]\w*")
_INHERITED = {*dir(object), *dir(Result), *dir(Results), *dir(tuple), *dir(dict)}


class _Verbatim:
    """A default that prints as given."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def python_pages() -> dict[str, str]:
    """Return the pages of the Python reference by path."""
    nouns = {name: _noun_class(name) for name in fairmile._NOUNS}
    pages = {f"reference/python/{name}.md": _noun_page(name, kind) for name, kind in nouns.items()}
    pages["reference/python/verbs.md"] = _verb_page()
    pages["reference/python/results.md"] = _result_page()
    pages["reference/python/index.md"] = _index_page(nouns)
    return pages


def _index_page(nouns: dict[str, type]) -> str:
    rows = [(f"[`fm.{name}`]({name}.md)", _summary(kind)) for name, kind in nouns.items()]
    return page(
        "Python",
        "`import fairmile as fm` gives [verbs](verbs.md) such as `fm.run`, and nouns such as `fm.runs`, all of the "
        "workspace that your settings name. `fm.Workspace.open(…)` opens another one with the same nouns. "
        "[Use it from Python](../../python.md) has examples; calls return [results](results.md).",
        table(["noun", "what it is"], rows),
        toctree(["verbs", *nouns, "results"]),
    )


def _verb_page() -> str:
    verbs = [name for name in fairmile.__all__ if name not in fairmile._NOUNS]
    parts = []
    for name in sorted(verbs, key=str.lower):
        found = getattr(fairmile, name)
        parts.append(f"## {code(f'fm.{name}')}")
        parts.append(_class(f"fm.{name}", found) if isinstance(found, type) else _function(f"fm.{name}", found))
    return page("Verbs and types", "The names directly below `fairmile`, usually imported as `fm`.", *parts)


def _noun_page(name: str, kind: type) -> str:
    members = [part for each, member in _members(kind) for part in _member(f"fm.{name}.{each}", member)]
    return page(code(f"fm.{name}"), _doc(kind), *members)


def _result_page() -> str:
    printed: dict[type, list[str]] = {}
    for name, command in commands():
        for kind in result_types(command):
            printed.setdefault(kind, []).append(name)
    parts = []
    for kind in sorted(_results(), key=lambda each: (each.__name__, each.__module__)):
        shown = [f"[`fairmile {name}`](../commands/{name.split()[0]}.md)" for name in printed.get(kind, [])]
        parts.append(_class(_path(kind), kind, more=f"Printed by {', '.join(shown)}." if shown else ""))
    return page(
        "Results",
        "What calls return. Every result has `to_dict()`, which is what the command prints with `--json`, prints as "
        "one short line, and shows as a table in a notebook. Lists also have `to_pandas()`.",
        *parts,
    )


@cache
def _results() -> tuple[type[Result], ...]:
    """Return the classes of results; what prints JSON has been imported by then."""
    for _ in commands():  # imports every command, and with it what it returns
        pass

    def below(kind: type[Result]) -> Iterator[type[Result]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    public = (each for each in below(Result) if each is not Results and not each.__name__.startswith("_"))
    return tuple(dict.fromkeys(public))


def _noun_class(name: str) -> type:
    getter = _getter(vars(Workspace)[name])
    module, _, kind = _imports("fairmile.workspace")[getter.__annotations__["return"]].rpartition(".")
    found: type = getattr(__import__(module, fromlist=[kind]), kind)
    return found


def _getter(member: property | cached_property[Any]) -> Any:
    return member.fget if isinstance(member, property) else member.func


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class in the order of its source, those of its bases last."""
    seen = set(getattr(kind, "_internal", ()))
    for owner in kind.__mro__:
        if owner.__module__.startswith("fairmile"):
            for name, member in vars(owner).items():
                if not name.startswith("_") and name not in seen and owner not in (Result, Results):
                    seen.add(name)
                    yield name, member


def _member(path: str, member: Any, *, in_contents: bool = True) -> Iterator[str]:
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    if isinstance(member, (property, cached_property)):
        if text := _doc(_getter(member)):
            yield directive("py:property", path, text, in_contents=in_contents)
    elif inspect.isfunction(member):
        yield directive("py:method", path + _signature(member), _doc(member), in_contents=in_contents)


def _class(path: str, kind: type, more: str = "") -> str:
    """Return a class with its fields and public members."""
    hide_init = kind.__init__ is object.__init__ or not is_dataclass(kind) or issubclass(kind, Result)
    signature = "" if hide_init else _signature(kind.__init__)
    fields = [
        f"- `{name}: {annotation}`"
        for name, annotation in _fields(kind)
        if not name.startswith("_") and not _is_constant(annotation)
    ]
    members = [
        part
        for name, member in _members(kind)
        if name not in _INHERITED and not hasattr(member, "default")
        for part in _member(name, member, in_contents=False)
    ]
    body = [_doc(kind), more, "\n".join(fields), *members]
    text = "\n\n".join(part for part in body if part)
    return directive("py:class", path + signature, text, depth=4, in_contents=path in map(_path, _results()))


def _fields(kind: type) -> Iterable[tuple[str, str]]:
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("fairmile"):
            found |= {name: str(each) for name, each in vars(owner).get("__annotations__", {}).items()}
    return found.items()


def _is_constant(annotation: str) -> bool:
    return annotation.startswith("ClassVar")


def _function(path: str, function: Any) -> str:
    return directive("py:function", path + _signature(function), _doc(function), in_contents=False)


def _signature(function: Any) -> str:
    """Return a signature with the types of results as links, and without `self`."""
    imports = _imports(function.__module__)

    def qualified(annotation: Any) -> Any:
        if annotation is inspect.Signature.empty:
            return annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        return _Verbatim(_NAME.sub(lambda match: _linked(match[0], imports, function.__module__), text))

    def default(value: Any) -> Any:
        return _Verbatim("...") if inspect.isroutine(value) or " at 0x" in repr(value) else value

    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=qualified(each.annotation), default=default(each.default))
        for each in signature.parameters.values()
        if each.name not in ("self", "cls")
    ]
    result = signature.return_annotation
    shown = signature.replace(parameters=parameters, return_annotation=qualified(result))
    return str(shown)


def _linked(name: str, imports: dict[str, str], module: str) -> str:
    path = imports.get(name, f"{module}.{name}")
    return path if path in {_path(each) for each in _results()} else name


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


@cache
def _imports(module: str) -> dict[str, str]:
    """Return what the names that a module imports stand for, also those that only a type checker sees."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _doc(documented: Any) -> str:
    text = inspect.getdoc(documented) or ""
    generated = text.startswith(f"{getattr(documented, '__name__', '')}(")  # what a dataclass or tuple makes up
    return "" if generated else text


def _summary(documented: Any) -> str:
    return _doc(documented).partition("\n\n")[0]
