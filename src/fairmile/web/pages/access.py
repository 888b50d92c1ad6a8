"""Administration: requests for access, grants, policies, accounts, the audit log."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from fairmile.access.results import AssetPolicy
from fairmile.catalog.card import Card
from fairmile.web.api.access import account_of, policy_seen
from fairmile.web.pages.account import Form, form_values
from fairmile.web.render import Page
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("access")
_SHOWN_ENTRIES = 50


@routes.page("/access", right="admin")
def access_page(request: Request) -> Page:
    """Decide requests for access, and see who has it."""
    access = workspace_of(request).access
    log = access.audit(limit=_SHOWN_ENTRIES)
    facts = [(each.number, each.facts, _rest(each.facts)) for each in log]
    values = {
        "requests": access.requests().to_dict()["requests"],
        "policies": access.ls().to_dict()["assets"],
        "grants": access.grants().to_dict()["grants"],
        "users": access.users().to_dict()["users"],
        "entries": facts,
        "verified": access.verify_audit(),
    }
    return Page("access.html", "Access", values)


@routes.post("/access/requests", right="admin", include_in_schema=False)
def decide(request: Request, form: Form) -> Response:
    """Grant or refuse a request."""
    values, access = form_values(form), workspace_of(request).access
    number = values.get("id", "")
    access.assets.decide(
        int(number) if number.isdecimal() and len(number) < 18 else 0,
        identity_of(request).name,
        grant=values.get("decision") == "grant",
        until_s=access.until_s(values.get("until", "")),
    )
    return RedirectResponse("/access", status_code=303)


def _rest(facts: dict[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in facts.items() if name not in ("at", "who", "what", "asset"))


def access_of(request: Request, card: Card) -> dict[str, object]:
    """Return what the page of an asset shows of access to it; the template is `access_of_asset.html`."""
    access = workspace_of(request).access
    policy = access.policy_of_card(card)
    decision = access.assets.decision(identity_of(request).viewer, policy)
    return {
        "policy": AssetPolicy(policy).to_dict(),
        "digest": policy.terms_digest,
        "allowed": decision.is_allowed,
        "obstacle": decision.obstacle,
        "reason": decision.reason,
    }


@routes.post("/access/ask", right="browse", include_in_schema=False)
def ask(request: Request, form: Form) -> Response:
    """Request access to an asset."""
    values = form_values(form)
    policy = policy_seen(request, values.get("asset", ""))
    workspace_of(request).access.assets.request(policy.asset, account_of(request).name, values.get("reason", ""))
    return RedirectResponse("/account", status_code=303)


@routes.post("/access/accept", right="browse", include_in_schema=False)
def accept(request: Request, form: Form) -> Response:
    """Accept the terms of an asset."""
    values = form_values(form)
    policy = policy_seen(request, values.get("asset", ""))
    access = workspace_of(request).access
    access.assets.accept(policy, account_of(request).name, values.get("digest", ""))
    return RedirectResponse(f"/assets/{quote(policy.asset)}", status_code=303)
