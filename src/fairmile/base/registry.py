"""Named implementations, found in a literal table first and among installed entry points second."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from typing import Any, Generic, TypeVar, cast

from fairmile.base.errors import MissingExtra, NotFound, Unsupported
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import did_you_mean

T = TypeVar("T")
_MOST_BYTES = 1 << 20  # of the entry points of a package


class Plugin(NamedTuple):
    """Where an implementation lies (`target` is "module:attribute") and which extra installs what it needs."""

    target: str
    extra: str | None = None
    summary: str = ""


class Registry(Generic[T]):
    """Look up implementations of one kind by name, importing each at its first use.

    Entry points of the group `entry_points` are read only when the table lacks the name or all names are
    asked for. A name in the table wins over an entry point of the same name.
    """

    def __init__(self, kind: str, table: Mapping[str, Plugin], *, entry_points: str | None = None) -> None:
        self.kind = kind
        self._table = dict(table)
        self.group = entry_points
        self._installed: dict[str, Plugin] | None = None

    def __getitem__(self, name: str) -> T:
        plugin = self._find(name)
        module, _, attribute = plugin.target.partition(":")
        try:
            target: Any = importlib.import_module(module)
        except ImportError as error:
            raise self._explain(name, plugin, error) from error
        for part in attribute.split(".") if attribute else ():
            target = getattr(target, part)
        return cast("T", target)

    def __contains__(self, name: object) -> bool:
        return name in self._table or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        """Return all names, those of the table first and in its order."""
        return list(self._table | self._entry_points())

    def items(self) -> Iterator[tuple[str, T]]:
        """Yield each name with its implementation, importing one after the other."""
        for name in self.names():
            yield name, self[name]

    def summary(self, name: str) -> str:
        """Return the one-line description of an implementation without importing it."""
        return self._find(name).summary

    def failures(self) -> dict[str, BaseException]:
        """Import every implementation and return the error of each that fails."""
        failed: dict[str, BaseException] = {}
        for name in self.names():
            try:
                self[name]
            except BaseException as error:  # a stranger's module may raise anything, SystemExit included
                if isinstance(error, KeyboardInterrupt):
                    raise
                failed[name] = error
        return failed

    def _find(self, name: str) -> Plugin:
        plugin = self._table.get(name) or self._entry_points().get(name)
        if plugin is None:
            names = self.names()
            near = did_you_mean(name, names)
            known = f"known: {', '.join(names)}" if names else f"no {self.kind} is installed"
            raise NotFound(f"no {self.kind} named {name!r}" + (f"; {near}" if near else ""), hint=known)
        return plugin

    def _entry_points(self) -> dict[str, Plugin]:
        if self._installed is None:
            self._installed = {}
            if self.group is not None and _may_be_installed(self.group):
                from importlib.metadata import entry_points

                for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
                    package = point.dist.name if point.dist is not None else "an installed package"
                    self._installed.setdefault(point.name, Plugin(point.value, summary=f"from {package}"))
        return self._installed

    def _explain(self, name: str, plugin: Plugin, error: ImportError) -> ImportError | Unsupported:
        own = plugin.target.partition(":")[0]
        missing = error.name or ""
        top = missing.partition(".")[0]
        if name in self._table and (not top or top == own.partition(".")[0]):
            return error  # our own table or module is wrong, which is a defect and not a missing extra
        needs = f"{self.kind} {name!r} needs {top or own}"
        if plugin.extra is not None:
            return MissingExtra(needs, plugin.extra)
        return Unsupported(f"{needs}, which cannot be imported", hint=f"install it; Python says: {error}")


def _may_be_installed(group: str) -> bool:
    """Tell whether an installed package may have entry points of a group.

    Python itself reads the metadata of every package to answer that, which takes many times as long.
    """
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    header = f"[{group}]".encode()
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except NotADirectoryError:  # an archive
            return True
        except OSError:
            continue
        for name in names:
            if name.endswith(".egg"):
                return True
            if name.endswith((".dist-info", ".egg-info")) and _states(
                f"{folder or '.'}/{name}/entry_points.txt", header
            ):
                return True
    return False


def _states(path: str, header: bytes) -> bool:
    """Tell whether a file holds some bytes; most packages have no such file, and a stream would cost twice as much."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return header in os.read(file, _MOST_BYTES)
    except OSError:
        return False
    finally:
        os.close(file)
