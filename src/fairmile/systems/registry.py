"""The systems that are known: those built in, those of a centre's or a user's folders, and single files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.resources import files as resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fairmile.base.errors import Conflict, FairmileError, InvalidDocument, NotFound, Problem, SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.words import did_you_mean
from fairmile.systems.check import Document, read_document
from fairmile.systems.model import NAME, System

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

BUILT_IN = "built-in"
_ENDING = ".yaml"
_LARGEST = 1 << 20
_NO_FILES: Mapping[str, Path] = MappingProxyType({})


@dataclass(frozen=True)
class Listed:
    """What a list says of a system; `problem` tells why its file cannot be used."""

    name: str
    origin: str
    title: str = ""
    centre: str = ""
    country: str = ""
    scheduler: str = ""
    partitions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    software: tuple[str, ...] = ()
    verified: date | None = None
    newest_source: str = ""
    retired: date | None = None
    aliases: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class _Source:
    """The file that describes a system, and where it came from."""

    name: str
    file: Path | Traversable
    origin: str
    renamed: bool = False  # the settings call it so, whatever the file says

    def read(self) -> str:
        return _read(self.file, self.origin if self.origin != BUILT_IN else str(self.file))

    def load(self) -> System:
        document = read_document(self.read(), str(self.file))
        system = document.need()
        if self.renamed:
            return system.model_copy(update={"name": self.name})
        if system.name != self.name:
            problem = Problem(
                f"is {system.name!r}, but the file is called {self.name + _ENDING!r}",
                field="name",
                file=str(self.file),
                line=document.line(("name",)),
                hint="give both the same name",
            )
            raise InvalidDocument([problem])
        return system


class Systems:
    """Look up systems by name or alias, reading a file when its system is first asked for.

    Built-in systems come first, then the folders in their order, then single files; a later one replaces an
    earlier one of the same name. In a folder, `NAME.yaml` describes NAME. A file that cannot be used is no
    trouble for the others: it raises when its system is asked for, and `rows` tells what is wrong with it.
    """

    def __init__(self, folders: Sequence[Path] = (), files: Mapping[str, Path] = _NO_FILES) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._files = dict(files)
        self._loaded: dict[str, System] = {}

    def names(self) -> list[str]:
        """Return every name, without aliases, in the order of the alphabet."""
        found = set(_stems(_built_in())) | set(self._files)
        for folder in self._folders:
            found.update(_stems(folder))
        return sorted(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __getitem__(self, name: str) -> System:
        source = self._find(name)
        if source is None:
            raise self._unknown(name)
        if source.name not in self._loaded:
            self._loaded[source.name] = source.load()
        return self._loaded[source.name]

    def origin(self, name: str) -> str:
        """Return where the description of a system comes from: "built-in" or the path of its file."""
        source = self._find(name)
        if source is None:
            raise self._unknown(name)
        return source.origin

    def rows(self) -> list[Listed]:
        """Return what a list shows of each system, those with broken files included."""
        return [self._row(name) for name in self.names()]

    def _row(self, name: str) -> Listed:
        source = self._named(name)
        origin = source.origin if source else ""
        try:
            system = self[name]
        except FairmileError as error:
            return Listed(name, origin, problem=str(error))
        gpus = [f"{each.gpu.count} × {each.gpu.model}" for each in system.partitions.values() if each.gpu]
        return Listed(
            name,
            origin,
            title=system.title,
            centre=system.centre,
            country=system.country,
            scheduler=system.scheduler.dialect,
            partitions=tuple(system.partitions),
            gpus=tuple(dict.fromkeys(gpus)),
            software=tuple(system.software),
            verified=system.verified,
            newest_source=system.newest_source,
            retired=system.retired,
            aliases=system.aliases,
        )

    def _find(self, name: str) -> _Source | None:
        # A name becomes part of a path.
        return (self._named(name) or self._by_alias(name)) if NAME.fullmatch(name) else None

    def _named(self, name: str) -> _Source | None:
        """Return the file of a system of exactly this name; the last one that was declared wins."""
        if name in self._files:
            return _Source(name, self._files[name], str(self._files[name]), renamed=True)
        for folder in reversed(self._folders):
            file = folder / f"{name}{_ENDING}"
            if file.is_file():
                return _Source(name, file, str(file))
        built_in = _built_in() / f"{name}{_ENDING}"
        return _Source(name, built_in, BUILT_IN) if built_in.is_file() else None

    def _by_alias(self, alias: str) -> _Source | None:
        for name in self.names():
            source = self._named(name)
            try:
                # Most files need not be understood to know that they do not say the word.
                if source is not None and alias in source.read() and alias in self[name].aliases:
                    return source
            except FairmileError:
                continue  # a broken file has no aliases; it is told when its own name is asked for
        return None

    def _unknown(self, name: str) -> NotFound:
        known = self.names()
        near = did_you_mean(name, known)
        return NotFound(f"no system named {name!r}" + (f"; {near}" if near else ""), hint=f"known: {', '.join(known)}")


def load_system(path: Path) -> System:
    """Return the system that a file describes; a file that breaks the rules raises InvalidDocument."""
    return _open(path).need()


def check_file(path: Path, *, today: date | None = None) -> list[Problem]:
    """Return everything that is wrong or doubtful in a system file, errors first; none when all is well."""
    day = today or date.today()
    return _open(path).problems(day, day - timedelta(days=365))


def add_system(file: Path, folder: Path, *, replace: bool = False, dry_run: bool = False) -> tuple[System, Path]:
    """Copy a system file that holds to the rules into a folder of systems; return the system and its new place."""
    text = _read(file, str(file))
    document = read_document(text, str(file))
    system = document.need()
    _refuse_lost_aliases(system, Systems([folder]).names(), document, file)
    target = folder / f"{system.name}{_ENDING}"
    there = target.is_file()
    if there and not replace and _read(target, str(target)) != text:
        raise Conflict(f"{target} describes {system.name!r} already", hint="--replace puts the new file in its place")
    if not dry_run:
        write_atomic(target, text)
    return system, target


def _refuse_lost_aliases(system: System, names: Sequence[str], document: Document, file: Path) -> None:
    problems = [
        Problem(
            f"{alias!r} is the name of another system, which would be found instead",
            field=f"aliases[{place}]",
            file=str(file),
            line=document.line(("aliases", place)),
            hint="choose another alias, or leave it out",
        )
        for place, alias in enumerate(system.aliases)
        if alias in names and alias != system.name
    ]
    if problems:
        raise InvalidDocument(problems)


def remove_system(name: str, folder: Path, systems: Systems, *, dry_run: bool = False) -> Path:
    """Remove the file of a system, found by name or alias, from a folder of systems; return where it was."""
    origin = systems.origin(name)
    target = folder / f"{name}{_ENDING}"
    if not target.is_file() and Path(origin).parent == folder:
        target = Path(origin)
    if not target.is_file():
        raise UsageError(
            f"{name!r} is not one of your own systems: it comes from {origin}",
            hint=f"only what `fairmile system add` put into {folder} can be removed",
        )
    if not dry_run:
        target.unlink()
    return target


def _open(path: Path) -> Document:
    return read_document(_read(path, str(path)), str(path))


def _read(file: Path | Traversable, shown: str) -> str:
    try:
        if not file.is_file():
            raise NotFound(f"no file {shown}")
        with file.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SystemFailure(f"cannot read {shown}: {reason}") from error
    if len(data) > _LARGEST:
        raise InvalidDocument([Problem("is larger than 1 MiB, which no description of a system is", file=shown)])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidDocument([Problem("is not UTF-8 text", file=shown, line=line)]) from error


def _built_in() -> Traversable:
    return resources("fairmile.systems") / "data"


def _stems(folder: Path | Traversable) -> list[str]:
    try:
        names = [each.name.removesuffix(_ENDING) for each in folder.iterdir() if each.name.endswith(_ENDING)]
    except OSError:  # a folder that is not there yet, or not ours to read, holds no system for us
        return []
    return [name for name in names if NAME.fullmatch(name)]
