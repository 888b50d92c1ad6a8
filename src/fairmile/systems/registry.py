"""Known systems: built-in ones, those in a centre's or a user's folder, and single files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from importlib.resources import files as resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypedDict

from fairmile.base.errors import Conflict, FairmileError, InvalidDocument, NotFound, Problem, SystemFailure, UsageError
from fairmile.base.files import decode_text, write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.words import did_you_mean
from fairmile.systems.check import Document, read_document
from fairmile.systems.model import NAME, System
from fairmile.systems.system_details import SystemDetails

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

BUILT_IN = "built-in"
_ENDING = ".yaml"
_LARGEST = 1 << 20
_NO_FILES: Mapping[str, Path] = MappingProxyType({})


class SystemSummaryDict(TypedDict):
    """A system in a list, as JSON; dates are texts such as 2026-11-15."""

    name: str
    origin: str
    title: str
    centre: str
    country: str
    scheduler: str
    partitions: list[str]
    gpus: list[str]
    software: list[str]
    verified: str | None
    newest_source: str
    retired: str | None
    aliases: list[str]
    problem: str


class SystemListDict(TypedDict):
    """Systems as JSON."""

    systems: list[SystemSummaryDict]


class ProblemDict(TypedDict):
    """One problem of a file as JSON."""

    severity: Literal["error", "warning"]
    field: str
    line: int | None
    message: str
    hint: str


class FileCheckDict(TypedDict):
    """What is wrong with one file, as JSON."""

    file: str
    ok: bool
    problems: list[ProblemDict]


class FileChecksDict(TypedDict):
    """What is wrong with files, as JSON."""

    files: list[FileCheckDict]


class AddedFactsDict(TypedDict):
    """A system that was added, or would be."""

    name: str
    file: str
    hides_built_in: bool
    dry_run: bool


class AddedSystemDict(TypedDict):
    """A system that was added, or would be, as JSON."""

    added: AddedFactsDict


class RemovedSystemDict(TypedDict):
    """A system that was removed, or would be, as JSON."""

    removed: str
    file: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class SystemSummary(Result):
    """A system in a list; `problem` says why its file cannot be used."""

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

    def to_dict(self) -> SystemSummaryDict:
        """Return the system as data."""
        return {
            "name": self.name,
            "origin": self.origin,
            "title": self.title,
            "centre": self.centre,
            "country": self.country,
            "scheduler": self.scheduler,
            "partitions": list(self.partitions),
            "gpus": list(self.gpus),
            "software": list(self.software),
            "verified": None if self.verified is None else str(self.verified),
            "newest_source": self.newest_source,
            "retired": None if self.retired is None else str(self.retired),
            "aliases": list(self.aliases),
            "problem": self.problem,
        }

    def summary(self) -> str:
        """Return the name, the centre and the scheduler, or the problem."""
        return f"{self.name}: {self.problem}" if self.problem else f"{self.name}, {self.centre}, {self.scheduler}"


class SystemList(Results[SystemSummary]):
    """Systems, in the order of their names."""

    columns = ("name", "title", "centre", "scheduler", "partitions", "gpus", "problem")

    def to_dict(self) -> SystemListDict:
        """Return the systems as `fairmile system ls --json` prints them."""
        return {"systems": [each.to_dict() for each in self]}

    def summary(self) -> str:
        """Return the number of systems, and their names."""
        return f"{len(self)} systems: {', '.join(each.name for each in self)}"


@dataclass(frozen=True, repr=False)
class FileCheck(Result):
    """What is wrong or doubtful in one system file."""

    file: str
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]

    @property
    def ok(self) -> bool:
        """Whether the file can be used; warnings leave it valid."""
        return not self.errors

    def to_dict(self) -> FileCheckDict:
        """Return the verdict as data."""
        return {"file": self.file, "ok": self.ok, "problems": [_problem_dict(each) for each in self.problems]}

    def summary(self) -> str:
        """Return the file, whether it is valid, and the first problem."""
        first = f": {self.problems[0].message}" if self.problems else ""
        return f"{self.file} is {'valid' if self.ok else 'not valid'}{first}"


class FileChecks(Results[FileCheck]):
    """Checks of several system files."""

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self)

    def to_dict(self) -> FileChecksDict:
        """Return the verdicts as `fairmile system check --json` prints them."""
        return {"files": [each.to_dict() for each in self]}

    def summary(self) -> str:
        """Return the number of files, and of valid ones."""
        return f"{sum(each.ok for each in self)} of {len(self)} files valid"


@dataclass(frozen=True, repr=False)
class AddedSystem(Result):
    """A system file that was copied into a folder of systems, or would be with `dry_run`."""

    name: str
    file: Path
    hides_built_in: bool
    dry_run: bool

    def to_dict(self) -> AddedSystemDict:
        """Return what was added as `fairmile system add --json` prints it."""
        facts: AddedFactsDict = {
            "name": self.name,
            "file": str(self.file),
            "hides_built_in": self.hides_built_in,
            "dry_run": self.dry_run,
        }
        return {"added": facts}

    def summary(self) -> str:
        """Return the name and the file."""
        return f"{'would add' if self.dry_run else 'added'} {self.name}: {self.file}"


@dataclass(frozen=True, repr=False)
class RemovedSystem(Result):
    """A system whose file was removed, or would be with `dry_run`."""

    name: str
    file: Path
    dry_run: bool

    def to_dict(self) -> RemovedSystemDict:
        """Return what was removed as `fairmile system rm --json` prints it."""
        return {"removed": self.name, "file": str(self.file), "dry_run": self.dry_run}

    def summary(self) -> str:
        """Return the name and the file."""
        return f"{'would remove' if self.dry_run else 'removed'} {self.name}: {self.file}"


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
    earlier one of the same name. In a folder, `NAME.yaml` describes NAME. A file that cannot be used does not affect
    the others: it raises when its system is asked for, and `rows` says what is wrong with it.
    """

    def __init__(self, folders: Sequence[Path] = (), files: Mapping[str, Path] = _NO_FILES) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._files = dict(files)
        self._loaded: dict[str, System] = {}

    def names(self) -> list[str]:
        """Return every name, without aliases, in the order of the alphabet."""
        names = set(_stems(_built_in())) | set(self._files)
        for folder in self._folders:
            names.update(_stems(folder))
        return sorted(names)

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

    def show(self, name: str) -> SystemDetails:
        """Return a system with where its description comes from."""
        return SystemDetails(self[name], self.origin(name))

    def rows(self) -> SystemList:
        """Return a summary of each system, including those whose file cannot be used."""
        return SystemList(self._row(name) for name in self.names())

    def _row(self, name: str) -> SystemSummary:
        source = self._named(name)
        origin = source.origin if source else ""
        try:
            system = self[name]
        except FairmileError as error:
            return SystemSummary(name, origin, problem=str(error))
        gpus = [f"{each.gpu.count} × {each.gpu.model}" for each in system.partitions.values() if each.gpu]
        return SystemSummary(
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
                continue  # a broken file has no aliases; it is reported when its own name is asked for
        return None

    def _unknown(self, name: str) -> NotFound:
        known = self.names()
        near = did_you_mean(name, known)
        return NotFound(f"no system named {name!r}" + (f"; {near}" if near else ""), hint=f"known: {', '.join(known)}")


def check_file(path: Path, *, today: date | None = None) -> list[Problem]:
    """Return everything that is wrong or doubtful in a system file, errors first; none when all is well."""
    day = today or date.today()
    return _open(path).problems(day, day - timedelta(days=365))


def check_files(files: Sequence[Path]) -> FileChecks:
    """Check several system files; a file that cannot be read has that one problem."""
    return FileChecks(FileCheck(str(file), tuple(_problems(file))) for file in files)


def _problems(file: Path) -> Sequence[Problem]:
    try:
        return check_file(file)
    except InvalidDocument as error:
        return error.problems
    except FairmileError as error:
        return [Problem(str(error), hint=error.hint or "")]


def _problem_dict(problem: Problem) -> ProblemDict:
    return {
        "severity": problem.severity,
        "field": problem.field,
        "line": problem.line,
        "message": problem.message,
        "hint": problem.hint,
    }


def add_system(file: Path, folder: Path, *, replace: bool = False, dry_run: bool = False) -> AddedSystem:
    """Copy a valid system file into a folder of systems."""
    text = _read(file, str(file))
    document = read_document(text, str(file))
    system = document.need()
    _refuse_lost_aliases(system, Systems([folder]).names(), document, file)
    target = folder / f"{system.name}{_ENDING}"
    there = target.is_file()
    if there and not replace and _read(target, str(target)) != text:
        raise Conflict(f"{target} describes {system.name!r} already", hint="--replace overwrites it")
    if not dry_run:
        write_atomic(target, text)
    return AddedSystem(system.name, target, system.name in Systems().names(), dry_run)


def _refuse_lost_aliases(system: System, names: Sequence[str], document: Document, file: Path) -> None:
    problems = [
        Problem(
            f"{alias!r} is the name of another system, which takes precedence",
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


def remove_system(name: str, folder: Path, systems: Systems, *, dry_run: bool = False) -> RemovedSystem:
    """Remove the file of a system, given by name or alias, from a folder of systems."""
    origin = systems.origin(name)
    target = folder / f"{name}{_ENDING}"
    if not target.is_file() and Path(origin).parent == folder:
        target = Path(origin)
    if not target.is_file():
        raise UsageError(
            f"{name!r} is not one of your own systems: it comes from {origin}",
            hint=f"only files added with `fairmile system add` to {folder} can be removed",
        )
    if not dry_run:
        target.unlink()
    return RemovedSystem(target.stem, target, dry_run)


def _open(path: Path) -> Document:
    return read_document(_read(path, str(path)), str(path))


def _read(file: Path | Traversable, shown: str) -> str:
    try:
        if not file.is_file():
            raise NotFound(f"no such file: {shown}")
        with file.open("rb") as stream:
            data = stream.read(_LARGEST + 1)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SystemFailure(f"cannot read {shown}: {reason}") from error
    if len(data) > _LARGEST:
        raise InvalidDocument([Problem("is larger than 1 MiB, too large for a system file", file=shown)])
    return decode_text(data, shown)


def _built_in() -> Traversable:
    return resources("fairmile.systems") / "data"


def _stems(folder: Path | Traversable) -> list[str]:
    try:
        names = [each.name.removesuffix(_ENDING) for each in folder.iterdir() if each.name.endswith(_ENDING)]
    except OSError:  # a folder that is not there yet, or not ours to read, holds no system for us
        return []
    return [name for name in names if NAME.fullmatch(name)]
