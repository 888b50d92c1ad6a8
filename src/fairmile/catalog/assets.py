"""The bytes of assets: fetched once, kept by content, materialized where they are needed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairmile.base.digest import Checksum, ManifestEntry, ni, parse_checksum, sha256_file, sha256_hex
from fairmile.base.errors import Conflict, FairmileError, Integrity, NotFound, UsageError
from fairmile.base.nouns import Noun
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.base.words import slug
from fairmile.catalog import OWN_IDS
from fairmile.catalog.card import Card
from fairmile.catalog.declared import LOCAL, index_path
from fairmile.catalog.fetched import Fetched as Fetched
from fairmile.catalog.fetched import FetchedAssets, Repair, Repairs
from fairmile.catalog.row import CatalogRow
from fairmile.catalog.wanted import Wanted, access_steps, is_public, recognised, signature, wanted
from fairmile.resolve import Nouns, Word, resolve
from fairmile.store.files import total_bytes
from fairmile.store.refs import Ref
from fairmile.store.shelves import GRACE_S, OLDER_THAN_S
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.items import Item, Watcher, check_path
from fairmile.transfer.remote import Remote

# What already exists needs neither plan nor engine, and is handed out before they could be imported.
if TYPE_CHECKING:
    from fairmile.catalog.access import LoadedAsset
    from fairmile.catalog.catalog import Catalog
    from fairmile.store.cleanup import GcPlan
    from fairmile.store.listing import Listing
    from fairmile.store.store import Store
    from fairmile.transfer.plan import Plan, Plans
    from fairmile.transfer.transfer import Outcome, Transfer

_FORMS: Registry[type[LoadedAsset]] = Registry(
    "form of an asset", {"loaded": Plugin("fairmile.catalog.access:LoadedAsset")}
)


_PLANS: Registry[type[Plans]] = Registry("list of plans", {"all": Plugin("fairmile.transfer.plan:Plans")})
_LISTING: Registry[type[Listing]] = Registry("list of files", {"many": Plugin("fairmile.store.listing:Listing")})
_MANY_FILES = 100_000
_LINK_MODE = 0o120000


@dataclass(frozen=True)
class MaterializedAsset:
    """Bytes that a program can read: the only file of an address, else a folder."""

    name: str
    root: str
    path: Path
    size_bytes: int
    files: int


@dataclass(frozen=True)
class _Target:
    """What a name means: a card, or an address.

    `card_sha256` is that of the card's file in `row`; empty where the file cannot be read.
    """

    kind: Literal["card", "url"]
    name: str
    limit: int | None
    address: Wanted | None = None
    own_id: str | None = None
    row: CatalogRow | None = None
    card_sha256: str = ""
    read_card: Callable[[], Card] | None = None
    # The card that states the address, where one does: its conditions hold for the address, too.
    stated_by: Card | None = None

    @property
    def ref_name(self) -> str:
        """What it is called in the store: local cards of several users may bear one handle in a shared pool."""
        own = f" ({sha256_hex(self.own_id.encode())[:8]})" if self.own_id is not None else ""
        unpacked = " unpacked" if self.address is not None and self.address.unpack else ""
        return self.name + own + unpacked + (f" limit={self.limit}" if self.limit is not None else "")

    @cached_property
    def card(self) -> Card | None:
        """The card, read when it is first asked for; one with ten thousand files takes longer than all the rest."""
        return self.read_card() if self.read_card is not None else None

    @cached_property
    def files(self) -> list[Wanted]:
        return [self.address] if self.address is not None else wanted(self.card) if self.card is not None else []

    @cached_property
    def signature(self) -> str:
        # An address may hold a password, so only its digest is kept.
        return signature(self.card) if self.card is not None else sha256_hex(repr(self.address).encode())


_INTERNAL = "has is_referred laid"  # for other parts of Fairmile


class Assets(Noun, internal=_INTERNAL):
    """Assets in the store: fetch, load and repair them."""

    def __init__(
        self, home: Path, catalog: Callable[[], Catalog], store: Store, transfer: Callable[[Watcher | None], Transfer]
    ) -> None:
        self._home = home
        self._open_catalog = catalog
        self._store = store
        self._new_transfer = transfer
        self._views = home / "views"

    @cached_property
    def _catalog(self) -> Catalog:
        """The catalog, opened when a name must be looked up in it."""
        return self._open_catalog()

    def plan(
        self,
        names: str | Sequence[str],
        *,
        pool: str | None = None,
        fresh: bool = False,
        limit: int | None = None,
        sha256: str | None = None,
        unpack: bool = False,
        access_granted: bool = False,
    ) -> Plans:
        """Return what `fetch` would do, with sizes; errors are the same as those of `fetch`."""
        with self._transfer() as transfer:
            targets = self._targets(names, limit, sha256, unpack)
            for target in targets:
                if fresh or self._known(target) is None:
                    _check_access(target, access_granted)
            return _PLANS["all"](self._plan(transfer(), target, pool, fresh) for target in targets)

    def fetch(
        self,
        names: str | Sequence[str],
        *,
        to: Path | None = None,
        pool: str | None = None,
        fresh: bool = False,
        limit: int | None = None,
        sha256: str | None = None,
        unpack: bool = False,
        replace: bool = False,
        access_granted: bool = False,
        on_fetched: Callable[[Fetched], None] | None = None,
        watcher: Watcher | None = None,
    ) -> FetchedAssets:
        """Fetch assets or URLs into the store, and into the folder `to` if given.

        What is stored already, by source or by content, does not move again unless `fresh` is given. `limit` takes
        the first n files. `sha256` and `unpack` are for an address, which has no card to declare them. Of several
        names, one that fails does not stop the others; its error is raised at the end. `on_fetched` gets each as it
        comes, and `watcher` sees the bytes arrive. Data whose card restricts access needs `access_granted`, by which
        you confirm that you may have it; what is stored already needs no second confirmation.
        """
        targets = self._targets(names, limit, sha256, unpack)
        folders = _folders(targets, to)
        if pool is not None:
            _ = self._store.pools[pool]  # NotFound, before anything happens
        assets = FetchedAssets()
        failures: list[FairmileError] = []
        with self._transfer(watcher) as transfer:
            for target, folder in zip(targets, folders, strict=True):
                try:
                    one = self._fetch(transfer, target, pool, fresh, access_granted)
                    assets.append(self._materialized(one, folder, replace) if folder is not None else one)
                except FairmileError as error:
                    failures.append(error)
                    continue
                if on_fetched is not None:
                    on_fetched(assets[-1])
        if failures:
            raise failures[0]
        return assets

    def file(self, address: str, sha256: str | None = None) -> Path:
        """Return the path of the file at a URL, and fetch it unless the store has it."""
        folder = self._views / "files" / sha256_hex(f"{address} {sha256}".encode())[:32]
        files = [path for path in folder.rglob("*") if path.is_file()] if sha256 else []
        if len(files) != 1:
            self.fetch([address], to=folder, sha256=sha256, replace=True)
            files = [path for path in folder.rglob("*") if path.is_file()]
        if len(files) != 1:
            raise UsageError(f"{shown_address(address)} gives {len(files)} files, expected one")
        return files[0]

    def load(
        self,
        name: str,
        *,
        kind: str | None = None,
        fresh: bool = False,
        pool: str | None = None,
        access_granted: bool = False,
        watcher: Watcher | None = None,
    ) -> LoadedAsset:
        """Return an asset with its files, and fetch them unless the store has them; `fresh` fetches again."""
        card = self._catalog.get(name, kind=kind)
        options: dict[str, Any] = {"fresh": fresh, "pool": pool, "access_granted": access_granted, "watcher": watcher}
        fetched = self.fetch(str(card.handle), **options)[0]
        view = self._views / card.kind / card.handle.name / f"{card.handle.version}-{fetched.root[:12]}"
        return _FORMS["loaded"](card, fetched.root, self._store, lambda: view)

    def laid(self, name: str) -> MaterializedAsset:
        """Do what `materialize` does; this name goes in the next version."""
        warnings.warn("Assets.laid is now Assets.materialize", DeprecationWarning, stacklevel=2)
        return self.materialize(name)

    def materialize(self, name: str) -> MaterializedAsset:
        """Return a path where a program can read an asset or a URL, and fetch it unless the store has it."""
        if self._target(name, None).kind == "card":
            loaded = self.load(name)
            sizes = Counter[str]()
            for entry in self._store.tree(loaded.root):
                if entry.mode != _LINK_MODE:
                    sizes.update(files=1, bytes=entry.size_bytes)
            return MaterializedAsset(str(loaded.card.handle), loaded.root, loaded.path, sizes["bytes"], sizes["files"])
        fetched = self.fetch(name)[0]
        folder = self._views / "addresses" / fetched.root[:32]
        self._store.materialize(fetched.root, folder, is_cache=True)
        first = next(self._store.tree(fetched.root)).path if fetched.files == 1 else ""
        path = folder / first
        return MaterializedAsset(fetched.name, fetched.root, path, fetched.size_bytes, fetched.files)

    def has(self, name: str) -> bool:
        """Tell whether the store has all of an asset or a URL as its card describes it; nothing is fetched."""
        return self._known(self._target(name, None)) is not None

    def repair(self, *, dry_run: bool = False) -> Repairs:
        """Fetch all damaged or missing data of the store again."""
        repairs = Repairs(dry_run=dry_run)
        for ref in self._store.refs():
            if ref.kind not in ("card", "url") or ref.name.startswith("archive ") or self._store.complete(ref):
                continue
            limit = f" limit={ref.details['limit']}" if ref.details.get("limit") else ""
            shown = str(ref.details.get("of", ref.name)) + limit
            repairs.append(Repair(shown, "would be fetched again" if dry_run else self._repaired(ref)))
        return repairs

    def _repaired(self, ref: Ref) -> str:
        # How it was fetched belongs to what its name stands for.
        how = {key: ref.details[key] for key in ("limit", "sha256", "unpack") if ref.details.get(key)}
        try:
            # Whoever fetched it confirmed then what had to be confirmed.
            self.fetch(str(ref.details.get("of", ref.name)), access_granted=True, **how)
        except FairmileError as error:
            return f"failed: {error}"
        now = self._store.ref(ref.kind, ref.name)
        return "repaired" if now is not None and self._store.complete(now) else "failed: it is still incomplete"

    def gc(self, *, older_than_s: float = OLDER_THAN_S, grace_s: float = GRACE_S, dry_run: bool = False) -> GcPlan:
        """Remove data that no card, run or pin refers to, and return the plan; see `cleanup.gc`."""
        return self._store.gc(self.is_referred, older_than_s=older_than_s, grace_s=grace_s, dry_run=dry_run)

    def is_referred(self, ref: Ref) -> bool:
        """Return whether a card, a run or a pin refers to a name of the store."""
        if ref.kind != "card":
            return ref.kind != "url"
        home = ref.details.get("home")
        if home not in (None, str(self._home)) and ref.name.startswith(f"{LOCAL}/"):
            return True  # a card of another home, which cannot be asked from here
        try:
            row, _ = self._catalog.resolve(str(ref.details.get("of", ref.name)))
        except NotFound:
            return False
        return not row.gone

    # What a name means

    def _targets(
        self, names: str | Sequence[str], limit: int | None, sha256: str | None, unpack: bool
    ) -> list[_Target]:
        each = [names] if isinstance(names, str) else list(names)
        return [self._target(name, limit, sha256=sha256, unpack=unpack) for name in each]

    def _target(self, name: str, limit: int | None, *, sha256: str | None = None, unpack: bool = False) -> _Target:
        if not name.strip():
            raise UsageError("the name is empty", hint="name an asset, a URL or a path")
        if limit is not None and limit < 1:
            raise UsageError(f"the limit is {limit} files, expected at least 1", hint="use 1 or more")
        is_address = Word(name).is_address and not name.startswith(OWN_IDS)
        if is_address and not index_path(self._home).exists():  # no card can have been given this id yet
            return self._address_target(name, limit, sha256, unpack)
        meaning = resolve(name, Nouns(catalog=lambda: self._catalog), for_="fetch")
        if meaning.row is None:
            return self._address_target(meaning.address, limit, sha256, unpack)
        target = self._card_target(meaning.row, limit)
        card = target.card if is_address else None
        stated = next((file for file in card.files if file.url == name), None) if card is not None else None
        if stated is not None:  # the address of one file means that file, not all the others of its asset
            return replace(self._address_target(name, limit, sha256 or stated.sha256, unpack), stated_by=card)
        if sha256 is not None or unpack:
            raise UsageError("--sha256 and --unpack apply only to URLs; the card of an asset has both")
        return target

    def _card_target(self, row: CatalogRow, limit: int | None) -> _Target:
        """Return what a card stands for; the card stays unread where its file is that of an earlier fetch."""
        digest = self._card_sha256(row)

        def target(handle: str, iri: str, read_card: Callable[[], Card]) -> _Target:
            own_id = iri if row.catalog == LOCAL else None
            return _Target("card", handle, limit, None, own_id, row, digest, read_card)

        as_indexed = target(row.handle, row.iri, lambda: self._catalog.read(row))
        ref = self._store.ref("card", as_indexed.ref_name)
        if ref is not None and _is_of_card(ref, as_indexed):
            return as_indexed
        card = self._catalog.read(row)
        return target(str(card.handle), card.iri, lambda: card)

    def _card_sha256(self, row: CatalogRow) -> str:
        """Return the digest of a card's file as it is now, which the index need not know yet."""
        folder = next((folder for folder in self._catalog.folders() if folder.name == row.catalog), None)
        try:
            return sha256_file(folder.cards_root / row.path) if folder is not None else ""
        except OSError:
            return ""

    @staticmethod
    def _address_target(name: str, limit: int | None, sha256: str | None, unpack: bool) -> _Target:
        address = recognised(name)
        checksums: tuple[Checksum, ...] = ()
        if sha256 is not None:
            parsed = parse_checksum(sha256, "sha256")
            if parsed is None:
                raise UsageError(f"{sha256!r} is not a sha256", hint="expected 64 hex digits")
            checksums = (parsed,)
        file = Wanted("", (address,), checksums=checksums, unpack=unpack)  # its source tells what it is called
        return _Target("url", shown_address(address), limit, address=file)

    # One target

    @contextmanager
    def _transfer(self, watcher: Watcher | None = None) -> Iterator[Callable[[], Transfer]]:
        """Give a transfer to whoever asks for it, the same each time, and close it at the end."""
        made: list[Transfer] = []

        def transfer() -> Transfer:
            if not made:
                made.append(self._new_transfer(watcher))
            return made[0]

        try:
            yield transfer
        finally:
            for each in made:
                each.close()

    def _known(self, target: _Target) -> Ref | None:
        """Return the name under which all of a target already exists."""
        ref = self._store.ref(target.kind, target.ref_name)
        return ref if ref is not None and self._is_there(target, ref) else None

    def _fetch(
        self,
        new_transfer: Callable[[], Transfer],
        target: _Target,
        pool: str | None,
        fresh: bool,
        access_granted: bool,
    ) -> Fetched:
        ref = None if fresh else self._store.ref(target.kind, target.ref_name)
        stored = self._stored(new_transfer, target, ref)
        if stored is not None:
            elsewhere = pool is not None and stored.pool != pool
            return (
                replace(stored, notes=(*stored.notes, f"it is in pool {stored.pool!r} already"))
                if elsewhere
                else stored
            )
        _check_access(target, access_granted)
        transfer = new_transfer()
        plan = self._plan(transfer, target, pool, fresh)
        with transfer.turn(plan) as was_busy:
            now = None if fresh else self._store.ref(target.kind, target.ref_name)
            if now != ref or (was_busy and not fresh):  # by now another process may have brought it
                stored = self._stored(new_transfer, target, now)
                if stored is not None:
                    return stored
                plan = self._plan(transfer, target, pool, fresh)
            try:
                outcome = transfer.execute(plan, fresh=fresh)
            except FairmileError as error:
                raise _with_steps(error, target.card) from error
            return self._keep(target, plan, outcome)

    def _stored(self, transfer: Callable[[], Transfer], target: _Target, ref: Ref | None) -> Fetched | None:
        """Return what is there where it is still what the name means."""
        if ref is None or not self._is_there(target, ref):
            return None
        notes: tuple[str, ...] = ()
        try:
            if not self._is_current(transfer, target, ref):
                return None
        except FairmileError as error:  # its source cannot be asked, which is no reason to go without
            notes = (f"{error}; what was fetched before is used",)
        self._store.touch(ref)
        pool = self._pool_of(ref)
        return Fetched(target.name, ref.root, ref.files, ref.size_bytes, pool, known=True, notes=notes)

    def _is_there(self, target: _Target, ref: Ref) -> bool:
        """Tell whether what a name stood for is still complete, and still what its card describes."""
        is_same = _is_of_card(ref, target) or ref.details.get("signature") == target.signature
        return is_same and self._store.complete(ref)

    def _is_current(self, transfer: Callable[[], Transfer], target: _Target, ref: Ref) -> bool:
        """Tell whether what is there is still what its source has."""
        if target.address is None or target.address.checksums:
            return True
        # An address may hold something new; its validator tells without moving a byte of it.
        planner = transfer().planner
        items = planner.probed(planner.find(target.address.addresses[0]))
        validators = ref.details.get("validators", {})
        remotes = [item.sources[0] for item in items]
        return bool(validators) and all(
            remote.validator and remote.validator == validators.get(remote.path) for remote in remotes
        )

    def _plan(self, transfer: Transfer, target: _Target, pool: str | None, fresh: bool) -> Plan:
        try:
            items = [item for file in target.files for item in self._items(transfer, file)]
            items = items if target.limit is None else items[: target.limit]
            _check_names(items, target.name)
            earlier = self._store.ref(target.kind, target.ref_name) if target.card is not None and not fresh else None
            if earlier is not None and earlier.details.get("signature") == target.signature:
                items = self._remembered(items, earlier)
            plan = transfer.planner.plan(target.name, items, pool=pool, fresh=fresh)
        except FairmileError as error:
            raise _with_steps(error, target.card) from error
        if target.card is not None and not is_public(target.card) and (steps := access_steps(target.card)):
            plan = replace(plan, notes=(f"access: {steps}", *plan.notes))
        return plan

    @staticmethod
    def _items(transfer: Transfer, file: Wanted) -> list[Item]:
        """Return the items of one entry of a card, asking the source where it may hold several files."""
        if file.is_one_file or len(file.addresses) > 1:
            remotes = tuple(Remote(address, file.path, file.size_bytes) for address in file.addresses)
            return [
                Item(
                    file.path,
                    remotes,
                    file.size_bytes,
                    file.checksums,
                    file.unpack,
                    file.into,
                    file.about_bytes,
                    file.mode,
                )
            ]
        address = file.addresses[0]
        if file.program:
            transfer.fetchers.declare(address.partition("+")[0], {"command": list(file.program)})
        items = transfer.planner.find(address, file.path)
        for item in items:
            if item.path:
                check_path(item.path, shown_address(address))
        if len(items) == 1:
            about = items[0].about_bytes or file.about_bytes
            one = replace(items[0], unpack=file.unpack, into=file.into, about_bytes=about)
            return [replace(one, checksums=file.checksums or one.checksums)]
        return items[: file.limit] if file.limit is not None else items

    def _remembered(self, items: list[Item], ref: Ref) -> list[Item]:
        """Return the items with the digests that an earlier fetch recorded, so that only what is missing comes."""
        try:
            known = {entry.path: entry.sha256 for entry in self._store.tree(ref.root)}
        except (NotFound, Integrity):
            return items
        return [
            replace(item, checksums=(Checksum("sha256", known[item.path]),))
            if not item.checksums and not item.unpack and item.path in known
            else item
            for item in items
        ]

    def _keep(self, target: _Target, plan: Plan, outcome: Outcome) -> Fetched:
        """Give the files that came their name, and say what was recorded."""
        entries = _without_doubles(outcome.parts, target.name)
        root = self._store.put_tree(entries, plan.pool)
        _check_content(target, entries, root)
        notes = list(outcome.notes)
        before = self._store.ref(target.kind, target.ref_name)
        details: dict[str, Any] = {"signature": target.signature, "of": target.name, "limit": target.limit}
        details |= {"home": str(self._home)}
        if before is not None and before.root != root and before.details.get("signature") == target.signature:
            notes.append(f"it differs from what was fetched before, which was {ni(before.root)}")
        if target.card is not None and not all(file.checksums for file in target.files):
            notes.append(f"its card has no digest of every file; recorded {ni(root)}")
        size = total_bytes(entries)
        if target.address is not None:
            details["validators"] = outcome.validators
            details["unpack"] = target.address.unpack
            details["sha256"] = next((sum.hex for sum in target.address.checksums), "")
        if target.row is not None and self._card_sha256(target.row) == target.card_sha256:  # nobody wrote meanwhile
            details["card"] = target.card_sha256
        ref = Ref(target.kind, target.ref_name, root, size, len(entries), self._store.clock(), details)
        self._store.set_ref(ref, plan.pool)
        if target.card is not None:
            self._catalog.count_use(target.card)
        return Fetched(
            target.name,
            root,
            len(entries),
            size,
            plan.pool.name,
            known=not plan.items,
            moved_bytes=outcome.moved_bytes,
            notes=tuple(dict.fromkeys(notes)),
        )

    def _materialized(self, fetched: Fetched, folder: Path, overwrite: bool) -> Fetched:
        self._store.materialize(fetched.root, folder, replace=overwrite)
        return replace(fetched, folder=folder)

    def _pool_of(self, ref: Ref) -> str:
        held = self._store.held_ref(ref.kind, ref.name)
        return held[0].name if held is not None else ""


def _is_of_card(ref: Ref, target: _Target) -> bool:
    """Tell whether a name was given to what the very file of the target's card describes."""
    return bool(target.card_sha256) and ref.details.get("card") == target.card_sha256


def _folders(targets: Sequence[_Target], to: Path | None) -> list[Path | None]:
    """Return the folder for each target: `to` itself, or one folder each below it."""
    if to is None or len(targets) == 1:
        return [to] * len(targets)
    folders = [to / slug(target.name.partition("@")[0].rpartition("/")[2] or target.name) for target in targets]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise Conflict(f"two names would be written to {twice}", hint="fetch them one by one, each with its own --to")
    return list(folders)


def _check_names(items: Sequence[Item], name: str) -> None:
    """Raise Conflict before a byte moves where two files would have one name."""
    by_path: dict[str, Item] = {}
    for item in items:
        other = by_path.setdefault(item.path, item) if item.path and not item.unpack else item
        if other is not item and (item.sha256 is None or other.sha256 != item.sha256):
            raise Conflict(
                f"{name}: two of its files are named {item.path}", hint="give each a unique name in the card"
            )


def _without_doubles(parts: Sequence[Collection[ManifestEntry]], name: str) -> Collection[ManifestEntry]:
    """Return all files once, sorted where they are many; Conflict where two have one name."""
    parts = [part for part in parts if len(part)]
    # The files of one tree are sorted, and no two have one name.
    if len(parts) == 1 and not isinstance(parts[0], list | tuple):
        return parts[0]
    by_path: dict[str, ManifestEntry] | Listing = {} if sum(map(len, parts)) < _MANY_FILES else _LISTING["many"]()
    for part in parts:
        for entry in part:
            other = by_path.get(entry.path)
            if other is not None and other != entry:
                raise Conflict(
                    f"{name}: two of its files are named {entry.path}", hint="give each a unique name in the card"
                )
            if isinstance(by_path, dict):
                by_path[entry.path] = entry
            elif other is None:
                by_path.put(entry)
    return list(by_path.values()) if isinstance(by_path, dict) else by_path


def _check_content(target: _Target, entries: Collection[ManifestEntry], root: str) -> None:
    stated = target.card.text("contentDigest") if target.card is not None and target.limit is None else ""
    if not stated or any(file.unpack for file in target.files):
        return
    accepted = {ni(root)} | ({ni(next(iter(entries)).sha256)} if len(entries) == 1 else set())
    if stated not in accepted:
        raise Integrity(
            f"{target.name}: its files have the digest {ni(root)}, but its card says {stated}",
            hint="one of the files is not what the card describes",
        )


def _check_access(target: _Target, granted: bool) -> None:
    """Refuse, before a byte moves, what its card declares restricted, unless the user confirms to have the right."""
    card = target.card or target.stated_by
    if granted or card is None or is_public(card):
        return
    steps = access_steps(card)
    raise UsageError(
        f"{target.name}: its card restricts access, so nothing was fetched",
        hint=f"to get access: {steps or 'ask its owner'}. Once you have it, confirm with `fairmile fetch {target.name} "
        "--access-granted`, or access_granted=True in Python; a login goes into ~/.netrc or the source's own tool",
    )


def _with_steps(error: FairmileError, card: Card | None) -> FairmileError:
    """Return the error with the way to get access, where the card tells one and a login may be what is missing."""
    steps = access_steps(card) if card is not None and not is_public(card) else ""
    if steps and steps not in (error.hint or ""):
        error.hint = f"{error.hint}; {steps}" if error.hint else steps
    return error
