"""What all nouns of a workspace share: completion, `repr` and a notebook show their calls, and nothing else."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fairmile.base.html_tables import rows_table

_LONGEST_REPR = 200


class Noun:
    """A part of a workspace, such as `fm.runs`.

    `internal` lists methods that only other parts of Fairmile call: they are no part of the public interface.
    `package` is the package of the same name, such as `fairmile.runs`.
    """

    _internal: frozenset[str] = frozenset()
    _package: str | None = None

    def __init_subclass__(cls, *, internal: str = "", package: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._internal = cls._internal | frozenset(internal.split())
        cls._package = package or cls._package

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # `fm.runs` stands where `import fairmile.runs.ledger as l` looks for the package.
            module = sys.modules.get(f"{self._package}.{name}")
            if module is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            return module

    def __dir__(self) -> list[str]:
        return sorted(name for name, _ in public_members(type(self)))

    def __repr__(self) -> str:
        text = f"<{type(self).__name__}: {first_sentence(type(self))}>"
        return text if len(text) <= _LONGEST_REPR else f"{text[: _LONGEST_REPR - 2]}…>"

    def _repr_html_(self) -> str:
        members = sorted(public_members(type(self)))
        return rows_table(["call", ""], [(name, first_sentence(member).replace("`", "")) for name, member in members])


def public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the names that a noun offers to users, with the function behind each, its own first."""
    internal: frozenset[str] = getattr(kind, "_internal", frozenset())
    seen: set[str] = set()
    for owner in kind.__mro__:
        for name, member in vars(owner).items():
            if name.startswith("_") or name in internal or name in seen:
                continue
            function = _function_of(member)
            if function is not None:
                seen.add(name)
                yield name, function


def _function_of(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    return member if inspect.isfunction(member) else None


def first_sentence(documented: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]
