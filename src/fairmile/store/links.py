"""Bring a tree's files into a folder: by reflink, hard link, symbolic link or copy.

A hard or symbolic link shares the bytes of the store: whoever may write there would change the store. Such files are
read-only and made where only Fairmile works, or where the settings ask for them. A user's folder gets files of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from fairmile.base.digest import ManifestEntry, manifest_text, sha256_file, sha256_hex
from fairmile.base.errors import Conflict, FairmileError, Integrity, UsageError
from fairmile.base.files import write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.store.objects import read_failure
from fairmile.store.packs import write_all
from fairmile.store.trees import read_manifest

WAYS = ("reflink", "hardlink", "symlink", "copy")
OWN_WAYS = ("reflink", "copy")  # what is changed in such a file stays there
PRESENT = "present"
_FICLONE = 0x40049409
_LINK_MODE = 0o120000
_CHUNK = 1 << 20
_LONGEST_LINK = 4096
_FOLDERS_KNOWN = 100_000
# What says that these two file systems will never do it, so that the next file need not ask.
_NEVER = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY})
# What says no for this one file: too many links, another user's object, one that was removed meanwhile.
_NOT_THIS = frozenset({errno.EMLINK, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOENT})


class ByteSource(Protocol):
    """Where the bytes of objects come from."""

    def path(self, sha256: str) -> Path | None:
        """Return a file that holds exactly this object, or None."""
        ...

    def open(self, sha256: str) -> BinaryIO:
        """Open an object for reading; NotFound when it is absent."""
        ...


@dataclass(frozen=True)
class Materialized:
    """The files that appeared in a folder: their number by each way, PRESENT for those that were there already."""

    ways: dict[str, int]
    files: int
    size_bytes: int
    linked: frozenset[str] = frozenset()  # the folders of objects that symbolic links lead into


def materialize(
    entries: Iterable[ManifestEntry],
    source: ByteSource,
    target: Path,
    *,
    ways: Sequence[str] = WAYS,
    replace: bool = False,
    writable: bool = False,
) -> Materialized:
    """Make files appear in a folder, each by the first of `ways` that the file systems allow, else as a copy.

    They are read-only; `writable` leaves those writable that share nothing with the store.

    A file that is there with the same content is left; with another one the folder is left as it is and Conflict
    names the file, unless `replace`. Entries are read once; memory does not grow with their number.
    """
    unknown = [way for way in ways if way not in WAYS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a way to materialize a file", hint=f"choose from {', '.join(WAYS)}")
    work = _Work(source, os.path.abspath(target), ways, replace, writable)
    if replace or work.is_empty():
        return work.materialize(entries)
    import tempfile  # which loads random numbers

    with tempfile.SpooledTemporaryFile(max_size=32 << 20) as spool:
        for entry in entries:
            work.file(entry.path)
            spool.write(manifest_text((entry,)).encode())
        spool.seek(0)
        # One byte for each file: were its content compared again below, a copy would be digested twice.
        present = bytearray(work.check(entry) for entry in read_manifest(spool, "the tree"))
        spool.seek(0)
        return work.materialize(read_manifest(spool, "the tree"), present)


class _Work:
    def __init__(self, source: ByteSource, top: str, ways: Sequence[str], replace: bool, writable: bool) -> None:
        self._source = source
        self._top = top
        self._ways = [way for way in ways if way != "copy"]
        self._replace = replace
        self._writable = writable
        self._folders: set[str] = set()
        self._never: set[tuple[str, int]] = set()
        self._linked: set[str] = set()
        self._by_way = {"reflink": self._reflink, "hardlink": _hard_link, "symlink": _symbolic_link}

    def is_empty(self) -> bool:
        """Tell whether nothing is in the way of any file."""
        try:
            with os.scandir(self._top) as items:
                return next(items, None) is None
        except FileNotFoundError:
            return True
        except NotADirectoryError as error:
            raise Conflict(f"{self._top} is a file", hint="choose another folder") from error
        except OSError as error:
            raise read_failure(self._top, error) from error

    def file(self, path: str) -> str:
        """Return where a file goes; UsageError when its path could lead out of the folder."""
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise UsageError(f"the path {path!r} is not a plain relative path")
        return f"{self._top}/{path}"

    def check(self, entry: ManifestEntry) -> bool:
        """Tell whether a file already exists; Conflict when something else is in its place. Changes nothing."""
        file = self.file(entry.path)
        folder = os.path.dirname(entry.path)
        while folder:
            status = _lstat(f"{self._top}/{folder}")
            if status is not None and not stat.S_ISDIR(status.st_mode):
                raise _in_the_way(f"{self._top}/{folder}")
            folder = os.path.dirname(folder)
        return self._is_there(entry, file)

    def materialize(self, entries: Iterable[ManifestEntry], present: Iterable[int] = ()) -> Materialized:
        """Materialize each entry; `present` says of the first ones whether they are there already."""
        counts: Counter[str] = Counter()
        size_bytes = 0
        known = iter(present)
        for entry in entries:
            size_bytes += entry.size_bytes
            if next(known, False):
                counts[PRESENT] += 1
                continue
            file = self.file(entry.path)
            try:
                self._make_folder(os.path.dirname(entry.path))
                counts[self._materialize_file(entry, file)] += 1
            except FairmileError:
                raise
            except OSError as error:
                raise write_failure(file, error) from error
        return Materialized(dict(counts), counts.total(), size_bytes, frozenset(self._linked))

    def _make_folder(self, path: str) -> None:
        if path in self._folders:
            return
        if len(self._folders) > _FOLDERS_KNOWN:
            self._folders.clear()
        if path:
            self._make_folder(os.path.dirname(path))
            folder = f"{self._top}/{path}"
            try:
                os.mkdir(folder)
            except FileExistsError:
                # A symbolic link could lead anywhere.
                if not stat.S_ISDIR(os.lstat(folder).st_mode):
                    raise _in_the_way(folder) from None
        else:
            os.makedirs(self._top, exist_ok=True)
        self._folders.add(path)

    def _is_there(self, entry: ManifestEntry, file: str) -> bool:
        """Tell whether the file is there with this content; Conflict when another one is and may not be replaced."""
        status = _lstat(file)
        if status is None:
            return False
        if stat.S_ISDIR(status.st_mode):
            raise Conflict(f"{file} is a folder, but the data has a file of that name", hint="move the folder away")
        if stat.S_ISLNK(status.st_mode) and _led_to_object(file, entry.sha256):
            return False  # the object is gone, so nothing is lost with the link
        if self._has_content(entry, file, status):
            return True
        if not self._replace:
            raise Conflict(f"{file} exists with other content", hint="move it away, or pass --overwrite")
        return False

    def _has_content(self, entry: ManifestEntry, file: str, status: os.stat_result) -> bool:
        is_link = stat.S_ISLNK(status.st_mode)
        if entry.mode == _LINK_MODE:
            return is_link and sha256_hex(os.fsencode(os.readlink(file))) == entry.sha256
        if is_link:
            try:
                status = os.stat(file)
            except OSError:  # it leads nowhere
                return False
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size_bytes:
            return False
        own = self._source.path(entry.sha256)
        try:
            if own is not None and os.path.samestat(status, os.stat(own)):
                return True
        except FileNotFoundError:
            pass
        try:
            return sha256_file(file) == entry.sha256
        except OSError as error:
            raise read_failure(file, error) from error

    def _materialize_file(self, entry: ManifestEntry, file: str) -> str:
        if self._is_there(entry, file):
            return PRESENT
        if entry.mode == _LINK_MODE:
            text = self._link_text(entry)
            _arrive(file, lambda name: os.symlink(text, name))
            return "copy"
        own = self._source.path(entry.sha256) if self._ways else None
        if own is not None:
            for way in self._ways:
                if self._lay_by(way, entry, os.path.abspath(own), file):
                    if way == "symlink":
                        self._linked.add(os.path.dirname(os.path.dirname(os.path.abspath(own))))
                    return way
        _arrive(file, lambda name: self._copy(entry, name))
        return "copy"

    def _lay_by(self, way: str, entry: ManifestEntry, own: str, file: str) -> bool:
        try:
            status = os.stat(own)
        except FileNotFoundError:  # removed or moved into a pack meanwhile
            return False
        if status.st_size != entry.size_bytes:
            raise Integrity(
                f"the object {own} has {status.st_size} bytes, {entry.path} should have {entry.size_bytes}",
                hint="verify the store and fetch it again",
            )
        # What shares the object's inode shares its mode: it must be read-only, and cannot be executable.
        if way != "reflink" and (entry.mode & 0o111 or status.st_mode & 0o222):
            return False
        if (way, status.st_dev) in self._never:
            return False
        try:
            _arrive(file, lambda name: self._by_way[way](own, name, entry.mode))
        except OSError as error:
            if error.errno in _NEVER:
                self._never.add((way, status.st_dev))
            elif error.errno not in _NOT_THIS:
                raise
            return False
        return True

    def _reflink(self, own: str, name: str, mode: int) -> None:
        source = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fd = _create(name, mode)
            try:
                fcntl.ioctl(fd, _FICLONE, source)
                self._protect(fd)
            finally:
                os.close(fd)
        finally:
            os.close(source)

    def _protect(self, fd: int) -> None:
        if not self._writable:
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~0o222)

    def _copy(self, entry: ManifestEntry, name: str) -> None:
        with self._source.open(entry.sha256) as stream:
            fd = _create(name, entry.mode)
            try:
                size = 0
                while chunk := stream.read(_CHUNK):
                    write_all(fd, chunk, size)
                    size += len(chunk)
                self._protect(fd)
            finally:
                os.close(fd)
        if size != entry.size_bytes:
            raise Integrity(
                f"the object {entry.sha256} has {size} bytes, {entry.path} should have {entry.size_bytes}",
                hint="verify the store and fetch it again",
            )

    def _link_text(self, entry: ManifestEntry) -> str:
        with self._source.open(entry.sha256) as stream:
            text = os.fsdecode(stream.read(_LONGEST_LINK))
        if not _stays_inside(entry.path, text):
            raise UsageError(
                f"the symbolic link {entry.path} leads to {text!r}, which may be outside of the tree",
                hint="a link must be relative, with '..' at its beginning only",
            )
        return text


def _arrive(file: str, make: Callable[[str], None]) -> None:
    """Make a file under a temporary name beside its place, then move it there."""
    temporary = os.path.join(os.path.dirname(file), f".tmp-{os.urandom(8).hex()}")
    try:
        make(temporary)
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _hard_link(own: str, name: str, _mode: int) -> None:
    os.link(own, name)


def _symbolic_link(own: str, name: str, _mode: int) -> None:
    os.symlink(own, name)


def _create(name: str, mode: int) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777 if mode & 0o111 else 0o666)


def _stays_inside(path: str, text: str) -> bool:
    """Tell whether a link stays inside the tree, whatever other links of the tree it passes.

    With '..' only at the beginning it climbs through real folders alone; each link on its way down does the same.
    """
    if not text or text.startswith("/") or "\0" in text:
        return False
    depth, going_down = path.count("/"), False
    for part in text.split("/"):
        if part == "..":
            depth -= 1
            if going_down or depth < 0:
                return False
        elif part not in ("", "."):
            going_down = True
    return True


def _led_to_object(file: str, sha256: str) -> bool:
    """Tell whether a symbolic link leads to where an object was, and leads nowhere now."""
    return os.readlink(file).endswith(f"/{sha256[:2]}/{sha256[2:]}") and not os.path.exists(file)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise write_failure(path, error) from error


def _in_the_way(path: str) -> Conflict:
    return Conflict(f"{path} is a file or link, not a folder", hint="move it away")
