"""Servers of others: log in from here, ask for access to their assets, and accept their terms."""

from __future__ import annotations

import calendar
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, TypedDict
from urllib.parse import quote, urlsplit

from fairmile.access.logins import DeviceLogin
from fairmile.access.results import AccessRequest
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.catalog.card import Card
from fairmile.catalog.catalog import Catalog
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.http import Client
from fairmile.transfer.remote import Context


class LoginDict(TypedDict):
    server: str
    user: str
    token: str


@dataclass(frozen=True, repr=False)
class Login(Result):
    """A server that knows you; `token` is the id of the token that is kept for it, not its secret."""

    server: str
    user: str
    token: str

    def to_dict(self) -> LoginDict:
        return {"server": self.server, "user": self.user, "token": self.token}


class LoginsDict(TypedDict):
    servers: list[LoginDict]


class Logins(Results[Login]):
    """Servers for which a token is kept."""

    def to_dict(self) -> LoginsDict:
        return {"servers": [each.to_dict() for each in self]}


class LogoutDict(TypedDict):
    server: str
    revoked: bool


@dataclass(frozen=True, repr=False)
class Logout(Result):
    """A server whose token is kept no longer; `revoked` says whether the server took it back as well."""

    server: str
    revoked: bool

    def to_dict(self) -> LogoutDict:
        return {"server": self.server, "revoked": self.revoked}


class OfferedAccessDict(TypedDict):
    asset: str
    server: str
    files: str
    until: str
    terms: str
    terms_digest: str
    allowed: bool
    reason: str


@dataclass(frozen=True, repr=False)
class OfferedAccess(Result):
    """What you may have of an asset on a server and, where not `allowed`, the reason."""

    asset: str
    server: str
    files: str
    until: str
    terms: str
    terms_digest: str
    allowed: bool
    reason: str

    def to_dict(self) -> OfferedAccessDict:
        return {
            "asset": self.asset,
            "server": self.server,
            "files": self.files,
            "until": self.until,
            "terms": self.terms,
            "terms_digest": self.terms_digest,
            "allowed": self.allowed,
            "reason": self.reason,
        }

    def summary(self) -> str:
        return f"{self.asset}: {'allowed' if self.allowed else self.reason}"


class Servers:
    """Speaks with servers of others as the user of this workspace."""

    def __init__(
        self, context: Context, catalog: Callable[[], Catalog], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._sleep = sleep

    # Logging in

    def log_in(self, server: str, on_code: Callable[[DeviceLogin], None], *, sso: bool = False) -> Login:
        """Show a code that the user confirms in a browser, wait for it, and keep the token.

        With `sso` the code is confirmed at the login provider of the server.
        """
        base = server_address(server)
        begun = _device_login(self._call("POST", f"{base}/api/login/device", {"sso": True} if sso else {}))
        on_code(begun)
        while True:
            answer = self._call("POST", f"{base}/api/login/token", {"device_code": begun.device_code})
            if answer.get("status") != "pending":
                break
            self._sleep(begun.interval_s)
        secret = str(answer["secret"])
        user = self._call("GET", f"{base}/api/account", token=secret)
        self._context.credentials.keep_bearer(base, secret)
        return Login(base, str(user["name"]), _token_id(secret))

    def log_out(self, server: str) -> Logout:
        """Revoke the token that is kept for a server, and forget it."""
        base = server_address(server)
        secret = self._context.credentials.bearer(base)
        if secret is None:
            raise NotFound(f"not logged in to {base}", hint="`fairmile login --list` lists servers")
        is_revoked = False
        with suppress(FairmileError):  # a server that is gone, or a token that has expired
            self._call("DELETE", f"{base}/api/account/tokens/{_token_id(secret)}", token=secret)
            is_revoked = True
        self._context.credentials.drop_bearer(base)
        return Logout(base, is_revoked)

    def logins(self) -> Logins:
        """Return the servers for which a token is kept."""
        return Logins(Login(base, "", _token_id(secret)) for base, secret in self._context.credentials.bearers())

    # Assets of a server

    def show(self, card: Card) -> OfferedAccess:
        """Return what the user may have of an asset that came from a server."""
        base = self._server_of(card)
        facts = self._call("GET", f"{base}/api/access/assets/{quote(_name(card))}")
        names = ("files", "until", "terms", "terms_digest", "allowed", "reason")
        return OfferedAccess(str(card.handle), base, **{name: facts[name] for name in names})

    def request(self, card: Card, reason: str) -> AccessRequest:
        """Ask the owner of a server for access to an asset."""
        facts = self._call(
            "POST", f"{self._server_of(card)}/api/access/requests", {"asset": _name(card), "reason": reason}
        )
        names = ("id", "asset", "user", "reason", "status", "decided_by")
        asked_s = calendar.timegm(time.strptime(facts["asked_at"], "%Y-%m-%dT%H:%M:%SZ"))
        return AccessRequest(**{name: facts[name] for name in names}, asked_s=float(asked_s))

    def accept(self, card: Card, digest: str) -> OfferedAccess:
        """Accept the terms of an asset, named by their sha256."""
        self._call("POST", f"{self._server_of(card)}/api/access/terms", {"asset": _name(card), "digest": digest})
        return self.show(card)

    def _server_of(self, card: Card) -> str:
        sources = {each["name"]: each["location"] for each in self._catalog().catalogs()}
        location = sources.get(card.catalog, "")
        if not location.startswith("https://"):
            raise UsageError(
                f"{card.handle} is not an asset of a server", hint="`fairmile catalog source ls` lists sources"
            )
        return server_address(location)

    def _call(self, method: str, url: str, document: Any = None, *, token: str = "") -> Any:
        """Return the JSON answer of a server; its errors are ours."""
        headers = {"Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        body = b"" if document is None else json.dumps(document).encode()
        if body:
            headers["Content-Type"] = "application/json"
        with closing(Client(self._context)) as client:
            head, data = client.submit(method, url, body, headers)
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if head.status < 300 and answer is not None:
            return answer
        raise _failure(url, head.status, answer)


def server_address(text: str) -> str:
    """Return the address of a server as https://HOST:PORT; a token is sent over an encrypted connection alone."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
        raise UsageError(f"{shown_address(text)!r} is not the address of a server", hint="expected https://HOST:PORT")
    return f"https://{parts.netloc.lower()}"


def print_code(login: DeviceLogin) -> None:
    """Print where to confirm a login."""
    sys.stderr.write(f"Open {login.verification_uri} in a browser and enter {login.user_code}\n")
    sys.stderr.flush()


def _device_login(facts: Mapping[str, Any]) -> DeviceLogin:
    interval_s = min(max(float(facts["interval"]), 0.05), 60.0)
    return DeviceLogin(facts["device_code"], facts["user_code"], facts["verification_uri"], interval_s=interval_s)


def _failure(url: str, status: int, answer: Any) -> FairmileError:
    facts = answer.get("error") if isinstance(answer, Mapping) else None
    base = server_address(url)
    if not isinstance(facts, Mapping) or "message" not in facts:
        return SystemFailure(f"{base} answers {status}", hint="is it a Fairmile server?")
    message, hint = str(facts["message"]), str(facts.get("hint") or "")
    kinds: dict[int, type[FairmileError]] = {400: UsageError, 404: NotFound, 422: UsageError, 503: Transient}
    if status == 401:
        hint = f"`fairmile login {base}`"
    return kinds.get(status, SystemFailure)(f"{base}: {message}", hint=hint or None)


def _name(card: Card) -> str:
    return f"local/{card.kind}/{card.name}"


def _token_id(secret: str) -> str:
    return secret.split("_")[2] if secret.count("_") >= 3 else ""
