"""The search language: words, "phrases", prefix*, field:value, -not, /regex/."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache

from fairmile.base.errors import UsageError
from fairmile.base.words import did_you_mean
from fairmile.catalog.kinds import KIND_SYNONYMS, KINDS

# Field names a user may type, and the facet each means.
FIELDS = {
    "kind": "kind",
    "domain": "domain",
    "science": "domain",
    "task": "task",
    "framework": "framework",
    "format": "format",
    "licence": "licence",
    "license": "licence",
    "tag": "tag",
    "keyword": "tag",
    "creator": "creator",
    "author": "creator",
    "catalog": "catalog",
    "project": "project",
    "funder": "funder",
    "machine": "machine",
    "system": "machine",
    "gpu": "gpu",
    "language": "language",
    "access": "access",
    "category": "category",
}
MAX_QUERY_CHARACTERS = 1000
_TOKEN = re.compile(
    r"""(?P<no>-)?(?:(?P<field>[A-Za-z]+):)?(?:"(?P<phrase>[^"]*)"|/(?P<regex>(?:[^/\\\s]|\\.)+)/(?=\s|$)|(?P<word>[^\s"]+))"""
)


@dataclass(frozen=True)
class Query:
    """A parsed search: what must match and what must not."""

    words: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    not_words: tuple[str, ...] = ()
    facets: tuple[tuple[str, str], ...] = ()
    not_facets: tuple[tuple[str, str], ...] = ()
    regexes: tuple[str, ...] = ()
    all_versions: bool = False
    _source: str = field(default="", compare=False)

    @property
    def empty(self) -> bool:
        return not (self.words or self.prefixes or self.phrases or self.facets or self.regexes or self.not_facets)


def parse_query(text: str, *, all_versions: bool = False) -> Query:
    """Read a search as typed; an unknown field is refused with the nearest one."""
    if len(text) > MAX_QUERY_CHARACTERS:
        raise UsageError(f"the search is longer than {MAX_QUERY_CHARACTERS} characters")
    found: dict[str, list[str]] = {name: [] for name in ("words", "prefixes", "phrases", "not_words", "regexes")}
    facets: list[tuple[str, str]] = []
    not_facets: list[tuple[str, str]] = []
    for match in _TOKEN.finditer(text):
        name, value = match["field"], next(v for v in (match["phrase"], match["regex"], match["word"]) if v is not None)
        if name and name.lower() in FIELDS:
            (not_facets if match["no"] else facets).append(_facet(name.lower(), value))
        elif name and match["word"] and not value.startswith("//"):
            known = did_you_mean(name, FIELDS)
            raise UsageError(
                f"no search field named {name!r}" + (f"; {known}" if known else ""),
                hint=f"fields: {', '.join(dict.fromkeys(FIELDS.values()))}; put quotes round text that holds a colon",
            )
        elif match["regex"] is not None:
            found["regexes"].append(value)
        elif match["phrase"] is not None:
            found["phrases"].append(value)
        elif match["no"]:
            found["not_words"].append(value)
        elif value.endswith("*"):
            found["prefixes"].append(value.rstrip("*"))
        else:
            found["words"].append(match.group(0))
    return Query(
        **{key: tuple(value for value in values if value) for key, values in found.items()},
        facets=tuple(facets),
        not_facets=tuple(not_facets),
        all_versions=all_versions,
        _source=text,
    )


def _facet(name: str, value: str) -> tuple[str, str]:
    facet = FIELDS[name]
    if facet == "kind":
        kind = KIND_SYNONYMS.get(value.lower(), value.lower())
        kind = kind if kind in KINDS else kind.removesuffix("s")
        if kind not in KINDS:
            known = did_you_mean(value, KINDS)
            raise UsageError(
                f"no kind named {value!r}" + (f"; {known}" if known else ""), hint=f"kinds: {', '.join(KINDS)}"
            )
        return facet, kind
    return facet, value


@lru_cache(maxsize=100_000)
def facet_token(facet: str, value: str) -> str:
    """Return the index token that stands for one facet value.

    Digits only after the name: the stemmer leaves them alone, and no word of a text can equal one.
    """
    digest = hashlib.blake2b(normal(value).encode(), digest_size=8).digest()
    return f"{facet}{int.from_bytes(digest):020d}"


@lru_cache(maxsize=100_000)
def facet_words(value: str) -> tuple[str, ...]:
    """Return the value and, where it has several, its words: each of them finds it."""
    whole = normal(value)
    words = [word for word in re.split(r"[\s,;/()]+", whole) if len(word) > 1]
    return tuple(dict.fromkeys([whole, *words, *(part for word in words for part in word.split("-") if len(part) > 1)]))


def normal(value: str) -> str:
    """Return the value as facets compare it: lower case, single blanks, underscores as dashes."""
    return " ".join(value.lower().replace("_", "-").split())


def fts_expression(query: Query, *, only: str = "") -> str:
    """Return the FTS5 expression of the query; `only` names the columns the words must be in."""
    scope = f"{{{only}}} : " if only else ""
    quoted = [_quote(word) for word in (*query.words, *query.phrases) if _quote(word)]
    terms = [f"{scope}{text}" for text in quoted]
    terms += [f"{scope}{text} *" for word in query.prefixes if (text := _quote(word))]
    terms += [f"facets : {facet_token(name, value)}" for name, value in query.facets]
    refused = [text for word in query.not_words if (text := _quote(word))]
    refused += [f"facets : {facet_token(name, value)}" for name, value in query.not_facets]
    if not terms:
        terms = ["facets : card"]
    expression = " AND ".join(terms)
    return f"({expression}) NOT ({' OR '.join(refused)})" if refused else expression


def _quote(text: str) -> str:
    clean = re.sub(r"[^\w]+", " ", text).replace("_", " ").strip()
    return f'"{clean}"' if clean else ""
