"""Foreign formats, one file each: readers turn a document into cards, writers a card into documents."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from fairmile.base.errors import InvalidDocument, Problem, Unsupported, UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.catalog.card import Card
from fairmile.catalog.exchange.draft import Document, Draft, finish
from fairmile.catalog.kinds import CONTEXT_IRI


class Reader(Protocol):
    """Reads one foreign format; a module of this package is one."""

    def recognises(self, document: Document) -> bool:
        """Tell, without raising, whether the document is of this format, valid or not."""
        ...

    def read(self, document: Document) -> list[Draft]:
        """Return every asset the document describes; InvalidDocument when it is not valid."""
        ...


class Writer(Protocol):
    """Writes one foreign format; a module of this package is one."""

    KINDS: tuple[str, ...]

    def write(self, card: Card) -> dict[str, str]:
        """Return the documents that describe the card in this format, by file name."""
        ...


_HERE = "fairmile.catalog.exchange"
# In the order in which a document is tried; the most particular first.
READERS: Registry[Reader] = Registry(
    "import format",
    {
        "sabath": Plugin(f"{_HERE}.sabath", summary="SABATH models and data sets (JSON)"),
        "hpcfair": Plugin(f"{_HERE}.hpcfair", summary="HPCFAIR listings (JSON-LD)"),
        "rocrate": Plugin(f"{_HERE}.rocrate", summary="RO-Crate metadata, run crates included"),
        "croissant": Plugin(f"{_HERE}.croissant", summary="Croissant 0.8, 1.0, 1.1 (JSON-LD)"),
        "codemeta": Plugin(f"{_HERE}.codemeta", summary="codemeta.json"),
        "schemaorg": Plugin(f"{_HERE}.schemaorg", summary="schema.org data sets and software (JSON-LD)"),
        "citation": Plugin(f"{_HERE}.citation", summary="CITATION.cff"),
        "huggingface": Plugin(f"{_HERE}.huggingface", summary="Hugging Face model and data-set cards (README.md)"),
        "openml": Plugin(f"{_HERE}.openml", summary="OpenML data sets, flows, tasks, runs (JSON, XML)"),
        "zenodo": Plugin(f"{_HERE}.zenodo", summary="Zenodo records and .zenodo.json"),
        "datacite": Plugin(f"{_HERE}.datacite", summary="DataCite metadata (JSON)"),
        "mlmodel": Plugin(f"{_HERE}.mlmodel", summary="MLflow MLmodel files"),
        "hpc-ontology": Plugin(f"{_HERE}.hpc_ontology", extra="rdf", summary="HPC Ontology data (Turtle)"),
    },
    entry_points="fairmile.readers",
)
WRITERS: Registry[Writer] = Registry(
    "export format",
    {
        "croissant": Plugin(f"{_HERE}.croissant", summary="Croissant 1.1"),
        "rocrate": Plugin(f"{_HERE}.rocrate", summary="RO-Crate 1.1"),
        "codemeta": Plugin(f"{_HERE}.codemeta", summary="codemeta.json (CodeMeta 3.1)"),
        "datacite": Plugin(f"{_HERE}.datacite", summary="DataCite 4 (JSON)"),
        "huggingface": Plugin(f"{_HERE}.huggingface", summary="Hugging Face card (README.md)"),
    },
    entry_points="fairmile.writers",
)


def recognise(document: Document) -> str | None:
    """Return the name of the format the document is in, or None."""
    for name in READERS.names():
        # A plug-in that cannot be loaded must not keep the others from being asked.
        with suppress(Unsupported):
            if READERS[name].recognises(document):
                return name
    return None


def read(document: Document, format: str | None = None, *, base: str = "") -> list[Card]:
    """Return the cards a foreign document describes; the format is recognised unless given."""
    name = format or recognise(document)
    if name is None:
        is_page = document.is_page
        raise InvalidDocument(
            [
                Problem(
                    "is a web page without a JSON-LD description" if is_page else "is not in a known format",
                    file=document.name,
                    hint=f"known: card, {', '.join(READERS.names())}; name one with --format, or write a card: "
                    f'a JSON object with "@context": "{CONTEXT_IRI}", "@type" and "name"',
                )
            ]
        )
    return [finish(draft, document, name, base=base) for draft in READERS[name].read(document)]


def write(card: Card, format: str) -> dict[str, str]:
    """Return the documents that describe the card in a foreign format, by file name."""
    writer = WRITERS[format]
    if card.kind not in writer.KINDS:
        fitting = [name for name, each in WRITERS.items() if card.kind in each.KINDS]
        raise UsageError(
            f"{format} describes {', '.join(writer.KINDS)}, not a {card.kind}",
            hint=f"for this asset: {', '.join(fitting)}" if fitting else "",
        )
    return writer.write(card)
