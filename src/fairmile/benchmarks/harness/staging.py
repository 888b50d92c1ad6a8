"""A copy of prepared data in the fastest folder that has room, made once for all runs and ranks of a node."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fairmile.base.digest import sha256_file
from fairmile.base.digest_cache import Stamp
from fairmile.base.errors import Integrity, NotFound, SystemFailure
from fairmile.base.files import Lock, write_atomic, write_failure
from fairmile.base.units import format_duration, format_size

POOLS = "FAIRMILE_POOLS"  # folders, the fastest first
_STAGED, _DATA = "staged.json", "data"
_CHUNK_BYTES = 8 << 20
_SPARE_BYTES = 256 << 20  # left free, since others write there too
_SHARED_MEMORY = Path("/dev/shm")


def staged(folder: Path, where: str, environ: Mapping[str, str], say: Callable[[str], object] | None = None) -> Path:
    """Return a copy of a folder of data in the folder `where`, or for `auto` in the fastest pool with room.

    It is copied by one process of a node, checked by size and sha256, and found again by all later ones. Where it
    cannot be had, the original is returned, and `say` is told why.
    """
    say = say or (lambda text: str(sys.stderr.write(f"{text}\n")))
    if not where:
        return folder
    files = _files(folder)
    stamp = [[name, *Stamp.of(status).key] for name, status in files.items()]
    text = json.dumps([str(folder.resolve()), stamp])
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    sizes = {name: status.st_size for name, status in files.items()}
    refused: list[str] = []
    for pool in _candidates(where, environ):
        if pool.resolve() in folder.resolve().parents:
            return folder
        place = pool / f"fairmile-staged-{os.getuid()}" / name
        if _is_whole(place, sizes):
            return place / _DATA
        why = _refusal(pool, place.parent, sum(sizes.values()))
        if not why:
            try:
                return _copied(folder, sizes, place, say)
            except SystemFailure as error:  # full or read-only after all: the next one may do
                why = str(error)
        refused.append(f"{pool}: {why}")
    say(f"the data stays in {folder}: " + ("; ".join(refused) or "no faster folder"))
    return folder


def _candidates(where: str, environ: Mapping[str, str]) -> Iterator[Path]:
    if where != "auto":
        yield Path(where).expanduser().absolute()
        return
    pools = [each for each in environ.get(POOLS, "").split(os.pathsep) if each]
    own = [environ[name] for name in ("SLURM_TMPDIR", "TMPDIR") if environ.get(name)]
    yield from dict.fromkeys(Path(each).absolute() for each in [*pools, *own, str(_SHARED_MEMORY)])


def _is_whole(place: Path, sizes: Mapping[str, int]) -> bool:
    """Tell whether a copy is there with all its files: pools are cleaned, file by file."""
    try:
        if place.parent.stat().st_uid != os.getuid() or not (place / _STAGED).exists():
            return False
        return all((place / _DATA / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def _refusal(pool: Path, own: Path, size_bytes: int) -> str:
    """Return why a pool cannot take a copy into our own folder there, or nothing."""
    try:
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        free_bytes = shutil.disk_usage(own).free
        owner = own.stat().st_uid
    except OSError as error:
        return f"it cannot be used ({error.strerror})"
    if owner != os.getuid() or not os.access(own, os.W_OK | os.X_OK):
        return f"{own} belongs to another user"
    if free_bytes < size_bytes + _SPARE_BYTES:
        return f"{format_size(free_bytes)} are free, but {format_size(size_bytes)} are needed"
    return ""


def _copied(folder: Path, sizes: Mapping[str, int], place: Path, say: Callable[[str], object]) -> Path:
    with Lock(place.with_suffix(".lock"), timeout_s=3600):
        if _is_whole(place, sizes):
            return place / _DATA
        aside = place.with_suffix(".part")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)  # without its last file it is not whole
        began = time.perf_counter()
        try:
            digests = {name: _copy(folder / name, aside / _DATA / name) for name in sizes}
            took_s = max(time.perf_counter() - began, 1e-9)
            write_atomic(aside / _STAGED, json.dumps({"from": str(folder), "sha256": digests, "took_s": took_s}))
            os.rename(aside, place)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise error if isinstance(error, SystemFailure) else write_failure(str(place), error) from error
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    size_bytes = sum(sizes.values())
    speed = format_size(round(size_bytes / took_s))
    say(f"copied {format_size(size_bytes)} to {place} in {format_duration(took_s)} ({speed}/s)")
    return place / _DATA


def _copy(source: Path, target: Path) -> str:
    """Copy a file, read the copy again and return its sha256."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
        copied_bytes, expected_bytes = writer.tell(), os.fstat(reader.fileno()).st_size
    if copied_bytes != expected_bytes:
        raise Integrity(f"{source} changed while it was copied", hint="try again when nothing writes there")
    if sha256_file(target) != digest.hexdigest():
        raise Integrity(f"the copy {target} is not what was read from {source}", hint="its disk may be failing")
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, os.stat_result]:
    if not folder.is_dir():
        raise NotFound(f"no such folder: {folder}")
    return {str(path.relative_to(folder)): path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
