"""The code that comes with generated points: taken once, then linked into each folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairmile.base.digest import sha256_file
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass

_IS_NO_CODE = frozenset({".git", "__pycache__"})
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


@dataclass(frozen=True)
class Code:
    """A file or folder that belongs to the code, by the name that it has in the folder of a point."""

    path: Path
    name: str
    is_folder: bool

    @classmethod
    def at(cls, path: Path) -> Code:
        """Return the code that lies at a path, or raise NotFound."""
        whole = Path(os.path.abspath(path.expanduser()))
        if not whole.exists():
            raise NotFound(f"cannot copy {path}: no such file or folder")
        if not whole.name:
            raise UsageError(f"cannot copy {path}: it has no name")
        return cls(whole, whole.name, whole.is_dir())

    def size(self) -> tuple[int, int]:
        """Return the number of files and their bytes."""
        files = [self.path] if not self.is_folder else [path for _, path in _walk(self.path) if path.is_file()]
        return len(files), sum(path.stat().st_size for path in files)


def take_code(codes: Sequence[Code], snapshot: Path) -> None:
    """Copy code into a new folder, read-only, since its files will be those of many points at once.

    Symbolic links stay links; one that leads out of a folder becomes absolute. Special files are left out.
    """
    snapshot.mkdir()
    for code in codes:
        target = snapshot / code.name
        if not code.is_folder:
            _copy_file(code.path, target)
            continue
        target.mkdir()
        for name, path in _walk(code.path):
            if path.is_symlink():
                os.symlink(_link_text(path, code.path), target / name)
            elif path.is_dir():
                (target / name).mkdir()
            elif path.is_file():
                _copy_file(path, target / name)


def link_code(code: Code, target: str, sources: dict[str, str], relative: str) -> None:
    """Put code into the folder of a point: a folder as a symbolic link, a file as a hard link or else a copy.

    `sources` says where the file to link to lies. One that can take no more links is replaced there by its newest copy.
    """
    if code.is_folder:
        os.symlink(relative, target)
        return
    try:
        os.link(sources[code.name], target)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        shutil.copy2(sources[code.name], target)
        if error.errno == errno.EMLINK:
            sources[code.name] = target


def same_tree(one: Path, other: Path) -> bool:
    """Tell whether two folders hold the same names with the same content; one that is missing holds nothing."""
    return list(_contents(one)) == list(_contents(other))


def _contents(folder: Path) -> Iterator[tuple[str, str]]:
    for name, path in _walk(folder) if folder.is_dir() else ():
        if path.is_symlink():
            yield name, f"-> {os.readlink(path)}"
        else:
            yield name, sha256_file(path) if path.is_file() else ""


def _walk(folder: Path, inside: str = "") -> Iterator[tuple[str, Path]]:
    """Yield all that lies below a folder with its relative name, a folder before what it holds, in a fixed order."""
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name in _IS_NO_CODE:
            continue
        yield inside + entry.name, Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{inside}{entry.name}/")


def _copy_file(source: Path, target: Path) -> None:
    shutil.copy2(source, target)
    target.chmod(stat.S_IMODE(target.stat().st_mode) & ~0o222)


def _link_text(link: Path, top: Path) -> str:
    text = os.readlink(link)
    reached = Path(os.path.normpath(link.parent / text))
    return text if reached.is_relative_to(top) and not os.path.isabs(text) else str(reached)
