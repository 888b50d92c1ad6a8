"""The catalog as a source for another Fairmile: an index, cards and their files, as far as whoever asks may have them.

`/index.json` has the form that `fairmile catalog publish` writes, so `fairmile catalog source add NAME ADDRESS` takes
this server like any other source, and files come with ranges and digests as from any web server.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Body, Request
from starlette.responses import FileResponse, Response

from fairmile.access.access import asset_of
from fairmile.access.links import LINK_S
from fairmile.access.rules import Obstacle
from fairmile.base.digest import sha256_hex
from fairmile.base.errors import NotFound
from fairmile.catalog.card import Card, as_list
from fairmile.catalog.declared import LOCAL
from fairmile.catalog.folder import CatalogFolder
from fairmile.catalog.identity import valid_sha256
from fairmile.catalog.sources import card_for_others
from fairmile.store.refs import KINDS
from fairmile.web.accounts import address_of
from fairmile.web.answers import JSON, tagged, to_json
from fairmile.web.api.access import account_of
from fairmile.web.errors import Gone, Refused
from fairmile.web.guard import FILES_PATH
from fairmile.web.routes import Routes, identity_of, workspace_of
from fairmile.workspace import Workspace

routes = Routes("catalog")
_STATUS: dict[Obstacle, int] = {"log in": 401, "ask": 403, "wait": 403, "accept": 403}
_CARD = "application/ld+json"
_MOST_INDEXES = 16


@routes.get("/index.json", right="browse", include_in_schema=False)
def shared_index(request: Request) -> Response:
    """Return every card of the local catalog that one may see, with its digest."""
    workspace = workspace_of(request)
    indexes: SharedIndexes = request.app.state.shared_indexes
    return tagged(request, indexes.of(workspace, _base(request)), JSON, {"cache-control": "no-cache"})


class SharedIndexes:
    """The indexes that were sent last, one for each view; cards are read again only where they or the store changed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, frozenset[str]], tuple[object, bytes]] = {}
        self._lock = threading.Lock()

    def of(self, workspace: Workspace, base: str) -> bytes:
        """Return the index of a view as JSON, with addresses below `base`."""
        folder = next(each for each in workspace.catalog.folders() if each.name == LOCAL)
        key, state = (base, workspace.hidden), (folder.generation(), _store_state(workspace))
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept[0] != state or folder.is_unfinished():
                if len(self._kept) >= _MOST_INDEXES:
                    self._kept.clear()
                kept = self._kept[key] = (state, _index(workspace, folder, base))
        return kept[1]


def _store_state(workspace: Workspace) -> tuple[int, ...]:
    """Return what changes whenever data gets a name in the store, or loses it."""
    store = workspace.store
    folders = [store.pool_refs(pool).folder / kind for pool in store.fast_first for kind in KINDS]
    return tuple(folder.stat().st_mtime_ns if folder.exists() else 0 for folder in folders)


def _index(workspace: Workspace, folder: CatalogFolder, base: str) -> bytes:
    cards = (folder.read(path) for path, _ in sorted(folder.scan()))
    return to_json(
        {
            "cards": [
                {
                    "path": _place(card).lstrip("/") + ".jsonld",
                    "sha256": sha256_hex(_text(workspace, card, base).encode()),
                }
                for card in cards
                if "tombstone" not in card
            ]
        }
    )


@routes.get("/api/catalog/{kind}/{name}/{version}.jsonld", right="browse")
def shared_card(request: Request, kind: str, name: str, version: str) -> Response:
    """Return a card of the local catalog; its files have addresses on this server."""
    workspace = workspace_of(request)
    card = _present(workspace, kind, name, version, _base(request))
    _check_token(request, asset_of(card))
    return tagged(request, _text(workspace, card, _base(request)).encode(), _CARD, {"cache-control": "no-cache"})


@routes.get("/api/catalog/{kind}/{name}/{version}/files/{sha256}/{file:path}", right="browse")
def shared_file(request: Request, kind: str, name: str, version: str, sha256: str, file: str) -> Response:
    """Return a file of an asset, or a range of it."""
    workspace, identity = workspace_of(request), identity_of(request)
    card = _present(workspace, kind, name, version, _base(request))
    _check_access(request, workspace, card)
    if sha256 not in _stored(workspace, card):
        raise NotFound("this server has no such file", hint="its card lists other addresses")
    policy = workspace.access.policy_of_card(card)
    if policy.files != "public" and request.headers.get("range", "bytes=0-").startswith("bytes=0-"):  # not each part
        workspace.access.note(identity.name, "read", asset_of(card), file=sha256, by=identity.by)
    headers = {
        "etag": f'"{sha256}"',
        "repr-digest": f"sha-256=:{_base64(sha256)}:",
        "cache-control": "private, no-cache",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    path = workspace.store.path(sha256)
    if path is None:  # a small one, packed with others
        with workspace.store.open(sha256) as stream:
            return Response(stream.read(), headers=headers, media_type="application/octet-stream")
    return FileResponse(path, headers=headers, media_type="application/octet-stream", filename=file.rpartition("/")[2])


@routes.post("/api/links", right="browse")
def sign_link(request: Request, path: Annotated[str, Body(embed=True, max_length=2_000)]) -> Mapping[str, Any]:
    """Return a link to a file that works without logging in, for five minutes."""
    identity, workspace = account_of(request), workspace_of(request)
    parts = path.removeprefix(FILES_PATH).split("/")
    if not path.startswith(FILES_PATH) or len(parts) < 6 or parts[3] != "files":
        raise Refused(400, "this is not the address of a file", hint=f"expected {FILES_PATH}…/files/…")
    card = _local_card(workspace, *parts[:3])
    _check_access(request, workspace, card)
    expires = int(workspace.access.clock() + LINK_S)
    signature = workspace.access.links.sign(path, identity.name, expires)
    workspace.access.note(identity.name, "sign link", asset_of(card))
    return {"link": f"{quote(path)}?user={quote(identity.name)}&expires={expires}&signature={signature}"}


def _check_access(request: Request, workspace: Workspace, card: Card) -> None:
    identity = identity_of(request)
    policy = workspace.access.policy_of_card(card)
    _check_token(request, policy.asset)
    decision = workspace.access.assets.decision(identity.viewer, policy)
    if not decision.is_allowed:
        who = identity.viewer.name
        workspace.access.note(who, "denied", policy.asset, why=decision.obstacle, address=address_of(request.scope))
        hint = "request it on its page, or with POST /api/access/requests" if decision.obstacle == "ask" else None
        raise Refused(
            _STATUS[decision.obstacle],
            f"{card.kind}/{card.name}: {decision.reason}",
            hint=hint,
            obstacle=decision.obstacle,
        )


def _check_token(request: Request, asset: str) -> None:
    assets = identity_of(request).assets
    if assets and asset not in assets:
        raise Refused(403, f"this token is not for {asset}")


def _local_card(workspace: Workspace, kind: str, name: str, version: str) -> Card:
    card = workspace.catalog.get(f"{LOCAL}/{kind}/{name}@{version}")
    return Card(card.body, catalog=LOCAL)


def _present(workspace: Workspace, kind: str, name: str, version: str, base: str) -> Card:
    """Return a card of the local catalog that was not removed."""
    card = _local_card(workspace, kind, name, version)
    if "tombstone" in card:
        raise Gone(f"{card.kind}/{card.name}@{version}", json.loads(_text(workspace, card, base)))
    return card


def _stored(workspace: Workspace, card: Card) -> set[str]:
    """Return the digests of the files of a card that this server can give."""
    stated = {file.sha256 for file in card.files if file.sha256 and valid_sha256(file.sha256)}
    return {sha256 for sha256 in stated if sha256 in workspace.store}


def _text(workspace: Workspace, card: Card, base: str) -> str:
    stored = _stored(workspace, card)

    def placed(entry: Any) -> Any:
        sha256 = entry.get("sha256") if isinstance(entry, Mapping) else None
        if sha256 not in stored:
            return entry
        name = str(entry.get("name") or sha256)
        return {**entry, "contentUrl": f"{base}{_place(card)}/files/{sha256}/{quote(name)}"}

    body = {**card.body, "distribution": [placed(each) for each in as_list(card.get("distribution"))]}
    return card_for_others(Card(body, catalog=LOCAL)).to_json()


def _place(card: Card) -> str:
    return FILES_PATH + "/".join(quote(each, safe="") for each in (card.kind, card.name, card.handle.version))


def _base(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}"


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()
