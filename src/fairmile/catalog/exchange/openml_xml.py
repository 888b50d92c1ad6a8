"""The XML that OpenML's API writes, read into the shape of its JSON; nothing that expands or points elsewhere."""

from __future__ import annotations

from typing import Any, NoReturn

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.catalog.exchange.draft import Document

NAMESPACE = "http://openml.org/openml"
_DEEPEST = 60
_MOST_ELEMENTS = 500_000


def load_xml(document: Document) -> dict[str, Any]:
    """Return the elements as mappings, repeated ones as lists, and attributes as further keys.

    A document type, an entity, deep nesting and broken XML raise InvalidDocument with the line.
    """
    from xml.parsers import expat

    builder = _Builder(document)
    # The text is decoded already: what the XML declaration says of its encoding no longer holds.
    parser = expat.ParserCreate("utf-8", " ")
    builder.parser = parser
    parser.buffer_text = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = builder.document_type
    parser.EntityDeclHandler = builder.entity
    try:
        parser.Parse(document.text.encode("utf-8"), True)
    except expat.ExpatError as error:
        message = f"is not XML: {expat.ErrorString(error.code)}"
        raise InvalidDocument([Problem(message, file=document.name, line=error.lineno)]) from error
    return builder.root


class _Builder:
    """Collect elements; a leaf becomes its text, any other element a mapping."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.parser: Any = None
        self.root: dict[str, Any] = {}
        self._open: list[tuple[str, dict[str, Any], list[str]]] = []
        self._count = 0

    def document_type(self, *_: Any) -> NoReturn:
        self._fail("declares a document type, which is not accepted: it could expand or fetch without bound")

    def entity(self, *_: Any) -> NoReturn:
        self._fail("declares an entity, which is not accepted: it could expand without bound")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= _DEEPEST:
            self._fail(f"is nested more than {_DEEPEST} deep")
        if self._count > _MOST_ELEMENTS:
            self._fail(f"has more than {_MOST_ELEMENTS} elements")
        content: dict[str, Any] = {}
        for key, value in attributes.items():
            content[key if _local(key) in content else _local(key)] = value
        self._open.append((_local(name), content, []))

    def characters(self, text: str) -> None:
        self._open[-1][2].append(text)

    def end(self, _: str) -> None:
        name, content, pieces = self._open.pop()
        text = "".join(pieces)
        value: Any = content
        if not content:
            value = text if text.strip() else ""
        elif text.strip():
            content["value" if "value" not in content else "#text"] = text.strip()
        parent = self._open[-1][1] if self._open else self.root
        if name not in parent:
            parent[name] = value
        elif isinstance(parent[name], list):
            parent[name].append(value)
        else:
            parent[name] = [parent[name], value]

    def _fail(self, message: str) -> NoReturn:
        raise InvalidDocument([Problem(message, file=self.document.name, line=self.parser.CurrentLineNumber)])


def _local(name: str) -> str:
    return name.rsplit(" ", 1)[-1]
