"""A store in a folder, and names in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairmile.base.commands import Here, Ssh
from fairmile.base.digest import ManifestEntry, sha256_hex
from fairmile.store.pools import Pool, Pools
from fairmile.store.refs import Kind, Ref
from fairmile.store.store import Store

LARGE = b"large " * 20_000  # too large to be packed


def open_store(folder: Path, *pools: Pool, ssh: Callable[[str], Ssh] = Ssh) -> Store:
    """Return the store over pools, by default one named home in `folder`."""
    runner = Here()
    return Store(Pools(pools or [Pool("home", folder)], runner=runner), runner=runner, ssh=ssh)


def fill(
    store: Store,
    name: str,
    files: Mapping[str, bytes],
    *,
    pool: str = "home",
    kind: Kind = "card",
    details: Mapping[str, Any] | None = None,
) -> Ref:
    """Put files into a pool under a name and return the name."""
    where = store.pools[pool]
    with store.objects(where).batch() as batch:
        entries = [ManifestEntry(path, len(data), batch.add(data), 0o644) for path, data in files.items()]
    root = store.put_tree(entries, where)
    ref = Ref(kind, name, root, sum(map(len, files.values())), len(files), time.time(), details or {})
    store.set_ref(ref, where)
    return ref


def small_files(count: int, salt: str = "") -> dict[str, bytes]:
    """Return so many files that are small enough to be packed."""
    return {f"part/{number:04}.txt": f"{salt} {number}\n".encode() for number in range(count)}


def flip_a_bit(path: Path, at: int = 0) -> None:
    """Change one bit of a file, read-only or not, as a failing disk would."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    with open(path, "r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))
    path.chmod(mode)


def age(path: Path, seconds: float) -> None:
    """Make a file or folder, and all that is in it, look that old."""
    for each in (*path.rglob("*"), path) if path.is_dir() else (path,):
        then = time.time() - seconds
        os.utime(each, (then, then), follow_symlinks=False)


def loose(store: Store, data: bytes, pool: str = "home") -> Path:
    """Return the file of an object."""
    path = store.objects(store.pools[pool]).path(sha256_hex(data))
    assert path is not None
    return path


def packs(store: Store, pool: str = "home") -> list[Path]:
    """Return the packs of a pool."""
    return sorted((store.pools[pool].folder / "packs").glob("*.pack"))
