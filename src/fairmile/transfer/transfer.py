"""The transfer: a plan carried out, resumable, with its room reserved."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.digest import ManifestEntry, sha256_hex
from fairmile.base.errors import FairmileError, Integrity, SystemFailure
from fairmile.base.files import Lock, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.store.files import Placed, Stored, Together, total_bytes
from fairmile.store.objects import make_folder, open_shared, writing
from fairmile.store.refs import Ref
from fairmile.store.store import Store
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.items import Brought, Failure, Item, Silent, Watcher
from fairmile.transfer.plan import Plan
from fairmile.transfer.planner import Planner, archive_name
from fairmile.transfer.remote import Context

if TYPE_CHECKING:
    from fairmile.transfer.engine import Engine

# Where the source says that nothing has changed, nothing need be brought.
_WORK: Registry[Callable[..., Engine]] = Registry(
    "work of a transfer", {"engine": Plugin("fairmile.transfer.engine:Engine")}
)
_PATIENCE_S = 7 * 24 * 3600.0


@dataclass
class Outcome:
    """What a transfer brought: every file of the asset, and how many bytes moved for it."""

    parts: list[Collection[ManifestEntry]] = field(default_factory=list)
    moved_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    validators: dict[str, str] = field(default_factory=dict)

    @property
    def entries(self) -> Collection[ManifestEntry]:
        return Together(self.parts)


class Transfer:
    """Plans and carries out transfers into one store."""

    def __init__(
        self, store: Store, context: Context, watcher: Watcher | None = None, fetchers: Fetchers | None = None
    ) -> None:
        self.store = store
        self.fetchers = fetchers or Fetchers(context)
        self.planner = Planner(store, self.fetchers)
        self._settings = context.settings
        self._watcher = watcher or Silent()

    def close(self) -> None:
        """Close the connections that are kept for further requests."""
        self.fetchers.close()

    @contextmanager
    def turn(self, plan: Plan) -> Iterator[bool]:
        """Hold the right to bring what a plan is for, and tell whether another process was at it before.

        One process at a time brings an asset into a pool, the others wait. What an attempt notes for the next one
        goes when the block ends well.
        """
        if not plan.items:
            yield False
            return
        objects = self.store.objects(plan.pool)
        with writing(objects.incoming):
            make_folder(objects.root, objects.incoming)
        path = objects.incoming / f"{_attempt(plan)}.lock"
        is_busy = path.exists()
        if is_busy:
            self._watcher.note(f"{plan.what}: another process is fetching it; waiting")
        with Lock(path, timeout_s=_PATIENCE_S):
            yield is_busy
            self._record(plan).remove()

    def execute(self, plan: Plan, *, fresh: bool = False) -> Outcome:
        """Bring what a plan lists and return every file; what came is kept also when something fails.

        The caller holds the `turn` of the plan until it has named what came.
        """
        outcome = Outcome([plan.present], notes=list(plan.notes))
        if not plan.items:
            return outcome
        objects = self.store.objects(plan.pool)
        record = self._record(plan)
        with self.store.pools.reserve(plan.pool, plan.need_bytes, plan.what) as room:
            todo = self._not_yet(plan, record, outcome, fresh)
            record.hold(plan.present)
            self._watcher.begin(plan.what, plan.download_bytes, plan.is_estimate)
            engine = _WORK["engine"](
                objects,
                self.fetchers,
                self._settings,
                self._watcher,
                fresh=fresh,
                on_landed=room.shrink,
                room_bytes=self.store.pools.space(plan.pool).free_bytes + plan.unpacked_bytes,
            )

            def keep(brought: list[Brought]) -> None:
                record.add(brought, self._keep(brought, plan))
                _collect(outcome, brought)

            failures = engine.bring(todo, keep)
            if failures:
                raise _failed(failures, len(todo))
        return outcome

    def _record(self, plan: Plan) -> _Record:
        return _Record(self.store.objects(plan.pool).incoming / f"{_attempt(plan)}.done", self.store)

    def _not_yet(self, plan: Plan, record: _Record, outcome: Outcome, fresh: bool) -> list[Item]:
        """Return what is still to come, after an interrupted attempt or another process's work."""
        done = {} if fresh else record.read()
        todo: list[Item] = []
        digests = [item.sha256 for item in plan.items if item.sha256 is not None]
        absent = set(digests if fresh else self.store.absent(digests))
        for item in plan.items:
            entries, validator = done.get(_name(item), ((), "")) if done else ((), "")
            if not entries or _has_changed(item, validator):
                entries, validator = () if fresh or item.sha256 in absent else self._present(item), ""
            if entries and self._has_all(entries):
                outcome.parts.append(entries)
                if validator:
                    outcome.validators[item.path] = validator
            else:
                todo.append(item)
        return todo

    def _has_all(self, entries: Collection[ManifestEntry]) -> bool:
        inner = entries.entries if isinstance(entries, Placed) else entries
        if isinstance(inner, Stored):
            return self.store.complete(inner.root)
        return all(entry.sha256 in self.store for entry in entries)

    def _present(self, item: Item) -> Sequence[ManifestEntry]:
        size = self.store.size(item.sha256) if item.sha256 is not None and not item.unpack else None
        return () if size is None or item.sha256 is None else (ManifestEntry(item.path, size, item.sha256, item.mode),)

    def _keep(self, brought: list[Brought], plan: Plan) -> dict[str, str]:
        """Store the tree of each item of several files, and return its root by the item's name.

        An archive is known by its content from now on.
        """
        roots: dict[str, str] = {}
        for each in brought:
            if not each.item.unpack and len(each.entries) == 1:
                continue
            root = roots[_name(each.item)] = self.store.put_tree(each.entries, plan.pool)
            if each.item.unpack and each.sha256:
                size, files = total_bytes(each.entries), len(each.entries)
                name = archive_name(each.sha256)
                self.store.set_ref(Ref("url", name, root, size, files, self.store.clock()), plan.pool)
        return roots


class _Record:
    """A file that lists what came so far, so that an interrupted transfer goes on where it stopped."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path = path
        self._store = store

    def read(self) -> dict[str, tuple[Collection[ManifestEntry], str]]:
        """Return files and validator of each item that came; a line that was cut off does not count."""
        items: dict[str, tuple[Collection[ManifestEntry], str]] = {}
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return items
        for line in text.splitlines():
            try:
                name, entries, validator = json.loads(line)
                items[name] = self._files(entries), validator
            except (ValueError, TypeError, KeyError):
                continue
        return items

    def _files(self, row: Any) -> Collection[ManifestEntry]:
        if isinstance(row, dict):
            tree = Stored(row["tree"], row["files"], self._store.tree)
            return Placed(row["into"], tree) if row["into"] else tree
        return [ManifestEntry(path, size, sha256, mode) for path, size, sha256, mode in row]

    def add(self, brought: Sequence[Brought], roots: Mapping[str, str]) -> None:
        """Add items whose bytes are safe in the store; those with a digest are found by it, and only held.

        `roots` are the trees of those that have one, by the item's name.
        """
        rows: list[tuple[str, Any, str]] = []
        held: list[ManifestEntry] = []
        for each in brought:
            name = _name(each.item)
            if name in roots:
                tree = {"tree": roots[name], "files": len(each.entries), "into": each.item.into}
                rows.append((name, tree, each.validator))
            elif each.item.sha256 is None:
                rows.append((name, _row(each.placed), each.validator))
            else:
                held += each.entries
        self._append([*rows, *([("", _row(held), "")] if held else [])])

    def hold(self, entries: Collection[ManifestEntry]) -> None:
        """Keep a clean-up away from files that are there already; no item has an empty name."""
        parts = entries.parts if isinstance(entries, Together) else (entries,)
        inner = [part.entries if isinstance(part, Placed) else part for part in parts]
        trees = [{"tree": part.root, "files": len(part), "into": ""} for part in inner if isinstance(part, Stored)]
        files = [entry for part in inner if not isinstance(part, Stored) for entry in part]
        self._append([("", row, "") for row in (*trees, *([_row(files)] if files else []))])

    def _append(self, rows: Sequence[tuple[str, Any, str]]) -> None:
        if not rows:
            return
        lines = [json.dumps(row) for row in rows]
        try:
            with open(open_shared(self._path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8") as stream:
                stream.write("".join(line + "\n" for line in lines))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise write_failure(str(self._path), error) from error

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _row(entries: Collection[ManifestEntry]) -> list[list[Any]]:
    return [[entry.path, entry.size_bytes, entry.sha256, entry.mode] for entry in entries]


def _attempt(plan: Plan) -> str:
    return f"asset-{sha256_hex(plan.what.encode('utf-8', 'surrogateescape'))}"


def _has_changed(item: Item, validator: str) -> bool:
    now = {remote.validator for remote in item.sources if remote.validator}
    return bool(validator and now and not item.checksums) and validator not in now


def _name(item: Item) -> str:
    return f"{item.key} {item.path}"


def _collect(outcome: Outcome, brought: Sequence[Brought]) -> None:
    for each in brought:
        outcome.parts.append(each.placed)
        outcome.moved_bytes += each.moved_bytes
        outcome.notes += each.notes
        if each.validator:
            outcome.validators[each.item.sources[0].path] = each.validator


def _failed(failures: Sequence[Failure], total: int) -> FairmileError:
    """Return the error that tells what could not be fetched: a wrong byte before a missing answer."""
    worst = next((each for each in failures if isinstance(each.error, Integrity)), failures[0])
    if total == 1:
        return worst.error
    kind = type(worst.error) if type(worst.error) in (Integrity,) else SystemFailure
    rest = f" (and {len(failures) - 1:,} more)" if len(failures) > 1 else ""
    message = f"{len(failures):,} of {total:,} files could not be fetched: {worst.item.path}: {worst.error}{rest}"
    return kind(message, hint=worst.error.hint or "the others are stored; fetch again for the rest")
