"""The search language: words, "phrases", prefix*, field:value, -not, /regex/."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
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
_SHORTEST_BEGINNING = 3
# Words before a colon that start an address or an id: such a text is searched for as it stands.
_SCHEMES = frozenset(
    {"ark", "arxiv", "doi", "file", "ftp", "git", "globus", "gs", "hdl", "http", "https", "mailto", "md5", "ni"}
    | {"orcid", "pkg", "ror", "s3", "sftp", "sha1", "sha256", "spdx", "ssh", "swh", "urn"}
)
_PRIVATE = "\ue000"
# The token that every card has.
ANY_CARD = f"{_PRIVATE}card"
_NO_CARD = f"{_PRIVATE}none"
# What marks a word that stands in the name, and one that stands in the name or the keywords. A marked word is
# a token of its own: asking a column for a word would walk through every card that has the word anywhere.
IN_NAME, IN_KEYWORDS, ANYWHERE = "\ue001", "\ue002", ""
_WORDS = lazy_pattern(r"[^\W_]+")
_TOKEN = lazy_pattern(
    r"""(?P<no>-)?(?:(?P<field>[A-Za-z]+):)?(?:"(?P<phrase>[^"]*)"|/(?P<regex>(?:[^/\\\s]|\\.)+)/(?=\s|$)|(?P<word>[^\s"]+))"""
)


@dataclass(frozen=True)
class Query:
    """A parsed search: what must match and what must not."""

    words: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()
    not_words: tuple[str, ...] = ()
    not_prefixes: tuple[str, ...] = ()
    facets: tuple[tuple[str, str], ...] = ()
    not_facets: tuple[tuple[str, str], ...] = ()
    regexes: tuple[str, ...] = ()
    all_versions: bool = False

    def as_beginnings(self) -> Query:
        """Return the query with its words as beginnings of words; very short ones stay whole."""
        long = tuple(word for word in self.words if len(word) >= _SHORTEST_BEGINNING)
        short = tuple(word for word in self.words if len(word) < _SHORTEST_BEGINNING)
        return replace(self, words=short, prefixes=(*self.prefixes, *long))

    def with_facets(self, **values: str) -> Query:
        """Return the query narrowed to these values of facets, given by any name a user may type."""
        return replace(self, facets=(*self.facets, *(_facet(name, value) for name, value in values.items())))

    def broader(self) -> list[Query]:
        """Return the queries that leave out one condition each, words last; none where there is only one."""
        conditions = [each.name for each in fields(self) if each.name != "all_versions"][::-1]
        if sum(len(getattr(self, name)) for name in conditions) < 2:
            return []
        queries = []
        for name in conditions:
            values: tuple[Any, ...] = getattr(self, name)
            for at in range(len(values)):
                rest: dict[str, Any] = {name: (*values[:at], *values[at + 1 :])}
                queries.append(replace(self, **rest))
        return queries

    def __str__(self) -> str:
        """Return the query as a user would type it."""
        terms = [*self.words, *(f"{each}*" for each in self.prefixes), *(f'"{each}"' for each in self.phrases)]
        terms += [f"-{_quoted(each)}" for each in self.not_words] + [f"-{each}*" for each in self.not_prefixes]
        terms += [f"{name}:{_quoted(value)}" for name, value in self.facets]
        terms += [f"-{name}:{_quoted(value)}" for name, value in self.not_facets]
        return " ".join([*terms, *(f"/{each}/" for each in self.regexes)])


def _quoted(value: str) -> str:
    return f'"{value}"' if len(value.split()) > 1 else value


def parse_query(text: str, *, all_versions: bool = False) -> Query:
    """Read a search as typed; an unknown field is refused with the nearest one."""
    if len(text) > MAX_QUERY_CHARACTERS:
        raise UsageError(f"the search is longer than {MAX_QUERY_CHARACTERS} characters")
    terms: dict[str, list[Any]] = {each.name: [] for each in fields(Query) if each.name != "all_versions"}
    # Bytes of an argument that are not UTF-8 arrive as half surrogates, which no index can hold.
    for match in _TOKEN.finditer(text.encode("utf-8", "replace").decode()):
        key, value = _term(match)
        if value:
            terms[key].append(value)
    return Query(**{key: tuple(values) for key, values in terms.items()}, all_versions=all_versions)


def _term(match: re.Match[str]) -> tuple[str, Any]:
    """Return which part of a query a token is, and its value."""
    name, value = match["field"], next(v for v in (match["phrase"], match["regex"], match["word"]) if v is not None)
    if name and not _is_text(name.lower(), match):
        if name.lower() not in FIELDS:
            known = did_you_mean(name.lower(), FIELDS)
            raise UsageError(
                f"no search field named {name!r}" + (f"; {known}" if known else ""),
                hint=f"fields: {', '.join(dict.fromkeys(FIELDS.values()))}; put quotes around text with a colon",
            )
        if match["regex"] is not None:
            raise UsageError(
                f"the field {name!r} takes a value, not a regular expression",
                hint="use /…/ alone to search names and keywords",
            )
        return ("not_facets" if match["no"] else "facets"), _facet(name, value)
    if match["regex"] is not None and not name:
        if match["no"]:
            raise UsageError(
                f"-/{value}/ cannot be searched for", hint="only words and fields can be excluded: -word, -field:value"
            )
        return "regexes", value
    if match["phrase"] is not None:
        return ("not_words" if match["no"] else "phrases"), value
    text = match.group(0).removeprefix("-") if match["no"] else match.group(0)
    if text.endswith("*"):
        return ("not_prefixes" if match["no"] else "prefixes"), text.rstrip("*")
    return ("not_words" if match["no"] else "words"), text


def _is_text(name: str, match: re.Match[str]) -> bool:
    """Tell whether what looks like a field is part of an address, an id or odd punctuation."""
    if name in FIELDS:
        return False
    return name in _SCHEMES or (match["word"] is not None and not match["word"][0].isalnum())


def _facet(name: str, value: str) -> tuple[str, str]:
    facet = FIELDS[name.lower()]
    if not value.strip():
        raise UsageError(f"the field {name!r} has no value", hint=f'as in {name}:word or {name}:"several words"')
    return facet, kind_named(value) if facet == "kind" else value


def kind_named(text: str) -> str:
    """Return the kind of asset that a word means, in the plural too; UsageError with the nearest when it is none."""
    word = normal(text)
    named = [KIND_SYNONYMS.get(each, each) for each in (word, word.removesuffix("s"))]
    kind = next((each for each in named if each in KINDS), None)
    if kind is None:
        known = did_you_mean(text, KINDS)
        raise UsageError(f"no kind named {text!r}" + (f"; {known}" if known else ""), hint=f"kinds: {', '.join(KINDS)}")
    return kind


def facet_token(facet: str, value: str) -> str:
    """Return the index token that stands for one facet value.

    It starts with a private character, which no search for a word or a prefix can hold, and ends in
    digits, which the stemmer leaves alone.
    """
    digest = hashlib.blake2b(normal(value).encode("utf-8", "replace"), digest_size=8).digest()
    return f"{_PRIVATE}{facet}{int.from_bytes(digest):020d}"


def facet_words(value: str) -> tuple[str, ...]:
    """Return the value and, where it has several, its words: each of them finds it."""
    whole = normal(value)
    words = [word for word in re.split(r"[\s,;/()]+", whole) if len(word) > 1]
    return tuple(dict.fromkeys([whole, *words, *(part for word in words for part in word.split("-") if len(part) > 1)]))


def normal(value: str) -> str:
    """Return the value as facets compare it: lower case, single blanks, underscores as dashes."""
    return " ".join(value.lower().replace("_", "-").split())


def marked_words(text: str, mark: str) -> str:
    """Return the words of a text as tokens that carry the mark."""
    return " ".join(mark + word for word in _words(text))


def fts_expression(query: Query, *, mark: str = ANYWHERE) -> str:
    """Return the FTS5 expression of the query; the mark says where its words must stand."""
    terms = _terms((*query.words, *query.phrases), query.prefixes, mark)
    if not terms and (query.words or query.phrases or query.prefixes):
        terms = [f'"{_NO_CARD}"']  # nothing but punctuation was asked for
    terms += [f'"{facet_token(name, value)}"' for name, value in query.facets]
    refused = _terms(query.not_words, query.not_prefixes, ANYWHERE)
    refused += [f'"{facet_token(name, value)}"' for name, value in query.not_facets]
    expression = " AND ".join(terms or [f'"{ANY_CARD}"'])
    return f"({expression}) NOT ({' OR '.join(refused)})" if refused else expression


def _terms(words: Iterable[str], prefixes: Iterable[str], mark: str) -> list[str]:
    terms = [f'"{text}"' for word in words if (text := marked_words(word, mark))]
    return terms + [f'"{text}" *' for word in prefixes if (text := marked_words(word, mark))]


def _words(text: str) -> list[str]:
    return _WORDS.findall(text)
