"""Names of one pool: what each stands for, in a small file of its own, so that many processes need no lock."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, get_args

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.strict_json import load_json
from fairmile.base.words import slug
from fairmile.store.objects import make_folder, writing

# A link is a folder whose symbolic links lead into the pool; its name is the path of the folder.
Kind = Literal["card", "url", "pin", "run", "link"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_GONE = (FileNotFoundError, NotADirectoryError)


class RefDict(TypedDict):
    kind: Kind
    name: str
    root: str
    size_bytes: int
    files: int
    created: float
    details: dict[str, Any]
    used: float


@dataclass(frozen=True)
class Ref:
    """A name and the tree it stands for; a single file is a tree of one entry.

    `created` is the time of the machine that wrote it, `used` that of the file server when it was last used.
    """

    kind: Kind
    name: str
    root: str
    size_bytes: int
    files: int
    created: float
    details: Mapping[str, Any] = field(default_factory=dict)
    used: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def facts(self) -> RefDict:
        """Return the name as data."""
        return {
            "kind": self.kind,
            "name": self.name,
            "root": self.root,
            "size_bytes": self.size_bytes,
            "files": self.files,
            "created": self.created,
            "details": dict(self.details),
            "used": self.used,
        }

    def to_json(self) -> str:
        """Return the text of its file."""
        facts = {**{key: getattr(self, key) for key in _SHAPE}, "details": dict(self.details)}
        try:
            return json.dumps(facts, indent=1, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise UsageError(f"the details of {self} cannot be written as JSON: {error}") from error

    @classmethod
    def from_json(cls, text: str, *, file: str = "") -> Ref:
        """Return the ref that a file states, or raise InvalidDocument, a UsageError."""
        data = load_json(text, file=file)
        try:
            ref = cls(**{key: data[key] for key in _SHAPE}, details=data.get("details") or {})
        except (TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{file}: expected a name with {', '.join(_SHAPE)}") from error
        _check(ref, file)
        return ref


_SHAPE: dict[str, tuple[type, ...]] = {
    "kind": (str,),
    "name": (str,),
    "root": (str,),
    "size_bytes": (int,),
    "files": (int,),
    "created": (int, float),
}


def _check(ref: Ref, file: str = "") -> None:
    where = f"{file}: " if file else ""
    for key, types in _SHAPE.items():
        value = getattr(ref, key)
        if not isinstance(value, types) or isinstance(value, bool):
            raise UsageError(f"{where}{key}: expected {types[-1].__name__}, found {value!r}")
    if ref.kind not in KINDS:
        raise UsageError(f"{where}kind: expected one of {', '.join(KINDS)}, found {ref.kind!r}")
    if not _DIGEST.fullmatch(ref.root):
        raise UsageError(f"{where}root: expected the 64 hex digits of a tree, found {ref.root!r}")
    if not ref.name or any(each < " " or "\ud800" <= each <= "\udfff" for each in ref.name):
        raise UsageError(f"{where}name: expected a text of printable characters, found {ref.name!r}")
    if not isinstance(ref.details, Mapping):
        raise UsageError(f"{where}details: expected keys with values, found {ref.details!r}")


class Refs:
    """The names of one pool: `root`/refs/KIND/NAME.json."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "refs"

    def path(self, kind: Kind, name: str) -> Path:
        """Return where a name is written; the digest tells apart names that a path cannot."""
        return self.folder / kind / f"{slug(name)[:80]}-{sha256_hex(name.encode())[:16]}.json"

    def put(self, ref: Ref) -> None:
        """Write a name, in place of what it stood for before."""
        _check(ref)
        path, text = self.path(ref.kind, ref.name), ref.to_json()
        with writing(path):
            make_folder(self.folder.parent, path.parent)
            shared = stat.S_IMODE(self.folder.parent.stat().st_mode) & stat.S_IWGRP
        # Whoever may use the pool must be able to read its names, whatever umask their author has.
        write_atomic(path, text, mode=0o664 if shared else 0o644)

    def get(self, kind: Kind, name: str) -> Ref | None:
        """Return what a name stands for; None when it is not here, or its file cannot be parsed."""
        ref = self._read(self.path(kind, name))
        return ref if isinstance(ref, Ref) and ref.name == name else None

    def all(self, kind: Kind | None = None) -> Iterator[Ref]:
        """Yield every name that can be understood, in the order of their files."""
        for path in self._files(kind):
            if isinstance(ref := self._read(path), Ref):
                yield ref

    def damaged(self) -> Iterator[tuple[Path, str]]:
        """Yield every file that cannot be parsed, and why; one that cannot be read is not damaged."""
        for path in self._files(None):
            if isinstance(why := self._read(path), str):
                yield path, why

    def unreadable(self) -> Iterator[Path]:
        """Yield every file that this user may not read."""
        return (path for path in self._files(None) if not os.access(path, os.R_OK) and path.exists())

    def owner(self, ref: Ref) -> int | None:
        """Return the number of the user who wrote a name; None when it is gone."""
        with contextlib.suppress(OSError):
            return self.path(ref.kind, ref.name).lstat().st_uid
        return None

    def drop(self, kind: Kind, name: str) -> bool:
        """Remove a name and tell whether it was there; its bytes stay until the next clean-up."""
        path = self.path(kind, name)
        try:
            path.unlink()
        except _GONE:
            return False
        except OSError as error:
            raise SystemFailure(
                f"cannot remove {path}: {error.strerror}", hint="ask its owner, or the owner of the pool, to remove it"
            ) from error
        return True

    def touch(self, ref: Ref) -> None:
        """Note that a name was used now; where that may not be written, it is not."""
        with contextlib.suppress(OSError):
            os.utime(self.path(ref.kind, ref.name))

    def _files(self, kind: Kind | None) -> Iterator[Path]:
        for each in KINDS if kind is None else (kind,):
            try:
                names = sorted(os.listdir(self.folder / each))
            except OSError:  # a pool that is gone holds no names
                continue
            yield from (self.folder / each / name for name in names if name.endswith(".json"))

    def _read(self, path: Path) -> Ref | str | None:
        """Return the name in a file, why it cannot be parsed, or None when it is gone."""
        try:
            with open(path, encoding="utf-8") as stream:
                ref = Ref.from_json(stream.read(), file=str(path))
                used = os.fstat(stream.fileno()).st_mtime
        except OSError as error:
            is_absent = isinstance(error, (*_GONE, PermissionError)) or not path.exists()
            return None if is_absent else f"cannot be read: {error.strerror}"
        except (UsageError, UnicodeDecodeError) as error:
            return str(error)
        if self.path(ref.kind, ref.name) != path:
            return f"{path}: the name {ref.name!r} does not belong in this file"
        return Ref(**{**vars(ref), "used": used})
