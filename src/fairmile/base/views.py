"""A working folder that shows what another folder holds, and keeps to itself what a program writes.

Small files are copied, so that a program may change them. Folders with few entries are made anew, so that what it puts
into them stays its own. Large files, large folders and hidden ones are links to the originals.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePosixPath

from fairmile.base.files import write_atomic, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_size

_MOST_BYTES, _MOST_ALL_BYTES = 1 << 20, 4 << 20  # of one copied file, and of all of them
_MOST_INSIDE = 100  # entries of a folder that is made anew
_MOST_SHOWN = 1_000  # entries that are shown one by one
_MOST_COUNTED = 20_000
_NAMED = 3
_LEFT_OUT = frozenset({"__pycache__"})


@dataclass
class View:
    """What was made anew to show a folder, by relative names; `hidden` are folders with too many entries to show."""

    own: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def notes(self, source: Path) -> list[str]:
        """Return what a program does not see of a folder, in words."""
        return [
            f"the program does not see all of {source / each}, which has more than {_MOST_SHOWN:,} entries: "
            "move them into a subfolder, which is linked as a whole"
            for each in self.hidden
        ]


def show_folder(
    source: Path,
    target: Path,
    *,
    outputs: Sequence[str] = (),
    real: str = "",
    is_code: Callable[[str], bool] = lambda _: False,
) -> View:
    """Show in the folder `target` what `source` holds; what lies in `target` already goes before that.

    What `outputs`, which may be patterns, name exactly is left out or empty, since the program makes it. The folders on
    the path `real` and those of outputs are made anew, however large. `is_code` tells which files in `target` no link
    may take the place of.
    """
    showing = _Showing(Path(os.path.abspath(source)), target, outputs, real, is_code)
    try:
        target.mkdir(parents=True, exist_ok=True)
        showing.fill("")
    except OSError as error:
        raise write_failure(str(target), error) from error
    return showing.view


def show_files(places: Mapping[str, str], target: Path) -> None:
    """Show files and folders at places in the folder `target`; what lies there already goes before that."""
    try:
        for name, source in places.items():
            there = target / name
            if os.path.lexists(there):
                continue
            there.parent.mkdir(parents=True, exist_ok=True)
            if os.path.isfile(source) and os.path.getsize(source) <= _MOST_BYTES:
                shutil.copy2(source, there)
            else:
                there.symlink_to(source)
    except OSError as error:
        raise write_failure(str(target), error) from error


class _Showing:
    def __init__(
        self, source: Path, target: Path, outputs: Sequence[str], real: str, is_code: Callable[[str], bool]
    ) -> None:
        self._source, self._target, self._outputs, self._is_code = source, target, outputs, is_code
        self._real = {
            str(folder)
            for name in (f"{real}/x", *outputs)
            for folder in PurePosixPath(name).parents
            if not any(sign in str(folder) for sign in "*?[")
        }
        self._left_bytes, self._left = _MOST_ALL_BYTES, _MOST_SHOWN
        self.view = View()

    def fill(self, inside: str) -> None:
        try:
            with os.scandir(self._source / inside) as entries:
                ordered = sorted(entries, key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name))
        except (PermissionError, FileNotFoundError):  # as the program would find it
            return
        new = [entry for entry in ordered if not os.path.lexists(self._target / inside / entry.name)]
        if len(new) > self._left:
            self._fill_none(inside)
            return
        self._left -= len(new)
        for entry in ordered:
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.name not in _LEFT_OUT:
                self._show(entry, name)

    def _fill_none(self, inside: str) -> None:
        """Link a folder as a whole whose entries are too many; where code lies in it, only that is seen."""
        here = self._target / inside
        if not inside or inside in self._real or any(self._is_code(file.name) for file in here.rglob("*")):
            self.view.hidden.append(inside)
            return
        shutil.rmtree(here)
        here.symlink_to(self._source / inside)

    def _show(self, entry: os.DirEntry[str], name: str) -> None:
        there, is_folder = self._target / name, entry.is_dir(follow_symlinks=False)
        if there.is_dir() and not there.is_symlink():
            if name in self._real:
                self.view.own.append(name)
            if is_folder:
                self.fill(name)
        elif os.path.lexists(there) or (name in self._outputs and not is_folder):
            return
        elif name in self._outputs:
            there.mkdir()
            self.view.own.append(name)
        elif is_folder and (name in self._real or self._is_small(entry)):
            there.mkdir()
            self.view.own.append(name)
            self.fill(name)
        elif is_folder or not self._copy(entry, there, name):
            there.symlink_to(entry.path)

    def _is_small(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or self._target.is_relative_to(entry.path):
            return False
        try:
            return sum(1 for _ in _within(entry.path, _MOST_INSIDE + 1)) <= min(_MOST_INSIDE, self._left)
        except OSError:
            return False

    def _copy(self, entry: os.DirEntry[str], there: Path, name: str) -> bool:
        if entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
            return False
        try:
            status = entry.stat()
            if status.st_size > min(_MOST_BYTES, self._left_bytes):
                return False
            data = Path(entry.path).read_bytes()
        except (PermissionError, FileNotFoundError):
            return False
        # All of it or nothing: what lies there already counts as complete when a crash has this done once more.
        write_atomic(there, data, mode=stat.S_IMODE(status.st_mode) | 0o200, sync=False)
        os.utime(there, ns=(status.st_atime_ns, status.st_mtime_ns))
        self._left_bytes -= status.st_size
        self.view.own.append(name)
        return True


def _within(folder: str, most: int) -> Iterator[os.DirEntry[str]]:
    """Yield what lies below a folder, so many entries at most; links are not followed."""
    waiting = [folder]
    while waiting and most > 0:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if (most := most - 1) < 0:
                    return
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def describe_left_behind(folder: Path, carried: Collection[str]) -> str:
    """Say which files of a folder are not among the absolute paths `carried`; empty where all of them are.

    A folder that is carried counts with all it holds. Hidden files and folders are not looked at.
    """
    names: dict[str, None] = {}
    files = size_bytes = 0
    is_more = False
    for entry in _files_below(str(folder), frozenset(carried)):
        if files == _MOST_COUNTED:
            is_more = True
            break
        files += 1
        with contextlib.suppress(OSError):
            size_bytes += entry.stat(follow_symlinks=False).st_size
        inner = os.path.relpath(entry.path, folder)
        names[inner.partition("/")[0] + "/" if "/" in inner else inner] = None
    if not files:
        return ""
    count = f"more than {files:,} files" if is_more else "1 file" if files == 1 else f"{files:,} files"
    among = ", ".join(list(names)[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return f"{count} ({format_size(size_bytes)}) of {folder}: {among}"


def _files_below(folder: str, carried: frozenset[str]) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name))
    except OSError:
        return
    for entry in ordered:
        if entry.name.startswith(".") or entry.name in _LEFT_OUT or entry.path in carried:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, carried)
        else:
            yield entry
