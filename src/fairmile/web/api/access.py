"""Accounts over the API: log in from a terminal, tokens, requests for access, and what administrators decide."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request

from fairmile.access.accounts import DAY_S, Accounts
from fairmile.access.attempts import NotLoggedIn
from fairmile.access.logins import DeviceLogins
from fairmile.access.oidc import ProviderCode
from fairmile.access.results import AccessRequest, User
from fairmile.access.rules import Policy
from fairmile.access.servers import OfferedAccess
from fairmile.base.errors import NotFound, UsageError
from fairmile.base.results import Result
from fairmile.web.access import Identity
from fairmile.web.accounts import address_of
from fairmile.web.errors import Refused
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("access")
_MOST_JOB_DAYS = 7.0
Name = Annotated[str, Body(max_length=500)]
Text = Annotated[str, Body(max_length=2_000)]


def account_of(request: Request) -> Identity:
    """Return who asks, which must be somebody with an account and no mere link."""
    identity = identity_of(request)
    if identity.is_visitor or identity.by in ("", "link"):
        raise Refused(401, "log in first", hint="use your account in a browser, or a token in a program")
    return identity


def session_only(request: Request) -> Identity:
    """Return who asks from a browser: a token must not make further ones."""
    identity = account_of(request)
    if identity.by != "session":
        raise Refused(403, "a token cannot do this", hint="log in with a browser")
    return identity


def policy_seen(request: Request, name: str) -> Policy:
    """Return the policy of an asset that whoever asks may see; to all others it is not there."""
    workspace = workspace_of(request)
    return workspace.access.policy_of_card(workspace.catalog.get(name))


def device_logins(request: Request) -> DeviceLogins:
    """Return the logins from terminals that wait for a browser."""
    logins: DeviceLogins = request.app.state.device_logins
    return logins


def terminal_secret(accounts: Accounts, user: User) -> str:
    """Return the secret of a new token for the terminal of somebody who has logged in."""
    return accounts.new_token(user, "terminal", rights=["browse"]).secret


# Logging in from a terminal


@routes.post("/api/login/device", right=None, result="fairmile.access.logins:DeviceLogin")
def begin_login(request: Request, sso: Annotated[bool, Body(embed=True)] = False) -> Result:
    """Begin a login: show the code to the user, who enters it at the address in a browser.

    With `sso`, code and address are those of the login provider of this server.
    """
    caller = address_of(request.scope)
    if not sso:
        return device_logins(request).begin(f"{request.url.scheme}://{request.url.netloc}/device", caller)
    access = workspace_of(request).access
    provider = access.oidc
    if provider is None:
        raise NotFound("this server has no login provider", hint="log in without --sso")

    def finish(code: ProviderCode) -> str:
        try:
            person = provider.finish_device(code)
            return terminal_secret(access.accounts, access.accounts.log_in_person(person, caller)) if person else ""
        except NotLoggedIn as error:
            access.note("", "log in failed", address=caller, why=str(error))
            raise

    return device_logins(request).begin_at_provider(provider.begin_device, finish, caller)


@routes.post("/api/login/token", right=None, result="fairmile.access.logins:DeviceAnswer")
def end_login(request: Request, device_code: Annotated[str, Body(embed=True, max_length=200)]) -> Result:
    """Return the token of a login that was confirmed, once; until then its status is pending."""
    return device_logins(request).collect(device_code, address_of(request.scope))


# One's account and its tokens


@routes.get("/api/account", right="browse", result="fairmile.access.results:User")
def show_account(request: Request) -> Result:
    """Return your account."""
    return workspace_of(request).access.accounts.get(account_of(request).name)


@routes.get("/api/account/tokens", right="browse", result="fairmile.access.results:Tokens")
def list_tokens(request: Request) -> Result:
    """Return your tokens, without their secrets."""
    return workspace_of(request).access.accounts.tokens(account_of(request).name)


@routes.post("/api/account/tokens", right="browse", result="fairmile.access.results:NewToken", status=201)
def add_token(
    request: Request,
    label: Annotated[str, Body(max_length=100)] = "",
    rights: Annotated[list[str] | None, Body(max_length=4)] = None,
    days: Annotated[float, Body(gt=0, le=366)] = 30.0,
) -> Result:
    """Return a new token; its secret is shown this once. Only a browser session may ask for one."""
    accounts = workspace_of(request).access.accounts
    user = accounts.get(session_only(request).name)
    return accounts.new_token(user, label, rights=rights or ["browse"], days=days)


@routes.post("/api/account/job-tokens", right="browse", result="fairmile.access.results:NewToken", status=201)
def add_job_token(
    request: Request,
    assets: Annotated[list[str], Body(min_length=1, max_length=100)],
    hours: Annotated[float, Body(gt=0, le=_MOST_JOB_DAYS * 24)] = 24.0,
) -> Result:
    """Return a token for a job: it reads the files of these assets, for some hours, and does nothing else."""
    identity = account_of(request)
    accounts = workspace_of(request).access.accounts
    names = [policy_seen(request, each).asset for each in assets]
    user = accounts.get(identity.name)
    return accounts.new_token(user, "job", assets=names, days=hours * 3600 / DAY_S, kind="job")


@routes.delete("/api/account/tokens/{id}", right="browse", result="fairmile.access.results:Token")
def revoke_token(request: Request, id: str) -> Result:
    """Revoke one of your tokens."""
    return workspace_of(request).access.accounts.revoke_token(account_of(request).name, id)


# Access to assets


@routes.get("/api/access/assets/{name:path}", right="browse", result="fairmile.access.servers:OfferedAccess")
def show_access(request: Request, name: str) -> Result:
    """Return what you may have of an asset: whether its files, else why not, and the terms to accept."""
    policy = policy_seen(request, name)
    decision = workspace_of(request).access.assets.decision(identity_of(request).viewer, policy)
    server = f"{request.url.scheme}://{request.url.netloc}"
    return OfferedAccess(
        policy.asset,
        server,
        policy.files,
        policy.until,
        policy.terms,
        policy.terms_digest,
        decision.is_allowed,
        decision.reason,
    )


@routes.post("/api/access/requests", right="browse", result="fairmile.access.results:AccessRequest", status=201)
def request_access(request: Request, asset: Name, reason: Text = "") -> Result:
    """Ask for access to the files of an asset."""
    policy = policy_seen(request, asset)
    return workspace_of(request).access.assets.request(policy.asset, account_of(request).name, reason)


@routes.get("/api/access/requests", right="browse", result="fairmile.access.results:AccessRequests")
def list_requests(request: Request, status: Annotated[str, Query(max_length=20)] = "") -> Result:
    """Return your requests; administrators see all."""
    identity = account_of(request)
    user = "" if identity.may("admin") else identity.name
    return workspace_of(request).access.assets.requests(status=status, user=user)


@routes.post("/api/access/requests/{id}", right="admin", result="fairmile.access.results:AccessRequest")
def decide_request(
    request: Request, id: int, grant: Annotated[bool, Body()], until: Annotated[str, Body(max_length=10)] = ""
) -> AccessRequest:
    """Grant a request, for ever or up to a day, or refuse it."""
    access = workspace_of(request).access
    if not 0 < id < 2**62:
        raise UsageError(f"no request {id}")
    return access.assets.decide(id, identity_of(request).name, grant=grant, until_s=access.until_s(until))


@routes.post("/api/access/terms", right="browse", result="fairmile.access.results:AssetPolicy")
def accept_terms(request: Request, asset: Name, digest: Annotated[str, Body(max_length=64)]) -> Result:
    """Accept the terms of an asset, named by their sha256."""
    workspace = workspace_of(request)
    workspace.access.assets.accept(policy_seen(request, asset), account_of(request).name, digest)
    return workspace.access.policy(asset)


@routes.get("/api/access/audit", right="admin", result="fairmile.access.results:AuditLog")
def show_audit(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Result:
    """Return the last entries of the audit log."""
    return workspace_of(request).access.audit(limit=limit)
