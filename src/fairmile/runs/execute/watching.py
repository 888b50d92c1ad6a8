"""Which files a program really opens while it runs, beside its code: those become inputs of the run, by digest.

Three light means, which need no rights:

- **a preloaded library** (`audit/opened.c`), built once where there is a C compiler, sees every file that a program and
  its children open, unless they are linked statically;
- **the audit hook of Python** (`audit/sitecustomize.py`) does so for Python where there is none;
- **inotify** sees which files in the folder and the repository of the run are opened, whatever the program is.

A run that works in a folder of its own, such as a point of a sweep, finds copies of and links to the files of the
folder it was started from. What it reads of them is noted under their original path, with the digest of what it saw.
Inotify does not help there, since all points open the same files.

What none of them sees is named in the record. `FAIRMILE_WATCH=python` preloads nothing, `FAIRMILE_WATCH=off` leaves the
program alone.
It needs nothing but the standard library and `base`, as the recorder does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.digest import sha256_file, sha256_hex
from fairmile.base.digest_cache import DigestCache, Stamp
from fairmile.base.errors import FairmileError
from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy_pattern
from fairmile.base.native import build_library
from fairmile.base.source_files import is_cache
from fairmile.runs.coverage import Cover, find_loose, names_digest, stamp_of
from fairmile.runs.record.layout import WORK
from fairmile.runs.record.record import ReadFile, RunRecord

if TYPE_CHECKING:
    import ctypes

_HOOK = Path(__file__).parent / "audit"
_HOOK_FILE = str(_HOOK / "sitecustomize.py")
_OWN = str(Path(__file__).parents[2])  # our own package, which may be installed anywhere
# Every process of a program loads it: nothing is looked up or protected that it does not need.
_FLAGS = (
    *("-s", "-nostartfiles", "-fno-asynchronous-unwind-tables", "-Wl,-z,norelro", "-Wl,-z,lazy", "-Wl,--as-needed"),
)
_CHOICE = "FAIRMILE_WATCH"
DIGESTS = ".digests.json"  # among the runs: those of files that need not be read again
_OPENED = "opened.log"
_VARIABLE = "FAIRMILE_OPENED"
_IN_OPEN, _IN_OVERFLOW, _IN_ISDIR = 0x20, 0x4000, 0x40000000
_EVENT = struct.Struct("iIII")
_MOST_FOLDERS = 2_000
_MOST_EVENTS = 200_000
_MOST_READS = 1_000
# Digests of what was read take at most a fiftieth of the time of a run, also on a slow disk.
_BYTES_PER_S = 10_000_000
_FREE_BYTES = 1 << 20
_PYTHON = lazy_pattern(r"(?:python|pypy)[0-9.]*")
# What is no input: interpreters and their packages, wherever people install them, and what libraries note of fonts.
_SOFTWARE = lazy_pattern(
    r"/(?:site-packages|dist-packages|lib/python3[^/]*|\.pyenv|\.local/share/uv|(?:mini|ana)conda[^/]*|(?:mini|mamba)forge[^/]*)/"
    r"|/(?:pyvenv\.cfg|pybuilddir\.txt|[^/]*\._pth)$|/\.?cache/(?:fontconfig|matplotlib)/|/\.fontconfig/"
)
# Small programs that tell of the machine, and compilers, which libraries start while they are imported.
_HARMLESS = frozenset(
    {
        "uname",
        "ldconfig",
        "gcc",
        "cc",
        "ld",
        "objdump",
        "lscpu",
        "nvidia-smi",
        "git",
        "which",
        "hostname",
        "stty",
        "nproc",
    }
)
_CONTAINERS = frozenset({"apptainer", "singularity", "podman", "docker", "shifter", "sarus", "enroot", "ch-run"})


class FileWatch:
    """Watches what the program of one run opens, and adds it to its record."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        self._folder, self._record = folder, record
        self._work = "" if record.spec.folder else str(folder / WORK)
        start = record.spec.folder or record.captured.start
        # What it declares as outputs lies in a folder of its own, not in the one it was started from.
        spec = replace(record.spec, folder=start, outputs=[]) if self._work else record.spec
        self._cover = Cover(spec, record.captured, folder.parent)
        root = record.captured.code.root.rstrip("/")
        self._top = root if root and f"{start}/".startswith(f"{root}/") else start
        self._log = folder / _OPENED
        self._loose: dict[str, str] = {}  # files that nothing covers, by where they really are
        self._inotify: _Inotify | None = None
        self._trouble = self._program = ""
        self.pid = 0  # of the program, as soon as it is started
        self.before: dict[str, Stamp] = {}  # the files that were there, and that nothing else covers
        self.written: list[str] | None = None  # what the program opened to write; None: unknown

    @classmethod
    def of(cls, folder: Path, record: RunRecord) -> FileWatch | None:
        """Return the watch of a run; a program of somebody else works on what came with its record alone."""
        is_watched = record.captured.coverage is not None and not record.foreign
        return cls(folder, record) if is_watched else None

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
        """Begin to watch, and return the variables that the program needs for it."""
        self._program = os.path.basename(argv[0])
        choice = env.get(_CHOICE, "")
        is_inside = bool(self._record.container) or self._program in _CONTAINERS
        is_spread = (self._record.spec.resources.get("nodes") or 1) > 1  # all of its processes would write one file
        hook = _hook_folder(self._folder.parent) if choice != "off" and not is_inside and not is_spread else None
        library = _built_library(self._folder.parent, env) if hook is not None and choice != "python" else ""
        if not self._work:
            self._look_around()  # after the library is in the cache, which may lie in this folder
        if hook is None:
            return {}
        self._log.unlink(missing_ok=True)
        variables = {"PYTHONPATH": _joined(str(hook), env.get("PYTHONPATH", "")), _VARIABLE: str(self._log)}
        if library:
            variables["LD_PRELOAD"] = _joined(library, env.get("LD_PRELOAD", ""))
            variables["FAIRMILE_PRELOADED"] = "0" * 10  # room for the number of the process that is watched
        return variables

    def _look_around(self) -> None:
        """Note what lies in the folder of a user that nothing covers, and have inotify watch it."""
        coverage = self._record.captured.coverage
        assert coverage is not None
        loose = find_loose(self._cover, self._record.captured.code.git)
        if loose is None:
            self._trouble = f"too many files in {self._cover.top}"
            return
        coverage.beside_sha256 = names_digest(loose)
        folders = {folder: os.path.realpath(folder) for folder in {os.path.dirname(path) for path in loose}}
        self._loose = {_real(path, folders): path for path in loose}
        self.before = {path: stamp for path in loose if (stamp := stamp_of(path)) is not None}
        if self._loose:
            self._inotify = _Inotify({os.path.dirname(path) for path in self._loose})
            self._trouble = self._inotify.trouble

    @property
    def descriptor(self) -> int:
        """What becomes readable when a file was opened; -1 where nothing does."""
        return self._inotify.descriptor if self._inotify is not None and not self._inotify.trouble else -1

    def drain(self) -> None:
        """Take note of the files that were opened meanwhile, before the kernel forgets them."""
        if self._inotify is not None:
            self._inotify.drain()

    def finish(self, elapsed_s: float) -> None:
        """Stop, and write into the record what was read, with digests, and what was not watched."""
        coverage = self._record.captured.coverage
        assert coverage is not None
        opened = self._inotify.stop() if self._inotify is not None else set()
        self._trouble = self._trouble or (self._inotify.trouble if self._inotify is not None else "")
        log = _OpenLog(_lines(self._log))
        self._log.unlink(missing_ok=True)
        seen, unseen = log.seen(self.pid, self._program)
        self.written = log.written(self.pid)
        if self._work and unseen:
            self._trouble = unseen.pop().replace(" elsewhere", "")
        names = {self._loose[path]: ("r", path) for path in opened if path in self._loose}
        for path, kind in log.opened.items():
            original = self._original(path)
            if original and self._is_input(original, kind):
                names[original] = kind, path
        if len(names) > _MOST_READS:
            self._trouble = self._trouble or f"more than {_MOST_READS:,} files were read"
        coverage.reads = None if self._trouble else {**(coverage.reads or {}), **self._read(names, elapsed_s)}
        place = f"files in {self._cover.top}"
        coverage.watched = [*([place] if not self._trouble and not self._work else []), *seen]
        coverage.unwatched = [*([self._trouble] if self._trouble else []), *unseen]

    def _read(self, names: Mapping[str, tuple[str, str]], elapsed_s: float) -> dict[str, ReadFile]:
        """Return what was read: by original path, how it was opened, and where it is."""
        digests = _Digests(self._folder.parent / DIGESTS, elapsed_s)
        started = self._record.attempts[-1].started
        written = set(self.written or ())
        reads = {}
        for original, (kind, path) in sorted(names.items()):
            if original in self.before and stamp_of(original) != self.before[original]:
                continue
            if path != original and path in written:
                reads[original] = ReadFile(trouble="it changed during the run")
            elif (read := digests.read(path, kind, started)) is not None:
                reads[original] = read
        digests.save()
        return reads

    def _original(self, path: str) -> str:
        """Return the path that a file in a run's own folder is a copy of, or leads to; empty for what is its own."""
        if not self._work or not path.startswith(f"{self._work}/"):
            return path
        real = os.path.realpath(path)
        if not real.startswith(f"{os.path.realpath(self._folder)}/"):
            return real
        original = os.path.join(self._top, os.path.relpath(path, self._work))
        return original if self._top and os.path.isfile(original) else ""

    def _is_input(self, path: str, kind: str) -> bool:
        """Tell whether a path that was opened is one that nothing else covers."""
        if path in self.before:
            return kind == "r"
        if kind == "w" or self._cover.covers(path) or _SOFTWARE.search(path):
            return False
        if path in (_OWN, os.path.dirname(_OWN)) or path.startswith(f"{_OWN}/"):
            return False
        if self._cover.is_inside(path):
            git = self._record.captured.code.git
            if kind != "r" or self._work:
                return kind == "r" and self._cover.is_loose(path, git)
            return os.path.realpath(path) in self._loose
        return not any(is_cache(str(each)) for each in [path, *Path(path).parents])


def _real(path: str, folders: Mapping[str, str]) -> str:
    """Return the real path of a file whose folder has one that is known: most files are no links."""
    if os.path.islink(path):
        return os.path.realpath(path)
    folder, name = os.path.split(path)
    return os.path.join(folders[folder], name)


def _joined(first: str, rest: str) -> str:
    return os.pathsep.join(filter(None, (first, rest)))


def _hook_folder(runs: Path) -> Path | None:
    """Return the folder of the audit hook; where Fairmile travels as one file, the hook is written among the runs."""
    if os.path.isfile(_HOOK_FILE):
        return _HOOK
    try:
        text = _content("sitecustomize.py")
        folder = runs / f".hook-{sha256_hex(text)[:16]}"
        if not (folder / "sitecustomize.py").exists():
            folder.mkdir(exist_ok=True)
            write_atomic(folder / "sitecustomize.py", text)
    except (OSError, FairmileError):
        return None
    return folder


def _content(name: str) -> bytes:
    """Return a file of the watch; it may be in an archive."""
    # What `pkgutil.get_data` does, which takes longer to load.
    data: bytes = globals()["__loader__"].get_data(os.path.join(os.path.dirname(__file__), "audit", name))
    return data


def _built_library(runs: Path, env: Mapping[str, str]) -> str:
    """Return the library that is preloaded, built when it is first needed; empty where there is no C compiler."""
    try:
        name = f"opened-{_source_digest()}.so"
        library = os.path.join(runs, f".{name}")
        if os.path.exists(library):
            return library
        source = _content("opened.c")
        kept = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache") / "fairmile" / name
        data = _own_content(kept)
        if not data:
            data = build_library(source, runs, env, _FLAGS)
            if not data:
                return ""
            with contextlib.suppress(OSError, FairmileError):  # the home of a compute node may be read-only
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(kept, data, sync=False)
        write_atomic(library, data, sync=False)
    except (OSError, FairmileError, subprocess.SubprocessError):
        return ""
    return library


def _own_content(file: Path) -> bytes:
    """Return what a file of this user holds; nothing where it is missing or someone else's."""
    try:
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
            return stream.read() if is_own else b""
    except OSError:
        return b""


@functools.cache
def _source_digest() -> str:
    text = " ".join((*_FLAGS, os.uname().machine))
    return sha256_hex(_content("opened.c") + text.encode())[:16]


@functools.cache
def _libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


class _Inotify:
    """Sees which files of some folders are opened, by anyone."""

    def __init__(self, folders: Iterable[str]) -> None:
        import ctypes  # few runs need it, and every worker would load it

        libc = _libc()
        self.trouble = ""
        self._opened: set[str] = set()
        self._events = 0
        self._paths: dict[int, str] = {}
        self.descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK) if hasattr(libc, "inotify_init1") else -1
        if self.descriptor < 0:
            self.trouble = "this system has no inotify"
            return
        for number, path in enumerate(sorted(folders)):
            watch = libc.inotify_add_watch(self.descriptor, os.fsencode(path), _IN_OPEN)
            if watch < 0 or number >= _MOST_FOLDERS:
                self.trouble = f"{path} ({os.strerror(ctypes.get_errno()) if watch < 0 else 'too many folders'})"
                break
            self._paths[watch] = path

    def stop(self) -> set[str]:
        """Return the files that were opened."""
        if self.descriptor >= 0:
            self.drain()
            os.close(self.descriptor)
        return self._opened

    def drain(self) -> None:
        """Take the events that wait; the kernel keeps some 16,000 of them."""
        with contextlib.suppress(BlockingIOError):
            while not self.trouble and (data := os.read(self.descriptor, 1 << 16)):
                self._read(data)

    def _read(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, start)
            name = data[start + _EVENT.size : start + _EVENT.size + length].rstrip(b"\0")
            start += _EVENT.size + length
            self._events += 1
            if mask & _IN_OVERFLOW or self._events > _MOST_EVENTS:
                self.trouble = "files were opened too fast to record"
            elif not mask & _IN_ISDIR and watch in self._paths:
                self._opened.add(os.path.join(self._paths[watch], os.fsdecode(name)))


class _OpenLog:
    """What the library and the audit hook noted."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self.opened: dict[str, str] = {}  # how each path was opened first
        self._written: set[str] = set()
        self._preloaded: set[str] = set()  # processes
        self._pythons: set[str] = set()
        self._others: dict[str, None] = {}
        for kind, text in lines:
            if kind in "sp":
                (self._preloaded if kind == "s" else self._pythons).add(text)
            elif kind == "n" or (kind == "x" and not _PYTHON.fullmatch(text) and text not in _HARMLESS):
                self._others[text] = None
            elif kind in "rawl":
                path = os.path.normpath(text)
                self.opened.setdefault(path, kind)
                if kind == "w":
                    self._written.add(path)

    def written(self, pid: int) -> list[str] | None:
        """Return the paths that were opened to write; None where not all were seen. `pid` is the program's process."""
        return sorted(self._written) if str(pid) in self._preloaded else None

    def seen(self, pid: int, program: str) -> tuple[list[str], list[str]]:
        """Return what was watched beside the folder, and what was not; `pid` is the process of the program."""
        if str(pid) in self._preloaded:
            return ["files that the program opened"], []
        is_python = str(pid) in self._pythons
        names = [*([] if is_python else [program]), *self._others]
        unseen = [f"files elsewhere that {', '.join(names[:5])} opened"] if names else []
        return ["files that Python opened"] if self._pythons else [], unseen


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    try:
        data = file.read_bytes()
    except OSError:
        return
    for line in data.splitlines():
        kind, _, text = line.partition(b" ")
        with contextlib.suppress(ValueError):  # the disk was full
            yield kind.decode(), os.fsdecode(bytes.fromhex(text.decode()))


@functools.cache  # a process that executes many points reads it once
def _digest_cache(file: Path) -> DigestCache:
    return DigestCache(file)


class _Digests:
    """Digests of files that were read; of those that would take too long, only the stamp is kept."""

    def __init__(self, cache: Path, elapsed_s: float) -> None:
        self._cache = _digest_cache(cache)
        self._left_bytes = max(_FREE_BYTES, int(elapsed_s * _BYTES_PER_S))

    def read(self, path: str, kind: str, started: float) -> ReadFile | None:
        """Return what is known of a file; None for what is no file, and for what was made meanwhile."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return ReadFile(absent=True) if kind == "a" else None
        except OSError as error:
            return ReadFile(trouble=error.strerror or "unreadable")
        if kind == "a":
            return ReadFile(trouble="it was created during the run")
        if stat.S_ISDIR(status.st_mode):
            return ReadFile(sha256=listing_digest(path)) if kind == "l" else None
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_ctime >= started:  # what it was before is not known
            return ReadFile(trouble="it changed during the run")
        read = ReadFile(size_bytes=status.st_size, stamp=list(Stamp.of(status)))
        try:
            if digest := self._cache.known(path, status):
                read.sha256 = digest
            elif status.st_size <= self._left_bytes:
                self._left_bytes -= status.st_size
                read.sha256 = self._cache.of(path, status)
        except OSError as error:
            read.trouble = error.strerror or "unreadable"
        return read

    def save(self) -> None:
        self._cache.save()


def listing_digest(path: str) -> str:
    """Return a digest of the names in a folder, caches apart."""
    names = sorted(name for name in os.listdir(path) if not is_cache(os.path.join(path, name)))
    return sha256_hex("\0".join(names).encode(errors="surrogateescape"))


def changed_read(path: str, before: ReadFile) -> str:
    """Return how a file that a run read differs now; empty where it does not."""
    try:
        status = os.stat(path)
    except OSError:
        return "" if before.absent else "is gone"
    if before.absent:
        return "now exists"
    if before.trouble:
        return f"could not be read ({before.trouble})"
    if before.stamp and Stamp.of(status).is_same(Stamp(*before.stamp)):
        return ""
    try:
        digest = listing_digest(path) if stat.S_ISDIR(status.st_mode) else sha256_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if before.sha256 and digest == before.sha256 else "changed"
