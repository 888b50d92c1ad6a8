"""A catalog on disk: plain folders of cards that survive `rsync`; every card is one file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, SystemFailure
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.catalog.card import Card
from fairmile.catalog.identity import Handle
from fairmile.catalog.journal import changes_since, record_changes

CARD_SUFFIX = ".jsonld"
TOMBSTONE_SUFFIX = ".tombstone.json"
_GENERATION = "generation"
_UNFINISHED = "unfinished-"
_GENERATION_WIDTH = 40


class Stamp(NamedTuple):
    """What tells a changed file from an unchanged one without reading it."""

    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class CatalogFolder:
    """The files of one catalog: `cards/KIND/NAME/VERSION.jsonld`, tombstones beside them, raw documents by digest."""

    name: str
    root: Path
    writable: bool = False

    @property
    def cards_root(self) -> Path:
        return self.root / "cards"

    @property
    def generation_file(self) -> Path:
        return self.root / _GENERATION

    def generation(self) -> str:
        """Return a text that changes whenever the cards of this catalog change."""
        try:
            file = os.open(f"{self.root}/{_GENERATION}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(file, 2 * _GENERATION_WIDTH).decode("ascii").strip()
            finally:
                os.close(file)
        except OSError:
            return ""

    def touch_generation(self, paths: Sequence[str] | None = None, *, unfinished: bool = False) -> str:
        """Mark the catalog as changed, before the change: an index that misses it can tell.

        `paths` are the cards that change, relative; without them an index looks at all files.

        A change of many cards is marked `unfinished` before and once more after it: an index may look in between.
        """
        token = (_UNFINISHED if unfinished else "") + os.urandom(8).hex()
        line = f"{token:<{_GENERATION_WIDTH}}\n".encode("ascii")
        # One short write of fixed length over the old one, and no sync: it is a hint to the index, not data, and
        # a rename over a file makes ext4 flush it.
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if paths is not None:
                record_changes(self.root, token, paths)
            descriptor = os.open(self.generation_file, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.pwrite(descriptor, line, 0)
            finally:
                os.close(descriptor)
        except PermissionError:  # the file of a colleague, in a folder that several share, can only be replaced
            write_atomic(self.generation_file, line)
        except OSError as error:
            raise SystemFailure(f"cannot write {self.generation_file}: {error.strerror}") from error
        return token

    def is_unfinished(self) -> bool:
        """Tell whether a change of many cards is under way, or was interrupted."""
        return self.generation().startswith(_UNFINISHED)

    def changes_since(self, known: str, generation: str) -> list[str] | None:
        """Return the paths of the cards that may have changed between two generations; None when it is not known."""
        return [] if generation and known == generation else changes_since(self.root, known, generation)

    def stamps(self, paths: Iterable[str]) -> Iterator[tuple[str, Stamp]]:
        """Yield the stamps of the cards and tombstones at these paths; not of those that `scan` would not yield."""
        is_link = cache(os.path.islink)  # many cards lie in one folder
        for relative in paths:
            if (stamp := self._stamp(relative, is_link)) is not None:
                yield relative, stamp

    def _stamp(self, relative: str, is_link: Callable[[str], bool]) -> Stamp | None:
        parent, _, name = relative.rpartition("/")
        above = f"{self.root}/cards/{parent}"
        if is_link(above) or is_link(os.path.dirname(above)):
            return None
        tombstone = f"{above}/{name.removesuffix(CARD_SUFFIX)}{TOMBSTONE_SUFFIX}"
        if name.endswith(CARD_SUFFIX) and os.path.lexists(tombstone):
            return None
        try:
            status = os.lstat(f"{above}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_card = stat.S_ISREG(status.st_mode) and name.endswith((CARD_SUFFIX, TOMBSTONE_SUFFIX))
        return Stamp(status.st_size, status.st_mtime_ns) if is_card else None

    def relative_path(self, handle: Handle) -> str:
        return f"{handle.kind}/{handle.name}/{handle.version}{CARD_SUFFIX}"

    def paths(self, handle: Handle) -> list[str]:
        """Return the relative paths at which the card or its tombstone may stand."""
        return [self.relative_path(handle), f"{handle.kind}/{handle.name}/{handle.version}{TOMBSTONE_SUFFIX}"]

    def path(self, handle: Handle) -> Path:
        return self.cards_root / self.relative_path(handle)

    def scan(self) -> Iterator[tuple[str, Stamp]]:
        """Yield the relative path and stamp of every card and tombstone; links are left alone.

        A card beside its own tombstone is not there: its removal was interrupted.
        """
        stack = [""]
        while stack:
            below = stack.pop()
            files: dict[str, Stamp | None] = {}
            try:
                with os.scandir(self.cards_root / below) as entries:
                    for entry in entries:  # a folder may hold a million others: none of them is kept but its name
                        name = entry.name
                        if name.startswith("."):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(f"{below}/{name}" if below else name)
                        elif name.endswith((TOMBSTONE_SUFFIX, CARD_SUFFIX)):
                            files[name] = _stamp(entry)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise SystemFailure(f"{self.cards_root / below} cannot be read: {error.strerror}") from error
            for name, stamp in files.items():
                is_buried = name.removesuffix(CARD_SUFFIX) + TOMBSTONE_SUFFIX in files
                if stamp is not None and not is_buried:
                    yield f"{below}/{name}" if below else name, stamp

    def stamp(self, relative: str) -> Stamp:
        """Return what tells whether the file of a card has changed; to be taken before the card is read."""
        path = f"{self.root}/cards/{relative}"
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            raise _is_gone(path) from None
        except OSError as error:
            raise SystemFailure(f"the card {path} cannot be read: {error.strerror}") from error
        return Stamp(status.st_size, status.st_mtime_ns)

    def read(self, relative: str) -> Card:
        """Return the card in the file."""
        path = f"{self.root}/cards/{relative}"
        try:
            with open(path, "rb", buffering=0) as file:
                text = file.read().decode("utf-8")
            body = json.loads(text)
            if not isinstance(body, dict):
                raise ValueError(f"expected a JSON object, found {type(body).__name__}")
            if "\\ud" in text or "\\uD" in text:
                json.dumps(body, ensure_ascii=False).encode()
        except FileNotFoundError:
            raise _is_gone(path) from None
        except OSError as error:
            raise SystemFailure(f"the card {path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise SystemFailure(
                f"the card {path} is damaged: {error}",
                hint="`fairmile catalog check` shows where; restore it or sync again",
            ) from error
        return Card(body, catalog=self.name)

    def write(self, card: Card, *, replace: bool = False) -> Path:
        """Write the card; FileExistsError when the handle is taken and `replace` is not given."""
        path = self.path(card.handle)
        write_atomic(path, card.to_json(), exclusive=not replace)
        return path

    def keep_raw(self, data: bytes, sha256: str) -> None:
        """Keep the document a card was imported from, by its digest."""
        path = self.root / "raw" / sha256[:2] / sha256
        if not path.exists():
            write_atomic(path, data)

    def raw(self, sha256: str) -> bytes | None:
        """Return the kept document with that digest."""
        try:
            return (self.root / "raw" / sha256[:2] / sha256).read_bytes()
        except OSError:
            return None

    def tombstone_path(self, handle: Handle) -> Path:
        return self.cards_root / handle.kind / handle.name / f"{handle.version}{TOMBSTONE_SUFFIX}"

    def bury(self, card: Card, facts: dict[str, Any]) -> Path:
        """Replace the card by a tombstone that keeps it, with the reason and the date."""
        path = self.tombstone_path(card.handle)
        write_atomic(path, json.dumps({**card.body, "tombstone": facts}, indent=1, ensure_ascii=False) + "\n")
        self.path(card.handle).unlink(missing_ok=True)
        return path

    def remove(self, relative: str) -> None:
        """Delete one file and the folders it leaves empty."""
        path = self.cards_root / relative
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == self.cards_root:
                break
            try:
                parent.rmdir()
            except OSError:
                break


def _is_gone(path: str) -> NotFound:
    return NotFound(f"the card {path} is gone", hint="run `fairmile catalog reindex`")


def _stamp(entry: os.DirEntry[str]) -> Stamp | None:
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # removed by another process since the folder was listed
        return None
    return Stamp(status.st_size, status.st_mtime_ns)
