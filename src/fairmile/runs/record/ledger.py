"""All runs of one workspace: each a folder of its own, and an index that can be deleted and made again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import stat
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import Conflict, DiskFailure, FairmileError, NotFound, SystemFailure, UsageError
from fairmile.base.files import write_failure
from fairmile.base.garbage import no_search
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.words import did_you_mean
from fairmile.runs.execute.processes import find_processes
from fairmile.runs.record.index_rows import (
    COLUMNS,
    LISTED,
    RunRow,
    assets_of,
    lost_its_recorder,
    names_of,
    read_row,
    row_of,
    state_seen,
)
from fairmile.runs.record.layout import PACKED, RECORD, read_record, write_record
from fairmile.runs.record.query import RunQuery
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.shapes import ChangesDict, IndexDict, RunPageDict, RunRowsDict

if TYPE_CHECKING:
    from fairmile.runs.record.packing import pack, read_packed, unpack
else:
    pack = lazy("fairmile.runs.record.packing:pack")
    read_packed = lazy("fairmile.runs.record.packing:read_packed")
    unpack = lazy("fairmile.runs.record.packing:unpack")

C = TypeVar("C")
_INDEX = ".index.sqlite"
_NOT_DAMAGED = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")
_VERSION = 5
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # 32
_LAST = "last"
_HISTORY = 20
_STALE_S = 5.0  # a flow of a thousand steps asks for as many histories
_SCHEMA = f"""
CREATE TABLE runs ({", ".join(f"{name} PRIMARY KEY" if name == "id" else name for name in COLUMNS)}) WITHOUT ROWID;
CREATE INDEX by_time ON runs (created);
CREATE INDEX by_identity ON runs (identity);
CREATE INDEX by_group ON runs (run_group);
CREATE INDEX by_name ON runs (name, created);
CREATE INDEX by_state ON runs (state);
CREATE TABLE look (stamps TEXT);
PRAGMA user_version = {_VERSION};
"""


def _make_private(file: Path) -> None:
    """Make a file that its owner alone can read, as the folders of runs are; SQLite's journals take over its mode."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # it is somebody else's, or cannot be written: SQLite tells what can be done with it
        return
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


class RunRows(Results[RunRow]):
    """A list of runs."""

    def to_dict(self) -> RunRowsDict:
        return {"runs": [row.to_dict() for row in self]}

    def summary(self) -> str:
        states = Counter(str(row.state) for row in self)
        return ", ".join([f"{len(self):,} runs", *(f"{number:,} {state}" for state, number in sorted(states.items()))])

    def _repr_html_(self) -> str:
        rows = [
            {"run": row.id, "state": str(row.state), "started": row.created, "took_s": row.elapsed_s}
            | {f"params.{name}": value for name, value in row.params.items()}
            | {f"metrics.{name}": value for name, value in row.metrics.items()}
            for row in self
        ]
        return Results(rows)._repr_html_()


@dataclass(frozen=True, repr=False)
class RunPage(Result):
    """A part of a list of runs: from `start` of `total`; `states` counts all that match but for their state."""

    rows: RunRows
    start: int
    total: int
    states: Mapping[str, int]

    def to_dict(self) -> RunPageDict:
        return {**self.rows.to_dict(), "start": self.start, "total": self.total, "states": dict(self.states)}

    def summary(self) -> str:
        return f"{len(self.rows):,} of {self.total:,} runs"


@dataclass(frozen=True, repr=False)
class RunIndex(Result):
    """The index of runs, and how many it holds."""

    runs: int

    def to_dict(self) -> IndexDict:
        return {"runs": self.runs}

    def summary(self) -> str:
        return f"{self.runs:,} runs"


class Changes(Results[C]):
    """What a call changed, such as ids or files; `what` is the verb, `removed` or `would remove`."""

    def __init__(self, what: str, changed: Iterable[C] = ()) -> None:
        super().__init__(changed)
        self.what = what

    def names(self) -> list[str]:
        """Return each of them as text."""
        return [str(each) for each in self]

    def to_dict(self) -> ChangesDict:
        return {"done": self.names(), "what": self.what}

    def summary(self) -> str:
        return f"{self.what} {', '.join(self.names()) or 'nothing'}"


class Ledger:
    """The runs below one folder. Whoever executes a run writes only into its folder; the index is a cache.

    Runs that executed or read one of the `hidden` assets, given as `catalog/kind/name`, are not there.
    """

    def __init__(self, root: Path, *, hidden: Iterable[str] = ()) -> None:
        self.root = root
        # A record may state an asset without its catalog, or by its name alone.
        self._hidden = frozenset(name for asset in hidden for name in (asset.partition("/")[2], asset.split("/")[-1]))
        self._shared: sqlite3.Connection | None = None
        self._recent: dict[str, deque[Run]] = {}
        self._seen: dict[str, Run] = {}  # what the index was last brought up to date with
        self._refreshed_at = float("-inf")

    def create(self, record: RunRecord) -> Path:
        """Make the folder of a new run and return it; its record gets an id, and is not written yet."""
        while True:
            id = f"{record.spec.name}-{''.join(_LETTERS[byte % 32] for byte in os.urandom(6))}"
            folder = self.root / id
            if os.path.exists(f"{folder}{PACKED}"):
                continue
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue
            except FileNotFoundError:  # the first run
                self._make_root()
                continue
            except OSError as error:
                raise write_failure(str(folder), error) from error
            break
        record.id, record.created = id, time.time()
        return folder

    def _make_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_failure(str(self.root), error) from error

    def adopt(self, folder: Path, record: RunRecord) -> None:
        """Give a record the folder that `create` made for a run of which nothing more was written."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.id, record.created = folder.name, time.time()

    def write(self, folder: Path, record: RunRecord) -> None:
        """Keep the record of a run that does not run yet; of one that is new nothing stays where that fails."""
        try:
            write_record(folder, record)
        except DiskFailure:
            if not record.attempts:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def get(self, reference: str) -> Run:
        """Return the run that an id, the unique start or end of one, `last`, or the path of a folder or pack means."""
        if "/" in reference or reference in (".", ".."):
            return self._at(Path(reference))
        if reference == _LAST:
            newest = self.rows(limit=1)
            if not newest:
                raise NotFound("no run has been recorded", hint="`fairmile run train.py` records one")
            reference = newest[0].id
        run = self.find(reference)
        return run if run is not None else self._at(self.root / self._complete(reference))

    def find(self, id: str) -> Run | None:
        """Return the run with exactly this id, or None."""
        folder = self.root / id
        try:
            run = Run(read_record(folder), folder)
        except (FileNotFoundError, NotADirectoryError):
            packed = folder.with_name(id + PACKED)
            if not packed.is_file():
                return None
            run = Run(read_packed(packed), packed, packed=True)
        except ValueError:  # a name that no file can have
            return None
        return None if self._is_hidden(run) else run

    def history(self, name: str) -> list[Run]:
        """Return the last runs of a name that succeeded; they are looked for once in the life of a process."""
        if name not in self._recent:
            recent: deque[Run] = deque(maxlen=_HISTORY)
            for row in self.rows(name=name, states=[RunState.DONE], limit=_HISTORY, stale_s=_STALE_S):
                with contextlib.suppress(FairmileError):
                    run = self._seen.pop(row.id, None)  # just read for the index
                    recent.append(run if run is not None else self.get(row.id))
            self._recent[name] = recent
        return list(self._recent[name])

    def remember(self, run: Run) -> None:
        """Add a run that succeeded to the history of its name."""
        if run.name in self._recent:
            self._recent[run.name].appendleft(run)

    def select(self, reference: str) -> list[Run]:
        """Return the runs that an id, a group or a name means, the oldest first; NotFound where there is none."""
        if reference == _LAST or "/" in reference or reference in (".", "..") or self.find(reference) is not None:
            return [self.get(reference)]
        with self._index() as index:
            rows = index.execute(
                "SELECT id FROM runs WHERE run_group = ?1 OR name = ?1 ORDER BY created, id", [reference]
            ).fetchall()
        return [self.get(id) for (id,) in rows] or [self.get(reference)]

    def rows(
        self,
        *,
        name: str = "",
        group: str = "",
        states: Sequence[RunState] = (),
        tag: str = "",
        identity: str = "",
        outside: Sequence[str] = (),
        limit: int | None = None,
        stale_s: float = 0.0,
    ) -> RunRows:
        """Return what is known of runs, or was `stale_s` ago, the newest first; without the groups `outside`."""
        wanted = {"name": name, "run_group": group, "identity": identity}
        clauses = [f"{column} = ?" for column, value in wanted.items() if value]
        values: list[Any] = [value for value in wanted.values() if value]
        if states:
            clauses.append(f"state IN ({', '.join('?' * len(states))})")
            values += [str(state) for state in states]
        if outside:
            clauses.append("run_group NOT IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(list(outside)))
        if tag:
            clauses.append("EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)")
            values.append(tag)
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        with self._index(stale_s) as index:
            question = f"SELECT {LISTED} FROM runs {where}"
            with no_search():  # of a hundred thousand rows none is garbage
                if limit:
                    some = index.execute(f"{question} ORDER BY created DESC, id LIMIT ?", [*values, limit])
                    return RunRows(map(RunRow, some))
                rows = index.execute(question, values).fetchall()
                rows.sort(key=itemgetter(0))  # SQLite needs half as long again where it sorts them
                rows.sort(key=itemgetter(3), reverse=True)
                return RunRows(map(RunRow, rows))

    def page(self, query: RunQuery, *, start: int = 0, limit: int = 50, stale_s: float = 0.0) -> RunPage:
        """Return a part of the runs that a query matches, in its order, as they were at most `stale_s` ago."""
        where, order = query.where(), query.order()
        with self._index(stale_s) as index:
            if query.text:
                # Conditions on parameters and metrics cost most: they are looked at once, for counts and part.
                question = f"SELECT id, state FROM runs WHERE {where.sql} ORDER BY {order.sql}"
                matches = index.execute(question, [*where.values, *order.values]).fetchall()
                states = Counter(state for _, state in matches)
                chosen = [id for id, state in matches if not query.states or state in query.states]
                shown, total = chosen[start : start + limit], len(chosen)
            else:
                states = Counter(dict(index.execute("SELECT state, count(*) FROM runs GROUP BY state")))
                wanted = list(dict.fromkeys(query.states or states))
                question = f"SELECT id FROM runs WHERE state IN ({', '.join('?' * len(wanted))}) ORDER BY {order.sql}"
                values = [*wanted, *order.values, limit, start]
                shown = [id for (id,) in index.execute(f"{question} LIMIT ? OFFSET ?", values)]
                total = sum(states[state] for state in wanted)
            question = f"SELECT {LISTED} FROM runs WHERE id IN ({', '.join('?' * len(shown))})"
            rows = {each[0]: RunRow(each) for each in index.execute(question, shown)}
        return RunPage(RunRows(rows[id] for id in shown), start, total, states)

    def members(self, group: str) -> list[str]:
        """Return the ids of the runs of a group, the oldest first."""
        with self._index() as index:
            rows = index.execute("SELECT id FROM runs WHERE run_group = ? ORDER BY created, id", [group])
            return [id for (id,) in rows]

    def metric_counts(self, most: int) -> dict[str, int]:
        """Return the metrics that most runs have, and how many have each."""
        question = "SELECT key, count(*) FROM runs, json_each(metrics) GROUP BY key ORDER BY count(*) DESC, key LIMIT ?"
        with self._index() as index:
            return dict(index.execute(question, [most]).fetchall())

    def counts(self, groups: Sequence[str] = ()) -> dict[str, dict[RunState, int]]:
        """Return how many runs are in which state: of each of some groups, and of all runs under an empty name."""
        counts: dict[str, dict[RunState, int]] = {}
        with self._index() as index:
            for group in ("", *groups):
                where, values = ("WHERE run_group = ?", [group]) if group else ("", [])
                rows = index.execute(f"SELECT state, count(*) FROM runs {where} GROUP BY state", values)
                counts[group] = {RunState(state): number for state, number in rows}
        return counts

    def mean_elapsed(self, groups: Sequence[str]) -> dict[str, float]:
        """Return how long the runs of groups took that succeeded, on average, where any did."""
        question = "SELECT avg(elapsed_s) FROM runs WHERE run_group = ? AND state = ?"
        with self._index() as index:
            means = {group: index.execute(question, [group, str(RunState.DONE)]).fetchone()[0] for group in groups}
        return {group: mean_s for group, mean_s in means.items() if mean_s is not None}

    def alike(self, identity: str) -> Iterator[Run]:
        """Yield the runs that succeeded with exactly this that went in, the newest first."""
        for row in self.rows(identity=identity, states=[RunState.DONE]) if identity else ():
            with contextlib.suppress(NotFound):  # removed meanwhile
                yield self.get(row.id)

    def with_jobs(self) -> list[str]:
        """Return the ids of runs that have not ended and are carried by a job."""
        with self._index() as index:
            states = [str(RunState.QUEUED), str(RunState.RUNNING), str(RunState.INTERRUPTED)]
            return [id for (id,) in index.execute("SELECT id FROM runs WHERE job AND state IN (?, ?, ?)", states)]

    def reindex(self, *, dry_run: bool = False) -> RunIndex:
        """Rebuild the index from the folders."""
        if not dry_run:
            (self.root / _INDEX).unlink(missing_ok=True)
        with self._index() as index:
            return RunIndex(int(index.execute("SELECT count(*) FROM runs").fetchone()[0]))

    def pack(self, reference: str) -> Path:
        """Put the folder of a run that has ended into one file."""
        run = self.get(reference)
        if run.packed:
            return run.folder
        if not self.state_of(run).is_end:
            raise Conflict(f"run {run.id} is {self.state_of(run)}", hint="wait until it ends")
        return pack(run.folder)

    def unpack(self, reference: str) -> Path:
        """Bring the folder of a packed run back."""
        run = self.get(reference)
        return unpack(run.folder) if run.packed else run.folder

    def pack_runs(self, references: Iterable[str], *, dry_run: bool = False) -> Changes[Path]:
        """Pack several runs, each into one file, and return the files; with `dry_run` the folders."""
        paths = [self.get(each).folder if dry_run else self.pack(each) for each in references]
        return Changes("would pack" if dry_run else "packed into", paths)

    def unpack_runs(self, references: Iterable[str], *, dry_run: bool = False) -> Changes[Path]:
        """Restore the folders of several packed runs and return them; with `dry_run` the packed files."""
        paths = [self.get(each).folder if dry_run else self.unpack(each) for each in references]
        return Changes("would unpack" if dry_run else "unpacked to", paths)

    def remove(self, references: Iterable[str], *, dry_run: bool = False) -> Changes[str]:
        """Remove runs that have ended and return their ids."""
        if dry_run:
            return Changes("would remove", [self.get(each).id for each in references])
        runs = list({run.id: run for run in map(self.get, references)}.values())
        for run in runs:
            if run.folder.parent != self.root:
                raise UsageError(f"{run.folder} is not in this workspace", hint="remove it by hand")
            if not self.state_of(run).is_end:
                raise Conflict(f"run {run.id} is {self.state_of(run)}", hint="wait until it ends, or cancel it")
        for run in runs:
            try:
                # It loses its name first, so that nobody ever finds half a run.
                gone = self.root / f".{run.id}.removed-{os.urandom(6).hex()}"
                run.folder.rename(gone)
                if run.packed:
                    gone.unlink()
                else:
                    shutil.rmtree(gone)
            except FileNotFoundError:  # another process did it
                continue
            except OSError as error:
                raise write_failure(str(run.folder), error) from error
        return Changes("removed", [run.id for run in runs])

    def hides(self, assets: Iterable[str]) -> bool:
        """Tell whether one of some assets, as records state them, is hidden here."""
        return not self._hidden.isdisjoint(names_of(assets))

    def state_of(self, run: Run) -> RunState:
        """Return where a run stands: one whose recorder and program are gone without a word was interrupted."""
        state = run.state
        return state_seen(state, run.record, run.folder) if not state.is_end else state

    def is_orphaned(self, run: Run) -> bool:
        """Tell whether the program of a run outlives its recorder."""
        return run.state is RunState.RUNNING and lost_its_recorder(run.record) and bool(find_processes(run.folder))

    # Finding

    def _at(self, path: Path) -> Run:
        try:
            is_packed = path.suffix == PACKED and path.is_file()
            run = Run(read_packed(path), path, packed=True) if is_packed else Run(read_record(path), path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{path} is not a run: it has no {RECORD}") from None
        if self._is_hidden(run):
            raise self._not_found(path.name)
        return run

    def _is_hidden(self, run: Run) -> bool:
        return bool(self._hidden) and self.hides(assets_of(run.record))

    def _complete(self, reference: str) -> str:
        if not reference:
            raise UsageError("the name of the run is empty", hint="`fairmile runs ls` lists them")
        names = [row.id for row in self.rows()] if self._hidden else list(self._entries())
        matches = [name for name in names if name.startswith(reference) or name.endswith(f"-{reference}")]
        if len(matches) == 1:
            return self._entries()[matches[0]].name
        if matches:
            newest = [row.id for row in self.rows(limit=1000) if row.id in matches][:3]
            shown = ", ".join(newest or sorted(matches)[:3])
            raise NotFound(
                f"{reference!r} is ambiguous: {len(matches)} runs, the newest {shown}",
                hint="give a longer part of the id, or `last`",
            )
        raise self._not_found(reference)

    def _not_found(self, reference: str) -> NotFound:
        near = did_you_mean(reference, [row.id for row in self.rows(limit=1000)])
        return NotFound(
            f"no run named {reference!r}" + (f"; {near}" if near else ""), hint="`fairmile runs ls` lists them"
        )

    def _entries(self) -> dict[str, os.DirEntry[str]]:
        """Return the folders and packs of all runs by id; a folder goes before a pack of the same run."""
        by_id: dict[str, os.DirEntry[str]] = {}
        try:
            with os.scandir(self.root) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith("."):
                        continue
                    if not name.endswith(PACKED):
                        by_id[name] = entry
                    else:
                        by_id.setdefault(name.removesuffix(PACKED), entry)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise SystemFailure(f"cannot read {self.root}: {error.strerror}") from error
        return by_id

    # The index

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Look at the folders of the runs once for all questions in the block."""
        with self._index() as self._shared:
            try:
                yield
            finally:
                self._shared = None

    @contextlib.contextmanager
    def _index(self, stale_s: float = 0.0) -> Iterator[sqlite3.Connection]:
        """Open the index, brought up to date unless it was so `stale_s` ago; where it cannot be kept, one in memory."""
        if self._shared is not None:
            yield self._shared
            return
        try:
            connection = self._open(self.root / _INDEX)
            began = time.monotonic()
            if began - self._refreshed_at >= stale_s:
                self._refresh(connection)
                self._refreshed_at = began
        except (sqlite3.Error, OSError) as error:
            # Where others work with it, or it is somebody else's, it stays.
            if getattr(error, "sqlite_errorname", "") not in _NOT_DAMAGED:
                for name in (f"{_INDEX}-journal", _INDEX):
                    with contextlib.suppress(OSError):
                        (self.root / name).unlink()
            connection = self._open(None)
            self._refresh(connection)
        try:
            if self._hidden:
                connection.execute(_visible_runs(self._hidden))
            yield connection
        finally:
            connection.close()

    def _open(self, file: Path | None) -> sqlite3.Connection:
        if file is not None and not file.parent.is_dir():
            file = None
        if file is not None:
            _make_private(file)
        connection = sqlite3.connect(str(file) if file else ":memory:", timeout=10, isolation_level=None)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                connection.execute("BEGIN IMMEDIATE")
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version != _VERSION:
                    for table in ("runs", "look"):
                        connection.execute(f"DROP TABLE IF EXISTS {table}")
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        connection.execute(statement)
                connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _refresh(self, connection: sqlite3.Connection) -> None:
        """Read what changed since the last time."""
        version = connection.execute("PRAGMA data_version").fetchone()
        stamps = self._stamps()
        # One digest of all stamps spares the look at each of a hundred thousand rows where nothing changed.
        look = sha256_hex("".join(map("{}/{}\n".format, stamps, stamps.values())).encode("utf-8", "replace"))
        is_known = connection.execute("SELECT 1 FROM look WHERE stamps = ?", (look,)).fetchone() is not None
        known = stamps if is_known else dict(connection.execute("SELECT id, stamp FROM runs"))
        changed: list[tuple[Any, ...]] = []
        vanished = False
        self._seen.clear()
        for id, stamp in () if is_known else stamps.items():
            if known.get(id) != stamp:
                values = read_row(id, stamp, self.root, self._seen)
                vanished |= values is None
                changed += [values] if values is not None else []
        alive = {str(state) for state in (RunState.RUNNING, RunState.QUEUED)}
        changed_ids = {values[0] for values in changed}
        marks = ", ".join("?" * len(alive))
        running = connection.execute(f"SELECT id FROM runs WHERE state IN ({marks})", sorted(alive)).fetchall()
        for (id,) in running:
            try:
                run = self.find(id) if id in stamps and id not in changed_ids else None
            except SystemFailure:  # it is just being replaced, and read the next time
                continue
            if run is not None and str(state := self.state_of(run)) not in alive:
                changed.append(row_of(id, known[id], run.record, state))
        gone = [(id,) for id in known.keys() - stamps.keys()]
        if not changed and not gone and (is_known or vanished):
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            if changed or gone:
                raise
            return  # where the index cannot be written, it serves as it is
        connection.executemany("DELETE FROM runs WHERE id = ?", gone)
        marks = ", ".join("?" * len(COLUMNS))
        connection.executemany(f"INSERT OR REPLACE INTO runs VALUES ({marks})", changed)
        connection.execute("DELETE FROM look")
        # With what another process has written meanwhile, the rows are those of no one look.
        if not vanished and version == connection.execute("PRAGMA data_version").fetchone():
            connection.execute("INSERT INTO look VALUES (?)", (look,))
        connection.execute("COMMIT")

    def _stamps(self) -> dict[str, str]:
        """Return, for every run, what changes when its record does; a folder goes before a pack of the same run."""
        above, stamps, packs = f"{self.root}/", dict[str, str](), dict[str, str]()
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SystemFailure(f"cannot read {self.root}: {error.strerror}") from error
        for name in names:
            if name.startswith("."):
                continue
            is_pack = name.endswith(PACKED)
            try:
                status = os.stat(above + name if is_pack else f"{above}{name}/{RECORD}")
            except (FileNotFoundError, NotADirectoryError):
                continue  # no run
            (packs if is_pack else stamps)[name] = f"{status.st_mtime_ns}-{status.st_ino}"
        for name, stamp in packs.items():
            stamps.setdefault(name.removesuffix(PACKED), stamp)
        return stamps


def _visible_runs(hidden: Iterable[str]) -> str:
    """Return the statement after which `runs` are those that used none of the hidden assets, for one connection."""
    assets = json.dumps(sorted(hidden)).replace("'", "''")  # a view takes no parameters
    used = f"SELECT 1 FROM json_each(inputs) JOIN json_each('{assets}') AS hidden USING (value)"
    return f"CREATE TEMP VIEW runs AS SELECT * FROM main.runs WHERE NOT EXISTS ({used})"
