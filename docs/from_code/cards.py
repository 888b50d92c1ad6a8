"""The card profile: kinds of assets, properties and what they mean."""

from __future__ import annotations

import re

from fairmile.catalog.forms import CardForm, FileForm
from fairmile.catalog.kinds import CONTEXT_IRI, KIND_SYNONYMS, KINDS
from fairmile.catalog.profile import context_terms
from from_code.markdown import code, codes, page, table


def card_page() -> str:
    kinds = [
        (
            codes([kind.name, *(word for word, name in KIND_SYNONYMS.items() if name == kind.name)]),
            codes(kind.types),
            codes(kind.required),
            codes(kind.rich),
        )
        for kind in KINDS.values()
    ]
    return page(
        "Card profile",
        f"A card is JSON-LD with the context `{CONTEXT_IRI}`, which Fairmile brings along and never fetches. "
        "[Describe your own assets](../cards.md) has examples, and `fairmile catalog check FILE` names every "
        "problem with its line. Properties that the profile does not know are kept.",
        "## Kinds",
        table(["kind, also written", "`@type`", "needs", "should have"], kinds),
        "## Properties of every kind",
        table(["property", "form"], _forms(CardForm)),
        "## Properties of a file in `distribution`",
        table(["property", "form"], _forms(FileForm)),
        "## Terms",
        "The properties and types of the context, with the vocabulary they come from.",
        table(["term", "meaning"], _terms()),
    )


def _forms(model: type[CardForm] | type[FileForm]) -> list[tuple[str, str]]:
    """Return each property with its form, as the source writes it."""
    notes = {name: str(each) for name, each in model.__annotations__.items()}
    return [
        (code(field.alias or name), _form(notes[name]) + (", required" if field.is_required() else ""))
        for name, field in model.model_fields.items()
    ]


def _form(annotation: str) -> str:
    """Return a type of the source in words."""
    text = annotation.replace(" | None", "").replace("[Any, Any]", "")
    checksum = re.search(r'_checksum\("(\w+)"\)', text)
    if checksum:
        return f"{checksum[1]} checksum in hexadecimal digits"
    many = re.fullmatch(r"Many\[(.*)\]", text)
    if many or text.startswith("Annotated[list"):
        return f"one or several: {many[1] if many else 'Text'}"
    return text


def _terms() -> list[tuple[str, str]]:
    terms = context_terms()
    prefixes = {name: iri for name, iri in terms.items() if isinstance(iri, str) and iri.endswith(("/", "#"))}
    rows = []
    for name, meaning in terms.items():
        iri = meaning.get("@id", "") if isinstance(meaning, dict) else str(meaning)
        prefix, _, rest = iri.partition(":")
        if name.startswith("@") or name in prefixes or not iri:
            continue
        rows.append((code(name), code(f"{prefixes.get(prefix, prefix + ':')}{rest}")))
    return rows
