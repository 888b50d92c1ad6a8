"""Files and folders that go into an environment: what they hold, as a digest, and a copy of them to work on."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path

from fairmile.base.digest import ManifestEntry, merkle_root, sha256_file, sha256_hex
from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.base.units import format_size

_LARGEST_DOCUMENT_BYTES = 16 << 20
# What tools leave in a folder of sources, and what no build should depend on.
_LEFTOVERS = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "*.pyc",
    "*.egg-info",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".DS_Store",
)
# Beyond these, what Python's own builds and people leave at the top of a project.
_PROJECT_LEFTOVERS = ("build", "dist", ".venv", "venv", ".tox", ".nox")


def at_home(text: str) -> Path:
    """Return a path in which `~` or `~USER` at the front is that home folder; UsageError where there is none."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        user = text.partition("/")[0]
        raise UsageError(f"{text}: no user {user} on this machine", hint="write the whole path") from error


def check_document(path: Path) -> None:
    """Raise OSError unless a file may be one that a person wrote: a regular file, and not far too large."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > _LARGEST_DOCUMENT_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {format_size(_LARGEST_DOCUMENT_BYTES)}", str(path))


def read_document(path: Path) -> str:
    """Return the text of a file that a person wrote; OSError where `check_document` says that it is none."""
    check_document(path)
    return path.read_text(encoding="utf-8")


def file_sha256(path: str | Path) -> str:
    """Return the sha256 of a file that a specification names."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(
            f"{path}, which the environment needs, is not a regular file", hint="check the path in its file"
        )
    try:
        return sha256_file(path)
    except OSError as error:
        raise NotFound(
            f"cannot read {path}, which the environment needs: {error.strerror}", hint="check the path in its file"
        ) from error


def folder_digest(folder: str | Path, *, project: bool = False) -> str:
    """Return the digest of a folder of sources, without what tools leave in it; `project`: a Python project."""
    if not Path(folder).is_dir():
        raise NotFound(f"no folder {folder}, which the environment needs", hint="check the path in its file")
    return merkle_root(list(_entries(Path(folder), project)))


def copy_folder(folder: str | Path, target: Path, digest: str, *, project: bool = False) -> None:
    """Copy a folder of sources to `target`, without what tools leave in it, replacing what is there.

    Conflict when it no longer has the digest that it was planned with.
    """
    shutil.rmtree(target, ignore_errors=True)

    def ignored(at: str, names: list[str]) -> set[str]:
        top = project and os.path.samefile(at, folder)
        return {name for name in names if _is_leftover(name, top)}

    shutil.copytree(folder, target, symlinks=True, ignore=ignored)
    if folder_digest(target, project=project) != digest:
        raise Conflict(f"{folder} changed while the environment was built", hint="build it again")


def changed(path: str | Path, planned: str, now: Callable[[], str]) -> None:
    """Raise Conflict when what was planned with one digest has another one now."""
    if now() != planned:
        raise Conflict(f"{path} changed while the environment was built", hint="build it again")


def _is_leftover(name: str, top: bool) -> bool:
    return any(fnmatch(name, pattern) for pattern in (*_LEFTOVERS, *(_PROJECT_LEFTOVERS if top else ())))


def _entries(folder: Path, project: bool) -> Iterator[ManifestEntry]:
    for at, folders, files in os.walk(folder):
        top = project and at == str(folder)
        folders[:] = [name for name in folders if not _is_leftover(name, top)]
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        for name in (*files, *links):
            path = os.path.join(at, name)
            relative = os.path.relpath(path, folder)
            if _is_leftover(name, top):
                continue
            if os.path.islink(path):
                target = os.fsencode(os.readlink(path))
                yield ManifestEntry(relative, len(target), sha256_hex(target), 0o120000)
            elif os.path.isfile(path):
                mode = 0o755 if os.access(path, os.X_OK) else 0o644
                yield ManifestEntry(relative, os.path.getsize(path), file_sha256(path), mode)
            else:
                raise UsageError(f"{path} is neither a file, a folder nor a symbolic link", hint="remove it")
