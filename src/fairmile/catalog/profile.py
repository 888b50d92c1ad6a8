"""The profile a card must follow: which properties, of which form; every problem is explained, none raised."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from fairmile.base.errors import Problem
from fairmile.base.line_numbers import Position
from fairmile.base.strict_json import load_json, scan
from fairmile.base.words import Suggestions
from fairmile.catalog.card import SPDX_PREFIX, Card, as_list
from fairmile.catalog.identity import is_iri
from fairmile.catalog.kinds import CONTEXT_IRI, KINDS, kind_of_types
from fairmile.catalog.licences import licence_iri


@cache
def context_terms() -> Mapping[str, Any]:
    """Return the terms of the bundled context; it is never fetched."""
    text = (files("fairmile.catalog") / "data" / "context.jsonld").read_text(encoding="utf-8")
    terms: Mapping[str, Any] = json.loads(text)["@context"]
    return terms


def check_body(body: Any) -> list[Problem]:
    """Return every problem of a card's body, errors first."""
    if not isinstance(body, Mapping):
        return [Problem(f"expected a JSON object, found {type(body).__name__}")]
    if strange := [key for key in body if not isinstance(key, str)]:
        return [Problem(f"expected keys that are strings, found {strange[0]!r}")]
    problems = _form_problems(body)
    kind = kind_of_types([str(value) for value in as_list(body.get("@type"))])
    if kind is None:
        known = ", ".join(f"{each.types[0]} ({name})" for name, each in KINDS.items())
        message = f"{body['@type']!r} is not a kind of asset" if "@type" in body else "is missing"
        problems.append(Problem(message, field="@type", hint=f"expected one of {known}"))
    else:
        problems += _required_problems(kind, body)
    context = body.get("@context")
    if context is None:
        problems.append(Problem(f"is missing; expected {CONTEXT_IRI!r}", field="@context"))
    problems += _licence_warnings(body)
    problems += _term_warnings(body, own_terms=_inline_terms(context))
    problems += file_warnings(body)
    return sorted(problems, key=lambda problem: problem.severity)


def check_text(text: str, *, file: str = "") -> tuple[Card | None, list[Problem]]:
    """Check the card in a text; problems carry file and line. A text that is no JSON raises InvalidDocument."""
    body = load_json(text, file=file)
    unplaced = check_body(body)
    places = scan(text) if unplaced else Position(1)
    problems = []
    for problem in unplaced:
        # A key may hold dots and brackets itself, as an address does.
        path = [problem.field] if isinstance(body, dict) and problem.field in body else _path(problem.field)
        problems.append(replace(problem, file=file, line=places.find(path)))
    whole = isinstance(body, dict) and not any(problem.severity == "error" for problem in problems)
    return (Card(body) if whole else None), problems


def _path(field: str) -> Sequence[str | int]:
    return [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", field)]


def _form_problems(body: Mapping[str, Any]) -> list[Problem]:
    # The one late import of our own: pydantic takes 70 ms that a search must not pay.
    from pydantic import ValidationError

    from fairmile.catalog.forms import CardForm

    try:
        CardForm.model_validate(dict(body))
    except ValidationError as error:
        problems: dict[str, Problem] = {}
        for entry in error.errors(include_url=False):
            missing = entry["type"] == "missing"
            field = _field(entry["loc"], body, missing)
            message = "is missing" if missing else _message(entry)
            problems.setdefault(field, Problem(message, field=field))
        # A value that may be a text or an object fails as both; the deeper place says more.
        return [
            each
            for each in problems.values()
            if not any(other != each.field and other.startswith(each.field) for other in problems)
        ]
    return []


def _message(entry: Mapping[str, Any]) -> str:
    """Return what pydantic found in our words."""
    expected = {"model_type": "an object", "dict_type": "an object", "list_type": "a list", "string_type": "a text"}
    if entry["type"] in expected:
        return f"expected {expected[entry['type']]}, found {entry['input']!r:.80}"
    return str(entry["msg"]).removeprefix("Value error, ")


def _field(location: Sequence[str | int], body: Mapping[str, Any], missing: bool) -> str:
    """Return the place in the document; pydantic's location also names the forms it tried, which are left out."""
    field, here = "", body
    for number, part in enumerate(location):
        if isinstance(part, int):
            if isinstance(here, list) and part < len(here):
                field, here = f"{field}[{part}]", here[part]
        elif isinstance(here, Mapping) and (part in here or (missing and number == len(location) - 1)):
            field, here = f"{field}.{part}" if field else part, here.get(part, {})
    return field


def _required_problems(kind: str, body: Mapping[str, Any]) -> list[Problem]:
    missing = [key for key in KINDS[kind].required if as_list(body.get(key)) in ([], [{}]) and key != "name"]
    return [
        Problem(f"is missing; a {kind} needs it", field=key, severity="error" if key == "version" else "warning")
        for key in missing
    ]


def _licence_warnings(body: Mapping[str, Any]) -> list[Problem]:
    texts = [value for value in as_list(body.get("license")) if isinstance(value, str)]
    return [
        Problem(
            f"{text!r} is not the address of an SPDX licence",
            field="license",
            severity="warning",
            hint=f"write {licence_iri(text)}" if licence_iri(text) else "see https://spdx.org/licenses",
        )
        for text in texts
        if not text.startswith(SPDX_PREFIX)
    ]


def _inline_terms(context: Any) -> set[str]:
    return {str(key) for part in as_list(context) if isinstance(part, Mapping) for key in part}


def file_warnings(body: Mapping[str, Any]) -> list[Problem]:
    """Return a warning for each key of a file that is nearly a term: other keys of files are kept as they are."""
    terms, own_terms = context_terms(), _inline_terms(body.get("@context"))
    suggest = Suggestions()
    unknown: dict[str, str] = {}
    for place, entry in enumerate(as_list(body.get("distribution"))):
        for key in entry if isinstance(entry, Mapping) else ():
            if not key.startswith("@") and ":" not in key and key not in terms and key not in own_terms:
                unknown.setdefault(key, f"distribution[{place}].{key}")
    return [
        Problem(f"is not a term of the context, so it has no effect; {near}", field=field, severity="warning")
        for key, field in unknown.items()
        if (near := suggest(key, terms))
    ]


def _term_warnings(body: Mapping[str, Any], own_terms: set[str]) -> list[Problem]:
    terms = context_terms()
    suggest = Suggestions()
    problems: list[Problem] = []
    for key in body:
        prefix = key.split(":", 1)[0]
        if (
            key.startswith("@")
            or key in terms
            or key in own_terms
            or (":" in key and (prefix in terms or prefix in own_terms or (is_iri(key) and "//" in key)))
        ):
            continue
        known = suggest(key, terms)
        problems.append(
            Problem(
                "is not a term of the context; kept, but its meaning is undefined" + (f"; {known}" if known else ""),
                field=key,
                severity="warning",
                hint="use a term of the profile or a prefixed one, as in fx:myProperty",
            )
        )
    return problems
