"""The folder of a run as one file: `<id>.zip` beside it, with the record first, so that one small read shows it.

At any moment the whole folder or the whole file is there. Where both are, the folder is the run: a file appears
before its folder goes, and a folder before its file. Nothing is left of a folder that is being removed: it loses its
name first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from fairmile.base.errors import Conflict, DiskFailure, Integrity, NotFound, SystemFailure, UsageError
from fairmile.base.files import Lock, safe_join, sync_folder, write_failure
from fairmile.base.units import format_size
from fairmile.runs.record.layout import PACKED, RECORD, WORK, parse_record
from fairmile.runs.record.record import RunRecord
from fairmile.store.limits import Limits

LIMITS = Limits(files=1_000_000)
_CHUNK = 1 << 20
_FIRST_READ = 64 << 10
_LONGEST_RECORD = 64 << 20
_HEADER = struct.Struct("<4s5H3L2H")  # of a member: mark, version, flags, method, time, date, crc, sizes, lengths
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, ValueError)


def pack(folder: Path, *, work: bool = True) -> Path:
    """Put the folder of a run into one file beside it and return that; the folder is gone once the file is proven.

    Without `work` the files that the program wrote into `work/` are given up.
    """
    target = folder.with_name(folder.name + PACKED)
    with _lock(folder):
        _sweep(folder)
        if not folder.is_dir():
            if target.is_file():
                return target
            raise NotFound(f"{folder} is not a folder")
        if not (folder / RECORD).is_file():
            raise UsageError(f"{folder} is not a run: it has no {RECORD}")
        temporary = _beside(folder, "packing")
        try:
            digests = _write(temporary, folder, list(_entries(folder, work=work)))
            _verify(temporary, digests)
            os.chmod(temporary, stat.S_IMODE(folder.stat().st_mode) & 0o666)  # whoever could read the run still can
            os.replace(temporary, target)
            sync_folder(os.fspath(folder.parent))
            gone = _beside(folder, "packed")
            os.rename(folder, gone)
            sync_folder(os.fspath(folder.parent))
        except SystemFailure:
            raise
        except OSError as error:
            raise write_failure(os.fspath(temporary), error) from error
        finally:
            temporary.unlink(missing_ok=True)
        shutil.rmtree(gone, ignore_errors=True)  # what stays has no name of a run, and goes the next time
    return target


def unpack(file: Path) -> Path:
    """Bring the folder of a packed run back and return it; the file is gone once the folder is whole."""
    folder = file.with_name(file.name.removesuffix(PACKED))
    if folder == file:
        raise UsageError(f"{file} is not a packed run", hint=f"expected a name that ends in {PACKED}")
    with _lock(folder):
        _sweep(folder)
        if (folder / RECORD).is_file():
            file.unlink(missing_ok=True)
            return folder
        if not file.is_file():
            raise NotFound(f"{file} is not a file")
        if folder.exists():
            raise Conflict(f"{folder} exists and is not a run", hint="move it away")
        temporary = _beside(folder, "unpacking")
        try:
            extract(file, temporary, limits=None)
            if not (temporary / RECORD).is_file():
                raise Integrity(f"{file} holds no {RECORD}")
            readers = stat.S_IMODE(file.stat().st_mode) & 0o444
            os.chmod(temporary, 0o700 | readers | readers >> 2)
            os.rename(temporary, folder)
            sync_folder(os.fspath(folder.parent))
            file.unlink()
        except SystemFailure:
            raise
        except OSError as error:
            raise write_failure(os.fspath(folder), error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def read_packed(file: Path) -> RunRecord:
    """Return the record of a packed run, without looking at the rest."""
    try:
        with open(file, "rb") as stream:
            data = _first_member(stream)
        if data is None:
            data = _member(file)
    except FileNotFoundError:
        raise
    except (OSError, *_DAMAGED) as error:
        raise SystemFailure(f"cannot read {RECORD} in {file}: {error}") from error
    return parse_record(data, f"{RECORD} in {file}")


def extract(file: Path, folder: Path, *, limits: Limits | None = LIMITS, only: str = "*") -> list[str]:
    """Unpack a zip file into a new folder and return the names of its files; nothing in it is trusted.

    Names stay inside the folder, only files and folders are made, and what is written is bounded by `limits`, by the
    free space, and for each file by the size that the directory of the zip file states. Only members whose names
    match `only` are unpacked. A pack of our own may be of any size: it has no limits.
    """
    names = []
    with opened(file, limits=limits) as (packed, every):
        members = [member for member in every if fnmatchcase(member.filename, only)]
        _check_space(members, file, folder)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            for member in members:
                path = folder / member.filename
                if member.is_dir():
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                _extract(packed, member, path, file)
                names.append(member.filename)
        except SystemFailure:
            raise
        except OSError as error:
            raise write_failure(os.fspath(folder), error) from error
    return names


@contextlib.contextmanager
def opened(file: Path, *, limits: Limits | None = LIMITS) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """Open a zip file that may come from anywhere; names, kinds, places and sizes of its members are checked."""
    if not file.is_file():
        raise NotFound(f"{file} is not a file")
    try:
        with zipfile.ZipFile(file) as packed:
            yield packed, _checked(packed, file, limits)
    except (UsageError, SystemFailure):
        raise
    except _DAMAGED as error:
        raise Integrity(f"{file} is damaged: {error}") from error


@contextlib.contextmanager
def new_zip(file: Path) -> Iterator[zipfile.ZipFile]:
    """Write a new zip file that appears as a whole, or not at all; its folder is made where there is none."""
    if file.exists():
        raise Conflict(f"{file} already exists", hint="remove it, or choose another name")
    temporary = file.with_name(f".{file.name}.{os.urandom(6).hex()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
                yield packed
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
        sync_folder(os.fspath(file.parent))
    except SystemFailure:
        raise
    except OSError as error:
        raise write_failure(os.fspath(file), error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _lock(folder: Path) -> Lock:
    return Lock(_beside(folder, "lock", unique=False), timeout_s=600)


def _beside(folder: Path, role: str, *, unique: bool = True) -> Path:
    """Return a hidden name for something of this run that is not ready, or not wanted any more."""
    return folder.with_name(f".{folder.name}.{role}" + (f"-{os.urandom(6).hex()}" if unique else ""))


def _sweep(folder: Path) -> None:
    """Remove what a process left that was killed while it packed or unpacked this run; we hold the lock."""
    for role in ("packing", "packed", "unpacking"):
        start = _beside(folder, role, unique=False).name + "-"
        for name in os.listdir(folder.parent):
            if name.startswith(start) and len(name) == len(start) + 12:
                path = folder.with_name(name)
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


def _entries(folder: Path, *, work: bool) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Yield every file, and every folder with a final '/', with where it is read, the record first."""
    yield RECORD, folder / RECORD, os.lstat(folder / RECORD)
    waiting = [("", folder)]
    while waiting:
        inside, source = waiting.pop()
        with os.scandir(source) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name, path, status = inside + entry.name, source / entry.name, entry.stat(follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode) and _is_shared(folder, name):
                    path, status = Path(os.readlink(path)), entry.stat()
                if name == RECORD or (name == WORK and not work):
                    continue
                if stat.S_ISDIR(status.st_mode):
                    waiting.append((name + "/", path))
                    yield name + "/", path, status
                elif stat.S_ISREG(status.st_mode):
                    yield name, path, status
                else:
                    kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
                    raise UsageError(
                        f"{folder / name} is {kind}, which a packed run cannot hold",
                        hint="remove it, or pack the run without its work files",
                    )


def _is_shared(folder: Path, name: str) -> bool:
    """Tell whether a link stands for what the points of a sweep share: the same name in the sweep's own folder."""
    target, runs = os.readlink(folder / name), os.path.abspath(folder.parent)
    is_of_workspace = target.startswith(f"{os.path.dirname(runs)}/") and not target.startswith(f"{runs}/")
    is_same = name.startswith(f"{WORK}/") and target.endswith(f"/{name}") and os.path.normpath(target) == target
    return is_of_workspace and is_same and os.path.exists(target)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _write(target: Path, folder: Path, entries: list[tuple[str, Path, os.stat_result]]) -> dict[str, str]:
    """Write the zip file and return the digest of each of its files."""
    digests: dict[str, str] = {}
    with open(target, "xb", opener=_private) as stream:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as packed:
            for name, path, status in entries:
                if path.is_relative_to(folder):
                    safe_join(folder, name)
                try:
                    member = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
                    member.filename.encode()
                except UnicodeEncodeError as error:
                    raise UsageError(f"{folder / name!r} has a name that is not UTF-8", hint="rename it") from error
                if name.endswith("/"):
                    packed.writestr(member, b"")
                    continue
                member.compress_type = zipfile.ZIP_STORED if name == RECORD else zipfile.ZIP_DEFLATED
                digests[name] = _add(packed, member, path, status)
        stream.flush()
        os.fsync(stream.fileno())
    return digests


def _add(packed: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, status: os.stat_result) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as source, packed.open(member, "w") as sink:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            sink.write(chunk)
        now = os.fstat(source.fileno())
    if (now.st_size, now.st_mtime_ns) != (status.st_size, status.st_mtime_ns) or member.file_size != now.st_size:
        raise Conflict(f"{path} changed while it was packed", hint="wait until the run ends")
    return digest.hexdigest()


def _verify(file: Path, digests: dict[str, str]) -> None:
    """Read the file back and compare every byte of it."""
    try:
        with zipfile.ZipFile(file) as packed:
            names = [name for name in packed.namelist() if not name.endswith("/")]
            if names != list(digests):
                raise Integrity(f"{file} does not hold the files that were packed")
            for name in names:
                with packed.open(name) as stream:
                    if hashlib.file_digest(stream, "sha256").hexdigest() != digests[name]:  # type: ignore[arg-type]
                        raise Integrity(f"{name} was packed incorrectly")
    except _DAMAGED as error:
        raise Integrity(f"{file} cannot be read back: {error}") from error


def _checked(packed: zipfile.ZipFile, file: Path, limits: Limits | None) -> list[zipfile.ZipInfo]:
    members = packed.infolist()
    total_bytes = sum(member.file_size for member in members)
    if limits is not None and (excess := limits.excess(total_bytes, file.stat().st_size)):
        raise UsageError(
            f"{file} unpacks to {format_size(total_bytes)}: {excess}",
            hint="if you trust it, unpack it by hand and name the folder",
        )
    if len(members) > LIMITS.files:
        raise UsageError(f"{file} has {len(members):,} members, too many for a run")
    seen: set[str] = set()
    parents: set[str] = set()
    for member in members:
        name = member.filename.removesuffix("/") if member.is_dir() else member.filename
        _check_member(member, name, file)
        if name in seen:
            raise UsageError(f"{file} holds {name!r} twice")
        seen.add(name)
        parents.update(name[:at] for at, letter in enumerate(name) if letter == "/")
    files = {member.filename for member in members if not member.is_dir()}
    if both := files & parents:
        raise UsageError(f"{file} holds {min(both)!r} as a file and as a folder")
    _check_places(members, file)
    return members


def _check_space(members: list[zipfile.ZipInfo], file: Path, folder: Path) -> None:
    total_bytes = sum(member.file_size for member in members)
    free_bytes = shutil.disk_usage(folder.parent if folder.parent.is_dir() else file.parent).free
    if total_bytes > free_bytes:
        raise DiskFailure(
            f"{file} unpacks to {format_size(total_bytes)}, but only {format_size(free_bytes)} are free",
            hint="free some space or choose another folder",
        )


def _check_member(member: zipfile.ZipInfo, name: str, file: Path) -> None:
    try:
        safe_join(file.parent / ".nowhere", name)
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}", hint="it was not written by Fairmile") from error
    if any(part in ("", ".") for part in name.split("/")):
        raise UsageError(f"{file} has a member with the name {name!r}")
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UsageError(f"{file}: {name!r} is neither a file nor a folder")
    if member.flag_bits & 0x1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UsageError(f"{file}: {name!r} is encrypted, or compressed with an unsupported method")


def _check_places(members: list[zipfile.ZipInfo], file: Path) -> None:
    """Refuse members that share their bytes, by which a small file would unpack to a very large one."""
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise UsageError(f"{file}: {member.filename!r} shares its bytes with another member")
        end = member.header_offset + _HEADER.size + member.compress_size


def _extract(packed: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, file: Path) -> None:
    left = member.file_size
    try:
        with packed.open(member) as source, open(path, "xb") as sink:
            while chunk := source.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    break
                sink.write(chunk)
    except OSError as error:
        raise write_failure(os.fspath(path), error) from error
    if left:
        raise Integrity(f"{file}: {member.filename!r} does not have the size that the archive states")
    if (member.external_attr >> 16) & stat.S_IXUSR:
        mode = path.stat().st_mode
        path.chmod(stat.S_IMODE(mode) | (mode & 0o444) >> 2)  # who may read it, as the umask says, may run it


def _first_member(stream: IO[bytes]) -> bytes | None:
    """Return the record where it is the first member and not compressed, as we write it; None elsewhere."""
    head = stream.read(_FIRST_READ)
    if len(head) < _HEADER.size:
        return None
    mark, _, flags, method, _, _, crc, size, full, name_length, extra_length = _HEADER.unpack_from(head)
    start = _HEADER.size + name_length + extra_length
    name = head[_HEADER.size : _HEADER.size + name_length]
    if (mark, method, name) != (b"PK\3\4", 0, RECORD.encode()) or flags & 0x8 or size != full:
        return None
    if size > _LONGEST_RECORD:
        raise ValueError(f"it is longer than {format_size(_LONGEST_RECORD)}")
    data = head[start : start + size]
    data += stream.read(size - len(data))
    if len(data) != size or zlib.crc32(data) != crc:
        raise ValueError("its checksum is wrong")
    return data


def _member(file: Path) -> bytes:
    with zipfile.ZipFile(file) as packed:
        try:
            member = packed.getinfo(RECORD)
        except KeyError:
            raise ValueError("there is none") from None
        if member.file_size > _LONGEST_RECORD:
            raise ValueError(f"it is longer than {format_size(_LONGEST_RECORD)}")
        with packed.open(member) as stream:
            return stream.read(_LONGEST_RECORD)
