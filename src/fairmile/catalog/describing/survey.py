"""The files of an asset as they lie on disk: sizes, digests, formats and columns, in bounded memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

from fairmile.base.digest import ManifestEntry, MerkleTree, from_ni, ni, sha256_file
from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.catalog.describing.archives import file_sets
from fairmile.catalog.describing.columns import Column, data_type
from fairmile.catalog.describing.documents import is_document
from fairmile.catalog.describing.formats import FileFacts, inspect_file, is_program
from fairmile.catalog.exchange.common.media_types import EXECUTABLE, EXECUTABLE_TYPE, extension

LISTED_FILES = 1_000  # a larger asset is described by sets of files
_MOST_RECORD_SETS = 20
_MOST_VARIABLES = 200
_MOST_NOTES = 20
_SKIPPED = frozenset({".git", "__pycache__", "node_modules", ".venv", ".ipynb_checkpoints", ".DS_Store"})
_ZARR_MARKS = ("zarr.json", ".zgroup", ".zarray")
_LONGEST_ZARR = 4 << 20
_ZARR_ARRAYS = 200
_NOT_MEASURED = ("image/", "application/x-safetensors")

Progress = Callable[[int, int], None]


@dataclass
class Survey:
    """What the files of an asset are. `entries` is empty where there are too many to list; `sets` then has them."""

    names: list[str] = field(default_factory=list)  # of the files at the top
    entries: list[dict[str, Any]] = field(default_factory=list)
    sets: list[dict[str, Any]] = field(default_factory=list)
    record_sets: list[dict[str, Any]] = field(default_factory=list)
    variables: list[dict[str, Any]] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    content: str = ""
    model_bytes: int = 0
    binary_files: int = 0
    data_bytes: int = 0
    program_files: int = 0
    notes: list[str] = field(default_factory=list)

    def content_digest(self) -> str:
        """Return the sha256 of the content in hex."""
        return from_ni(self.content)

    def distribution(self) -> list[dict[str, Any]]:
        """Return the files as a card lists them."""
        return [*self.entries, *self.sets]


def survey(path: Path, on_progress: Progress | None = None) -> Survey:
    """Return what the file, or all the files below the folder, are; each is read once, and none is executed."""
    if path.is_file():
        work = _Work(Survey(), 1, on_progress)
        work.take(path, path.name)
        return work.done()
    if not path.is_dir():
        raise UsageError(f"{path} is neither a file nor a folder")
    surveyed = Survey(names=sorted(each.name for each in os.scandir(path) if each.is_file(follow_symlinks=False)))
    work = _Work(surveyed, _count(path) if on_progress else 0, on_progress)
    for file, name in _files(path, "", work):
        work.take(file, name)
    if not surveyed.files and not surveyed.sets:
        raise UsageError(f"{path} has no files")
    return work.done()


def _count(folder: Path) -> int:
    total = 0
    for _, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        total += len(names)
    return total


def _files(folder: Path, prefix: str, work: _Work) -> Iterator[tuple[Path, str]]:
    """Yield the files below a folder, sorted by the bytes of their paths; links are not followed."""
    try:
        with os.scandir(folder) as items:
            entries = sorted(items, key=lambda each: os.fsencode(each.name) + (b"/" if _is_folder(each) else b""))
    except OSError as error:
        raise SystemFailure(f"cannot list the folder {folder}: {error.strerror}") from error
    names = {each.name for each in entries}
    if prefix and names.intersection(_ZARR_MARKS) and not work.in_zarr(prefix):
        work.take_zarr(folder, prefix.rstrip("/"))
    for each in entries:
        name = prefix + each.name
        if each.name in _SKIPPED:
            continue
        if not name.isprintable():
            work.note(f"{name!r} was skipped: its name is not allowed in a card")
        elif each.is_symlink():
            work.note(f"{name} was skipped: it is a symbolic link")
        elif _is_folder(each):
            yield from _files(Path(each.path), name + "/", work)
        elif each.is_file(follow_symlinks=False):
            yield Path(each.path), name
        else:
            work.note(f"{name} was skipped: it is neither a file nor a folder")


def _is_folder(item: os.DirEntry[str]) -> bool:
    return item.is_dir(follow_symlinks=False)


class _Work:
    """Takes the files one after the other and keeps what a card says of them."""

    def __init__(self, survey: Survey, total: int, on_progress: Progress | None) -> None:
        self._survey = survey
        self._total = total
        self._on_progress = on_progress
        self._tree = MerkleTree()
        self._stores: list[str] = []
        self._groups: dict[tuple[str, str, str], list[int]] = {}
        self._columns: dict[tuple[Column, ...], dict[str, Any]] = {}
        self._variables: dict[str, Column] = {}
        self._unread_sets = 0

    def note(self, text: str) -> None:
        """Keep a remark; of very many only the first."""
        if len(self._survey.notes) < _MOST_NOTES:
            self._survey.notes.append(text)

    def in_zarr(self, prefix: str) -> bool:
        """Tell whether a path lies in a Zarr store that was taken as a whole."""
        return any(prefix.startswith(store + "/") for store in self._stores)

    def take(self, path: Path, name: str) -> None:
        """Take the next file."""
        sizes: list[int] = []
        try:
            digest = sha256_file(path, on_bytes=sizes.append)
        except OSError as error:
            raise SystemFailure(f"cannot read {path}: {error.strerror or error}") from error
        size = sum(sizes)
        self._survey.files += 1
        self._survey.size_bytes += size
        self._tree.add(ManifestEntry(name, size, digest, 0o644))
        if self._on_progress is not None:
            self._on_progress(self._survey.files, max(self._total, self._survey.files))
        if self.in_zarr(name):
            self._survey.data_bytes += size
            self._keep(name, size, digest, FileFacts("application/x-zarr"), is_executable=False)
            return
        facts = inspect_file(path, name)
        if facts.note:
            self.note(facts.note)
        self._weigh(name, size, facts)
        self._take_columns(name, facts)
        self._keep(name, size, digest, facts, is_executable=os.access(path, os.X_OK))
        if facts.is_archive and self._survey.files <= LISTED_FILES:
            self._survey.sets += file_sets(path, name, facts.media_type)

    def _weigh(self, name: str, size: int, facts: FileFacts) -> None:
        if facts.is_model:
            self._survey.model_bytes += size
        elif facts.is_binary:
            self._survey.binary_files += 1
        elif is_program(name):
            self._survey.program_files += 1
        elif not is_document(name.rsplit("/", 1)[-1]):
            self._survey.data_bytes += size

    def _keep(self, name: str, size: int, digest: str, facts: FileFacts, *, is_executable: bool) -> None:
        top = name.partition("/")[0] if "/" in name else ""
        group = self._groups.setdefault((top, extension(name), facts.media_type), [0, 0])
        group[0] += 1
        group[1] += size
        if self._survey.files <= LISTED_FILES:
            entry: dict[str, Any] = {
                "@type": "FileObject",
                "@id": name,
                "name": name,
                "contentSize": f"{size} B",
                "encodingFormat": facts.media_type,
                "sha256": digest,
            }
            if is_executable and facts.media_type != EXECUTABLE_TYPE:
                entry["additionalProperty"] = {"@type": "PropertyValue", "name": EXECUTABLE, "value": True}
            self._survey.entries.append(entry)

    def _take_columns(self, name: str, facts: FileFacts) -> None:
        columns = facts.columns
        if not columns:
            return
        if columns not in self._columns:
            if len(self._columns) >= _MOST_RECORD_SETS:
                self._unread_sets += 1
                return
            label = name.rsplit("/", 1)[-1].split(".")[0] or name
            self._columns[columns] = {"@type": "RecordSet", "name": label, "field": [each.field() for each in columns]}
        if not facts.media_type.startswith(_NOT_MEASURED):
            for each in columns:
                if len(self._variables) < _MOST_VARIABLES:
                    self._variables.setdefault(each.name, each)

    def take_zarr(self, folder: Path, name: str) -> None:
        """Take a Zarr store by its metadata: the arrays with shape, type and unit."""
        self._stores.append(name)
        columns = tuple(_zarr_columns(folder))
        self._take_columns(name + "/", FileFacts("application/x-zarr", columns))
        if columns in self._columns:
            self._columns[columns]["name"] = name.rsplit("/", 1)[-1].removesuffix(".zarr")

    def done(self) -> Survey:
        """Return the survey; nothing may follow."""
        survey = self._survey
        survey.content = ni(survey.entries[0]["sha256"] if survey.files == 1 else self._tree.root())
        survey.record_sets = list(self._columns.values())
        survey.variables = [each.variable() for each in self._variables.values()]
        if self._unread_sets:
            self.note(f"{self._unread_sets} further files have other columns, which are not listed")
        if survey.files > LISTED_FILES:
            survey.entries = []
            survey.sets = [_file_set(*key, *numbers) for key, numbers in self._groups.items()]
        return survey


def _file_set(top: str, ending: str, media_type: str, number: int, size: int) -> dict[str, Any]:
    pattern = f"*.{ending}" if ending else "*"
    pattern = f"{top}/**/{pattern}" if top else pattern
    return {
        "@type": "FileSet",
        "@id": pattern,
        "name": pattern,
        "includes": pattern,
        "encodingFormat": media_type,
        "contentSize": f"{size} B",
        "description": f"{number} files",
    }


def _zarr_columns(folder: Path) -> Iterator[Column]:
    number = 0
    for below, folders, names in os.walk(folder):
        folders.sort()
        array = _small_json(Path(below) / "zarr.json") if "zarr.json" in names else {}
        if ".zarray" in names:
            array = _small_json(Path(below) / ".zarray")
            array["attributes"] = _small_json(Path(below) / ".zattrs")
        shape = array.get("shape")
        if isinstance(shape, list):
            number += 1
            folders.clear()  # chunks
            attributes = array.get("attributes")
            unit = attributes.get("units", "") if isinstance(attributes, dict) else ""
            label = os.path.relpath(below, folder)
            kind = data_type(str(array.get("data_type") or array.get("dtype") or ""))
            sizes = tuple(each for each in shape if isinstance(each, int))
            yield Column("values" if label == "." else label, kind, str(unit)[:60], sizes)
        if number >= _ZARR_ARRAYS:
            return


def _small_json(path: Path) -> dict[str, Any]:
    try:
        if path.is_symlink() or path.stat().st_size > _LONGEST_ZARR:
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
