"""What the keys and types of a card mean, looked up in the bundled context and the card's own, never fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.catalog.card import as_list
from fairmile.catalog.identity import is_iri
from fairmile.catalog.kinds import CONTEXT_IRI

KEYWORDS = frozenset(
    {"@base", "@container", "@context", "@direction", "@graph", "@id", "@import", "@included", "@index", "@json"}
    | {"@language", "@list", "@nest", "@none", "@prefix", "@propagate", "@protected", "@reverse", "@set", "@type"}
    | {"@value", "@version", "@vocab"}
)
_DEEPEST_TERM = 5


class Term(NamedTuple):
    """What a key means: its IRI, and whether its value is plain JSON that no context looks into."""

    iri: str
    opaque: bool = False


class Reading(NamedTuple):
    """What the keys and types of a card come to."""

    terms: dict[str, str]
    unknown: tuple[str, ...]
    contexts: tuple[str, ...]
    values: frozenset[str]


@cache
def bundled_terms() -> Mapping[str, Term]:
    """Return the terms of the bundled context."""
    path = Path(__file__).with_name("data") / "context.jsonld"
    return _table(json.loads(path.read_text(encoding="utf-8"))["@context"], {})


def read_terms(body: Mapping[str, Any], value_prefixes: tuple[str, ...] = ()) -> Reading:
    """Return the terms that the body uses, those that mean nothing, and its values under the given prefixes.

    The bundled context always counts; contexts written into the card count too; addresses of others are only listed.
    """
    contexts = as_list(body.get("@context"))
    inline: dict[str, Any] = {}
    for context in contexts:
        if isinstance(context, Mapping):
            inline.update({str(key): value for key, value in context.items()})
    bundled = bundled_terms()
    table: Mapping[str, Term] = {**bundled, **_table(inline, bundled)} if inline else bundled
    vocabulary = inline.get("@vocab")
    base = vocabulary if isinstance(vocabulary, str) else ""
    known: dict[str, str] = {}
    unknown: dict[str, None] = {}
    values: set[str] = set()
    for word, is_value in _words(body, table):
        if is_value:
            if value_prefixes and word.startswith(value_prefixes):
                values.add(word)
        elif word not in known and word not in unknown:
            iri = _expand(word, table) or (base + word if base and not word.startswith("@") else None)
            if iri is None:
                unknown[word] = None
            elif not iri.startswith("@"):
                known[word] = iri
    addresses = tuple(context for context in contexts if isinstance(context, str))
    return Reading(known, tuple(unknown), addresses, frozenset(values))


def in_profile(reading: Reading) -> bool:
    """Tell whether the card names the profile's own context."""
    return CONTEXT_IRI in reading.contexts


def _words(body: Mapping[str, Any], table: Mapping[str, Term]) -> Iterator[tuple[str, bool]]:
    """Yield every key and type as (word, False) and every text value as (text, True)."""
    # A stack of our own: a document may be nested deeper than the interpreter's.
    todo: list[Any] = [body]
    while todo:
        node = todo.pop()
        if isinstance(node, str):
            yield node, True
        elif isinstance(node, (list, tuple)):
            todo.extend(node)
        elif isinstance(node, Mapping):
            for name, value in node.items():
                key = str(name)
                # A null says nothing in JSON-LD: its key is not there.
                if key == "@context" or value is None:
                    continue
                if key == "@type":
                    yield from ((str(each), False) for each in as_list(value) if isinstance(each, (str, int)))
                    continue
                yield key, False
                # A licence is judged by a test of its own; it must not count again as a registered value.
                if key not in ("license", "licenseRaw") and not (key in table and table[key].opaque):
                    todo.append(value)


def _table(context: Mapping[str, Any], given: Mapping[str, Term]) -> dict[str, Term]:
    raw = {str(key): value for key, value in context.items() if not str(key).startswith("@")}
    table: dict[str, Term] = {}
    for key, value in raw.items():
        opaque = isinstance(value, Mapping) and value.get("@type") == "@json"
        iri = _defined(key, raw, given, _DEEPEST_TERM)
        if iri:
            table[key] = Term(iri, opaque)
    return table


def _defined(key: str, raw: Mapping[str, Any], given: Mapping[str, Term], depth: int) -> str | None:
    value = raw.get(key)
    if isinstance(value, Mapping):
        value = value.get("@id", key if ":" in key else None)
    if not isinstance(value, str):
        return given[key].iri if key in given and key not in raw else None
    prefix, colon, rest = value.partition(":")
    if colon and not rest.startswith("//") and depth and (prefix in raw or prefix in given) and prefix != key:
        stem = _defined(prefix, raw, given, depth - 1)
        return stem + rest if stem else None
    if value.startswith("@"):
        return value if value in KEYWORDS else None
    return value if is_iri(value) else None


def _expand(word: str, table: Mapping[str, Term]) -> str | None:
    if word.startswith("@"):
        return word if word in KEYWORDS else None
    if word in table:
        return table[word].iri
    prefix, colon, rest = word.partition(":")
    if not colon:
        return None
    if prefix in table and not rest.startswith("//"):
        return table[prefix].iri + rest
    # `note: see below` is no IRI although it has a colon; an address or a URN is.
    return word if is_iri(word) and (rest.startswith("//") or prefix.lower() == "urn") else None
