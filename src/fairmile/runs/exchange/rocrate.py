"""A run as RO-Crate: one zip file with the folder of the run, its program and, where small, what went in.

Every file is listed in the card with its digest. The record is the first member and not compressed, so that the file
is a packed run, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from fairmile.base.digest import ManifestEntry, merkle_root, scan_tree
from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.base.files import safe_join
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.strict_json import load_json
from fairmile.runs.exchange import Files, ImportedRun, folder_of, no_files, well_formed
from fairmile.runs.exchange.foreign import checked_record, files_below, lay_copies
from fairmile.runs.record.crate import CODE, INPUTS, READ, FileFacts, card_text
from fairmile.runs.record.layout import CARD, RECORD
from fairmile.runs.record.packing import extract, new_zip, opened
from fairmile.runs.record.run import Run

_CHUNK = 1 << 20
_EARLIEST_S = 4e8  # a zip file knows no date before 1980
_LONGEST_CARD = 256 << 20


def export(run: Run, target: Path, *, code: Files = no_files, most_input_bytes: int = 0) -> list[Path]:
    """Write a run as one zip file, into `target` where that is a folder, and return its path."""
    file = target / f"{run.id}.zip" if target.is_dir() else target
    # What has no time of its own gets that of the run, so that a run always gives the same crate.
    at = time.localtime(max(run.ended or run.created, _EARLIEST_S))[:6]
    with folder_of(run) as folder, new_zip(file) as crate:
        facts = {name: _add(crate, name, path) for name, path in _own(folder)}
        facts |= {f"{CODE}/{name}": _add(crate, f"{CODE}/{name}", path, at) for name, path in code()}
        for name, path in (*_inputs(run, most_input_bytes), *_reads(run, most_input_bytes)):
            facts[name] = _add(crate, name, path)
        card = zipfile.ZipInfo(CARD, at)
        card.external_attr = 0o644 << 16
        crate.writestr(card, card_text(run.record, facts), zipfile.ZIP_DEFLATED)
    return [file]


def read(source: Path) -> list[ImportedRun]:
    """Return the run that a crate holds; every file of it must be listed, and is compared with its digest."""
    with well_formed(source, "a crate"):
        return [_imported(source)]


def _imported(source: Path) -> ImportedRun:
    if source.is_dir():
        _refuse_links(source)
        names = files_below(source)
        copies = {name: source / name for name in names}
        members = _Members(partial(_open_file, source), lambda name: os.access(source / name, os.X_OK))
        return _read(source, names, members, partial(lay_copies, copies))
    if not source.is_file():
        raise NotFound(f"{source} is neither a file nor a folder")
    with opened(source) as (crate, entries):
        names = [entry.filename for entry in entries if not entry.is_dir()]
        modes = {entry.filename: entry.external_attr >> 16 for entry in entries}
        members = _Members(crate.open, lambda name: bool(modes[name] & stat.S_IXUSR))
        return _read(source, names, members, partial(extract, source))


class _Members(NamedTuple):
    """How the files of a crate are read."""

    open: Callable[[str], IO[bytes]]
    is_executable: Callable[[str], bool]


def _refuse_links(folder: Path) -> None:
    """Refuse a crate that was unpacked and holds something other than files and folders."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            mode = os.lstat(os.path.join(place, name)).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                raise UsageError(f"{os.path.join(place, name)} is {kind}, which a crate cannot hold", hint="remove it")


def _read(source: Path, names: list[str], members: _Members, lay: Callable[[Path], object]) -> ImportedRun:
    if RECORD not in names:
        known = CARD in names
        raise UsageError(
            f"{source} holds no {RECORD}" + (", so it is not a run" if known else ""),
            hint="`fairmile catalog add` adds the card of other crates" if known else None,
        )
    texts = {name: _text(members.open, name, source) for name in (RECORD, CARD) if name in names}
    if CARD not in texts:
        raise UsageError(f"{source} holds no {CARD}", hint="without its card, a run cannot be verified")
    facts = _verify(source, names, load_json(texts[CARD], file=f"{source}/{CARD}"), members.open)
    record = checked_record(load_json(texts[RECORD], file=f"{source}/{RECORD}"), f"{source}/{RECORD}")
    _verify_code(source, record.captured.code.snapshot, facts, members)
    others = tuple(name for name in names if name not in (RECORD, CARD))
    return ImportedRun(record, others, f"the crate {source.name}", lay)


def _text(open_member: Callable[[str], IO[bytes]], name: str, source: Path) -> str:
    with open_member(name) as stream:
        data = stream.read(_LONGEST_CARD + 1)
    if len(data) > _LONGEST_CARD:
        raise UsageError(f"{source}: {name} is too long")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Integrity(f"{source}: {name} is not UTF-8") from error


def _verify(source: Path, names: list[str], card: Any, open_member: Callable[[str], IO[bytes]]) -> dict[str, FileFacts]:
    """Compare each file with the size and digest that the card states, and return what it is.

    Nothing listed may be missing, and nothing may be there that is not listed.
    """
    graph = card.get("@graph") if isinstance(card, Mapping) else None
    entities = graph if isinstance(graph, list) else []
    listed = {name: entity for entity in entities if (name := _local_file(entity)) is not None}
    there = set(names)
    if missing := listed.keys() - there:
        raise Integrity(f"{source}: {min(missing)} is listed in the card, but missing")
    if unlisted := there - listed.keys() - {CARD}:
        more = f" and {len(unlisted) - 1} more are" if len(unlisted) > 1 else " is"
        raise Integrity(
            f"{source}: {min(unlisted)}{more} not listed in {CARD}",
            hint="a file was added after the export: get the crate again, or write it with `fairmile runs export`",
        )
    facts = {}
    for name, entity in listed.items():
        facts[name] = measured = _facts(open_member, name)
        stated, size = entity.get("sha256"), entity.get("contentSize")
        if stated is None and name.startswith((f"{CODE}/", f"{INPUTS}/")):
            raise Integrity(f"{source}: {name} is listed in {CARD} without a sha256")
        if stated is not None and measured.sha256 != stated:
            raise Integrity(
                f"{source}: {name} has the sha256 {measured.sha256}, but the card says {stated}",
                hint="the file was changed or damaged after the export: get the crate again",
            )
        # The record in the folder of a run may be newer than the card beside it, which then has no digest of it.
        if stated is None and name != RECORD and size is not None and str(size) != str(measured.size_bytes):
            raise Integrity(f"{source}: {name} has {measured.size_bytes} bytes, but the card says {size}")
    return facts


def _facts(open_member: Callable[[str], IO[bytes]], name: str) -> FileFacts:
    digest, size_bytes = hashlib.sha256(), 0
    with open_member(name) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size_bytes += len(chunk)
    return FileFacts(size_bytes, digest.hexdigest())


def _verify_code(source: Path, stated: str, facts: Mapping[str, FileFacts], members: _Members) -> None:
    """Refuse a program that is not, byte for byte, the one whose digest is stated in the record."""
    entries = []
    for name, each in facts.items():
        if name.startswith(f"{CODE}/"):
            mode = 0o755 if members.is_executable(name) else 0o644
            entries.append(ManifestEntry(name.removeprefix(f"{CODE}/"), each.size_bytes or 0, each.sha256, mode))
    if not entries:
        return
    digest = merkle_root(entries)
    if digest != stated:
        says = f"has the digest {stated}" if stated else "has no digest of the program"
        raise Integrity(
            f"{source}: the files below {CODE}/ have the digest {digest}, but {RECORD} {says}",
            hint="it was changed after the export: get the crate again",
        )


def _local_file(entity: Any) -> str | None:
    """Return the path of an entity that is a file of the crate."""
    if not isinstance(entity, Mapping) or not isinstance(entity.get("@id"), str):
        return None
    types, id = entity.get("@type"), entity["@id"]
    if "File" not in (types if isinstance(types, list) else [types]) or id.startswith("#") or "://" in id:
        return None
    return os.fsdecode(unquote_to_bytes(id.removeprefix("./")))


def _own(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of the run, its record first; the card is made anew, and a link is not followed."""
    yield RECORD, folder / RECORD
    for name in files_below(folder):
        if name not in (RECORD, CARD):
            yield name, folder / name


def _inputs(run: Run, most_bytes: int) -> Iterator[tuple[str, Path]]:
    """Yield the files of those inputs that fit and are still what they were."""
    left = most_bytes
    for name, each in run.captured.inputs.items():
        path, size_bytes = Path(each.path), each.size_bytes
        if size_bytes is None or size_bytes > left or not each.path or not path.exists():
            continue
        try:
            files = list(_unchanged(path, each.sha256))
        except (OSError, UsageError):
            continue
        left -= size_bytes if files else 0
        yield from ((f"{INPUTS}/{name}/{inside}" if inside else f"{INPUTS}/{name}", file) for inside, file in files)


def _reads(run: Run, most_bytes: int) -> Iterator[tuple[str, Path]]:
    """Yield the files beside its program that a run read, where inputs are wanted, which are still what they were."""
    for name, path in run.read_beside.items() if most_bytes else ():
        read = run.reads[path]
        with contextlib.suppress(OSError):
            yield from ((f"{READ}/{name}", file) for _, file in _unchanged(Path(path), read.sha256) if read.size_bytes)


def _unchanged(path: Path, sha256: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of an input where its digest is still the one that was recorded."""
    if path.is_file():
        with open(path, "rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == sha256:
                yield "", path
        return
    entries = [entry if entry.mode != 0o120000 else _behind(path, entry) for entry in scan_tree(path)]
    if merkle_root(entries) == sha256:
        yield from ((entry.path, path / entry.path) for entry in entries)


def _behind(root: Path, entry: ManifestEntry) -> ManifestEntry:
    """Return the file that a link stands for: the store may have laid its files as links."""
    path = root / entry.path
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        status = os.fstat(stream.fileno())
    return ManifestEntry(entry.path, status.st_size, digest, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)


def _add(
    crate: zipfile.ZipFile, name: str, path: Path, at: tuple[int, int, int, int, int, int] | None = None
) -> FileFacts:
    safe_join(Path("crate"), name)
    try:
        name.encode()
        member = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
    except UnicodeEncodeError as error:
        raise UsageError(f"the file name {name!r} is not UTF-8", hint="rename it") from error
    member.date_time = at or member.date_time
    member.compress_type = zipfile.ZIP_STORED if name == RECORD else zipfile.ZIP_DEFLATED
    digest, size_bytes = hashlib.sha256(), 0
    with open(path, "rb") as source, crate.open(member, "w") as sink:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            size_bytes += len(chunk)
            sink.write(chunk)
    return FileFacts(size_bytes, digest.hexdigest())


def _open_file(folder: Path, name: str) -> IO[bytes]:
    return open(safe_join(folder, name), "rb")
