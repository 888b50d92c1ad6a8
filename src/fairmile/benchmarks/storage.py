"""Which folder a run should keep its data in: each is measured, and ranked for what runs do with data."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Literal, TypedDict, cast

from fairmile.base.commands import Here
from fairmile.base.errors import DiskFailure, NotFound, SystemFailure, UsageError
from fairmile.base.files import Holder, write_atomic, write_failure
from fairmile.base.html_tables import rows_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size
from fairmile.runs.record.spec import MetricSpec
from fairmile.runs.record.values import Better, Value
from fairmile.runs.runs import Runs
from fairmile.store import speed
from fairmile.store.quota import Mount, Quotas, mount_of
from fairmile.store.store import Store

DEFAULT_BYTES = 1_000_000_000
LONGEST_S = 75  # about, that one folder takes on a slow file system: the parts of `store.speed` stop by themselves
FILE = "storage.json"
_EQUAL = 0.7  # of the best: on a busy machine repeats were found to differ by a factor of 0.68 to 1.23
_SHARE = 10  # of the free room, by default
_PREFIX = ".fairmile-storage-"
_HOLDER = "holder"
_PAGE = 4096
_FILES = 1100
# name → unit, better
METRICS: dict[str, tuple[str, Better]] = {
    "seq_write_bytes_per_s": ("bytes/s", "higher"),
    "seq_read_bytes_per_s": ("bytes/s", "higher"),
    "random_read_per_s": ("1/s", "higher"),
    "random_write_per_s": ("1/s", "higher"),
    "fsync_median_s": ("s", "lower"),
    "fsync_p95_s": ("s", "lower"),
    "file_create_per_s": ("1/s", "higher"),
    "file_stat_per_s": ("1/s", "higher"),
    "file_read_per_s": ("1/s", "higher"),
    "file_delete_per_s": ("1/s", "higher"),
}
_TEMPORARY = ("TMPDIR", "SLURM_TMPDIR", "PBS_JOBFS", "LOCAL_SCRATCH")
_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")


class StorageFolderDict(TypedDict):
    """A folder, its file system, its free space and how long files stay."""

    label: str
    path: str
    kind: str
    file_system: str
    device: str
    free_bytes: int
    size_bytes: int
    lifetime: str
    is_memory: bool


class MeasuredDict(TypedDict):
    """The numbers of a folder, or the problem that prevented them."""

    place: StorageFolderDict
    values: dict[str, float]
    read_from: speed.ReadFrom
    method: str
    problem: str


class AdviceDict(TypedDict):
    use: str
    ranking: list[str]
    why: str


class StorageReportDict(TypedDict):
    host: str
    measured: list[MeasuredDict]
    advice: list[AdviceDict]


class StorageRunDict(StorageReportDict):
    run: str


class StoragePlanDict(TypedDict):
    would_measure: list[StorageFolderDict]
    dry_run: Literal[True]


@dataclass(frozen=True, repr=False)
class StorageFolder(Result):
    """A folder to measure: its file system, its free space and how long files stay."""

    label: str
    path: str  # without links
    kind: str
    file_system: str
    device: str
    free_bytes: int
    size_bytes: int  # of the large file
    lifetime: str  # in words; empty: files stay
    is_memory: bool

    def shares(self, other: StorageFolder) -> bool:
        """Tell whether both lie on one disk or export, so that their speeds differ by chance only."""
        # Others than these are called `tmpfs` or `overlay`, however many there are.
        is_one = ("/" in self.device or ":" in self.device) and not speed.is_parallel(self.file_system)
        return is_one and (self.device, self.file_system) == (other.device, other.file_system)

    def to_dict(self) -> StorageFolderDict:
        return cast(StorageFolderDict, asdict(self))

    def summary(self) -> str:
        return f"{self.path}: {self.kind}, {format_size(self.free_bytes)} free"


class StoragePlan(Results[StorageFolder]):
    """The folders that would be measured."""

    def to_dict(self) -> StoragePlanDict:
        return {"would_measure": [each.to_dict() for each in self], "dry_run": True}

    def summary(self) -> str:
        return ", ".join(each.path for each in self)


@dataclass(frozen=True)
class Measured:
    """The numbers of a folder; `problem` says why there are none. `method` says how they were measured."""

    place: StorageFolder
    values: Mapping[str, float] = field(default_factory=dict)
    read_from: speed.ReadFrom = "unknown"
    method: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Advice:
    """Where data of one use should lie: the labels, the best first, and why; no label where nothing suits."""

    use: str
    ranking: tuple[str, ...]
    why: str


@dataclass(frozen=True, repr=False)
class StorageReport(Result):
    """The folders that were measured on one host, and which to use for what."""

    host: str
    measured: tuple[Measured, ...]
    advice: tuple[Advice, ...]

    def metrics(self) -> dict[str, float]:
        """Return every number under `storage.LABEL.NAME`."""
        return {f"storage.{m.place.label}.{name}": value for m in self.measured for name, value in m.values.items()}

    def to_dict(self) -> StorageReportDict:
        return cast(StorageReportDict, asdict(self))

    def summary(self) -> str:
        best = next((each for each in self.advice if each.ranking), None)
        return f"{len(self.measured)} folders on {self.host}" + (f"; {best.use}: {best.ranking[0]}" if best else "")

    def _repr_html_(self) -> str:
        return rows_table(["use", "why"], [(each.use, each.why) for each in self.advice])

    def text(self) -> str:
        """Return the file that is kept beside the record of the run."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True, repr=False)
class StorageRun(Result):
    """A report on folders, and the id of the run that recorded it."""

    run: str
    report: StorageReport

    def to_dict(self) -> StorageRunDict:
        return {"run": self.run, **self.report.to_dict()}

    def summary(self) -> str:
        return f"{self.run}: {self.report.summary()}"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def plan_storage(
    store: Store, paths: Sequence[str | Path], *, size_bytes: int | None = None, environ: Mapping[str, str]
) -> StoragePlan:
    """Return which folders would be measured, with what the pools of a store and quotas say of them."""
    purged = {str(pool.folder): f"purged after {pool.purge_days} days" for pool in store.pools if pool.purge_days}
    return plan(paths, size_bytes=size_bytes, purged=purged, quotas=Quotas(Here()), environ=environ)


def measure_storage(
    runs: Runs,
    folders: StoragePlan,
    *,
    size_bytes: int | None = None,
    need_bytes: int = 0,
    on_step: Callable[[StorageFolder, str], None] = lambda *_: None,
) -> StorageRun:
    """Measure folders, record that as a run, and say where `need_bytes` of data should lie."""
    params: dict[str, Value] = {"paths": " ".join(each.path for each in folders), "size_bytes": size_bytes}
    with runs.recording("storage", params=params, metrics=metric_specs(folders)) as run:
        report = evaluate(folders, need_bytes=need_bytes, on_step=on_step)
        run.log(**report.metrics())
        write_atomic(run.folder / FILE, report.text())
    return StorageRun(run.id, report)


def plan(
    paths: Sequence[str | Path],
    *,
    size_bytes: int | None = None,
    purged: Mapping[str, str] | None = None,
    quotas: Quotas | None = None,
    environ: Mapping[str, str] | None = None,
) -> StoragePlan:
    """Look at folders without writing; DiskFailure says, with numbers, where there is no room to measure.

    `purged` says in words, for a folder and all below it, when files are removed.
    """
    if not paths:
        raise UsageError("no folder to measure", hint="name one, such as $SCRATCH or /tmp")
    if size_bytes is not None and size_bytes < speed.SMALLEST_BYTES:
        raise UsageError(f"{size_bytes} bytes are too few to measure", hint=f"at least {speed.SMALLEST_BYTES}")
    folders: dict[str, StorageFolder] = {}
    for path in paths:
        real = _folder(path)
        if real not in folders:
            folders[real] = _place(real, size_bytes, purged or {}, quotas, environ or {})
    return StoragePlan(_with_own_labels(list(folders.values())))


def metric_specs(places: Sequence[StorageFolder]) -> dict[str, MetricSpec]:
    """Return unit and direction of every number that measuring these folders gives."""
    return {
        f"storage.{place.label}.{name}": MetricSpec(unit=unit, better=better)
        for place in places
        for name, (unit, better) in METRICS.items()
    }


def evaluate(
    places: Sequence[StorageFolder],
    *,
    need_bytes: int = 0,
    on_step: Callable[[StorageFolder, str], None] = lambda *_: None,
) -> StorageReport:
    """Measure folders one after the other and say where `need_bytes` of data should lie.

    `on_step` hears what is done where, and an empty text when all is done.
    Everything written is removed, also after an interruption; what a killed measurement left is removed by the next.
    A folder that fails midway is reported as such and the others are measured.
    """
    measured = tuple(_measure(place, on_step) for place in places)
    if places:
        on_step(places[-1], "")
    return StorageReport(os.uname().nodename, measured, tuple(advise(measured, need_bytes)))


# Looking


def _folder(path: str | Path) -> str:
    real = os.path.realpath(path)
    if not os.path.exists(real):
        raise NotFound(f"no folder {path}", hint="create it first")
    if not os.path.isdir(real):
        raise UsageError(f"{path} is not a folder", hint="name its folder")
    if not os.access(real, os.W_OK | os.X_OK):
        raise DiskFailure(f"no write permission in {path}", hint="choose a folder where you can write")
    return real


def _place(
    real: str, size_bytes: int | None, purged: Mapping[str, str], quotas: Quotas | None, environ: Mapping[str, str]
) -> StorageFolder:
    mount = mount_of(Path(real))
    free_bytes, limit = _free(real, mount, quotas)
    size = size_bytes or max(min(DEFAULT_BYTES, free_bytes // _SHARE), speed.SMALLEST_BYTES)
    size = -(-size // _PAGE) * _PAGE
    need = size + speed.SMALL_FILES_BYTES + _PAGE * _FILES
    if need > free_bytes:
        raise DiskFailure(
            f"measuring {real} needs {format_size(need)}, but only {format_size(free_bytes)} are free ({limit})",
            hint="free some space, or measure less with --size",
        )
    return StorageFolder(
        _label(real),
        real,
        speed.kind_of(mount),
        mount.type,
        mount.source,
        free_bytes,
        size,
        _lifetime(real, mount, purged, environ),
        speed.is_memory(mount),
    )


def _free(real: str, mount: Mount, quotas: Quotas | None) -> tuple[int, str]:
    """Return the room for new files and what limits it."""
    try:
        status = os.statvfs(real)
    except OSError as error:
        raise SystemFailure(f"{real}: {error.strerror}", hint="is its file system mounted?") from error
    if status.f_flag & os.ST_RDONLY:
        raise DiskFailure(f"{real} is on a read-only file system", hint="choose another folder")
    rooms = [(status.f_bavail * status.f_frsize, "file system")]
    if status.f_files and status.f_favail < _FILES:
        rooms.append((0, f"{status.f_favail} more files fit"))
    if speed.is_memory(mount):
        rooms += [(room, "memory") for room in _free_memory()]
    for quota in quotas.of(Path(real)) if quotas is not None else ():
        if quota.limit_bytes is not None:
            rooms.append((max(quota.limit_bytes - quota.used_bytes, 0), f"quota of the {quota.kind}"))
    return min(rooms)


def _free_memory() -> list[int]:
    """Return what this host and this job's share of it have left: a RAM disk that takes more gets a program killed."""
    limits = []
    with suppress(OSError, ValueError):
        text = Path("/proc/meminfo").read_text()
        if available := re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE):
            limits.append(int(available[1]) * 1024)
    with suppress(OSError, ValueError):
        own = Path("/proc/self/cgroup").read_text().partition("0::")[2].splitlines()[0]
        group = Path("/sys/fs/cgroup") / own.lstrip("/")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            limits.append(max(int(limit) - int((group / "memory.current").read_text()), 0))
    return limits


def _lifetime(real: str, mount: Mount, purged: Mapping[str, str], environ: Mapping[str, str]) -> str:
    if speed.is_memory(mount):
        return "uses the memory of the run and is empty after a restart"
    for folder, words in purged.items():
        if _is_below(real, folder):
            return words
    is_job = any(environ.get(name) for name in _JOB)
    for name in _TEMPORARY if is_job else ():
        if environ.get(name) and _is_below(real, environ[name]):
            return f"${name}: emptied when the job ends"
    if _is_below(real, "/tmp") or _is_below(real, "/var/tmp"):
        return "temporary files: may be deleted at any time"
    scratch = environ.get("SCRATCH")
    if "scratch" in real.lower() or (scratch and _is_below(real, scratch)):
        return "scratch: many centres delete old files"
    return ""


def _is_below(real: str, folder: str) -> bool:
    top = os.path.realpath(folder)
    return real == top or real.startswith(top.rstrip("/") + "/")


def _with_own_labels(places: Sequence[StorageFolder]) -> Iterator[StorageFolder]:
    """Give each a label of its own: `/a/b` and `/a-b` would have the same."""
    taken: Counter[str] = Counter()
    for place in places:
        taken[place.label] += 1
        number = taken[place.label]
        yield place if number == 1 else replace(place, label=f"{place.label}-{number}")


def _label(real: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", real).strip("-.") or "root"


# Measuring


def _measure(place: StorageFolder, on_step: Callable[[StorageFolder, str], None]) -> Measured:
    try:
        with _own_folder(Path(place.path)) as folder:
            return _exercise(place, folder, lambda step: on_step(place, step))
    except OSError as error:
        if not os.path.isdir(place.path):
            problem = f"{place.path} disappeared during the measurement"
        elif isinstance(error, FileNotFoundError):
            problem = f"what was written in {place.path} disappeared during the measurement"
        else:
            problem = str(error if isinstance(error, SystemFailure) else write_failure(place.path, error))
        return Measured(place, problem=problem)


def _exercise(place: StorageFolder, folder: Path, on_step: Callable[[str], None]) -> Measured:
    direct = speed.takes_direct(folder)
    large = folder / "large"
    on_step("writing a large file")
    written, write_s = speed.write_large(large, place.size_bytes, direct=direct)
    on_step("reading it")
    read_rate, read_from = speed.read_large(large, written, direct=direct)
    on_step("reading at random")
    reads = speed.random_access(large, written, direct=direct)
    on_step("writing at random")
    writes = speed.random_access(large, written, direct=direct, write=True)
    large.unlink()
    on_step("waiting for the disk")
    syncs = speed.sync_times(folder / "syncs")
    on_step("handling small files")
    (folder / "small").mkdir()
    small = speed.small_files(folder / "small")
    values = {
        "seq_write_bytes_per_s": written / write_s,
        "seq_read_bytes_per_s": read_rate,
        "random_read_per_s": reads,
        "random_write_per_s": writes,
        "fsync_median_s": syncs[len(syncs) // 2],
        "fsync_p95_s": syncs[min(len(syncs) * 95 // 100, len(syncs) - 1)],
        "file_create_per_s": small.create_per_s,
        "file_stat_per_s": small.stat_per_s,
        "file_read_per_s": small.read_per_s,
        "file_delete_per_s": small.delete_per_s,
    }
    if place.is_memory:
        read_from = "memory"
    elif not direct and written > _memory_bytes():
        read_from = "storage"
    return Measured(place, values, read_from, _method(place, direct, read_from, written, small.files))


def _method(place: StorageFolder, direct: bool, read_from: speed.ReadFrom, written: int, files: int) -> str:
    if place.is_memory:
        way = "in memory"
    elif direct:
        way = "bypassing the page cache (O_DIRECT)"
    elif written > _memory_bytes():
        way = "larger than the memory"
    else:
        way = {
            "storage": "after dropping the page cache",
            "memory": "from the page cache, which could not be dropped",
            "unknown": "after a request to drop the page cache",
        }[read_from]
    return (
        f"one process, one request at a time; {format_size(written)} in blocks of 4 MiB, read {way}; 4 KiB at random;"
        f" {files} files of 4 KiB, read right after creation"
    )


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def _own_folder(root: Path) -> Iterator[Path]:
    """Make a folder that only this user enters, and remove it with all that is in it."""
    _sweep(root)
    folder = root / f"{_PREFIX}{os.urandom(8).hex()}"
    try:  # a signal may come as soon as there is a folder
        folder.mkdir(mode=0o700)
        (folder / _HOLDER).write_text(Holder.me().text())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what measurements left that were killed on this host."""
    with os.scandir(root) as entries:
        left = [entry for entry in entries if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)]
    for entry in left:
        with suppress(OSError):
            holder = Holder.parse(Path(entry.path, _HOLDER).read_text(), entry.inode())
            if entry.stat(follow_symlinks=False).st_uid == os.getuid() and holder.is_dead_here():
                shutil.rmtree(entry.path, ignore_errors=True)


# Advising


@dataclass(frozen=True)
class _Use:
    """One thing that runs do with data, and the numbers that tell how fast it goes."""

    name: str
    numbers: tuple[str, ...]
    reads: bool = False  # what this host's memory answered tells nothing about it
    stays: Literal["never mind", "better", "must"] = "better"

    def score(self, measured: Measured) -> float:
        """Return the mean of the rates, as one who needs as many of each would see it."""
        return len(self.numbers) / sum(1 / measured.values[name] for name in self.numbers)

    def is_known(self, measured: Measured) -> bool:
        return not self.reads or measured.place.is_memory or measured.read_from != "memory"

    def rank(self, measured: Measured) -> tuple[bool, bool]:
        """Return what goes before speed: memory is short, and what is not known cannot be compared."""
        return measured.place.is_memory, not self.is_known(measured)

    def words(self, measured: Measured) -> str:
        rate = self.score(measured)
        return rate_words(self.numbers[0], rate) if len(self.numbers) == 1 else f"{rate:,.0f} operations/s"


_USES = (
    _Use("large files, sequential reads", ("seq_read_bytes_per_s",), reads=True),
    _Use("large files, random reads", ("random_read_per_s",), reads=True),
    _Use("many small files", ("file_create_per_s", "file_stat_per_s", "file_read_per_s", "file_delete_per_s")),
    _Use("scratch and checkpoints", ("seq_write_bytes_per_s",), stays="never mind"),
    _Use("results to keep", ("seq_write_bytes_per_s",), stays="must"),
)


def advise(measured: Sequence[Measured], need_bytes: int = 0) -> list[Advice]:
    """Return where data of each use should lie, as far as the measurements tell."""
    usable = [each for each in measured if each.values and each.place.free_bytes >= need_bytes]
    if not usable:
        room = f" has {format_size(need_bytes)} free" if any(each.values for each in measured) else " could be measured"
        return [Advice(use.name, (), f"none of the folders{room}") for use in _USES]
    return [_advice(use, usable) for use in _USES]


def _advice(use: _Use, usable: Sequence[Measured]) -> Advice:
    lasting = [each for each in usable if not each.place.lifetime]
    if use.stays == "must":
        if not lasting:
            return Advice(use.name, (), "none of these folders keeps files: copy results elsewhere")
        usable = lasting
    ranked = sorted(usable, key=lambda each: (use.rank(each), -use.score(each)))
    first = ranked[0]
    equals = [each for each in ranked if use.rank(each) == use.rank(first) and _is_as_fast(use, each, first)]
    # Inside what one measurement can tell, other things decide.
    best = max(equals, key=lambda each: (use.stays == "better" and each in lasting, each.place.free_bytes))
    ranked = [best, *(each for each in ranked if each is not best)]
    return Advice(use.name, tuple(each.place.label for each in ranked), _why(use, best, equals, usable))


def _is_as_fast(use: _Use, measured: Measured, first: Measured) -> bool:
    return measured.place.shares(first.place) or use.score(measured) >= _EQUAL * use.score(first)


def _why(use: _Use, best: Measured, equals: Sequence[Measured], usable: Sequence[Measured]) -> str:
    place = best.place
    parts = [f"{place.path}: {use.words(best)}", f"{format_size(place.free_bytes)} free", place.lifetime]
    others = [each.place for each in equals if each is not best]
    if same := [each.path for each in others if each.shares(place)]:
        parts.append(f"{' and '.join(same)} on the same file system")
    if near := [each.path for each in others if not each.shares(place)]:
        parts.append(f"{' and '.join(near)} about as fast")
    if not use.is_known(best):
        parts.append("reads came from the page cache and do not measure the storage")
    memory = max((each for each in usable if each.place.is_memory), key=use.score, default=best)
    faster = use.score(memory) / use.score(best)
    if faster > 1 / _EQUAL:
        parts.append(
            f"{memory.place.path} is {faster:.1f} times as fast, for what fits into"
            f" {format_size(memory.place.free_bytes)} of memory and may be lost"
        )
    return "; ".join(part for part in parts if part)


def rate_words(name: str, value: float) -> str:
    """Return a number of `METRICS` for people."""
    unit = METRICS[name][0]
    if unit == "bytes/s":
        return f"{format_size(round(value))}/s"
    return f"{value:,.0f}/s" if unit == "1/s" else f"{value * 1e3:.3g} ms"
