"""How assets are named: handles, IRIs, content and card digests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fairmile.base.digest import ManifestEntry, canonical_json, merkle_root, ni, parse_checksum, plain_json, sha256_hex
from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.words import slug

# Facts that change while the asset does not; they stay out of the digest so that it is stable.
VOLATILE_KEYS = frozenset({"cardDigest", "catalog", "usageCount", "tombstone", "trustLevel"})
_LARGEST_EXACT = 2**53 - 1
DIGEST_VERSION_PREFIX = "sha256-"
_IRI = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]+")
_DOI = lazy_pattern(r"^(?:doi:|https?://(?:dx\.)?doi\.org/)(10\.\d{4,9}/\S+)$", re.IGNORECASE)
# Random, fixed once: the name space in which ids of cards that bring none are derived.
_NAMESPACE = "6f0c5e7a-1a43-5f3b-9c1e-3d2f8d0b7a51"


class Handle(NamedTuple):
    """The name people type: `catalog/kind/name@version`."""

    catalog: str
    kind: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.catalog}/{self.kind}/{self.name}@{self.version}"


class Reference(NamedTuple):
    """What a user typed: any part of a handle may be missing."""

    catalog: str | None
    kind: str | None
    name: str
    version: str | None


def version_slug(version: str) -> str:
    """Return the version as it stands in a handle and a file name."""
    return slug(version.replace("+", "-"), keep_case=True)


def parse_reference(text: str, kinds: Sequence[str]) -> Reference:
    """Split `[catalog/][kind/]name[@version]` as a user may shorten it."""
    path, _, version = text.strip().partition("@")
    parts = path.split("/")
    if not all(parts) or len(parts) > 3:
        raise UsageError(
            f"{text!r} is not a name of an asset",
            hint="expected [catalog/][kind/]name[@version], as in model/cosmoflow@1.0",
        )
    catalog = kind = None
    if len(parts) == 3:
        catalog, kind = parts[0], parts[1]
    elif len(parts) == 2:
        catalog, kind = (None, parts[0]) if parts[0] in kinds else (parts[0], None)
    if kind is not None and kind not in kinds:
        raise UsageError(f"{kind!r} in {text!r} is not a kind of asset", hint=f"kinds: {', '.join(kinds)}")
    return Reference(catalog, kind, slug(parts[-1]), version_slug(version) if version else None)


def is_iri(text: object) -> bool:
    """Tell whether the text is an absolute IRI."""
    return isinstance(text, str) and bool(_IRI.fullmatch(text))


def doi_of(text: object) -> str | None:
    """Return the bare DOI of a DOI in any of its spellings."""
    match = _DOI.match(text.strip()) if isinstance(text, str) else None
    return match.group(1) if match else None


def mint_iri(kind: str, name: str, version: str, *, base: str = "", origin: str = "") -> str:
    """Return the id of a card that brings none: below the site's base address, else a derived urn:uuid."""
    if base:
        return f"{base.rstrip('/')}/a/{kind}/{slug(name)}/{version_slug(version)}"
    import uuid  # which only new cards need, and every search would wait for

    return f"urn:uuid:{uuid.uuid5(uuid.UUID(_NAMESPACE), f'{origin}|{kind}|{slug(name)}|{version}')}"


def card_digest(body: Mapping[str, Any]) -> str:
    """Return the `ni:` digest of the card's canonical bytes without its volatile keys."""
    stable = {key: value for key, value in body.items() if key not in VOLATILE_KEYS}
    plain = plain_json(stable)
    return ni(sha256_hex(canonical_json(_exact(stable)) if plain is None else plain))


def _exact(value: Any) -> Any:
    """Return the value with whole numbers beyond 2**53 as text: canonical JSON has no exact form for them."""
    if isinstance(value, dict):
        return {key: _exact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > _LARGEST_EXACT else value


def content_digest(files: Sequence[tuple[str, int, str]]) -> str | None:
    """Return the `ni:` digest of the content: the file's own for one file, the Merkle root for many.

    Each file is (name, size in bytes, sha256 in hex); None when there is no file, or no tree has these names.
    """
    if not files:
        return None
    if len(files) == 1:
        return ni(files[0][2])
    try:
        return ni(merkle_root([ManifestEntry(name, size, digest, 0o644) for name, size, digest in files]))
    except UsageError:
        # Two files of one name, or a name that leads out of the folder, are no tree.
        return None


def source_key(body: Mapping[str, Any]) -> bytes:
    """Return what two cards share when they take the same files from the same addresses, under whatever names."""
    named = {"@id", "@type", "name", "description", "encodingFormat", "sha256", "sha1", "sha512", "md5", "role"}
    files = [entry for entry in _many(body.get("distribution")) if isinstance(entry, Mapping)]
    taken = [{key: _exact(value) for key, value in entry.items() if key not in named} for entry in files]
    return b"\n".join(sorted(canonical_json(entry) for entry in taken))


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def valid_sha256(text: object) -> str | None:
    """Return the lower-case hex sha256 in the text, or None when it holds none."""
    return _sha256_in(text) if isinstance(text, str) else None


@lru_cache(maxsize=64)  # a card is asked for the same few several times
def _sha256_in(text: str) -> str | None:
    checksum = parse_checksum(text, "sha256")
    return checksum.hex if checksum and checksum.algorithm == "sha256" else None


def version_key(version: str) -> str:
    """Return a text that sorts as versions do: 1.10 after 1.9, 1.0rc1 before 1.0."""
    parts = re.findall(r"[0-9]+|[a-z]+", version.lower().removeprefix("v"))
    keys = [f"2{part.lstrip('0').zfill(20)}" if part.isdigit() else f"0{part}" for part in parts]
    return ".".join([*keys, "1"])
