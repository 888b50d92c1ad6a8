"""Property tests of the readers that keep what they do not understand."""

from __future__ import annotations

import copy
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import UNKNOWN, VALUES, add_unknown_key, anything, replace_a_value, values_under

from fairmile.base.errors import FairmileError, InvalidDocument
from fairmile.base.yaml import dump, load
from fairmile.catalog.card import Card
from fairmile.catalog.exchange.common.markdown import split_readme
from fairmile.catalog.exchange.draft import Document, finish
from fairmile.catalog.profile import check_body

SAMPLES = Path(__file__).parent / "samples"
FORMATS = ("codemeta", "citation", "huggingface", "datacite", "zenodo")
CASES = [(name, path) for name in FORMATS for path in sorted((SAMPLES / name).iterdir())]
# Values that break into code that expects something else: each kind, empty, filled, and shaped like a known part.
OTHERS = st.one_of(
    VALUES,
    st.sampled_from(
        [[], {}, "", " ", 0, True, None, [[]], [{}], [None], {"name": None}, {"@id": 1}, {"value": {}}, ["x", {"y": 1}]]
    ),
)
lenient = settings(anything, max_examples=examples(150))


def parse(path: Path) -> Any:
    """Return the data of a sample; of a README only the front matter, whose keys are texts."""
    text = path.read_bytes().decode("utf-8-sig")
    if path.suffix == ".json":
        return json.loads(text)
    data = load(split_readme(text).front if path.suffix == ".md" else text)
    return json.loads(json.dumps(data).replace("Infinity", "1e9"))


def as_document(path: Path, data: Any) -> Document:
    """Return a document of the sample's format that holds the data."""
    if path.suffix == ".json":
        return Document(path.name, json.dumps(data).encode())
    if path.suffix == ".md":
        text = split_readme(path.read_bytes().decode("utf-8-sig")).text
        return Document(path.name, f"---\n{dump(data)}---\n{text}\n".encode())
    return Document(path.name, dump(data).encode())


def reader(name: str) -> Any:
    return importlib.import_module(f"fairmile.catalog.exchange.{name}")


def use(card: Card) -> None:
    """Do with a card what the catalog does."""
    assert json.loads(card.to_json()) == card.body
    assert card.digest and card.handle and card.kind
    assert [str(problem) for problem in check_body(card.body) if problem.severity == "error"] == []
    _ = (
        card.links,
        card.files,
        card.keywords,
        card.formats,
        card.identifiers,
        card.licence,
        card.frameworks,
        card.tasks,
    )


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda value: getattr(value, "name", value))
def test_every_sample_is_recognised_and_read(name: str, path: Path) -> None:
    document = Document.from_file(path, name=path.name)
    module = reader(name)
    assert module.recognises(document)
    for draft in module.read(document):
        use(finish(draft, document, name))


@pytest.mark.parametrize("name", FORMATS)
@lenient
@given(data=st.data())
def test_an_unknown_key_is_never_lost_wherever_it_stands(name: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted((SAMPLES / name).iterdir())))
    body = parse(path)
    place, value = add_unknown_key(data, body)
    document = as_document(path, body)
    cards = [finish(draft, document, name) for draft in reader(name).read(document)]
    assert any(found == value for card in cards for found in values_under(card.body, UNKNOWN)), place


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
@lenient
@given(data=st.data())
def test_a_value_of_another_type_gives_cards_or_a_refusal(name: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted((SAMPLES / name).iterdir())))
    body = parse(path)
    replace_a_value(data, body, OTHERS)
    before = copy.deepcopy(body)
    document = as_document(path, body)
    module = reader(name)
    module.recognises(document)
    try:
        drafts = module.read(document)
    except InvalidDocument as refusal:
        assert path.name in str(refusal)
        return
    assert body == before
    for draft in drafts:
        card = finish(draft, document, name)
        use(card)
        if hasattr(module, "write") and card.kind in module.KINDS:
            try:
                assert all(isinstance(text, str) for text in module.write(card).values())
            except FairmileError as refusal:
                assert refusal.hint


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["codemeta", "datacite", "huggingface"])
@lenient
@given(data=st.data())
def test_a_writer_writes_or_refuses_whatever_a_card_holds(name: str, data: st.DataObject) -> None:
    module = reader(name)
    kind = data.draw(st.sampled_from(module.KINDS))
    terms = sorted(
        json.loads((SAMPLES.parents[3] / "src/fairmile/catalog/data/context.jsonld").read_text())["@context"]
    )
    body = data.draw(st.dictionaries(st.sampled_from(terms), OTHERS, max_size=8))
    types = {
        "program": "SoftwareSourceCode",
        "workflow": "ComputationalWorkflow",
        "model": "MLModel",
        "dataset": "Dataset",
    }
    card = Card({**body, "@type": types.get(kind, kind.capitalize()), "@id": "urn:x:1", "name": "a", "version": "1"})
    assert card.kind == kind
    try:
        written = module.write(card)
    except FairmileError as refusal:
        assert refusal.hint
        return
    for file, text in written.items():
        document = Document(file, text.encode())
        assert module.recognises(document)
        for draft in module.read(document):
            use(finish(draft, document, name))
