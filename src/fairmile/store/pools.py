"""Pools: named folders that hold the bytes, how much room each has, and which one takes what comes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from fairmile.base.commands import Runner
from fairmile.base.errors import (
    DiskFailure,
    FairmileError,
    InvalidDocument,
    NotFound,
    Problem,
    SystemFailure,
    UsageError,
)
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.results import Result, Results
from fairmile.base.units import format_size, parse_duration, parse_size
from fairmile.base.words import did_you_mean
from fairmile.store import speed as speeds
from fairmile.store.links import OWN_WAYS, WAYS
from fairmile.store.quota import Quotas, mount_of
from fairmile.store.reservations import Held, Reservation, Taken
from fairmile.store.speed import Speed, SpeedDict

__all__ = [
    "Choice",
    "Held",
    "MeasuredPool",
    "Pool",
    "Pools",
    "Ranked",
    "RankedPools",
    "Reservation",
    "Space",
    "Speed",
    "parse_pools",
]

SpeedClass = Literal["fast", "normal", "slow"]
Purpose = Literal["scratch", "project", "archive"]
Limit = Literal["file system", "capacity", "quota"]

HOME = "home"
_CLASSES: tuple[SpeedClass, ...] = get_args(SpeedClass)
# Rates of writing once and reading once by one process; they tell node-local and parallel storage, file servers
# and archives apart.
_FAST_BYTES_PER_S = 500e6
_SLOW_BYTES_PER_S = 50e6
_BEFORE_REFUSAL_S = 60.0  # how old a count of a pool's bytes may be that turns somebody away
_POOL_NAME = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_VARIABLE = lazy_pattern(r"\$(?:\{(\w+)\}|(\w+))")
_NOTHING: Mapping[str, str] = {}


class PoolDict(TypedDict):
    name: str
    folder: str
    capacity_bytes: int | None
    purge_days: int | None
    speed: SpeedClass
    purpose: Purpose
    pack_below_bytes: int
    links: list[str]


class SpaceDict(TypedDict):
    free_bytes: int
    total_bytes: int
    used_bytes: int
    limited_by: Limit
    reserved_bytes: int
    inodes_free: int | None


class RankedDict(TypedDict):
    pool: PoolDict
    speed_class: SpeedClass
    speed: SpeedDict | None
    space: SpaceDict | None
    storage: str
    why: str
    trouble: str


class RankedPoolsDict(TypedDict):
    pools: list[RankedDict]


class MeasuredPoolDict(TypedDict):
    pool: str
    speed: SpeedDict | None
    dry_run: bool


@dataclass(frozen=True)
class Pool:
    """A named folder for bytes, as the settings declare it."""

    name: str
    folder: Path
    capacity_bytes: int | None = None
    purge_days: int | None = None
    speed: SpeedClass = "normal"
    purpose: Purpose = "project"
    pack_below_bytes: int = 64 << 10
    links: tuple[str, ...] = ()  # none: files of their own in folders of users, else whatever is cheapest

    def facts(self) -> PoolDict:
        """Return the pool as data."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "capacity_bytes": self.capacity_bytes,
            "purge_days": self.purge_days,
            "speed": self.speed,
            "purpose": self.purpose,
            "pack_below_bytes": self.pack_below_bytes,
            "links": list(self.links or OWN_WAYS),
        }


@dataclass(frozen=True)
class Space:
    """The room in a pool.

    `free_bytes` is what can still be reserved. `total_bytes` and `used_bytes` are those of the tightest limit,
    which `limited_by` names. `reserved_bytes` are still to come, by reservations of this pool. `inodes_free` is
    None where the file system sets no number.
    """

    free_bytes: int
    total_bytes: int
    used_bytes: int
    limited_by: Limit
    reserved_bytes: int
    inodes_free: int | None

    def facts(self) -> SpaceDict:
        """Return the figures as data."""
        return {
            "free_bytes": self.free_bytes,
            "total_bytes": self.total_bytes,
            "used_bytes": self.used_bytes,
            "limited_by": self.limited_by,
            "reserved_bytes": self.reserved_bytes,
            "inodes_free": self.inodes_free,
        }


@dataclass(frozen=True)
class Choice:
    """The pool that takes what comes, and why others were passed over."""

    pool: Pool
    space: Space
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Ranked(Result):
    """A pool's place among all: `why` explains it, `trouble` says why it cannot be used (empty: it can)."""

    pool: Pool
    speed_class: SpeedClass
    speed: Speed | None
    space: Space | None
    storage: str
    why: str
    trouble: str

    def to_dict(self) -> RankedDict:
        return {
            "pool": self.pool.facts(),
            "speed_class": self.speed_class,
            "speed": self.speed.facts() if self.speed else None,
            "space": self.space.facts() if self.space else None,
            "storage": self.storage,
            "why": self.why,
            "trouble": self.trouble,
        }

    def summary(self) -> str:
        return f"pool {self.pool.name}: {self.trouble or self.why}"


class RankedPools(Results[Ranked]):
    """All pools, the one to use first; those that cannot be used come last."""

    columns = ("name", "folder", "speed_class", "free_bytes", "total_bytes", "limited_by", "trouble")

    def to_dict(self) -> RankedPoolsDict:
        return {"pools": [each.to_dict() for each in self]}

    def summary(self) -> str:
        return ", ".join(each.pool.name + (" (unusable)" if each.trouble else "") for each in self)


@dataclass(frozen=True, repr=False)
class MeasuredPool(Result):
    """How fast a pool is; a dry run measures nothing and has no speed."""

    pool: Pool
    size_bytes: int
    speed: Speed | None

    def to_dict(self) -> MeasuredPoolDict:
        speed = self.speed.facts() if self.speed is not None else None
        return {"pool": self.pool.name, "speed": speed, "dry_run": self.speed is None}

    def summary(self) -> str:
        if self.speed is None:
            return f"pool {self.pool.name}, not measured"
        write, read = (format_size(round(rate)) for rate in (self.speed.write_bytes_per_s, self.speed.read_bytes_per_s))
        return f"pool {self.pool.name} writes {write}/s, reads {read}/s"


class _Bound(NamedTuple):
    name: Limit
    total: int
    used: int
    promised: int

    @property
    def free(self) -> int:
        return max(0, self.total - self.used - self.promised)


class Pools:
    """The pools in their declared order."""

    def __init__(self, pools: Sequence[Pool], *, runner: Runner, clock: Callable[[], float] = time.time) -> None:
        self._pools = tuple(pools)
        self._quotas = Quotas(runner)
        self._clock = clock

    def __getitem__(self, name: str) -> Pool:
        match = next((pool for pool in self._pools if pool.name == name), None)
        if match is None:
            names = [pool.name for pool in self._pools]
            near = did_you_mean(name, names)
            raise NotFound(f"no pool named {name!r}" + (f"; {near}" if near else ""), hint=f"known: {', '.join(names)}")
        return match

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools)

    def __len__(self) -> int:
        return len(self._pools)

    def by_rank(self) -> list[Pool]:
        """Return the pools, the fastest first and archives last; a measured speed outranks the declared class."""
        measured = {pool.name: self.speed(pool) for pool in self._pools}

        def rank(pool: Pool) -> tuple[bool, int, float]:
            speed = measured[pool.name]
            rate = speed.bytes_per_s if speed else 0.0
            return pool.purpose == "archive", _CLASSES.index(_class(pool, speed)), -rate

        return sorted(self._pools, key=rank)

    def trouble(self, pool: Pool) -> str:
        """Return why nothing can be put into a pool, or an empty text when it can."""
        missing = _missing(pool)
        if missing:
            return missing
        there = _existing(pool.folder)
        try:
            if os.statvfs(there).f_flag & os.ST_RDONLY:
                return f"{there} is on a read-only file system"
        except OSError as error:
            return f"{there}: {error.strerror}"
        return "" if os.access(there, os.W_OK | os.X_OK) else f"no write permission in {there}"

    def space(self, pool: Pool, *, max_age_s: float | None = None) -> Space:
        """Return the room in a pool; SystemFailure when its folder cannot be reached.

        Where a capacity is declared the pool's bytes are counted anew when the last count is older than
        `max_age_s`, by default an hour or longer for a pool that takes long to count.
        """
        missing = _missing(pool)
        if missing:
            raise SystemFailure(
                f"pool {pool.name!r} cannot be used: {missing}",
                hint=f"mount or create it, or change `pools.{pool.name}.folder` in the settings",
            )
        if pool.capacity_bytes is not None and pool.folder.is_dir():
            with contextlib.suppress(SystemFailure):  # a pool that cannot be written has no count
                self._taken(pool).count(max_age_s)
        return self._space(pool)

    def choose(
        self,
        need_bytes: int,
        *,
        wanted: str | None = None,
        files: int = 1,
        what: str = "this",
        parts: Mapping[str, int] | None = None,
    ) -> Choice:
        """Return the pool for `need_bytes` in `files` files: the `wanted` one, else the best-ranked that has room.

        DiskFailure with all numbers when there is none; `what` and `parts` (such as download and unpacked, in
        bytes) tell the reader what the room is for.
        """
        refusals: dict[str, str] = {}
        is_usable = False
        for pool in [self[wanted]] if wanted is not None else self.by_rank():
            space, refusal = self._verdict(pool, need_bytes, files)
            if space is not None and not refusal:
                passed = (f"skipped pool {name!r}, which {why}" for name, why in refusals.items())
                return Choice(pool, space, tuple(passed))
            refusals[pool.name] = refusal
            is_usable |= space is not None
        refused = ", ".join(f"pool {name!r} {why}" for name, why in refusals.items())
        needs = f"{what} needs {_need(need_bytes, parts)}; {refused}"
        if wanted is None:
            elsewhere = "get write permission there, or set FAIRMILE_HOME to a folder of your own"
            raise DiskFailure(needs, hint=_hint(None) if is_usable else elsewhere)
        others = [pool for pool in self.by_rank() if pool.name != wanted]
        verdicts = [(pool, *self._verdict(pool, need_bytes, files)) for pool in others]
        fits = [(pool, space) for pool, space, refusal in verdicts if space is not None and not refusal]
        tell = [
            f"pool {pool.name!r} has enough space with {format_size(space.free_bytes)} free" for pool, space in fits
        ]
        raise DiskFailure("; ".join([needs, *tell]), hint=_hint(self[wanted], [pool.name for pool, _ in fits]))

    def reserve(self, pool: Pool, size_bytes: int, what: str) -> Reservation:
        """Keep room for `size_bytes` in a pool until the reservation is released or its owner is gone.

        Checked and taken under a lock, so that no two reservations count the same bytes; DiskFailure when
        there is no room. `what` tells others who holds it.
        """
        if size_bytes < 0:
            raise UsageError(f"{size_bytes} bytes cannot be reserved")
        # The slow questions come first: nobody waits for the lock while programs run or a pool is counted.
        space, refusal = self._verdict(pool, size_bytes, 1)
        if space is not None and not refusal:
            with contextlib.ExitStack() as locks:
                # Pools on one file system share its room. Our own folder is made before the others are looked for,
                # so that of two who start at once one sees the other; one order keeps both from blocking.
                self._taken(pool).prepare()
                for each in sorted(self._neighbours(pool), key=lambda each: str(each.folder)):
                    if each == pool or (each.folder.is_dir() and not self.trouble(each)):
                        locks.enter_context(self._taken(each).lock())
                space = self._space(pool)
                refusal = _refusal(space, size_bytes, 1)
                if not refusal:
                    return self._taken(pool).make(size_bytes, what)
        raise DiskFailure(f"{what} needs {format_size(size_bytes)}; pool {pool.name!r} {refusal}", hint=_hint(pool))

    def reservations(self, pool: Pool) -> list[Held]:
        """Return the reservations of a pool, also those of owners who are gone, which hold nothing."""
        return self._taken(pool).held()

    def sweep(self, pool: Pool) -> list[Held]:
        """Remove the reservations of a pool whose owners are gone, and return them."""
        return self._taken(pool).sweep()

    def measure(self, pool: Pool, size_bytes: int = speeds.DEFAULT_BYTES) -> Speed:
        """Measure how fast a pool is with files of its own, which are removed, and keep the figures with the pool."""
        with self.reserve(pool, size_bytes + speeds.SMALL_FILES_BYTES, "measuring its speed"):
            return speeds.measure(pool.folder, size_bytes, clock=self._clock)

    def speed(self, pool: Pool) -> Speed | None:
        """Return what the last measurement of a pool found, or None when there was none."""
        return speeds.last_measured(pool.folder)

    def ranked(self, need_bytes: int = 0, *, files: int = 1) -> RankedPools:
        """Return all pools, the one that a run with `need_bytes` of data should use first, each with the reasons.

        Those that cannot be used, or have no room, come last. A measured speed outranks the declared class.
        """
        ranked = [self._explained(pool, need_bytes, files) for pool in self.by_rank()]
        return RankedPools(sorted(ranked, key=lambda each: bool(each.trouble)))

    def _explained(self, pool: Pool, need_bytes: int, files: int) -> Ranked:
        space, trouble = self._verdict(pool, need_bytes, files)
        speed = self.speed(pool)
        storage = "" if _missing(pool) else speeds.kind_of(mount_of(_existing(pool.folder)))
        room = "" if space is None else f"{format_size(space.free_bytes)} free ({space.limited_by})"
        reasons = [_speed_reason(pool, speed), room, storage, *_cautions(pool, storage)]
        why = "; ".join(reason for reason in reasons if reason)
        return Ranked(pool, _class(pool, speed), speed, space, storage, why, trouble)

    def _verdict(self, pool: Pool, need_bytes: int, files: int) -> tuple[Space | None, str]:
        """Return the room in a pool and why it does not take so much; an empty reason when it does."""
        try:
            trouble = self.trouble(pool)
            if trouble:
                return None, f"cannot be used: {trouble}"
            space = self.space(pool)
            if space.limited_by == "capacity" and _refusal(space, need_bytes, files):
                space = self.space(pool, max_age_s=_BEFORE_REFUSAL_S)
        except FairmileError as error:
            return None, f"cannot be used: {error}"
        return space, _refusal(space, need_bytes, files)

    def _space(self, pool: Pool) -> Space:
        # Reservations first: what lands meanwhile is then counted twice, not missed.
        own = self._taken(pool).held()
        near = own + [held for each in self._neighbours(pool) if each != pool for held in self._seen(each)]
        there = _existing(pool.folder)
        try:
            status = os.statvfs(there)
            quotas = self._quotas.of(there)
        except OSError as error:
            raise SystemFailure(
                f"cannot determine the free space of pool {pool.name!r}: {there}: {error.strerror}",
                hint=f"check that the file system is mounted, or change `pools.{pool.name}.folder`",
            ) from error
        block = status.f_frsize or status.f_bsize
        used = (status.f_blocks - status.f_bfree) * block
        # f_bavail, not f_bfree: the rest is kept back for root.
        bounds = [_Bound("file system", used + status.f_bavail * block, used, _left(near))]
        if pool.capacity_bytes is not None:
            usage = self._taken(pool).usage()
            used = usage.with_open(own).used_bytes if usage is not None else 0
            bounds.append(_Bound("capacity", pool.capacity_bytes, used, _left(own)))
        inodes = [status.f_favail] if status.f_files else []
        for quota in quotas:
            if quota.limit_bytes is not None:
                promised = [held for held in near if quota.kind == "group" or held.user_id == quota.id]
                bounds.append(_Bound("quota", quota.limit_bytes, quota.used_bytes, _left(promised)))
            if quota.limit_files is not None:
                inodes.append(max(0, quota.limit_files - quota.used_files))
        tightest = min(bounds, key=lambda bound: bound.free)
        return Space(
            tightest.free, tightest.total, tightest.used, tightest.name, _left(own), min(inodes) if inodes else None
        )

    def _neighbours(self, pool: Pool) -> list[Pool]:
        """Return the pools on the same file system, this one included."""
        device = _device(pool.folder)
        return [each for each in self._pools if each == pool or _device(each.folder) == device]

    def _seen(self, pool: Pool) -> list[Held]:
        try:
            return self._taken(pool).held()
        except SystemFailure:  # a pool of somebody else's that we may not look into
            return []

    def _taken(self, pool: Pool) -> Taken:
        return Taken(pool.folder, clock=self._clock)


def parse_pools(
    settings: Mapping[str, Any],
    default_folder: Path,
    origins: Mapping[str, str],
    *,
    environ: Mapping[str, str] = _NOTHING,
) -> list[Pool]:
    """Return the declared pools in their order; "home" at `default_folder` comes last unless it is declared.

    `settings` has, for each name, a folder or a mapping with folder, capacity, purge, speed, purpose, pack and
    links; `origins` has where each was declared ("FILE:LINE"). A folder starts at the file that declares it and
    may hold variables of `environ`. InvalidDocument lists all that is wrong.
    """
    problems: list[Problem] = []
    pools: list[Pool] = []
    for name, given in settings.items():
        if given is None:
            continue
        reader = _Reader(str(name), origins.get(name, ""), environ, problems)
        pool = reader.pool(given, default_folder)
        if pool is not None:
            pools.append(pool)
    if HOME not in settings or settings[HOME] is None:
        pools.append(Pool(HOME, default_folder))
    for index, pool in enumerate(pools):
        for other in pools[:index]:
            inner, outer = Path(os.path.normpath(pool.folder)), Path(os.path.normpath(other.folder))
            if inner.is_relative_to(outer) or outer.is_relative_to(inner):
                where = pool.name if pool.name in origins else other.name
                message = f"pools {other.name!r} and {pool.name!r} share the folder {max(inner, outer, key=_depth)}"
                problems.append(
                    _problem(message, f"pools.{where}", origins.get(where, ""), "give each pool a folder of its own")
                )
    if problems:
        raise InvalidDocument(problems)
    return pools


class _Reader:
    """Reads what the settings say of one pool and notes what is wrong."""

    def __init__(self, name: str, origin: str, environ: Mapping[str, str], problems: list[Problem]) -> None:
        self.name = name
        self.origin = origin
        self.environ = environ
        self.problems = problems

    def pool(self, given: Any, default_folder: Path) -> Pool | None:
        before = len(self.problems)
        if not _POOL_NAME.fullmatch(self.name):
            self._wrong(f"{self.name!r} cannot name a pool", hint="letters, digits, dashes and underscores")
        fields = {"folder": given} if isinstance(given, (str, Path)) else given
        if not isinstance(fields, Mapping):
            self._wrong(f"expected a folder or keys with values, found {given!r}")
            return None
        readers: dict[str, tuple[str, Callable[[Any], Any]]] = {
            "folder": ("folder", self._folder),
            "capacity": ("capacity_bytes", parse_size),
            "purge": ("purge_days", _days),
            "speed": ("speed", _one_of(_CLASSES)),
            "purpose": ("purpose", _one_of(get_args(Purpose))),
            "pack": ("pack_below_bytes", parse_size),
            "links": ("links", _links),
        }
        values: dict[str, Any] = {"folder": default_folder} if self.name == HOME else {}
        for key, value in fields.items():
            if key not in readers:
                near = did_you_mean(str(key), readers)
                self._wrong("no such key" + (f"; {near}" if near else ""), key, hint=f"known: {', '.join(readers)}")
            elif value is not None:
                field, read = readers[key]
                try:
                    values[field] = read(value)
                except UsageError as error:
                    self._wrong(str(error), key, hint=error.hint or "")
        if "folder" not in values and len(self.problems) == before:
            self._wrong("a pool needs a folder", hint=f"write {self.name}: FOLDER")
        return Pool(self.name, **values) if len(self.problems) == before else None

    def _folder(self, given: Any) -> Path:
        if not isinstance(given, (str, Path)) or not str(given).strip() or "\0" in str(given):
            raise UsageError(f"expected a folder, found {given!r}")
        # A variable that is not set stays as it is: a pool on a job's own disk is there in jobs alone.
        text = _VARIABLE.sub(lambda match: self.environ.get(match[1] or match[2]) or match[0], str(given))
        if _VARIABLE.search(text):
            return Path(text[text.index("$") :])
        folder = Path(text).expanduser()
        file = self.origin.rpartition(":")[0]
        if not folder.is_absolute() and file.startswith("/"):
            folder = Path(file).parent / folder
        if not folder.is_absolute():
            raise UsageError(f"the folder {str(given)!r} is relative", hint="write the whole path, from / or ~")
        return Path(os.path.normpath(folder))

    def _wrong(self, message: str, key: object = None, hint: str = "") -> None:
        field = f"pools.{self.name}" + ("" if key is None else f".{key}")
        self.problems.append(_problem(message, field, self.origin, hint))


def _problem(message: str, field: str, origin: str, hint: str) -> Problem:
    file, _, line = origin.rpartition(":")
    if file and line.isdigit():
        return Problem(message, field=field, file=file, line=int(line), hint=hint)
    return Problem(message, field=field, file=origin, hint=hint)


def _days(given: Any) -> int:
    hint = "write a number of days, such as '30 d'"
    if not isinstance(given, str) or given.strip().isdigit():
        raise UsageError(f"{given!r} has no unit", hint=hint)
    days = int(parse_duration(given) // 86400)
    if days < 1:
        raise UsageError(f"{given!r} is less than a day", hint=hint)
    return days


def _one_of(words: Sequence[str]) -> Callable[[Any], str]:
    def read(given: Any) -> str:
        if given not in words:
            near = did_you_mean(str(given), words)
            raise UsageError(f"{given!r} is unknown" + (f"; {near}" if near else ""), hint=f"known: {', '.join(words)}")
        return str(given)

    return read


def _links(given: Any) -> tuple[str, ...]:
    ways = [given] if isinstance(given, str) else given
    if not isinstance(ways, Sequence) or not ways:
        raise UsageError(f"expected a list of ways, found {given!r}", hint=f"known: {', '.join(WAYS)}")
    return tuple(dict.fromkeys(map(_one_of(WAYS), ways)))


def _depth(path: Path) -> int:
    return len(path.parts)


def _missing(pool: Pool) -> str:
    """Return why a pool's folder is not there and cannot be made; an empty text when it is or can."""
    folder, there = pool.folder, _existing(pool.folder)
    if not folder.is_absolute():
        return f"its folder {folder} needs a variable that is not set"
    # No more than one level is made, or a disk that is not mounted would fill the one below it.
    if there not in (folder, folder.parent) and pool.name != HOME:
        return f"no folder {folder.parent}"
    return "" if there.is_dir() else f"{there} is not a folder"


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there."""
    return next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)


def _device(folder: Path) -> int:
    try:
        return os.stat(_existing(folder)).st_dev
    except OSError:
        return -1


def _left(held: Sequence[Held]) -> int:
    return sum(each.left_bytes for each in held if each.alive)


def _class(pool: Pool, speed: Speed | None) -> SpeedClass:
    if speed is None:
        return pool.speed
    rate = speed.bytes_per_s
    return "fast" if rate >= _FAST_BYTES_PER_S else "slow" if rate < _SLOW_BYTES_PER_S else "normal"


def _need(need_bytes: int, parts: Mapping[str, int] | None) -> str:
    listed = ", ".join(f"{name} {format_size(size)}" for name, size in (parts or {}).items())
    return format_size(need_bytes) + (f" ({listed})" if listed else "")


def _refusal(space: Space, need_bytes: int, files: int) -> str:
    if need_bytes > space.free_bytes:
        held = f", {format_size(space.reserved_bytes)} are reserved" if space.reserved_bytes else ""
        return f"has {format_size(space.free_bytes)} free ({space.limited_by}{held})"
    if space.inodes_free is not None and files > space.inodes_free:
        return f"has room for {space.inodes_free} more files, and {files} are needed"
    return ""


def _hint(pool: Pool | None, fits: Sequence[str] = ()) -> str:
    larger = "declare a larger pool under `pools` in the settings"
    if pool is not None and pool.capacity_bytes is not None:
        larger = f"raise `pools.{pool.name}.capacity` in the settings"
    free = f"free space with `fairmile store gc`, or {larger}"
    if pool is None:  # all of them were tried
        return free
    return f"choose another one with `--pool {fits[0] if fits else 'NAME'}`, {free}"


def _speed_reason(pool: Pool, speed: Speed | None) -> str:
    if speed is None:
        return f"declared {pool.speed}, not measured"
    memory = " from this host's memory" if speed.read_from == "memory" else ""
    return (
        f"writes {format_size(round(speed.write_bytes_per_s))}/s, reads {format_size(round(speed.read_bytes_per_s))}/s"
        f"{memory}, creates {speed.creates_per_s:.0f} small files/s (measured {speed.measured[:10]} on {speed.host})"
    )


def _cautions(pool: Pool, storage: str) -> list[str]:
    cautions = []
    if storage == speeds.RAM_DISK:
        cautions.append("uses the memory of the machine and is empty after a restart")
    if pool.purge_days is not None:
        cautions.append(f"purged after {pool.purge_days} days")
    if pool.purpose == "archive":
        cautions.append("an archive: used only if no other pool has space")
    return cautions
