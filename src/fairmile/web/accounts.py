"""Requests of people with accounts: who sent them, by session, token or signed link, and the workspace they see."""

from __future__ import annotations

import threading
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from fairmile.access.access import Access
from fairmile.access.accounts import SESSION_S, Known
from fairmile.access.attempts import NotLoggedIn, TooManyAttempts
from fairmile.access.oidc import LOGIN_S
from fairmile.access.rules import Viewer
from fairmile.web.access import Identity, Scope
from fairmile.web.errors import Refused
from fairmile.workspace import Workspace

COOKIE = "__Host-fairmile"  # the name itself makes browsers insist on an encrypted connection and this very host
LOGIN_COOKIE = "__Host-fairmile-login"  # kept while somebody logs in at a provider
VISITOR = Identity("visitor", frozenset({"browse"}), is_visitor=True)
_MOST_VIEWS = 64


class AccountAccess:
    """Tells who sent a request, by the account that it proves; visitors may browse where the server is public."""

    def __init__(self, access: Access, *, is_public: bool = False) -> None:
        self._access = access
        self._visitor = VISITOR if is_public else None

    def identify(self, scope: Scope) -> Identity | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        address = address_of(scope)
        try:
            if b"authorization" in headers:
                return _identity(self._by_token(headers[b"authorization"], address))
            if secret := session_of(headers.get(b"cookie", b"")):
                return self._by_session(scope, secret)
            return self._by_link(scope) or self._visitor
        except TooManyAttempts as error:
            raise Refused(429, str(error), hint=error.hint) from error
        except NotLoggedIn as error:
            raise Refused(401, str(error), hint="make a new token at /account") from error

    def _by_token(self, header: bytes, address: str) -> Known:
        scheme, _, token = header.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            raise NotLoggedIn("only tokens are taken here, as `Authorization: Bearer …`")
        return self._access.accounts.of_token(token.strip(), address)

    def _by_session(self, scope: Scope, secret: str) -> Identity | None:
        accounts = self._access.accounts
        try:
            known = accounts.of_session(secret)
            if fresh := accounts.renewed(secret):
                scope["fairmile.cookie"] = cookie_of(fresh).encode()
        except NotLoggedIn:  # it has ended: they see the page to log in, or what visitors see
            return self._visitor
        return _identity(known)

    def _by_link(self, scope: Scope) -> Identity | None:
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        signature, user, expires = (query.get(name, "") for name in ("signature", "user", "expires"))
        if not signature or not expires.isdecimal() or len(expires) > 12:
            return None
        now = self._access.clock()
        if not self._access.links.is_valid(scope["path"], user, float(expires), signature, now):
            raise Refused(403, "this link has expired or was changed", hint="ask for a new one")
        account = next((each for each in self._access.users() if each.name == user), None)
        if account is None:
            raise Refused(403, "this link has expired or was changed", hint="ask for a new one")
        return Identity(user, frozenset({"browse"}), account.groups, by="link")


class Views:
    """The workspace as each person sees it; people who see the same share one."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._views: dict[frozenset[str], Workspace] = {}
        self._lock = threading.Lock()

    def of(self, viewer: Viewer) -> Workspace:
        """Return the workspace without the assets that somebody must not hear of."""
        hidden = self._workspace.access.assets.hidden(viewer)
        if not hidden:
            return self._workspace
        with self._lock:
            if hidden not in self._views:
                if len(self._views) >= _MOST_VIEWS:
                    self._views.clear()
                self._views[hidden] = self._workspace.seen_without(hidden)
            return self._views[hidden]


def _identity(known: Known) -> Identity:
    return Identity(known.user.name, known.rights, known.user.groups, assets=known.assets, by=known.by)


def address_of(scope: Scope) -> str:
    """Return the address that a request comes from, as far as it is known."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def session_of(header: bytes, name: str = COOKIE) -> str:
    """Return the secret of the session, or another cookie, in a Cookie header; empty where there is none."""
    try:
        cookie = SimpleCookie(header.decode("latin-1")).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


def cookie_of(secret: str) -> str:
    """Return the Set-Cookie header of a session; an empty secret ends it."""
    age = int(SESSION_S) if secret else 0
    return f"{COOKIE}={secret}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Strict"


def login_cookie_of(sealed: str) -> str:
    """Return the Set-Cookie header of a login at a provider, which must come along on the way back from there."""
    age = int(LOGIN_S) if sealed else 0
    return f"{LOGIN_COOKIE}={sealed}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Lax"
