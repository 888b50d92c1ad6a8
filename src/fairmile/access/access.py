"""Accounts of a served workspace, and who may see and fetch its assets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fairmile.access.accounts import Accounts
from fairmile.access.assets import AssetAccess
from fairmile.access.audit import Audit
from fairmile.access.database import Database
from fairmile.access.links import Links
from fairmile.access.results import (
    AccessRequest,
    AccessRequests,
    AssetPolicies,
    AssetPolicy,
    AuditLog,
    GivenGrant,
    GivenGrants,
    NewToken,
    RemovedUser,
    User,
    Users,
    VerifiedAudit,
)
from fairmile.access.rules import Policy, end_of_day
from fairmile.base.errors import NotFound
from fairmile.base.nouns import Noun
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.wanted import is_public

_INTERNAL = "policy_of_card until_s"  # for the server


class Access(Noun, internal=_INTERNAL):
    """Accounts, and who may see and fetch which asset of a server."""

    def __init__(self, home: Path, catalog: Callable[[], Catalog], clock: Callable[[], float] = time.time) -> None:
        self._database = Database(home / "access" / "access.sqlite")
        self._catalog = catalog
        self._log = Audit(self._database, clock)
        self.clock = clock
        self.accounts = Accounts(self._database, self._log, clock=clock)
        self.assets = AssetAccess(self._database, self._log, clock)
        self.links = Links(self._database)
        self.note = self._log.note

    # Accounts

    def add_user(self, name: str, password: str, *, rights: Sequence[str] = (), groups: Sequence[str] = ()) -> User:
        """Add an account; each has the right to browse, and further rights are read, start and admin."""
        return self.accounts.add(name, password=password, rights=rights, groups=groups)

    def users(self) -> Users:
        """Return all accounts."""
        return self.accounts.ls()

    def remove_user(self, name: str, *, dry_run: bool = False) -> RemovedUser:
        """Remove an account with its sessions, tokens and grants."""
        return self.accounts.remove(name, dry_run=dry_run)

    def new_token(
        self, user: str, label: str = "", *, rights: Sequence[str] = ("browse",), days: float = 30.0
    ) -> NewToken:
        """Return a new token of an account; its secret is shown this once."""
        return self.accounts.new_token(self.accounts.get(user), label, rights=rights, days=days)

    # Assets

    def set(
        self,
        asset: str,
        *,
        metadata: str | None = None,
        files: str | None = None,
        until: str | None = None,
        groups: Sequence[str] | None = None,
        owner: str | None = None,
        terms: str | None = None,
        dry_run: bool = False,
    ) -> AssetPolicy:
        """Set who may see an asset and have its files, in all its versions; what is not given stays."""
        old = self.policy(asset).policy
        new_files = files if files is not None else "embargoed" if until else old.files
        policy = Policy(
            old.asset,
            metadata if metadata is not None else old.metadata,  # type: ignore[arg-type]  # it checks
            new_files,  # type: ignore[arg-type]
            until if until is not None else old.until if new_files == "embargoed" else "",
            tuple(groups) if groups is not None else old.groups,
            owner if owner is not None else old.owner,
            terms if terms is not None else old.terms,
        )
        return self.assets.set_policy(policy, _me(), dry_run=dry_run)

    def policy(self, asset: str) -> AssetPolicy:
        """Return who may see an asset and have its files."""
        return AssetPolicy(self.policy_of_card(self._catalog().get(asset)))

    def policy_of_card(self, card: Card) -> Policy:
        """Return the policy of the asset that a card describes."""
        return self.assets.policy(asset_of(card), is_restricted=not is_public(card))

    def ls(self) -> AssetPolicies:
        """Return the assets whose access was set; the files of all others are for people with an account."""
        return self.assets.policies()

    def grant(self, asset: str, to: str, *, until: str = "") -> GivenGrant:
        """Give an account, or a group as `@name`, access to an asset, for ever or up to a day."""
        if not to.startswith("@"):
            self.accounts.get(to)
        return self.assets.grant(self._asset(asset), to, _me(), until_s=self.until_s(until))

    def revoke(self, asset: str, to: str) -> GivenGrant:
        """Take access to an asset back."""
        return self.assets.revoke(self._asset(asset), to, _me())

    def grants(self, asset: str = "") -> GivenGrants:
        """Return who was given access, to one asset or to all."""
        return self.assets.grants(self._asset(asset) if asset else "")

    def requests(self, *, status: str = "pending") -> AccessRequests:
        """Return requests for access: those that are pending, granted or refused, or all where status is empty."""
        return self.assets.requests(status=status)

    def decide(self, request: int, *, grant: bool, until: str = "") -> AccessRequest:
        """Grant or refuse a pending request."""
        return self.assets.decide(request, _me(), grant=grant, until_s=self.until_s(until))

    @staticmethod
    def until_s(day: str) -> float | None:
        """Return when a day ends; None for no day."""
        return end_of_day(day) if day else None

    # The audit log

    def audit(self, *, limit: int = 100, asset: str = "") -> AuditLog:
        """Return the last entries of the audit log, the newest first."""
        return self._log.entries(limit, asset)

    def verify_audit(self) -> VerifiedAudit:
        """Tell whether the audit log is as it was written, and the first entry that is not."""
        return self._log.verify()

    def _asset(self, name: str) -> str:
        try:
            return asset_of(self._catalog().get(name))
        except NotFound:
            # A card may have gone, its grants still be there.
            known = {each.policy.asset for each in self.assets.policies()} | {each.asset for each in self.grants()}
            if name in known:
                return name
            raise


def asset_of(card: Card) -> str:
    """Return the name of an asset in all its versions: `local/dataset/lake`."""
    return f"{card.handle.catalog}/{card.handle.kind}/{card.handle.name}"


def _me() -> str:
    """Return who changes access at the command line: who can write the database owns the server."""
    return f"owner ({os.environ.get('USER') or os.getuid()})"
