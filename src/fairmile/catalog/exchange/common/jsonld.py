"""What readers and writers of JSON-LD share: names in any spelling, and values in the forms of a card."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any

from fairmile.base.digest import parse_checksum
from fairmile.base.errors import UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.strict_json import load_json
from fairmile.catalog.card import as_list, text_of
from fairmile.catalog.dates import DATE_TERMS, is_date
from fairmile.catalog.exchange.draft import EMPTY, Draft
from fairmile.catalog.identity import VOLATILE_KEYS, is_iri
from fairmile.catalog.profile import context_terms

SCHEMA = "http://schema.org/"
CROISSANT = "http://mlcommons.org/croissant/"
CODEMETA = "https://w3id.org/codemeta/terms/"
BIOSCHEMAS = "https://bioschemas.org/terms/"
RUN_TERMS = "https://w3id.org/ro/terms/workflow-run#"
# Holds, in an export, as JSON text the card's own value of each key whose foreign form says less; null: there is none.
VERBATIM = "fx:verbatim"
# About the import of the card, not about the asset.
ADMINISTRATIVE = ("sourceDocument", "warnings", "foreign")
CHECKSUMS = ("sha256", "md5", "sha1", "sha512")
# One vocabulary has several addresses in the wild; the longest start that fits is replaced.
_SAME_SPACE = {
    "https://schema.org/": SCHEMA,
    "http://www.schema.org/": SCHEMA,
    "https://www.schema.org/": SCHEMA,
    "https://mlcommons.org/croissant/": CROISSANT,
    "http://mlcommons.org/schema/": CROISSANT,
    "https://mlcommons.org/schema/": CROISSANT,
    BIOSCHEMAS: BIOSCHEMAS,
    "https://bioschemas.org/ComputationalWorkflow#": BIOSCHEMAS,
    "https://bioschemas.org/": BIOSCHEMAS,
    CODEMETA: CODEMETA,
    "https://w3id.org/codemeta/": CODEMETA,
    "https://codemeta.github.io/terms/": CODEMETA,
}
_SPACES = sorted(_SAME_SPACE.items(), key=lambda pair: -len(pair[0]))
# One property under several addresses, each by the one that the card uses.
_SAME_TERM = {
    f"{RUN_TERMS}sha256": f"{SCHEMA}sha256",
    f"{CROISSANT}sha256": f"{SCHEMA}sha256",
    f"{CROISSANT}md5": f"{RUN_TERMS}md5",
    f"{SCHEMA}md5": f"{RUN_TERMS}md5",
    f"{SCHEMA}FileObject": f"{CROISSANT}FileObject",
    f"{SCHEMA}FileSet": f"{CROISSANT}FileSet",
}


class Vocabulary(NamedTuple):
    """The terms of a card: by name, by address, and which of them hold plain JSON or the ids of others."""

    prefixes: Mapping[str, str]
    iris: Mapping[str, str]
    terms: Mapping[str, str]
    json_terms: frozenset[str]
    link_terms: frozenset[str]

    def split(self, iri: str) -> tuple[str, str] | None:
        """Return prefix and local name of an address, by the longest name space that fits."""
        fitting = [(len(space), prefix) for prefix, space in self.prefixes.items() if iri.startswith(space)]
        size, prefix = max(fitting, default=(0, ""))
        return (prefix, iri[size:]) if prefix and len(iri) > size else None


@cache
def vocabulary() -> Vocabulary:
    """Return the terms that the bundled context of cards defines."""
    context = context_terms()
    prefixes = {key: value for key, value in context.items() if isinstance(value, str) and "://" in value}
    iris: dict[str, str] = {}
    terms: dict[str, str] = {}
    typed: dict[str, set[str]] = {"@json": set(), "@id": set()}
    for key, value in context.items():
        if key.startswith("@") or key in prefixes:
            continue
        prefix, _, local = (value["@id"] if isinstance(value, Mapping) else value).partition(":")
        iris[key] = prefixes[prefix] + local
        terms.setdefault(iris[key], key)
        if isinstance(value, Mapping) and value.get("@type") in typed:
            typed[value["@type"]].add(key)
    return Vocabulary(prefixes, iris, terms, frozenset(typed["@json"]), frozenset(typed["@id"]))


def canonical_iri(iri: str) -> str:
    """Return the address under which a card knows the property or type."""
    space = next(((written, wanted) for written, wanted in _SPACES if iri.startswith(written)), None)
    if space:
        iri = space[1] + iri[len(space[0]) :]
    return _SAME_TERM.get(iri, iri)


class Names:
    """Reads the names of one document by its inline context; a context given by address is never fetched.

    `bare` lists the prefixes of the vocabularies whose terms the format lets stand without a prefix.
    """

    def __init__(self, context: Any, *, vocab: str | None = None, bare: Collection[str] = ()) -> None:
        self._defined: dict[str, Any] = {}
        self._vocab = vocab
        for part in as_list(context):
            if isinstance(part, Mapping):
                self._defined.update({key: value for key, value in part.items() if not key.startswith("@")})
                if isinstance(part.get("@vocab"), str):
                    self._vocab = part["@vocab"]
        spaces = tuple(vocabulary().prefixes[prefix] for prefix in bare)
        self._bare = {key for key, iri in vocabulary().iris.items() if spaces and iri.startswith(spaces)}

    def expand(self, name: str, depth: int = 5) -> str | None:
        """Return the full address of a name, or None when the document does not say."""
        if depth and name in self._defined:
            value = self._defined[name]
            target = value.get("@id") if isinstance(value, Mapping) else value
            if isinstance(target, str) and target != name:
                return self.expand(target, depth - 1)
            if value is None:
                return None
        prefix, colon, local = name.partition(":")
        if not colon:
            return self._vocab + name if self._vocab else None
        if local.startswith("//"):
            return name
        if depth and prefix in self._defined:
            space = self.expand(prefix, depth - 1)
        else:
            space = {"sc": SCHEMA, "ml": CROISSANT}.get(prefix) or vocabulary().prefixes.get(prefix)
        return space + local if space else None

    def term(self, name: str) -> str | None:
        """Return the card's term for the name, or None when the card has none."""
        iri = self.expand(name)
        term = vocabulary().terms.get(canonical_iri(iri)) if iri else None
        return name if term is None and name in self._bare and name not in self._defined else term

    def compact(self, name: str) -> str | None:
        """Return the name with a prefix of the card's context, or None where it has none or stands bare."""
        iri = self.expand(name) if ":" in name else None
        parts = vocabulary().split(canonical_iri(iri)) if iri else None
        return ":".join(parts) if parts else None

    def types(self, value: Any) -> list[str]:
        """Return the types, those that the card's context knows by its names."""
        return [self.term(each) or each for each in as_list(value) if isinstance(each, str)]

    def rename(self, value: Any) -> Any:
        """Return a copy of the value with every name the card knows spelled as in a card; the rest is verbatim."""
        if isinstance(value, list):
            return [self.rename(each) for each in value]
        if not isinstance(value, Mapping) or "@value" in value:
            return value
        renamed: dict[str, Any] = {}
        for key, inner in value.items():
            name = key if key.startswith("@") else self.term(key) or self.compact(key) or key
            if name != key and (name in value or name in renamed):
                name = key
            if key == "@type":
                renamed[key] = self._type(inner)
            else:
                renamed[name] = inner if name in vocabulary().json_terms or name == VERBATIM else self.rename(inner)
        return renamed

    def _type(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._type(each) for each in value]
        return (self.term(value) or value) if isinstance(value, str) else value


def is_expanded(node: Mapping[str, Any]) -> bool:
    """Tell whether a node is in the expanded form of JSON-LD: full addresses for keys, and a list for each value."""
    values = [value for key, value in node.items() if not key.startswith("@") or key == "@graph"]
    return "@context" not in node and bool(values) and all(isinstance(value, list) for value in values)


def unexpanded(value: Any) -> Any:
    """Return expanded JSON-LD as people write it: one value instead of a list of it, texts instead of value nodes."""
    if isinstance(value, list):
        return unexpanded(value[0]) if len(value) == 1 else [unexpanded(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "@value" in value and "@language" not in value:
        return value["@value"]
    if set(value) == {"@list"}:
        return [unexpanded(each) for each in as_list(value["@list"])]
    return {key: each if key == "@graph" and not each else unexpanded(each) for key, each in value.items()}


def one_text(value: Any) -> str | None:
    """Return the one text that stands for the value: of several languages English, else the first."""
    if isinstance(value, Mapping) and not any(key in value for key in ("@value", "name", "@id", "url", "value")):
        texts = {key: text for key, text in value.items() if isinstance(text, str) and text.strip()}
        return texts.get("en") or next(iter(texts.values()), None)
    english = [each for each in as_list(value) if isinstance(each, Mapping) and is_english(each.get("@language"))]
    texts_of_each = [text for each in as_list(value) if not isinstance(each, bool) and (text := text_of(each))]
    texts_of_each = [text for each in english if (text := text_of(each))] + texts_of_each
    return next((text for text in texts_of_each if text.strip()), None)


def is_english(language: Any) -> bool:
    """Tell whether a language tag names English."""
    return isinstance(language, str) and language.lower().partition("-")[0] == "en"


def licence_text(value: Any) -> str | None:
    """Return the text that names a licence, its address before its name."""
    if not isinstance(value, Mapping):
        return value if is_text(value) else None
    texts = [text for key in ("@id", "url", "sameAs", "name") if is_text(text := value.get(key))]
    return next((text for text in texts if is_iri(text)), None) or next(iter(texts), None)


def is_text(value: Any) -> bool:
    """Tell whether the value is a text that says something."""
    return isinstance(value, str) and bool(value.strip())


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and is_date(value)


def _is_named(value: Any) -> bool:
    return is_text(value) or (isinstance(value, Mapping) and is_text(value.get("name")))


# What a card's check asks of each property, and whether it may have several.
_FORMS: dict[str, tuple[Callable[[Any], bool], bool]] = {
    **dict.fromkeys(("machineLearningFramework", "license"), (is_text, True)),
    **dict.fromkeys(("creator", "contributor", "publisher", "keywords"), (_is_named, True)),
    **dict.fromkeys(("url", "sameAs", "conformsTo"), (is_iri, True)),
    **dict.fromkeys(
        ("identifier", "citation", "scienceDomain", "mlTask"),
        (lambda value: is_text(value) or isinstance(value, Mapping), True),
    ),
    **dict.fromkeys(DATE_TERMS, (_is_date, False)),
    **dict.fromkeys(("isTunable", "isAccessibleForFree"), (lambda value: isinstance(value, bool), False)),
    "contentDigest": (lambda value: isinstance(value, str) and parse_checksum(value) is not None, False),
    "accessRights": (
        lambda value: (
            is_text(value)
            and value.rsplit("/", 1)[-1].lower() in ("public", "registered", "restricted", "embargoed", "closed")
        ),
        True,
    ),
}


def settle_any(draft: Draft) -> None:
    """Bring values of any type to the forms a card asks for; what fits none becomes foreign, with a warning."""
    for key in ("name", "description", "version"):
        _settle_text(draft, key)
    if not is_text(draft.body.get("@id", "x")):
        keep_value(draft, "@id", draft.body.pop("@id"))
    for key, (fits, many) in _FORMS.items():
        if key not in draft.body:
            continue
        given = draft.body[key]
        values = [_simpler(each) for each in as_list(given)]
        good = [each for each in values if fits(each)]
        if len(good) == len(values) and (many or len(good) == 1):
            draft.body[key] = good if isinstance(given, list) and many else good[0] if len(good) == 1 else good
            continue
        keep_value(draft, key, given)
        draft.warn(key, f"{_short(given)} has the wrong type for this property; kept among the foreign keys")
        del draft.body[key]
        if good:
            draft.body[key] = good if many else good[0]


def _simpler(value: Any) -> Any:
    """Return a number as text and a node that is nothing but its id, or its value, as that."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get("@id", value.get("@value")), str):
        return value.get("@id", value.get("@value"))
    return value


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _settle_text(draft: Draft, key: str) -> None:
    value = draft.body.get(key)
    if key not in draft.body or is_text(value):
        return
    text = one_text(value)
    del draft.body[key]
    if text is not None:
        draft.body[key] = text
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        keep_value(draft, key, value)
        draft.warn(key, f"{_short(value)} is not one text; " + (f"read as {text!r}" if text else "left out"))


def keep_value(draft: Draft, key: str, value: Any) -> None:
    """Keep one value that the card has no place for; a second one under the same key is numbered."""
    if key in draft.foreign and draft.foreign[key] != value:
        number = 2
        while f"{key} ({number})" in draft.foreign:
            number += 1
        key = f"{key} ({number})"
    draft.foreign[key] = value


def restored(entry: dict[str, Any], verbatim: Any) -> dict[str, Any]:
    """Change a file of a draft back to what the card had that one of our own exports was made from."""
    for key, value in verbatim.items() if isinstance(verbatim, Mapping) else ():
        if value is None:
            entry.pop(key, None)
        else:
            entry[key] = value
    return entry


def add_described_file(
    draft: Draft, entry: Mapping[str, Any], *, label: str | None, is_set: bool, verbatim: Any = None
) -> dict[str, Any]:
    """Add the file that a node describes in the names of a card; no key of the node is lost.

    `label` is what the file is called where the node gives no name; it tells files of one name apart. What `verbatim`
    will restore is not read, so that it gives no warnings.
    """
    known = [key for key, value in verbatim.items() if value is not None] if isinstance(verbatim, Mapping) else []
    rest = {key: value for key, value in entry.items() if key.startswith("@") or key not in known}
    rest.pop("@type", None)
    name, identifier = rest.pop("name", None), rest.pop("@id", None)
    url, size, media = (rest.pop(key, None) for key in ("contentUrl", "contentSize", "encodingFormat"))
    address = url.get("@id") if isinstance(url, Mapping) and set(url) == {"@id"} else url
    media = [_simpler(each) for each in media] if isinstance(media, list) else _simpler(media)
    media_texts = [each for each in as_list(media) if is_text(each)]
    made = draft.add_file(
        name=label or one_text(name),
        url=address if is_text(address) else None,
        size=size if one_text(size) else None,
        media_type=media_texts[0] if media_texts else None,
        checksums={key: rest.pop(key) for key in CHECKSUMS if key in rest and rest[key] not in EMPTY},
        type="FileSet" if is_set else "FileObject",
    )
    made["name"] = one_text(name) or made["name"]
    if media_texts and media_texts == media:
        made["encodingFormat"] = media
    misfits = {
        "name": name if name is not None and not is_text(name) else None,
        "@id": identifier if identifier is not None and not is_text(identifier) else None,
        "contentUrl": url if url is not None and not is_text(address) else None,
        "contentSize": size if size is not None and not one_text(size) else None,
        "encodingFormat": media if media is not None and len(media_texts) != len(as_list(media) or [0]) else None,
        **{key: rest.pop(key) for key in CHECKSUMS if key in rest},
    }
    misfits = {key: value for key, value in misfits.items() if value is not None}
    if misfits:
        where = f"distribution[{len(draft.body['distribution']) - 1}]"
        draft.shelf("files")[where] = misfits
        for key in (key for key, value in misfits.items() if value not in EMPTY):
            draft.warn(f"{where}.{key}", f"{_short(misfits[key])} has the wrong type for this property; left out")
    for key, value in rest.items():
        made.setdefault(key, value)
    return made


def json_text(value: Any) -> str:
    """Return the value as JSON text, as exports hold what their format has no place for."""
    return json.dumps(value, ensure_ascii=False)


def parsed(value: Any) -> Any:
    """Return the value that `json_text` made a text of; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        content = load_json(value)
    except UsageError:
        return value
    return content if isinstance(content, (dict, list)) else value


def restore(draft: Draft, verbatim: Any, format_name: str) -> None:
    """Give a draft read from one of our own exports the values that its format had no place for."""
    if not isinstance(verbatim, Mapping):
        if verbatim is not None:
            keep_value(draft, VERBATIM, verbatim)
        return
    for key, value in verbatim.items():
        if key in ADMINISTRATIVE:
            _restore_administrative(draft, key, value, format_name)
        elif key.startswith("@") or key in VOLATILE_KEYS or key == "conformsTo":
            draft.shelf(VERBATIM)[key] = value
        elif value is None:
            draft.body.pop(key, None)
            draft.foreign.pop(key, None)
        else:
            draft.body[key] = value


def _restore_administrative(draft: Draft, key: str, value: Any, format_name: str) -> None:
    if key == "warnings" and isinstance(value, list):
        for entry in value:
            if isinstance(entry, Mapping) and is_text(entry.get("field")) and is_text(entry.get("message")):
                draft.warnings.append({"field": entry["field"], "message": entry["message"]})
            else:
                keep_value(draft, key, entry)
    elif key == "foreign" and isinstance(value, Mapping):
        for name, kept in value.items():
            if name == format_name and isinstance(kept, Mapping):
                for inner, each in kept.items():
                    keep_value(draft, inner, each)
            else:
                draft.shelf("foreign")[name] = kept
    else:
        keep_value(draft, key, value)
