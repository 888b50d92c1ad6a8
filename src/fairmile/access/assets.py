"""Who has access to which asset: its policy, grants, requests and accepted terms, kept and decided."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from fairmile.access.audit import Audit
from fairmile.access.database import Database
from fairmile.access.results import (
    AccessRequest,
    AccessRequests,
    AssetPolicies,
    AssetPolicy,
    GivenGrant,
    GivenGrants,
)
from fairmile.access.rules import Decision, Grant, Policy, Viewer, hidden_from, may_fetch
from fairmile.base.errors import NotFound, UsageError

_LONGEST_REASON = 2_000
_MOST_PENDING = 50


class AssetAccess:
    """Reads and changes who may see and fetch assets. Assets are named by catalog, kind and name."""

    def __init__(self, database: Database, audit: Audit, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock

    # Policies

    def policy(self, asset: str, *, is_restricted: bool = False) -> Policy:
        """Return the policy of an asset; where none is set, its card decides between registered and restricted."""
        rows = self._database.rows("SELECT * FROM policy WHERE asset = ?", (asset,))
        return _policy(rows[0]) if rows else Policy(asset, files="restricted" if is_restricted else "registered")

    def policies(self) -> AssetPolicies:
        """Return the policies that were set."""
        return AssetPolicies(AssetPolicy(_policy(row)) for row in self._database.rows("SELECT * FROM policy"))

    def set_policy(self, policy: Policy, by: str, *, dry_run: bool = False) -> AssetPolicy:
        """Set who may see an asset and have its files."""
        if not dry_run:
            values = (*dataclasses.astuple(policy)[:4], " ".join(policy.groups), policy.owner, policy.terms)
            with self._database.changing() as connection:
                connection.execute("INSERT OR REPLACE INTO policy VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                facts = {"metadata": policy.metadata, "files": policy.files, "until": policy.until}
                self._audit.note_within(connection, by, "set access", policy.asset, **facts)
        return AssetPolicy(policy, dry_run)

    # Grants

    def grant(self, asset: str, to: str, by: str, *, until_s: float | None = None, dry_run: bool = False) -> GivenGrant:
        """Give a user, or a group as `@name`, access to an asset."""
        if until_s is not None and until_s <= self._clock():
            raise UsageError("this access would already have ended", hint="choose a later day")
        given = GivenGrant(asset, to, until_s, by, self._clock())
        if dry_run:
            return given
        with self._database.changing() as connection:
            sql = "INSERT OR REPLACE INTO access VALUES (?, ?, ?, ?, ?)"
            connection.execute(sql, (asset, to, until_s, by, given.given_s))
            self._decided(connection, asset, to, by, "granted")
            self._audit.note_within(connection, by, "grant", asset, to=to, until=given.to_dict()["until"])
        return given

    def revoke(self, asset: str, to: str, by: str, *, dry_run: bool = False) -> GivenGrant:
        """Take access to an asset back."""
        given = next((each for each in self.grants(asset) if each.to == to), None)
        if given is None:
            raise NotFound(f"{to} has no grant for {asset}", hint="`fairmile access grants` lists who has")
        if dry_run:
            return given
        with self._database.changing() as connection:
            connection.execute("DELETE FROM access WHERE asset = ? AND who = ?", (asset, to))
            self._audit.note_within(connection, by, "revoke", asset, to=to)
        return given

    def grants(self, asset: str = "") -> GivenGrants:
        """Return who was given access, to one asset or to all."""
        condition, values = (" WHERE asset = ?", (asset,)) if asset else ("", ())
        rows = self._database.rows(f"SELECT asset, who, until_s, given_by, given_s FROM access{condition}", values)
        return GivenGrants(GivenGrant(*row) for row in rows)

    # Requests

    def request(self, asset: str, user: str, reason: str = "") -> AccessRequest:
        """Ask for access; a request that is pending stays the one there is."""
        pending = [each for each in self.requests(status="pending") if each.user == user]
        for each in pending:
            if each.asset == asset:
                return each
        if len(pending) >= _MOST_PENDING:
            raise UsageError(f"{len(pending)} of your requests are pending", hint="wait until they are decided")
        now = self._clock()
        with self._database.changing() as connection:
            sql = "INSERT INTO request(asset, user, reason, asked_s, status) VALUES (?, ?, ?, ?, 'pending')"
            number = connection.execute(sql, (asset, user, reason[:_LONGEST_REASON], now)).lastrowid
            self._audit.note_within(connection, user, "request", asset)
        return AccessRequest(number or 0, asset, user, reason[:_LONGEST_REASON], now, "pending")

    def requests(self, *, status: str = "", user: str = "") -> AccessRequests:
        """Return requests for access, the newest first."""
        rows = self._database.rows(
            "SELECT id, asset, user, reason, asked_s, status, coalesce(decided_by, '') FROM request ORDER BY id DESC"
        )
        every = (AccessRequest(*row) for row in rows)
        return AccessRequests(
            each for each in every if (not status or each.status == status) and (not user or each.user == user)
        )

    def decide(
        self, id: int, by: str, *, grant: bool, until_s: float | None = None, dry_run: bool = False
    ) -> AccessRequest:
        """Grant or refuse a pending request."""
        asked = next((each for each in self.requests(status="pending") if each.id == id), None)
        if asked is None:
            raise NotFound(f"no pending request {id}", hint="it may be decided already")
        if grant:
            self.grant(asked.asset, asked.user, by, until_s=until_s, dry_run=dry_run)
        elif not dry_run:
            with self._database.changing() as connection:
                self._decided(connection, asked.asset, asked.user, by, "refused")
                self._audit.note_within(connection, by, "refuse", asked.asset, to=asked.user)
        return dataclasses.replace(asked, status="granted" if grant else "refused", decided_by=by)

    def _decided(self, connection: Any, asset: str, user: str, by: str, status: str) -> None:
        connection.execute(
            "UPDATE request SET status = ?, decided_by = ?, decided_s = ?"
            " WHERE asset = ? AND user = ? AND status = 'pending'",
            (status, by, self._clock(), asset, user),
        )

    # Terms

    def accept(self, policy: Policy, user: str, digest: str) -> None:
        """Note that somebody accepts the terms of an asset, which they name by digest."""
        if not policy.terms or digest != policy.terms_digest:
            raise UsageError(f"these are not the terms of {policy.asset}", hint="read the current ones first")
        with self._database.changing() as connection:
            values = (user, digest, policy.asset, self._clock())
            connection.execute("INSERT OR IGNORE INTO acceptance VALUES (?, ?, ?, ?)", values)
            self._audit.note_within(connection, user, "accept terms", policy.asset, terms=digest)

    # Decisions

    def decision(self, viewer: Viewer, policy: Policy) -> Decision:
        """Tell whether somebody may have the files of an asset."""
        accepted = self._database.rows("SELECT digest FROM acceptance WHERE user = ?", (viewer.name,))
        grants = [Grant(each.asset, each.to, each.until_s) for each in self.grants(policy.asset)]
        return may_fetch(viewer, policy, grants, [row[0] for row in accepted], self._clock())

    def hidden(self, viewer: Viewer) -> frozenset[str]:
        """Return the assets that somebody must not hear of."""
        rows = self._database.rows("SELECT * FROM policy WHERE metadata = 'restricted'")
        grants: dict[str, list[Grant]] = {}
        for each in self.grants() if rows else ():
            grants.setdefault(each.asset, []).append(Grant(each.asset, each.to, each.until_s))
        kept: Mapping[str, list[Grant]] = grants
        return hidden_from(viewer, map(_policy, rows), kept, self._clock())


def _policy(row: tuple[Any, ...]) -> Policy:
    asset, metadata, files, until, groups, owner, terms = row
    return Policy(asset, metadata, files, until, tuple(groups.split()), owner, terms)
