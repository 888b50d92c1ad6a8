"""Garbage in a recognised form is refused with file and field or line, and never ends in another exception."""

from __future__ import annotations

import importlib
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import at, places

from fairmile.base.errors import InvalidDocument
from fairmile.base.yaml import load as load_yaml
from fairmile.catalog.exchange import READERS, recognise
from fairmile.catalog.exchange.draft import Document, finish
from fairmile.catalog.profile import check_body

SAMPLES = Path(__file__).parent / "samples"
FORMATS = ("sabath", "hpcfair", "openml", "mlmodel", "hpc-ontology")
FILES = {format: sorted(path for path in (SAMPLES / format).rglob("*") if path.is_file()) for format in FORMATS}
STRUCTURED = {
    format: [path for path in paths if path.suffix in (".json", ".jsonld", "") and path.name != "as_printed.json"]
    for format, paths in FILES.items()
    if format != "hpc-ontology"
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
TYPICAL: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1.5, "", "..", "a/../b", "https://x.example.net/..", [], [[]], [None], [{}], {}, {"@id": {}}]
)


def reader(format: str) -> Any:
    return importlib.import_module(f"fairmile.catalog.exchange.{format.replace('-', '_')}")


def check(format: str, document: Document) -> None:
    """Import the document; what is not refused must give cards that can be written and follow the profile."""
    reader(format).recognises(document)
    try:
        drafts = reader(format).read(document)
    except InvalidDocument as error:
        assert error.problems
        assert all(problem.file == document.name for problem in error.problems)
        return
    assert drafts
    for draft in drafts:
        card = finish(draft, document, format)
        assert card.kind == draft.kind
        assert json.loads(card.to_json()) == card.body
        assert [str(problem) for problem in check_body(card.body) if problem.severity == "error"] == []


def replaced(source: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    at(source, path[:-1])[path[-1]] = value
    return source


@pytest.mark.parametrize("format", STRUCTURED)
@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_a_value_of_another_type_is_imported_or_refused(format: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(STRUCTURED[format]))
    source = load_yaml(path.read_text(encoding="utf-8"))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(list(places(source))))
        # A copy: what hypothesis hands out twice must not end up inside itself.
        source = replaced(source, place, deepcopy(data.draw(TYPICAL | JSON_VALUES)))
    check(format, Document(str(path), json.dumps(source).encode()))


@pytest.mark.thorough
@pytest.mark.parametrize("format", STRUCTURED)
def test_every_single_value_may_be_of_any_other_type(format: str) -> None:
    others: list[Any] = [None, True, 7, "text", "", [], ["a"], [[]], [None], {}, {"a": 1}]
    for path in STRUCTURED[format]:
        text = path.read_text(encoding="utf-8")
        for place in places(load_yaml(text)):
            for other in others:
                check(format, Document(str(path), json.dumps(replaced(load_yaml(text), place, other)).encode()))


@pytest.mark.parametrize("format", STRUCTURED)
def test_every_single_key_may_be_missing(format: str) -> None:
    for path in STRUCTURED[format]:
        text = path.read_text(encoding="utf-8")
        for place in places(load_yaml(text)):
            source = load_yaml(text)
            if place:
                del at(source, place[:-1])[place[-1]]
                check(format, Document(str(path), json.dumps(source).encode()))


@pytest.mark.thorough
@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None, max_examples=examples(120))
@given(data=st.data())
def test_a_text_with_a_piece_replaced_is_imported_or_refused(format: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(FILES[format]))
    text = path.read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 30))
    piece = data.draw(
        st.text(max_size=5) | st.sampled_from(["<", "</", '"', "{", "[", "]", "&a;", "<!DOCTYPE x>", ":", " . ", "_:x"])
    )
    check(format, Document(str(path), (text[:start] + piece + text[start + length :]).encode()))


@pytest.mark.parametrize("format", FORMATS)
@settings(deadline=None, max_examples=examples(60))
@given(data=st.binary(max_size=60), name=st.sampled_from(["x.json", "MLmodel", "x.ttl", "x.xml", "README"]))
def test_arbitrary_bytes_are_refused_and_never_raise_when_recognised(format: str, data: bytes, name: str) -> None:
    reader(format).recognises(Document(name, data))
    with pytest.raises(InvalidDocument):
        reader(format).read(Document(name, data))


@pytest.mark.parametrize(
    ("format", "path"),
    [(format, path) for format, paths in FILES.items() for path in paths],
    ids=lambda each: getattr(each, "name", each),
)
def test_each_sample_is_recognised_as_its_own_format_before_any_other(format: str, path: Path) -> None:
    assert recognise(Document.from_file(path)) == format
    assert [name for name, each in READERS.items() if each.recognises(Document.from_file(path))] == [format]
