"""The code of a run, kept in the store, so that the run can be done again when its folder has changed or gone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.commands import Here
from fairmile.base.digest import ManifestEntry, sha256_hex
from fairmile.base.source_files import NOT_CODE, is_source
from fairmile.runs.record.record import CapturedCode
from fairmile.store.refs import Ref

if TYPE_CHECKING:
    from fairmile.store.store import Store

_MOST_BYTES = 64 << 20
_MOST_FILES = 5_000


def keep_code(store: Store, code: CapturedCode) -> tuple[str, str]:
    """Keep the files that a run's code consists of and return the root of their tree, or why that was not done."""
    files = code_files(code)
    if not files:
        return "", ""
    key = f"code {_state(code)}"
    known = store.ref("run", key)
    if known is not None and store.complete(known):
        return known.root, ""
    size_bytes = sum(path.lstat().st_size for path in files.values())
    if len(files) > _MOST_FILES or size_bytes > _MOST_BYTES:
        return "", f"the code was not kept: {len(files):,} files with {size_bytes:,} bytes exceed the limit"
    root = _keep(store, files, size_bytes, key)
    return root, ""


def code_files(code: CapturedCode) -> dict[str, Path]:
    """Return the files that a run's code consists of, by the names that they have in its snapshot."""
    return dict(_files(code))


def keep_folder(store: Store, folder: Path) -> str:
    """Keep the files of a folder, which came with a run, and return the root of their tree."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return _keep(store, files, sum(path.stat().st_size for path in files.values()), "")


def _keep(store: Store, files: Mapping[str, Path], size_bytes: int, key: str) -> str:
    pool = store.pools.choose(size_bytes, files=len(files), what="the code of this run").pool
    entries = []
    with store.objects(pool).batch() as batch:
        for name, path in sorted(files.items()):
            data = path.read_bytes()
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            entries.append(ManifestEntry(name, len(data), batch.add(data), mode))
    root = store.put_tree(sorted(entries, key=lambda entry: os.fsencode(entry.path)), pool)
    ref = Ref("run", key or f"code {root}", root, size_bytes, len(entries), store.clock())
    store.set_ref(ref, pool)
    return root


def lay_code(store: Store, root: str, folder: Path) -> None:
    """Put the code of a run into a folder, as files that may be changed."""
    store.materialize(root, folder)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            own = path.with_name(f".{path.name}.own")
            own.write_bytes(path.read_bytes())
            own.chmod(stat.S_IMODE(path.stat().st_mode) | 0o200)
            own.replace(path)


def _state(code: CapturedCode) -> str:
    git = code.git
    text = repr((git.commit, git.diff_sha256, [each.to_dict() for each in git.untracked])) if git else ""
    return sha256_hex((text + repr([(each.name, each.sha256) for each in code.files])).encode())


def _files(code: CapturedCode) -> Iterator[tuple[str, Path]]:
    """Yield the files by the names they have in the snapshot: those of a repository, or those that were named."""
    git = code.git
    root = Path(git.root) if git is not None else None
    if (
        root is not None and git is not None and git.dirty is not None
    ):  # else git was not asked, as in the repository of another user
        # Of what was never committed only programs are kept: a key or a token may lie beside them.
        loose = [each.name for each in git.untracked if is_source(each.name)]
        for name in [*_listed(root), *loose]:
            path = root / name
            if path.is_file() and not path.is_symlink():
                yield name, path
    for each in code.files:
        path = Path(each.path)
        # In a repository everything has the name that it has there, also what nobody committed.
        name = str(path.relative_to(root)) if root is not None and path.is_relative_to(root) else each.name
        if path.is_file():
            yield name, path
        for file in path.rglob("*") if path.is_dir() else ():
            if file.is_file() and not file.is_symlink() and not NOT_CODE.intersection(file.parts):
                yield f"{name}/{file.relative_to(path)}", file


def _listed(root: Path) -> list[str]:
    """Return the files of a work tree that git knows."""
    argv = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-C", str(root), "ls-files", "-z"]
    done = Here().run([*argv, "--cached"], timeout_s=60, check=False)
    return [name for name in done.stdout.split("\0") if name] if not done.exit_code else []
