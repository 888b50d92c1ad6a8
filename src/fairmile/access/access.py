"""Accounts of a served workspace, and who may see and fetch its assets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.access.accounts import Accounts
from fairmile.access.assets import AssetAccess
from fairmile.access.audit import Audit
from fairmile.access.database import Database
from fairmile.access.links import Links
from fairmile.access.logins import DeviceLogin
from fairmile.access.oidc import OidcProvider, OidcSettings
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
    Token,
    Tokens,
    User,
    Users,
    VerifiedAudit,
)
from fairmile.access.rules import Policy, end_of_day
from fairmile.access.servers import Login, Logins, Logout, OfferedAccess, Servers, print_code
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.nouns import Noun
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.declared import LOCAL
from fairmile.catalog.wanted import is_public
from fairmile.transfer.remote import Context

_INTERNAL = "policy policy_of_card until_s"  # for the server


class Access(Noun, internal=_INTERNAL, package=__package__):
    """Accounts, and who may see and fetch which asset: of your server, and yours on servers of others."""

    def __init__(
        self,
        home: Path,
        catalog: Callable[[], Catalog],
        clock: Callable[[], float] = time.time,
        *,
        context: Context | None = None,
        oidc: Mapping[str, Any] | None = None,
    ) -> None:
        self._database = Database(home / "access" / "access.sqlite")
        self._catalog = catalog
        self._log = Audit(self._database, clock)
        self.clock = clock
        self.accounts = Accounts(self._database, self._log, clock=clock)
        self.assets = AssetAccess(self._database, self._log, clock)
        self.links = Links(self._database)
        self.note = self._log.note
        self._context = context
        settings = OidcSettings.parse(oidc or {})
        self.oidc: OidcProvider | None = None
        if settings is not None and context is not None:
            self.oidc = OidcProvider(settings, context, self.links, clock)

    # Accounts

    def add_user(
        self,
        name: str,
        password: str,
        *,
        rights: Sequence[str] = (),
        groups: Sequence[str] = (),
        dry_run: bool = False,
    ) -> User:
        """Add an account; each has the right to browse, and further rights are read, start and admin."""
        return self.accounts.add(name, password=password, rights=rights, groups=groups, dry_run=dry_run)

    def set_user(
        self,
        name: str,
        *,
        password: str | None = None,
        rights: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        dry_run: bool = False,
    ) -> User:
        """Change an account; what is not given stays. A new password ends its sessions and tokens."""
        options = {"rights": rights, "groups": groups}
        return self.accounts.update(name, password=password, by=_me(), dry_run=dry_run, **options)

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
        return self.accounts.new_token(self.accounts.get(user), label, rights=rights, days=days, by=_me())

    def tokens(self, user: str) -> Tokens:
        """Return the tokens of an account that have not expired, without their secrets."""
        return self.accounts.tokens(self.accounts.get(user).name)

    def revoke_token(self, user: str, id: str, *, dry_run: bool = False) -> Token:
        """Revoke a token of an account."""
        return self.accounts.revoke_token(user, id, by=_me(), dry_run=dry_run)

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

    def show(self, asset: str) -> AssetPolicy | OfferedAccess:
        """Return who may see an asset and have its files; of an asset of another server, what you may have."""
        card = self._catalog().get(asset)
        if self._is_on_server(card):
            return self._servers().show(card)
        return AssetPolicy(self.policy_of_card(card))

    def policy(self, asset: str) -> AssetPolicy:
        """Return who may see an asset and have its files."""
        return AssetPolicy(self.policy_of_card(self._catalog().get(asset)))

    def policy_of_card(self, card: Card) -> Policy:
        """Return the policy of the asset that a card describes."""
        return self.assets.policy(asset_of(card), is_restricted=not is_public(card))

    def ls(self) -> AssetPolicies:
        """Return the assets whose access was set; the files of all others are for people with an account."""
        return self.assets.policies()

    def grant(self, asset: str, to: str, *, until: str = "", dry_run: bool = False) -> GivenGrant:
        """Give an account, or a group as `@name`, access to an asset, for ever or up to a day."""
        if not to.startswith("@"):
            self.accounts.get(to)
        return self.assets.grant(self._asset(asset), to, _me(), until_s=self.until_s(until), dry_run=dry_run)

    def revoke(self, asset: str, to: str, *, dry_run: bool = False) -> GivenGrant:
        """Take access to an asset back."""
        return self.assets.revoke(self._asset(asset), to, _me(), dry_run=dry_run)

    def grants(self, asset: str = "") -> GivenGrants:
        """Return who was given access, to one asset or to all."""
        return self.assets.grants(self._asset(asset) if asset else "")

    def requests(self, *, status: str = "pending") -> AccessRequests:
        """Return requests for access: those that are pending, granted or refused, or all where status is empty."""
        return self.assets.requests(status=status)

    def approve(self, request: int, *, until: str = "", dry_run: bool = False) -> AccessRequest:
        """Grant a pending request, for ever or up to a day."""
        return self.assets.decide(request, _me(), grant=True, until_s=self.until_s(until), dry_run=dry_run)

    def refuse(self, request: int, *, dry_run: bool = False) -> AccessRequest:
        """Refuse a pending request."""
        return self.assets.decide(request, _me(), grant=False, dry_run=dry_run)

    @staticmethod
    def until_s(day: str) -> float | None:
        """Return when a day ends; None for no day."""
        return end_of_day(day) if day else None

    # Servers of others

    def login(self, server: str, *, sso: bool = False, on_code: Callable[[DeviceLogin], None] = print_code) -> Login:
        """Log in to a server: confirm the code that is shown in a browser. The token is kept for this user alone.

        With `sso` the code is confirmed at the login provider of the server, such as that of your institution.
        """
        return self._servers().log_in(server, on_code, sso=sso)

    def logout(self, server: str) -> Logout:
        """Revoke the token that is kept for a server, and forget it."""
        return self._servers().log_out(server)

    def logins(self) -> Logins:
        """Return the servers for which a token is kept."""
        return self._servers().logins()

    def request(self, asset: str, reason: str = "") -> AccessRequest:
        """Ask the owner of a server for access to one of its assets."""
        return self._servers().request(self._catalog().get(asset), reason)

    def accept(self, asset: str, terms: str) -> OfferedAccess:
        """Accept the terms of an asset of a server, named by their sha256, which `show` returns."""
        return self._servers().accept(self._catalog().get(asset), terms)

    def _servers(self) -> Servers:
        if self._context is None:
            raise UsageError(
                "this object was opened without a way to reach servers", hint="use Workspace.open().access"
            )
        return Servers(self._context, self._catalog)

    def _is_on_server(self, card: Card) -> bool:
        sources = {each["name"]: each for each in self._catalog().catalogs()} if card.catalog != LOCAL else {}
        source = sources.get(card.catalog)
        return source is not None and source["type"] == "web"

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
