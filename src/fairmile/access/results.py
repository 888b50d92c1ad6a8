"""What calls about access return."""

from __future__ import annotations

import time
from typing import Any, TypedDict

from fairmile.access.rules import Policy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results


def written_time(seconds: float | None) -> str:
    """Return a time as text in UTC; empty for none."""
    return "" if seconds is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class UserDict(TypedDict):
    name: str
    rights: list[str]
    groups: list[str]
    login: str
    created_at: str


@dataclass(frozen=True, repr=False)
class User(Result):
    """An account."""

    name: str
    rights: frozenset[str]
    groups: frozenset[str]
    login: str  # "password" or the issuer of an OIDC login
    created_s: float

    def to_dict(self) -> UserDict:
        return {
            "name": self.name,
            "rights": sorted(self.rights),
            "groups": sorted(self.groups),
            "login": self.login,
            "created_at": written_time(self.created_s),
        }

    def summary(self) -> str:
        return f"{self.name}, {' '.join(sorted(self.rights))}"


class UsersDict(TypedDict):
    users: list[UserDict]


class Users(Results[User]):
    """All accounts."""

    columns = ("name", "rights", "groups", "login")

    def to_dict(self) -> UsersDict:
        return {"users": [each.to_dict() for each in self]}


class RemovedUserDict(TypedDict):
    name: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class RemovedUser(Result):
    """A removed account; its sessions, tokens and grants are removed with it."""

    name: str
    dry_run: bool = False

    def to_dict(self) -> RemovedUserDict:
        return {"name": self.name, "dry_run": self.dry_run}


class TokenDict(TypedDict):
    id: str
    label: str
    user: str
    rights: list[str]
    assets: list[str]
    created_at: str
    expires_at: str
    used_at: str


@dataclass(frozen=True, repr=False)
class Token(Result):
    """A token as others may know it: not its secret."""

    id: str
    label: str
    user: str
    rights: frozenset[str]
    assets: tuple[str, ...]
    created_s: float
    expires_s: float
    used_s: float | None = None

    def to_dict(self) -> TokenDict:
        return {
            "id": self.id,
            "label": self.label,
            "user": self.user,
            "rights": sorted(self.rights),
            "assets": list(self.assets),
            "created_at": written_time(self.created_s),
            "expires_at": written_time(self.expires_s),
            "used_at": written_time(self.used_s),
        }

    def summary(self) -> str:
        return f"{self.id}, until {written_time(self.expires_s)}"


class TokensDict(TypedDict):
    tokens: list[TokenDict]


class Tokens(Results[Token]):
    """Tokens of one user."""

    columns = ("id", "label", "rights", "expires_at")

    def to_dict(self) -> TokensDict:
        return {"tokens": [each.to_dict() for each in self]}


class NewTokenDict(TypedDict):
    token: TokenDict
    secret: str


@dataclass(frozen=True, repr=False)
class NewToken(Result):
    """A token with its secret, which nobody can look up again."""

    token: Token
    secret: str

    def to_dict(self) -> NewTokenDict:
        return {"token": self.token.to_dict(), "secret": self.secret}

    def summary(self) -> str:
        return self.token.summary()


class PolicyDict(TypedDict):
    asset: str
    metadata: str
    files: str
    until: str
    groups: list[str]
    owner: str
    terms: str
    dry_run: bool


@dataclass(frozen=True, repr=False)
class AssetPolicy(Result):
    """Who may see an asset and have its files."""

    policy: Policy
    dry_run: bool = False

    def to_dict(self) -> PolicyDict:
        policy = self.policy
        return {
            "asset": policy.asset,
            "metadata": policy.metadata,
            "files": policy.files,
            "until": policy.until,
            "groups": list(policy.groups),
            "owner": policy.owner,
            "terms": policy.terms,
            "dry_run": self.dry_run,
        }

    def summary(self) -> str:
        return f"{self.policy.asset}: metadata {self.policy.metadata}, files {self.policy.files}"


class AssetPoliciesDict(TypedDict):
    assets: list[PolicyDict]


class AssetPolicies(Results[AssetPolicy]):
    """The assets whose access was set."""

    columns = ("asset", "metadata", "files", "until", "groups")

    def to_dict(self) -> AssetPoliciesDict:
        return {"assets": [each.to_dict() for each in self]}


class GrantDict(TypedDict):
    asset: str
    to: str
    until: str
    given_by: str
    given_at: str


@dataclass(frozen=True, repr=False)
class GivenGrant(Result):
    """Access that somebody was given."""

    asset: str
    to: str
    until_s: float | None
    given_by: str
    given_s: float

    def to_dict(self) -> GrantDict:
        return {
            "asset": self.asset,
            "to": self.to,
            "until": written_time(self.until_s),
            "given_by": self.given_by,
            "given_at": written_time(self.given_s),
        }

    def summary(self) -> str:
        return f"{self.to} → {self.asset}"


class GivenGrantsDict(TypedDict):
    grants: list[GrantDict]


class GivenGrants(Results[GivenGrant]):
    """Access that people were given."""

    columns = ("asset", "to", "until", "given_by")

    def to_dict(self) -> GivenGrantsDict:
        return {"grants": [each.to_dict() for each in self]}


class RequestDict(TypedDict):
    id: int
    asset: str
    user: str
    reason: str
    asked_at: str
    status: str
    decided_by: str


@dataclass(frozen=True, repr=False)
class AccessRequest(Result):
    """A request for access to an asset; its status is pending, granted or refused."""

    id: int
    asset: str
    user: str
    reason: str
    asked_s: float
    status: str
    decided_by: str = ""

    def to_dict(self) -> RequestDict:
        return {
            "id": self.id,
            "asset": self.asset,
            "user": self.user,
            "reason": self.reason,
            "asked_at": written_time(self.asked_s),
            "status": self.status,
            "decided_by": self.decided_by,
        }

    def summary(self) -> str:
        return f"{self.user} asks for {self.asset}: {self.status}"


class AccessRequestsDict(TypedDict):
    requests: list[RequestDict]


class AccessRequests(Results[AccessRequest]):
    """Requests for access, the newest first."""

    columns = ("id", "asset", "user", "reason", "status")

    def to_dict(self) -> AccessRequestsDict:
        return {"requests": [each.to_dict() for each in self]}


class AuditEntryDict(TypedDict):
    number: int
    facts: dict[str, Any]
    digest: str


@dataclass(frozen=True, repr=False)
class AuditEntry(Result):
    """One entry of the audit log."""

    number: int
    facts: dict[str, Any]
    digest: str

    def to_dict(self) -> AuditEntryDict:
        return {"number": self.number, "facts": self.facts, "digest": self.digest}


class AuditLogDict(TypedDict):
    entries: list[AuditEntryDict]


class AuditLog(Results[AuditEntry]):
    """Entries of the audit log, the newest first."""

    def to_dict(self) -> AuditLogDict:
        return {"entries": [each.to_dict() for each in self]}


class VerifiedAuditDict(TypedDict):
    entries: int
    head: str
    damaged_at: int | None


@dataclass(frozen=True, repr=False)
class VerifiedAudit(Result):
    """How many entries of the audit log are as they were written; `head` is the digest of the last of them.

    Keep `head` elsewhere: it is the only proof against entries removed from the end.
    """

    entries: int
    head: str
    damaged_at: int | None = None

    @property
    def ok(self) -> bool:
        return self.damaged_at is None

    def to_dict(self) -> VerifiedAuditDict:
        return {"entries": self.entries, "head": self.head, "damaged_at": self.damaged_at}
