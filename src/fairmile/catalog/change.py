"""A change to a card: what is set, appended to and dropped, and the card that comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import did_you_mean
from fairmile.catalog.card import SPDX_PREFIX, Card, as_list
from fairmile.catalog.describing.describe import with_address, with_files
from fairmile.catalog.describing.survey import survey
from fairmile.catalog.identity import card_digest, mint_iri
from fairmile.catalog.licences import licence_iri
from fairmile.catalog.profile import check_body
from fairmile.catalog.short_forms import expand, extended


class Change(NamedTuple):
    """What an update sets, appends and drops; the files it measures, and the address where others fetch them.

    Texts may be in the short form of their property; see `short_forms`.
    """

    set: dict[str, Any]
    add: dict[str, Any]
    unset: tuple[str, ...]
    files: tuple[Path, ...] = ()
    address: str = ""


def changed(old: Card, change: Change, *, base: str) -> Card:
    """Return the changed card; a new version has an id of its own and is linked to the old one.

    Raises UsageError when it would be another asset, InvalidDocument when it breaks the profile.
    """
    for key in change.unset:
        if key not in old:
            raise UsageError(f"{old.handle} has no {key!r} to drop", hint=did_you_mean(key, old) or None)
    body = {key: value for key, value in old.body.items() if key not in change.unset}
    if "license" in (*change.set, *change.unset):
        body.pop("licenseRaw", None)
    body |= {key: expand(key, value) for key, value in change.set.items()}
    for key, value in change.add.items():
        body[key] = extended(key, body.get(key), value)
    for path in change.files:
        body = with_files(body, survey(path))
    if change.address:
        body = with_address(body, change.address)
    new = Card(body)
    if (new.kind, new.name) != (old.kind, old.name):
        raise UsageError(
            "name and @type identify the asset and cannot be changed",
            hint="add it under the new name and remove this one",
        )
    if "license" in (*change.set, *change.add):
        body = with_spdx(body)
    if "distribution" in (*change.set, *change.add, *change.unset) and "contentDigest" not in change.set:
        body.pop("contentDigest", None)
        content = Card(body).content
        body |= {"contentDigest": content} if content else {}
    if new.version != old.version:
        body["wasRevisionOf"] = old.iri
        if "@id" not in change.set:
            body["@id"] = mint_iri(old.kind, old.title, new.version, base=base, origin=old.digest)
    return _checked(body)


def stated(draft: Card, values: Mapping[str, Any]) -> Card:
    """Return a drafted card with properties that its owner states; texts may be in their short forms."""
    return _checked(with_spdx({**draft.body, **{key: expand(key, value) for key, value in values.items()}}))


def _checked(body: dict[str, Any]) -> Card:
    errors = [problem for problem in check_body(body) if problem.severity == "error"]
    if errors:
        raise InvalidDocument(errors)
    card_digest(body)  # refuses what no canonical JSON can express
    return Card(body)


def with_spdx(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with its licences as SPDX addresses; what was written otherwise is kept as `licenseRaw`."""
    raw = as_list(body.get("license"))
    if not all(isinstance(text, str) for text in raw) or all(text.startswith(SPDX_PREFIX) for text in raw):
        return dict(body)
    licences = [licence_iri(text) or text for text in raw]
    if licences == raw:
        return dict(body)
    licence = licences[0] if len(licences) == 1 else licences
    return {**body, "license": licence, "licenseRaw": raw[0] if len(raw) == 1 else raw}
