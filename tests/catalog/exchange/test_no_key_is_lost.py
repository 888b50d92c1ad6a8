"""What a foreign document says stands on its cards: every leaf of every sample, and any key that nobody knows.

A leaf counts as kept when it is found outside `warnings` and `sourceDocument`, as it is or in a documented normal
form: media type, SPDX address, checksum in lower-case hex, size in bytes, truth written as text, a list written as
one text, a time in ISO form, a DOI or ORCID as https address, a term of schema.org by its bare name, a pinned
requirement as purl, a number written as text.
A word that only says of which sort its neighbour is (`@type`, `nameType`, `identifierScheme`) becomes structure.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cases import for_each
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import at, places

from fairmile.base.digest import parse_checksum
from fairmile.base.errors import InvalidDocument, UsageError
from fairmile.base.units import parse_size
from fairmile.base.yaml import load as load_yaml
from fairmile.catalog.card import Card
from fairmile.catalog.exchange.common.media_types import media_type
from fairmile.catalog.exchange.draft import Document, finish
from fairmile.catalog.exchange.zenodo import plain_text
from fairmile.catalog.licences import licence_iri
from fairmile.catalog.profile import check_body

SAMPLES = Path(__file__).parent / "samples"
# A folder for each format; every file in it is a document of that format.
DOCUMENTS = [
    (folder.name, path)
    for folder in sorted(SAMPLES.iterdir())
    if folder.is_dir()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
]
SORT_OF_NEIGHBOUR = re.compile(
    r"@type|@context|type|propertyID|schemeURI|resourceTypeGeneral|\w+Type|\w+Scheme|is_[a-z_]+"
)
# Codes that a format defines and that a property of the profile says in its own word.
CODES = {
    "software",
    "open",
    "isSupplementTo",
    "isDerivedFrom",
    "info:eu-repo/semantics/openAccess",
    "other",
    "s:Integer",
    "#{levels.zip}",
}


def reader(format: str) -> Any:
    return importlib.import_module(f"fairmile.catalog.exchange.{format.replace('-', '_')}")


def cards(format: str, document: Document) -> list[Card]:
    return [finish(draft, document, format) for draft in reader(format).read(document)]


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every text, number and truth with the key it stands under."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "@context":
                yield from leaves(each, str(name))
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each, key)
    elif value is not None:
        yield key, value


def source_leaves(path: Path) -> list[tuple[str, Any]]:
    """Return the leaves of a document in whatever notation it is written."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".ttl":
        return list(turtle_leaves(text))
    if path.suffix == ".xml":
        return list(xml_leaves(text))
    if path.suffix == ".md":
        front = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
        return list(leaves(load_yaml(front[1]))) if front else []
    if path.name == "as_printed.json":  # no JSON: its lists hold keys
        text = re.sub(r"\[(\"Version\".*\])\]", r"{\1}", text)
    return list(leaves(json.loads(text) if path.suffix in (".json", ".jsonld") else load_yaml(text)))


def turtle_leaves(text: str) -> Iterator[tuple[str, Any]]:
    import pyoxigraph

    for triple in pyoxigraph.parse(text.encode(), format=pyoxigraph.RdfFormat.TURTLE):
        if not isinstance(triple.object, pyoxigraph.BlankNode):
            local = re.split(r"[#/]", triple.predicate.value)[-1]
            yield ("@type" if local == "type" else local), triple.object.value


def xml_leaves(text: str) -> Iterator[tuple[str, Any]]:
    from xml.etree import ElementTree

    for element in ElementTree.fromstring(text).iter():
        for value in (element.text, *element.attrib.values()):
            if value and value.strip():
                yield element.tag.rpartition("}")[2], value


class Kept:
    """All that a set of cards says."""

    def __init__(self, found: list[Card]) -> None:
        bodies = [
            {key: each for key, each in card.items() if key not in ("warnings", "sourceDocument")} for card in found
        ]
        values = [value for _, value in leaves(bodies)]
        self.truths = {each for each in values if isinstance(each, bool)}
        self.numbers = {each for each in values if isinstance(each, (int, float)) and not isinstance(each, bool)}
        self.texts = {each.strip() for each in values if isinstance(each, str)} | keys(bodies)
        self.all = "\n".join(sorted(self.texts))
        self.words = set(re.split(r"[^A-Za-z0-9.+-]+", self.all)) | set(re.split(r"[\s,;:@=/]+", self.all))
        self.numbers |= {float(word) for word in self.words if re.fullmatch(r"-?[0-9]{1,300}(\.[0-9]+)?", word)}
        self.warned = json.dumps([card.get("warnings") for card in found])

    def has(self, key: str, leaf: Any) -> bool:
        if SORT_OF_NEIGHBOUR.fullmatch(key) or leaf in CODES:
            return True
        if isinstance(leaf, bool):
            return leaf in self.truths
        if isinstance(leaf, (int, float)) and math.isfinite(leaf):
            return leaf in self.numbers
        text = str(leaf).strip()
        if re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]+)?", text):
            return float(text) in self.numbers or self.has_text(text)
        if text.lower() in ("true", "false"):
            return (text.lower() == "true") in self.truths or text in self.texts
        if key in ("contentSize", "size"):
            return text in self.warned or self.has_text(f"{parse_size(text)} B")
        return self.has_text(text) or any(map(self.has_text, normal_forms(text))) or self.has_parts(text)

    def has_text(self, text: str) -> bool:
        return text in self.texts or text in self.words or (len(text) > 3 and text in self.all)

    def has_parts(self, text: str) -> bool:
        parts = [part.strip(' "') for part in re.split(r"[,;\n|<>]", text) if part.strip(' "')]
        if text.startswith("[{"):  # MLflow writes its signature as JSON inside a text
            return all(self.has(key, leaf) for key, leaf in leaves(json.loads(text)))
        return len(parts) > 1 and all(map(self.has_text, [part for part in parts if part != "extended"]))


def keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(keys, value))
    return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()


def normal_forms(text: str) -> Iterator[str]:
    yield from (form for form in (media_type(text), licence_iri(text)) if form)
    checksum = parse_checksum(text)
    if checksum:
        yield checksum.hex
    with suppress(UsageError):
        yield f"{parse_size(text)} B"
    yield plain_text(text)
    yield f".{text}"  # YAML's infinity and not-a-number
    yield text.replace(" ", "T", 1)
    yield re.sub(r"^https?://(dx\.)?(doi|orcid)\.org/", r"https://\2.org/", text)
    yield re.sub(r"^arxiv:", "https://arxiv.org/abs/", text, flags=re.IGNORECASE)
    yield re.sub(r"^https?://schema\.org/", "", text)
    yield text.removeprefix("git+").removesuffix(".git")
    pinned = re.fullmatch(r"([A-Za-z0-9._-]+)\s*==\s*(\S+)", text)
    if pinned:
        yield f"pkg:pypi/{pinned[1].lower()}@{pinned[2]}"


@for_each("format, path", DOCUMENTS)
def test_every_leaf_of_a_sample_stands_on_its_cards(format: str, path: Path) -> None:
    kept = Kept(cards(format, Document.from_file(path)))
    assert [(key, leaf) for key, leaf in source_leaves(path) if not kept.has(key, leaf)] == []


@for_each("format, path", DOCUMENTS)
def test_a_sample_is_recognised_by_the_reader_of_its_format(format: str, path: Path) -> None:
    assert reader(format).recognises(Document.from_file(path))


def test_a_leaf_that_was_dropped_is_noticed() -> None:
    card = cards("sabath", Document.from_file(SAMPLES / "sabath" / "tinyUniverse.json"))[0]
    assert Kept([card]).has("curator", "Ada Example")
    del card.body["foreign"]
    assert not Kept([card]).has("curator", "Ada Example")
    assert not Kept([card]).has("rank", 2)


def unmapped(value: Any, context: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield every key that JSON-LD would drop: one that is neither a term nor has a prefix."""
    if isinstance(value, list):
        for each in value:
            yield from unmapped(each, context, path)
    elif isinstance(value, dict):
        for key, each in value.items():
            term = context.get(key)
            if isinstance(term, dict) and term.get("@type") == "@json":
                continue
            if term is None and not key.startswith("@") and key.partition(":")[0] not in context:
                yield f"{path}.{key}"
            yield from unmapped(each, context, f"{path}.{key}")


@for_each("format, path", DOCUMENTS)
def test_every_property_of_an_imported_card_is_a_term_of_the_context(format: str, path: Path) -> None:
    context = json.loads(resources.files("fairmile.catalog").joinpath("data/context.jsonld").read_text())["@context"]
    for card in cards(format, Document.from_file(path)):
        # JSON-LD formats hand on nested objects as they are, with keys of their own vocabularies.
        body = dict.fromkeys(card) if format in ("codemeta", "croissant", "rocrate", "schemaorg") else card.body
        assert list(unmapped(body, context)) == []


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
UNKNOWN_KEYS = st.dictionaries(st.text(max_size=10).map("zz_".__add__), JSON_VALUES, min_size=1, max_size=3)
# Where a document of the format may hold keys that its definition does not name.
PLACES: dict[str, list[tuple[str, tuple[Any, ...]]]] = {
    "sabath": [
        ("tinyFlow.json", ()),
        ("tinyFlow.json", ("requirements",)),
        ("tinyFlow.json", ("git",)),
        ("tinyFlow.json", ("forks", 1)),
        ("tinyUniverse.json", ()),
        ("tinyUniverse.json", ("fragments", 0)),
        ("tinyUniverse.json", ("fragments", 0, "checksum")),
    ],
    "hpcfair": [
        ("dataset.jsonld", ()),
        ("dataset.jsonld", ("hpc:tags",)),
        ("model.jsonld", ()),
        ("workflow.jsonld", (0,)),
        ("workflow.jsonld", (0, "hpc:sysConfig")),
    ],
    "openml": [
        ("flowers.json", ()),
        ("flowers.json", ("data_set_description",)),
        ("features.json", ("data_features", "feature", 0)),
        ("qualities.json", ("data_qualities", "quality", 0)),
        ("flow.json", ("flow", "parameter", 0)),
        ("flow.json", ("flow", "component", 0)),
        ("flow.json", ("flow", "component", 0, "flow")),
    ],
    "mlmodel": [
        ("sklearn/MLmodel", ()),
        ("sklearn/MLmodel", ("flavors", "sklearn")),
        ("sklearn/MLmodel", ("flavors", "python_function")),
        ("sklearn/MLmodel", ("signature",)),
        ("sklearn/MLmodel", ("metadata",)),
    ],
}


def holds(value: Any, key: str, wanted: Any) -> bool:
    """Tell whether a mapping anywhere inside has the key with exactly this value."""
    if isinstance(value, dict):
        if key in value and json.dumps(value[key], sort_keys=True) == json.dumps(wanted, sort_keys=True):
            return True
        return any(holds(each, key, wanted) for each in value.values())
    return isinstance(value, list) and any(holds(each, key, wanted) for each in value)


@pytest.mark.parametrize("format", PLACES)
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_a_key_that_nobody_knows_is_kept_verbatim(format: str, data: st.DataObject) -> None:
    name, place = data.draw(st.sampled_from(PLACES[format]))
    unknown = data.draw(UNKNOWN_KEYS)
    path = SAMPLES / format / name
    source = load_yaml(path.read_text(encoding="utf-8"))
    at(source, place).update(unknown)
    document = Document(str(path), json.dumps(source).encode())
    bodies = [card.body for card in cards(format, document)]
    json.dumps(bodies)
    assert all(holds(bodies, key, value) for key, value in unknown.items())


@settings(deadline=None, max_examples=examples(40))
@given(
    name=st.from_regex(r"[a-z][A-Za-z0-9]{0,12}", fullmatch=True).map("zz".__add__),
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=3),
)
def test_a_predicate_that_nobody_knows_is_kept_verbatim(name: str, texts: list[str]) -> None:
    import pyoxigraph

    # A set of statements holds each once, and null characters are no part of Turtle.
    wanted = list(dict.fromkeys(text for text in texts if "\0" not in text)) or ["x"]
    facts = " , ".join(str(pyoxigraph.Literal(text)) for text in wanted)
    source = (SAMPLES / "hpc-ontology" / "knowledge.ttl").read_text()
    source += f"\n<http://example.org/dataset/DA900001> <https://hpc-fair.github.io/ontology#{name}> {facts} .\n"
    bodies = [card.body for card in cards("hpc-ontology", Document("more.ttl", source.encode()))]
    assert holds(bodies, name, wanted if len(wanted) > 1 else wanted[0])


# The richest sample of each format whose notation a test can change.
CHANGED = {
    "sabath": "tinyUniverse.json",
    "hpcfair": "dataset.jsonld",
    "rocrate": "v1_1_workflow.json",
    "croissant": "v1_1_rich.json",
    "codemeta": "version-3.json",
    "schemaorg": "lake.jsonld",
    "citation": "software.cff",
    "huggingface": "README-dataset.md",
    "openml": "flowers.json",
    "datacite": "kernel-4.5.json",
    "mlmodel": "sklearn/MLmodel",
}
STRICT = ("sabath", "hpcfair", "openml", "mlmodel")
JSON_LD = ("rocrate", "croissant", "codemeta", "schemaorg")
# Without these a document says nothing, or says that it is of another format.
ESSENTIAL = re.compile(
    r"@\w+|titles?|name|types|attributes|data_set_description|cff-version|flavors|artifact_path|hpc:id|fragments"
)


def parse_sample(path: Path) -> tuple[Any, str]:
    """Return the data of a sample, and what stands behind it where it is a README."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        return load_yaml(text), ""
    front, _, rest = text.removeprefix("---\n").partition("\n---\n")
    return load_yaml(front), rest


def as_document(path: Path, source: Any, rest: str) -> Document:
    text = json.dumps(source)
    return Document(str(path), (f"---\n{text}\n---\n{rest}" if path.suffix == ".md" else text).encode())


def variants(format: str, value: Any) -> Iterator[Any]:
    """Yield the other forms in which sources write a value: nothing, one in a list, one without, with a language."""
    yield None
    if not isinstance(value, list) or len(value) == 1:
        yield value[0] if isinstance(value, list) else [value]
    if isinstance(value, str) and format in JSON_LD:
        yield {"@value": value, "@language": "en"}


@pytest.mark.thorough
@pytest.mark.parametrize("format", CHANGED)
def test_a_value_in_another_form_is_read_or_kept(format: str) -> None:
    path = SAMPLES / format / CHANGED[format]
    lost = []
    for place in [each for each in places(parse_sample(path)[0]) if 0 < len(each) <= 4 and isinstance(each[-1], str)]:
        if ESSENTIAL.fullmatch(place[-1]) or place[0] == "@context":
            continue
        for form in variants(format, at(parse_sample(path)[0], place)):
            source, rest = parse_sample(path)
            at(source, place[:-1])[place[-1]] = form
            document = as_document(path, source, rest)
            try:
                found = cards(format, document)
            except InvalidDocument as error:
                assert format in STRICT and all(each.file and each.field for each in error.problems), (place, error)
                assert form is not None or "is missing" in str(error), (place, str(error))
                continue
            problems = [str(each) for card in found for each in check_body(card.body) if each.severity == "error"]
            kept = Kept(found)
            gone = [leaf for key, leaf in leaves(form, str(place[-1])) if leaf != "en" and not kept.has(key, leaf)]
            lost += [(place, form, problems, gone)] if problems or gone else []
    assert lost == []


@pytest.mark.parametrize("format", CHANGED)
def test_a_byte_order_mark_changes_nothing(format: str) -> None:
    path = SAMPLES / format / CHANGED[format]
    plain = Document.from_file(path)
    marked = Document(plain.name, b"\xef\xbb\xbf" + plain.data)
    assert reader(format).recognises(marked)
    assert [card.title for card in cards(format, marked)] == [card.title for card in cards(format, plain)]
