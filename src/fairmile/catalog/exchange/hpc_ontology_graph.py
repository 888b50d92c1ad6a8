"""The triples of a Turtle document as nodes with facts, the HPC Ontology's four name spaces folded into one."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

from fairmile.base.errors import InvalidDocument, MissingExtra, Problem
from fairmile.base.quick_dataclass import dataclass
from fairmile.catalog.exchange.draft import Document

# The ontology moved three times; its files use all four.
NAMESPACES = (
    "https://hpc-fair.github.io/ontology#",
    "https://github.com/HPC-FAIR/HPC-Ontology#",
    "https://github.com/HPC-FAIR/HPC-Ontology/blob/main/hpc-ontology.owl#",
    "https://github.com/HPC-FAIR/HPC-Ontology/blob/main/hpc-ontology.ttl#",
)
# Vocabularies whose terms mean what the ontology's terms of the same name mean.
_ALIKE = (
    "http://schema.org/",
    "https://schema.org/",
    "http://purl.org/dc/terms/",
    "http://purl.org/dc/elements/1.1/",
    "http://www.w3.org/2000/01/rdf-schema#",
)
_SAME_AS = {"label": "name", "comment": "description", "title": "name"}
_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
_XSD = "http://www.w3.org/2001/XMLSchema#"
_MOST_TRIPLES = 2_000_000
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Ref:
    """A link to another node; the id of a blank node begins with `_:`."""

    id: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A text with its datatype or language."""

    text: str
    datatype: str = ""
    language: str = ""

    @property
    def value(self) -> Any:
        """The text, or the truth or whole number it states in its usual spelling."""
        if self.datatype == _XSD + "boolean" and self.text in ("true", "false"):
            return self.text == "true"
        if self.datatype == _XSD + "integer" and re.fullmatch(r"-?(?:0|[1-9][0-9]{0,14})", self.text):
            return int(self.text)
        return self.text

    def to_json(self) -> Any:
        """Return the literal so that nothing of it is lost."""
        if self.language:
            return {"@value": self.text, "@language": self.language}
        if self.datatype in ("", _XSD + "string") or not isinstance(self.value, str):
            return self.value
        return {"@value": self.text, "@type": self.datatype.replace(_XSD, "xsd:")}


@dataclass
class Node:
    """A subject: its types and, by term, what is said of it."""

    id: str
    types: list[str] = field(default_factory=list)
    facts: dict[str, list[Ref | Literal]] = field(default_factory=dict)

    def take(self, *terms: str) -> list[Ref | Literal]:
        """Take out and return every value under the terms, in their order."""
        return [value for term in terms for value in self.facts.pop(term, [])]


def local_name(iri: str) -> str:
    """Return the bare term of an address in one of the ontology's name spaces, else an empty text."""
    for namespace in NAMESPACES:
        if iri.startswith(namespace):
            # Some files hold hpc:… inside the name space, a prefix that was written out twice.
            return iri[len(namespace) :].removeprefix("hpc:")
    return ""


def _term(iri: str) -> str:
    own = local_name(iri)
    if own:
        return own
    for namespace in _ALIKE:
        if iri.startswith(namespace):
            name = iri[len(namespace) :]
            return _SAME_AS.get(name, name)
    return iri


def load_graph(document: Document) -> dict[str, Node]:
    """Return every node that the document says something of, by id and in the order of the document."""
    try:
        import pyoxigraph
    except ImportError as error:
        raise MissingExtra("reading Turtle needs pyoxigraph", "rdf") from error

    nodes: dict[str, Node] = {}
    # The parser names blank nodes at random; numbers in order make the card the same each time.
    blanks: dict[str, str] = {}
    kept: set[tuple[str, str, Ref | Literal]] = set()

    def name(term: Any) -> str:
        if isinstance(term, pyoxigraph.BlankNode):
            return blanks.setdefault(term.value, f"_:b{len(blanks) + 1}")
        return str(term.value) if isinstance(term, pyoxigraph.NamedNode) else str(term)

    try:
        triples = pyoxigraph.parse(document.text.encode("utf-8"), format=pyoxigraph.RdfFormat.TURTLE)
        for count, triple in enumerate(triples):
            if count >= _MOST_TRIPLES:
                raise document.refuse(f"holds more than {_MOST_TRIPLES} statements")
            subject, predicate = name(triple.subject), str(triple.predicate.value)
            thing: Any = triple.object
            value: Ref | Literal
            if isinstance(thing, pyoxigraph.Literal):
                value = Literal(
                    str(thing.value), str(thing.datatype.value) if not thing.language else "", thing.language or ""
                )
            elif isinstance(thing, (pyoxigraph.NamedNode, pyoxigraph.BlankNode)):
                value = Ref(name(thing))
            else:
                value = Literal(str(thing))
            if (subject, predicate, value) in kept:
                continue
            kept.add((subject, predicate, value))
            node = nodes.setdefault(subject, Node(subject))
            if predicate == _TYPE and isinstance(value, Ref):
                node.types.append(value.id)
            else:
                node.facts.setdefault(_term(predicate), []).append(value)
    except SyntaxError as error:
        reason = str(error.msg or error).split(": ", 1)[-1]
        raise InvalidDocument([Problem(f"is not Turtle: {reason}", file=document.name, line=error.lineno)]) from error
    return nodes


class Writer:
    """Writes nodes as JSON, each once: a blank node inside the one node that refers to it, others by their id."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.nodes = nodes
        self.written: set[str] = set()
        self._uses: dict[str, int] = {}
        for node in nodes.values():
            for values in node.facts.values():
                for value in values:
                    if isinstance(value, Ref):
                        self._uses[value.id] = self._uses.get(value.id, 0) + 1

    def value(self, value: Ref | Literal, depth: int = 0) -> Any:
        """Return a value, with what is said of it where it is a blank node that stands only here."""
        if isinstance(value, Literal):
            return value.to_json()
        inside = value.id.startswith("_:") and self._uses.get(value.id) == 1 and depth < _DEEPEST
        if not inside or value.id not in self.nodes or value.id in self.written:
            return {"@id": value.id}
        return self.node(value.id, depth + 1)

    def node(self, identifier: str, depth: int = 0) -> dict[str, Any]:
        """Return the types and facts of a node that were not taken from it."""
        self.written.add(identifier)
        node = self.nodes[identifier]
        content: dict[str, Any] = {}
        types = [f"hpc:{local_name(each)}" if local_name(each) else each for each in node.types]
        if types:
            content["@type"] = types if len(types) > 1 else types[0]
        for term, values in node.facts.items():
            written = [self.value(value, depth) for value in values]
            content[term] = written[0] if len(written) == 1 else written
        return content
