"""What the end of a program shows: the files that it made, those that it left undeclared, and why it failed.

It needs nothing but the standard library and `base`, as the recorder does.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from fairmile.base.digest import sha256_file
from fairmile.base.digest_cache import Stamp
from fairmile.base.errors import FairmileError
from fairmile.base.files import describe_room
from fairmile.base.symptoms import DISK, GPU_MEMORY, MEMORY, QUOTA, find_line
from fairmile.runs.coverage import find_left
from fairmile.runs.record.layout import OUTPUT
from fairmile.runs.record.record import OutputFile, RunRecord

_MOST_OUTPUTS = 10_000
_WILD, _ODD = frozenset("*?["), frozenset(("", ".", ".."))
_FULL_BYTES = 64 << 10
_TAIL_BYTES = 64 << 10
_OUTSIDE = (DISK, QUOTA, GPU_MEMORY, MEMORY)


def find_outputs(
    work: Path, patterns: Sequence[str], before: Mapping[str, Sequence[int]]
) -> tuple[dict[str, OutputFile], list[str], str]:
    """Return the digests of the files that a run made or changed, the others that its patterns match, and what failed.

    A link that leads out of the folder is not followed. `before` are the stamps of files that were there when it began.
    """
    files: dict[str, OutputFile] = {}
    untouched: list[str] = []
    if patterns and not work.is_dir():
        return files, untouched, f"the folder {work} was removed, with its outputs"
    root, outside = work.resolve(), ""
    try:
        for name, file in _matching(work, patterns):
            if "/" in name and not _is_below(file, root):
                outside = outside or name
                continue
            if len(files) >= _MOST_OUTPUTS:
                return files, untouched, f"only the first {_MOST_OUTPUTS} outputs are recorded"
            with contextlib.suppress(OSError):  # removed meanwhile
                status = file.stat()
                if name in before and Stamp(*before[name]) == Stamp.of(status):
                    untouched.append(name)
                else:
                    files[name] = OutputFile(sha256=sha256_file(file), size_bytes=status.st_size)
    except (ValueError, NotImplementedError, OSError) as error:
        return files, untouched, f"outputs: {error}"
    left_out = f"outputs outside {work}, reached through a link, are not recorded, such as {outside}" if outside else ""
    return files, untouched, left_out


def _is_below(file: Path, root: Path) -> bool:
    try:
        return file.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links that lead in a circle
        return False


def _matching(work: Path, patterns: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files below a folder that patterns match, each once, with their names."""
    seen: set[str] = set()
    for pattern in patterns:
        try:
            paths = sorted(work.glob(pattern)) if not _is_plain(pattern) else [work / pattern]
        except (ValueError, NotImplementedError, OSError) as error:
            raise ValueError(f"{pattern!r}: {error}") from error
        for path in paths:
            try:
                mode = os.stat(path).st_mode
            except OSError:  # there is none
                continue
            for file in sorted(path.rglob("*")) if stat.S_ISDIR(mode) else [path]:
                name = str(file.relative_to(work))
                if name not in seen and _is_own_file(file):
                    seen.add(name)
                    yield name, file


def _is_own_file(file: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        return False


def _is_plain(pattern: str) -> bool:
    """Tell whether a pattern is the name of one file below a folder, as most are."""
    return not _WILD.intersection(pattern) and _ODD.isdisjoint(pattern.split("/"))


def stamp_outputs(work: Path, patterns: Sequence[str]) -> dict[str, list[int]]:
    """Return what tells later whether files that patterns match now were touched."""
    stamps: dict[str, list[int]] = {}
    with contextlib.suppress(ValueError, OSError):  # which is said when it ends
        for name, file in islice(_matching(work, patterns), _MOST_OUTPUTS):
            stamps[name] = list(Stamp.of(file.stat()))
    return stamps


def find_undeclared(folder: Path, record: RunRecord, there: Mapping[str, Stamp]) -> list[str]:
    """Return files that a program left or changed in its user's folder without declaring them; see `find_left`."""
    if not record.spec.folder:
        return []
    try:
        return find_left(record.spec, record.captured, folder.parent, there)
    except (FairmileError, OSError) as error:
        return [str(error)]


def find_cause(folder: Path, work: Path, state: str, *, out_of_memory: bool = False) -> tuple[str, str]:
    """Return what outside of a program let it fail, and what to do: a full disk, or memory that ran out.

    `out_of_memory` tells whether the kernel ended it for that. Of a program that did not fail only a full disk is told.
    """
    output = ""
    if state == "failed":
        with contextlib.suppress(OSError), open(folder / OUTPUT, "rb") as stream:
            stream.seek(max(os.fstat(stream.fileno()).st_size - _TAIL_BYTES, 0))
            output = stream.read().decode(errors="replace")
    symptom = next((each for each in _OUTSIDE if output and find_line(each, output) is not None), None)
    rooms = {describe_room(place): None for place in (work, folder) if _is_full(place)}
    if symptom in (None, DISK, QUOTA) and rooms:
        return f"{(symptom or DISK).what}: {'; '.join(rooms)}", (symptom or DISK).advice
    if symptom in (DISK, QUOTA):  # whatever filled it was removed, or it is another one
        return f"{symptom.what}: {find_line(symptom, output)}", symptom.advice
    if symptom is None and out_of_memory:
        symptom = MEMORY
    return (symptom.what, symptom.advice) if symptom is not None else ("", "")


def _is_full(place: Path) -> bool:
    try:
        status = os.statvfs(place)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _FULL_BYTES or (status.f_files > 0 and status.f_favail == 0)
