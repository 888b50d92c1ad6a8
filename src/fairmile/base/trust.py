"""Which project files a user trusts: in any other, settings that could start a program have no effect.

Trust is given to content: to the text of the file and of every file beside it that its settings name. When one of
them changes, the user has to look again. The list is a file of the user's own, outside every project.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fairmile.base.config import Guarded, Option, given_in, needing_trust, read_settings
from fairmile.base.digest import sha256_file, sha256_hex
from fairmile.base.errors import NotFound, SystemFailure
from fairmile.base.files import Lock, write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results

_LARGEST_READ = 1 << 20
_WORDS = re.compile(r"[\s\"'=,;|&<>()]+")


class TrustedProjectDict(TypedDict):
    file: str
    sha256: str
    allows: dict[str, Any]
    names: list[str]
    since: str
    current: bool
    trusted: NotRequired[bool]


class TrustedProjectsDict(TypedDict):
    files: list[TrustedProjectDict]


class UntrustedDict(TypedDict):
    file: str
    removed: bool


@dataclass(frozen=True, repr=False)
class TrustedProject(Result):
    """A project file with what its settings may do once it is trusted."""

    file: Path
    sha256: str
    allows: Mapping[str, Any]  # option: value, or its values where the file states it in parts
    names: tuple[Path, ...]  # the files beside it that these settings name
    since: str = ""
    is_current: bool = True  # whether the files are still what the user trusted
    trusted: bool | None = None  # whether `add` trusted it; a dry run does not

    def to_dict(self) -> TrustedProjectDict:
        data: TrustedProjectDict = {
            "file": str(self.file),
            "sha256": self.sha256,
            "allows": dict(self.allows),
            "names": [str(each) for each in self.names],
            "since": self.since,
            "current": self.is_current,
        }
        if self.trusted is not None:
            data["trusted"] = self.trusted
        return data

    def summary(self) -> str:
        return f"{self.file} allows {', '.join(self.allows) or 'nothing'}"


class TrustedProjects(Results[TrustedProject]):
    """The project files that a user trusts."""

    def to_dict(self) -> TrustedProjectsDict:
        return {"files": [each.to_dict() for each in self]}

    def summary(self) -> str:
        changed = sum(not each.is_current for each in self)
        return f"{len(self):,} trusted files" + (f", {changed:,} changed since" if changed else "")


@dataclass(frozen=True, repr=False)
class Untrusted(Result):
    """A project file that is no longer trusted, or would not be."""

    file: Path
    removed: bool

    def to_dict(self) -> UntrustedDict:
        return {"file": str(self.file), "removed": self.removed}


class Trust:
    """The trusted project files of one user, listed in `records`.

    The files that options in `nesting` name are settings themselves, such as those of ssh: what they name counts too.
    """

    def __init__(self, records: Path, options: Mapping[str, Option], nesting: Collection[str] = ()) -> None:
        self.records = records
        self._options = options
        self._nesting = nesting

    def guard(self, file: Path, named: list[Path]) -> Guarded:
        """Return the file as `Config.load` takes it: its unsafe settings count where the user trusts them.

        `named` gets the files on whose content the answer depends.
        """

        def allows(text: str, values: Mapping[str, Any]) -> bool:
            entry = self._read().get(_key(file))
            if entry is None:
                return False
            named[:] = self.named_files(file, values)
            return entry["sha256"] == _digest(text, named)

        return Guarded(file, allows)

    def inspect(self, file: Path) -> TrustedProject:
        """Return what trust in a project file would allow."""
        if not file.is_file():
            raise NotFound(f"{file}: no such file", hint="give the folder of a project, or its settings file")
        text = read_settings(file)
        values = needing_trust(self._options, given_in(self._options, file, text))
        named = self.named_files(file, values)
        shown = {key: each[0] if len(each) == 1 else each for key, each in values.items()}
        return TrustedProject(file, _digest(text, named), shown, tuple(named))

    def add(self, file: Path, *, dry_run: bool = False) -> TrustedProject:
        """Trust a project file as it is now, with the files that it names."""
        project = self.inspect(file)
        if not dry_run:
            since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            with self._lock():
                entry = {"sha256": project.sha256, "since": since}
                self._write({**self._read(), _key(file): entry})
        return replace(project, trusted=not dry_run)

    def ls(self) -> TrustedProjects:
        """Return all trusted files; `is_current` is false where one has changed since, or is gone."""
        listed = TrustedProjects()
        for name, entry in sorted(self._read().items()):
            try:
                now = self.inspect(Path(name))
            except (NotFound, SystemFailure, ValueError):
                now = TrustedProject(Path(name), "", {}, ())
            is_current = now.sha256 == entry["sha256"]
            listed.append(
                TrustedProject(now.file, entry["sha256"], now.allows, now.names, entry.get("since", ""), is_current)
            )
        return listed

    def remove(self, file: Path, *, dry_run: bool = False) -> Untrusted:
        """Stop trusting a project file."""
        if _key(file) not in self._read():
            raise NotFound(f"{file} is not trusted", hint="`fairmile trust --list` shows what is")
        if not dry_run:
            with self._lock():
                self._write({name: entry for name, entry in self._read().items() if name != _key(file)})
        return Untrusted(file, not dry_run)

    def named_files(self, file: Path, values: Mapping[str, Any]) -> list[Path]:
        """Return the files of the project that some settings name, in order."""
        files: set[Path] = set()
        for option, given in values.items():
            named = {path for text in _texts(given) for path in _paths(text, file.parent)}
            files |= named
            for each in named if option in self._nesting else ():
                files.update(_paths(_start_of(each), each.parent), _paths(_start_of(each), file.parent))
        return sorted(files - {file.resolve()})

    def _lock(self) -> Lock:
        return Lock(self.records.with_name(f".{self.records.name}.lock"))

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            files = json.loads(self.records.read_bytes())["files"]
            return {
                str(name): {"sha256": str(each["sha256"]), "since": str(each.get("since", ""))}
                for name, each in files.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise SystemFailure(
                f"cannot read the list of trusted files, {self.records}: {error}",
                hint="remove it and trust your projects again",
            ) from error

    def _write(self, files: Mapping[str, Any]) -> None:
        self.records.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(
            self.records, json.dumps({"version": 1, "files": dict(sorted(files.items()))}, indent=1), mode=0o600
        )


def _digest(text: str, named: Sequence[Path]) -> str:
    try:
        files = [[str(each), sha256_file(each)] for each in named]
    except OSError as error:
        raise SystemFailure(f"cannot read {error.filename}, which the settings name: {error.strerror}") from error
    return sha256_hex(json.dumps([sha256_hex(text.encode()), files]).encode())


def _key(file: Path) -> str:
    # Not where a link leads: what it says of other files would hold for those beside the link.
    return str(file.parent.resolve() / file.name)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text within a setting."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            todo += each.values()
        elif isinstance(each, (list, tuple)):
            todo += each


def _paths(text: str, folder: Path) -> Iterator[Path]:
    """Yield the files of the project that a text names, as a whole or word by word."""
    root = _root(folder.resolve())
    for word in {text, *_WORDS.split(text)}:
        if not word or len(word) > 4096 or "\0" in word:
            continue
        given = os.path.expanduser(word)
        path = folder / given
        resolved = Path(os.path.realpath(path))
        # What is named by where it lies from here came with the project, even if it lies above its folder.
        is_inside = resolved.is_relative_to(root) or Path(os.path.abspath(path)).is_relative_to(root)
        if (is_inside or not os.path.isabs(given)) and _is_file(resolved):
            yield resolved


def _root(folder: Path) -> Path:
    """Return the folder that came as a whole: the work tree that holds `folder`, or itself."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _start_of(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_LARGEST_READ).decode("utf-8", "replace")
