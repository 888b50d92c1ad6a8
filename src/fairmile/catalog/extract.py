"""What of a card the index holds: facets, names, links to look it up by, and text to search in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from fairmile.base.digest import ni
from fairmile.base.words import slug
from fairmile.catalog.card import Card, as_list, format_name, id_of, text_of
from fairmile.catalog.identity import doi_of, valid_sha256

_MAX_REST_CHARACTERS = 20_000
# Keys whose values nobody types as a word: they would only swell the index.
_NOT_TEXT = frozenset(
    {"@context", "@type", "conformsTo", "sourceDocument", "warnings", "license", "contentSize", "contentDigest"}
    | {"sha256", "sha1", "sha512", "md5", "encodingFormat"}
)


def facets_of(card: Card) -> list[tuple[str, str]]:
    """Return every (facet, value) the card can be found by."""
    machines = card.texts("targetMachine") + card.texts("runsOn")
    gpus = card.texts("gpuModel") + card.texts("gpuArchitecture")
    access = [text.rsplit("/", 1)[-1] for text in card.texts("accessRights")]
    values = {
        "kind": [card.kind],
        "catalog": [card.catalog],
        "domain": card.domains,
        "task": card.tasks,
        "framework": card.frameworks,
        "format": card.formats,
        "licence": [card.licence] if card.licence else card.texts("license"),
        "tag": card.keywords,
        "creator": card.texts("creator"),
        "project": [*card.texts("project"), *_inner(card, "project", "alternateName")],
        "funder": [*card.texts("funder"), *_inner(card, "funding", "funder"), *_inner(card, "project", "funder")],
        "machine": machines,
        "gpu": [*gpus, *card.texts("processorRequirements")],
        "language": card.texts("programmingLanguage"),
        "access": access,
        "category": card.texts("modelCategory"),
        # Not a field of the search language: it finds the models for the formats of a data set.
        "accepts": [format_name(text) for text in accepted_formats(card)],
    }
    pairs = [(facet, value) for facet, texts in values.items() for value in texts if value and len(value) <= 200]
    return list(dict.fromkeys(pairs))


def _inner(card: Card, key: str, inner: str) -> list[str]:
    objects = [value for value in as_list(card.get(key)) if isinstance(value, Mapping)]
    return [text for each in objects for value in as_list(each.get(inner)) if (text := text_of(value))]


def aliases_of(card: Card) -> list[tuple[str, str]]:
    """Return every (text, what it is) the card answers to: ids, digests, addresses of files."""
    aliases = [(text, "id") for text in card.identifiers]
    aliases += [(doi, "id") for text in card.identifiers if (doi := _doi(text))]
    aliases += [(name, "name") for text in card.texts("alternateName") for name in (text, slug(text))]
    aliases += [(card.digest, "card")]
    if card.content:
        aliases.append((digest_id(card.content), "content"))
    for file in card.files:
        if file.url:
            aliases.append((file.url, "url"))
        if file.sha256:
            aliases.append((digest_id(file.sha256), "sha256"))
    if repository := card.text("codeRepository"):
        aliases.append((repository, "repository"))
    source = card.get("sourceDocument")
    if isinstance(source, Mapping) and isinstance(source.get("sha256"), str):
        aliases.append((digest_id(source["sha256"]), "document"))
    return list(dict.fromkeys(aliases))


def id_names(text: str) -> list[str]:
    """Return the spellings under which `aliases_of` may list an id or digest that a user typed."""
    return list(dict.fromkeys([text, digest_id(text), _doi(text) or text]))


def digest_id(text: str) -> str:
    """Return the one spelling of a sha256 that is looked up, or the text itself when it is none."""
    sha256 = valid_sha256(text)
    return ni(sha256) if sha256 else text


def _doi(text: str) -> str | None:
    # DOIs are the same in any case, and are written with and without a prefix.
    doi = doi_of(text) or doi_of(f"doi:{text}")
    return doi.lower() if doi else None


def links_of(card: Card) -> list[tuple[str, str]]:
    """Return every (relation, target) that names another asset, a benchmark's match and a workflow's ends included."""
    spec = card.get("matchSpec")
    named = (
        [value for key in ("models", "datasets") for value in as_list(spec.get(key))]
        if isinstance(spec, Mapping)
        else []
    )
    pairs = [("matchSpec", id_of(value)) for value in named]
    pairs += [(key, id_of(value)) for key in ("input", "output") for value in as_list(card.get(key))]
    return list(dict.fromkeys([*card.links, *((relation, target) for relation, target in pairs if target)]))


def summary_of(card: Card) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "description": card.text("description")[:300],
        "licence": card.licence or card.text("license") or None,
        "domains": card.domains,
        "tasks": card.tasks,
        "frameworks": card.frameworks,
        "formats": card.formats,
        "size_bytes": sum(file.size_bytes or 0 for file in card.files) or None,
        "warnings": len(card.warnings),
    }
    if "tombstone" in card:
        summary["tombstone"] = card["tombstone"]
    return {key: value for key, value in summary.items() if value}


def texts_of(card: Card) -> tuple[str, str, str]:
    """Return what is searched for words: the names, the keywords, and all the rest."""
    name = " ".join([card.title, card.name.replace("-", " "), *card.texts("alternateName")])
    keywords = " ".join(
        [
            card.licence or "",
            *card.keywords,
            *card.domains,
            *card.tasks,
            *card.frameworks,
            *card.formats,
            *card.texts("modelCategory"),
        ]
    )
    rest: list[str] = []
    left = _MAX_REST_CHARACTERS
    for text in _leaves(card.body, {*_NOT_TEXT, "name", "keywords", "alternateName"}):
        left -= len(text)
        if left < 0:
            break
        rest.append(text)
    return name, keywords, " ".join(rest)


def _leaves(value: Any, skip: Set[str] = _NOT_TEXT) -> Iterator[str]:
    # A stack of our own: a document may be nested deeper than the interpreter's.
    todo = [each for key, each in reversed(value.items()) if key not in skip]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            todo.extend(each for key, each in reversed(node.items()) if key not in _NOT_TEXT)
        elif isinstance(node, list):
            todo.extend(reversed(node))
        elif isinstance(node, str):
            yield node


def model_inputs(card: Card) -> list[Mapping[str, Any]]:
    """Return the inputs of a model's signature."""
    signature = card.get("signature")
    inputs = as_list(signature.get("inputs")) if isinstance(signature, Mapping) else []
    return [spec for spec in inputs if isinstance(spec, Mapping)]


def accepted_formats(card: Card) -> list[str]:
    """Return the formats a model's signature says it reads."""
    return [
        text for spec in model_inputs(card) for value in as_list(spec.get("encodingFormat")) if (text := text_of(value))
    ]
