"""What people read of a card: its facts as names and texts, how to cite it, and how to use it."""

from __future__ import annotations

import re

from fairmile.catalog.card import Card, as_list, text_of

_LINES = (
    ("creator", "creator"),
    ("publisher", "publisher"),
    ("date", "datePublished"),
    ("domain", "scienceDomain"),
    ("task", "mlTask"),
    ("framework", "machineLearningFramework"),
    ("keywords", "keywords"),
    ("metrics", "evaluationMetrics"),
    ("access", "accessRights"),
    ("conditions", "conditionsOfAccess"),
    ("cite", "citation"),
    ("address", "url"),
    ("code", "codeRepository"),
)
_VALUES = 12
_LINKS = 20
_LOADERS = {"model": "models", "dataset": "datasets", "workflow": "workflows"}
_RUNNABLE = ("program", "benchmark")


def card_facts(card: Card) -> list[tuple[str, str]]:
    """Return the facts of a card with their names, long lists shortened."""
    pairs = [(label, text) for label, key in _LINES if (text := _values(card, key))]
    licence = card.licence or card.text("license")
    pairs += [("licence", licence)] if licence else []
    pairs += list(card.links[:_LINKS])
    pairs += (
        [("…", f"{len(card.links) - _LINKS} more links; use --json to list all")] if len(card.links) > _LINKS else []
    )
    return pairs + [("id", card.iri)] + ([("content", card.content)] if card.content else []) + [("card", card.digest)]


def _values(card: Card, key: str) -> str:
    texts = [text for value in as_list(card.get(key)) if (text := text_of(value))]
    if key == "accessRights":
        texts = [text.rsplit("/", 1)[-1] for text in texts]
    more = [f"and {len(texts) - _VALUES} more"] if len(texts) > _VALUES else []
    return ", ".join([*texts[:_VALUES], *more])


def access_text(card: Card) -> str:
    """Return who may have the files of an asset, as its card says it."""
    rights = _values(card, "accessRights")
    conditions = _values(card, "conditionsOfAccess")
    return ". ".join(text.rstrip(".") for text in (rights, conditions) if text) or "The card does not say."


def cite(card: Card) -> str:
    """Return how to cite an asset: as its card says, or its creators, year, title, version, publisher and id."""
    own = card.texts("citation")
    if own:
        return "\n".join(own)
    year = card.text("datePublished")[:4]
    creators = "; ".join(card.texts("creator"))
    parts = [f"{creators}{f' ({year})' if year else ''}".strip(), f"{card.title}, version {card.version}"]
    parts += [card.text("publisher"), card.iri]
    return ". ".join(part.rstrip(".") for part in parts if part)


def bibtex(card: Card) -> str:
    """Return an entry for BibTeX."""
    year = card.text("datePublished")[:4]
    doi = next((each.partition("doi.org/")[2] for each in card.identifiers if "doi.org/" in each), "")
    key = re.sub(r"[^a-zA-Z0-9]+", "-", f"{card.name}-{year or card.version}").strip("-")
    fields = {
        "title": card.title,
        "author": " and ".join(card.texts("creator")),
        "year": year,
        "version": card.version,
        "publisher": card.text("publisher"),
        "doi": doi,
        "url": card.text("url") or ("" if doi else card.iri),
    }
    lines = [f"  {name:<9} = {{{_bare(text)}}}" for name, text in fields.items() if text]
    return f"@misc{{{key},\n" + ",\n".join(lines) + "\n}"


def _bare(text: str) -> str:
    return re.sub(r"[{}\\]", "", " ".join(text.split()))


def use_lines(card: Card) -> dict[str, str]:
    """Return what to type in a shell, and in Python, to use an asset."""
    name = f"{card.kind}/{card.name}@{card.handle.version}"
    shell = [f"fairmile show {name}", f"fairmile fetch {name}"]
    python = ["import fairmile as fm", "", f'card = fm.show("{name}")']
    if card.kind in _RUNNABLE:
        shell.append(f"fairmile run {card.kind}/{card.name}")
        python.append(f'run = fm.run("{card.kind}/{card.name}")')
    elif card.kind in _LOADERS:
        python.append(f'files = fm.{_LOADERS[card.kind]}.load("{card.name}").files')
    else:
        python.append(f'fm.fetch("{name}")')
    return {"Shell": "\n".join(shell), "Python": "\n".join(python)}
