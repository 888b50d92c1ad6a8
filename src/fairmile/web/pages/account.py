"""Log in and out, one's tokens, and the code that a terminal shows."""

from __future__ import annotations

from functools import partial
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Body, Query, Request
from starlette.responses import RedirectResponse, Response

from fairmile.access.attempts import NotLoggedIn, TooManyAttempts
from fairmile.access.oidc import OidcProvider
from fairmile.base.errors import NotFound, UsageError
from fairmile.web.accounts import LOGIN_COOKIE, address_of, cookie_of, login_cookie_of, session_of
from fairmile.web.api.access import device_logins, session_only, terminal_secret
from fairmile.web.render import Page
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("access")
Form = Annotated[bytes, Body(media_type="application/x-www-form-urlencoded", max_length=10_000)]
Next = Annotated[str, Query(alias="next", max_length=500)]


@routes.page("/login", right=None)
def login_page(request: Request, after: Next = "/") -> Page:
    """Log in with name and password."""
    return _login(request, after)


@routes.post("/login", right=None, include_in_schema=False)
def log_in(request: Request, form: Form) -> Page | Response:
    """Begin a session."""
    values = form_values(form)
    name, after = values.get("name", ""), values.get("next", "/")
    accounts = workspace_of(request).access.accounts
    try:
        _, secret = accounts.log_in(name, values.get("password", ""), address_of(request.scope))
    except (NotLoggedIn, TooManyAttempts) as error:
        return _login(request, after, f"{error}. {error.hint or ''}", name)
    return RedirectResponse(_own_path(after), status_code=303, headers={"set-cookie": cookie_of(secret)})


@routes.page("/login/oidc", right=None)
def begin_at_provider(request: Request, after: Next = "/") -> Response:
    """Send the browser to the provider that the settings name."""
    begun = _provider(request).begin(f"{_base(request)}/login/oidc/callback", _own_path(after))
    return RedirectResponse(begun.address, status_code=303, headers={"set-cookie": login_cookie_of(begun.sealed)})


@routes.page("/login/oidc/callback", right=None)
def return_from_provider(request: Request) -> Page | Response:
    """Begin a session for whom the provider vouches."""
    sealed = session_of(request.headers.get("cookie", "").encode("latin-1"), LOGIN_COOKIE)
    answer = {name: request.query_params[name] for name in ("code", "state", "iss") if name in request.query_params}
    address, accounts = address_of(request.scope), workspace_of(request).access.accounts
    try:
        accounts.by_address.check(address)
        person, after = _provider(request).finish(answer, sealed)
        secret = accounts.new_session(accounts.log_in_person(person, address).name)
    except (NotLoggedIn, TooManyAttempts) as error:
        accounts.by_address.failed(address)
        workspace_of(request).access.note("", "log in failed", address=address, why=str(error))
        return _login(request, "/", f"{error}. {error.hint or ''}")
    # A redirect from here would still count as coming from the provider, and the cookie of the session stay behind.
    page = Page("logged_in.html", "Logged in", {"next": _own_path(after)})
    response: Response = request.app.state.pages.response(request, page)
    response.headers["cache-control"] = "no-store"
    response.headers.append("set-cookie", cookie_of(secret))
    response.headers.append("set-cookie", login_cookie_of(""))
    return response


@routes.post("/logout", right="browse", include_in_schema=False)
def log_out(request: Request) -> Response:
    """End the session."""
    secret = session_of(request.headers.get("cookie", "").encode("latin-1"))
    if secret:
        workspace_of(request).access.accounts.end_session(secret)
    return RedirectResponse("/login", status_code=303, headers={"set-cookie": cookie_of("")})


@routes.page("/account", right="browse")
def account_page(request: Request) -> Page:
    """Your account: rights, groups, tokens, requests."""
    identity = identity_of(request)
    if identity.by != "session":  # the owner on loopback needs none
        return Page("account.html", "Account", {"user": None, "new": None, "tokens": [], "requests": []})
    return _account(request)


@routes.post("/account/tokens", right="browse", include_in_schema=False)
def new_token(request: Request, form: Form) -> Page:
    """Create a token, and show it once."""
    values = form_values(form)
    accounts = workspace_of(request).access.accounts
    user = accounts.get(session_only(request).name)
    try:
        days = float(values.get("days", "30"))
    except ValueError:
        raise UsageError("the days must be a number") from None
    right = values.get("right", "browse")
    return _account(request, accounts.new_token(user, values.get("label", ""), rights=[right], days=days).secret)


@routes.post("/account/tokens/revoke", right="browse", include_in_schema=False)
def revoke_token(request: Request, form: Form) -> Response:
    """Revoke a token."""
    workspace_of(request).access.accounts.revoke_token(session_only(request).name, form_values(form).get("id", ""))
    return RedirectResponse("/account", status_code=303)


@routes.page("/device", right=None)
def device_page(request: Request) -> Page | Response:
    """Enter the code that a terminal shows."""
    if identity_of(request).by != "session":
        return RedirectResponse("/login?next=/device", status_code=303)
    return Page("device.html", "Log in a terminal", {"problem": "", "done": False})


@routes.post("/device", right="browse", include_in_schema=False)
def confirm_device(request: Request, form: Form) -> Page:
    """Let the terminal that shows the code log in."""
    accounts = workspace_of(request).access.accounts
    user = accounts.get(session_only(request).name)
    problem = ""
    try:
        device_logins(request).confirm(
            form_values(form).get("code", ""), user.name, partial(terminal_secret, accounts, user)
        )
    except (NotFound, TooManyAttempts) as error:
        problem = f"{error}. {error.hint or ''}"
    return Page("device.html", "Log in a terminal", {"problem": problem, "done": not problem})


def _login(request: Request, after: str, problem: str = "", name: str = "") -> Page:
    provider = workspace_of(request).access.oidc
    values = {"next": _own_path(after), "problem": problem, "name": name}
    return Page("login.html", "Log in", {**values, "provider": provider.settings.label if provider else ""})


def _provider(request: Request) -> OidcProvider:
    provider = workspace_of(request).access.oidc
    if provider is None:
        raise NotFound("this server has no other place to log in", hint="the setting access.oidc names one")
    return provider


def _base(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"


def _account(request: Request, secret: str = "") -> Page:
    access, name = workspace_of(request).access, session_only(request).name
    values = {
        "user": access.accounts.get(name).to_dict(),
        "new": secret,
        "tokens": access.accounts.tokens(name).to_dict()["tokens"],
        "requests": access.assets.requests(user=name).to_dict()["requests"],
    }
    return Page("account.html", "Account", values)


def _own_path(path: str) -> str:
    """Return a path of this server; what leads elsewhere becomes the start page."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path and path.isprintable()
    return path if is_own else "/"


def form_values(form: bytes) -> dict[str, str]:
    try:
        fields = parse_qs(form.decode("utf-8"), max_num_fields=20)
    except (UnicodeDecodeError, ValueError):
        raise UsageError("this form cannot be read") from None
    return {name: values[0] for name, values in fields.items()}
