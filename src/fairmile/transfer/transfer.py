"""The transfer: a plan carried out, resumable, with its room reserved."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.digest import ManifestEntry, sha256_hex
from fairmile.base.errors import FairmileError, Integrity, SystemFailure
from fairmile.base.files import Lock, write_failure
from fairmile.base.registry import Plugin, Registry
from fairmile.store.objects import make_folder, open_shared, writing
from fairmile.store.refs import Ref
from fairmile.store.store import Store
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.items import Brought, Failure, Item, Silent, Watcher
from fairmile.transfer.plan import Plan, Planner, archive_name
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

    entries: list[ManifestEntry] = field(default_factory=list)
    moved_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    validators: dict[str, str] = field(default_factory=dict)


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
            self._watcher.note(f"{plan.what}: another process is bringing it; waiting")
        with Lock(path, timeout_s=_PATIENCE_S):
            yield is_busy
            self._record(plan).remove()

    def execute(self, plan: Plan, *, fresh: bool = False) -> Outcome:
        """Bring what a plan lists and return every file; what came is kept also when something fails.

        The caller holds the `turn` of the plan until it has named what came.
        """
        outcome = Outcome(list(plan.present), notes=list(plan.notes))
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
                self._keep(brought, plan)
                record.add(brought)
                _collect(outcome, brought)

            failures = engine.bring(todo, keep)
            if failures:
                raise _failed(failures, len(todo))
        return outcome

    def _record(self, plan: Plan) -> _Record:
        return _Record(self.store.objects(plan.pool).incoming / f"{_attempt(plan)}.done")

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
            if entries and all(entry.sha256 in self.store for entry in entries):
                outcome.entries += entries
                if validator:
                    outcome.validators[item.path] = validator
            else:
                todo.append(item)
        return todo

    def _present(self, item: Item) -> Sequence[ManifestEntry]:
        size = self.store.size(item.sha256) if item.sha256 is not None and not item.unpack else None
        return () if size is None or item.sha256 is None else (ManifestEntry(item.path, size, item.sha256, item.mode),)

    def _keep(self, brought: list[Brought], plan: Plan) -> None:
        """Note of which files an archive consists, so that it is known by its content from now on."""
        for each in brought:
            if each.item.unpack and each.sha256:
                skip = len(each.item.into) + 1 if each.item.into else 0
                bare = [
                    ManifestEntry(entry.path[skip:], entry.size_bytes, entry.sha256, entry.mode)
                    for entry in each.entries
                ]
                root = self.store.put_tree(bare, plan.pool)
                size = sum(entry.size_bytes for entry in bare)
                name = archive_name(each.sha256)
                self.store.set_ref(Ref("url", name, root, size, len(bare), self.store.clock()), plan.pool)


class _Record:
    """A file that lists what came so far, so that an interrupted transfer goes on where it stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, tuple[Sequence[ManifestEntry], str]]:
        """Return files and validator of each item that came; a line that was cut off does not count."""
        found: dict[str, tuple[Sequence[ManifestEntry], str]] = {}
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return found
        for line in text.splitlines():
            try:
                name, entries, validator = json.loads(line)
                found[name] = (
                    [ManifestEntry(path, size, sha256, mode) for path, size, sha256, mode in entries],
                    validator,
                )
            except (ValueError, TypeError):
                continue
        return found

    def add(self, brought: Sequence[Brought]) -> None:
        """Add items whose bytes are safe in the store; those with a digest are found by it, and only held."""
        news = [each for each in brought if each.item.sha256 is None or each.item.unpack]
        self._append([(_name(each.item), each.entries, each.validator) for each in news])
        chosen = {id(each) for each in news}
        self.hold([entry for each in brought if id(each) not in chosen for entry in each.entries])

    def hold(self, entries: Sequence[ManifestEntry]) -> None:
        """Keep a clean-up away from files that are there already; no item has an empty name."""
        self._append([("", entries, "")] if entries else [])

    def _append(self, rows: Sequence[tuple[str, Sequence[ManifestEntry], str]]) -> None:
        if not rows:
            return
        lines = [
            json.dumps([name, [[e.path, e.size_bytes, e.sha256, e.mode] for e in entries], validator])
            for name, entries, validator in rows
        ]
        try:
            with open(open_shared(self._path, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8") as stream:
                stream.write("".join(line + "\n" for line in lines))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise write_failure(str(self._path), error) from error

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _attempt(plan: Plan) -> str:
    return f"asset-{sha256_hex(plan.what.encode('utf-8', 'surrogateescape'))}"


def _has_changed(item: Item, validator: str) -> bool:
    now = {remote.validator for remote in item.sources if remote.validator}
    return bool(validator and now and not item.checksums) and validator not in now


def _name(item: Item) -> str:
    return f"{item.key} {item.path}"


def _collect(outcome: Outcome, brought: Sequence[Brought]) -> None:
    for each in brought:
        outcome.entries += each.entries
        outcome.moved_bytes += each.moved_bytes
        outcome.notes += each.notes
        if each.validator:
            outcome.validators[each.item.sources[0].path] = each.validator


def _failed(failures: Sequence[Failure], total: int) -> FairmileError:
    """Return the error that tells what could not be brought: a wrong byte before a missing answer."""
    worst = next((each for each in failures if isinstance(each.error, Integrity)), failures[0])
    if total == 1:
        return worst.error
    kind = type(worst.error) if type(worst.error) in (Integrity,) else SystemFailure
    rest = f" (and {len(failures) - 1:,} more)" if len(failures) > 1 else ""
    message = f"{len(failures):,} of {total:,} files could not be brought: {worst.item.path}: {worst.error}{rest}"
    return kind(message, hint=worst.error.hint or "the others are kept; fetch again to bring the rest")
