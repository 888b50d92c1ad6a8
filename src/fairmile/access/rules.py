"""The rules of access: who may see an asset, and who may have its files. Pure functions over data.

An asset has two switches. `metadata` says who sees that it exists: everybody ("public"), or those with access
("restricted"). `files` says who gets its bytes: everybody ("public"), whoever has an account ("registered"), those with
access ("restricted"), or those with access until a date and everybody after it ("embargoed"). Access have its owner,
the groups that it names, and those with a grant that has not expired. Whoever has the right to administer sees all.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Literal, get_args

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass

Visibility = Literal["public", "restricted"]
Files = Literal["public", "registered", "restricted", "embargoed"]
# browse: the catalog as far as one may see it; read: runs, flows, store as well; start: begin and change work.
Right = Literal["browse", "read", "start", "admin"]
RIGHTS: tuple[Right, ...] = get_args(Right)
Obstacle = Literal["", "log in", "ask", "wait", "accept"]


@dataclass(frozen=True)
class Policy:
    """Who may see an asset and have its files. `asset` is its handle without version: `local/dataset/lake`."""

    asset: str
    metadata: Visibility = "public"
    files: Files = "registered"
    until: str = ""  # the last day of an embargo, as 2027-01-31
    groups: tuple[str, ...] = ()
    owner: str = ""
    terms: str = ""  # what one must accept before the first download

    def __post_init__(self) -> None:
        if self.metadata not in get_args(Visibility):
            raise UsageError(f"metadata is {self.metadata!r}", hint="expected public or restricted")
        if self.files not in get_args(Files):
            raise UsageError(f"files is {self.files!r}", hint=f"expected {', '.join(get_args(Files))}")
        if (self.files == "embargoed") != bool(self.until):
            raise UsageError("an embargo needs the day on which it ends", hint="files embargoed until 2027-01-31")
        if self.until:
            end_of_day(self.until)

    @property
    def terms_digest(self) -> str:
        """What an acceptance refers to: other terms must be accepted anew."""
        return sha256(self.terms.encode()).hexdigest() if self.terms else ""


@dataclass(frozen=True)
class Viewer:
    """Somebody who looks: a name, empty without an account, and groups."""

    name: str = ""
    groups: frozenset[str] = frozenset()
    is_admin: bool = False


@dataclass(frozen=True)
class Grant:
    """Access to an asset for a user (`ada`) or a group (`@lake`), for ever or until a time."""

    asset: str
    to: str
    until_s: float | None = None


@dataclass(frozen=True)
class Decision:
    """Whether files may be fetched and, where not, what stands in the way."""

    obstacle: Obstacle = ""
    reason: str = ""

    @property
    def is_allowed(self) -> bool:
        return not self.obstacle


def rights_of(words: Iterable[str]) -> frozenset[Right]:
    """Return the rights that words name; each takes in those before it, as nobody can start what they cannot see."""
    rights: set[Right] = set()
    for word in words:
        place = next((number for number, right in enumerate(RIGHTS) if right == word), None)
        if place is None:
            raise UsageError(f"no right named {word!r}", hint=f"rights: {', '.join(RIGHTS)}")
        rights.update(RIGHTS[: place + 1])
    return frozenset(rights)


def end_of_day(day: str) -> float:
    """Return when a day, as 2027-01-31, has ended everywhere on Earth, in seconds since 1970."""
    try:
        start = time.strptime(day, "%Y-%m-%d")
    except ValueError:
        raise UsageError(f"{day!r} is not a day", hint="expected a date such as 2027-01-31") from None
    return calendar.timegm(start) + 36 * 3600.0


def has_access(viewer: Viewer, policy: Policy, grants: Iterable[Grant], now_s: float) -> bool:
    """Tell whether somebody has access to a restricted asset."""
    if viewer.is_admin or (viewer.name and viewer.name == policy.owner):
        return True
    if viewer.groups & set(policy.groups):
        return True
    names = {viewer.name, *(f"@{group}" for group in viewer.groups)} - {""}
    return any(
        grant.asset == policy.asset and grant.to in names and (grant.until_s is None or now_s < grant.until_s)
        for grant in grants
    )


def may_see(viewer: Viewer, policy: Policy, grants: Iterable[Grant], now_s: float) -> bool:
    """Tell whether somebody may know that an asset exists."""
    return policy.metadata == "public" or has_access(viewer, policy, grants, now_s)


def hidden_from(
    viewer: Viewer, policies: Iterable[Policy], grants: Mapping[str, Collection[Grant]], now_s: float
) -> frozenset[str]:
    """Return the assets that somebody must not hear of; `grants` are by asset."""
    return frozenset(
        policy.asset for policy in policies if not may_see(viewer, policy, grants.get(policy.asset, ()), now_s)
    )


def may_fetch(
    viewer: Viewer, policy: Policy, grants: Collection[Grant], accepted: Collection[str], now_s: float
) -> Decision:
    """Tell whether somebody may have the files of an asset that they may see.

    `accepted` are the digests of the terms that they have accepted.
    """
    open_to_all = policy.files == "public" or (policy.files == "embargoed" and now_s >= end_of_day(policy.until))
    is_bound = bool(policy.terms) and not viewer.is_admin
    if not open_to_all or is_bound:
        if not viewer.name:
            return Decision("log in", "only for people with an account")
        needs_access = not open_to_all and policy.files != "registered"
        if needs_access and not has_access(viewer, policy, grants, now_s):
            if policy.files == "embargoed":
                return Decision("wait", f"under embargo until {policy.until}")
            return Decision("ask", "access must be granted first")
    if is_bound and policy.terms_digest not in accepted:
        return Decision("accept", "its terms must be accepted first")
    return Decision()
