"""XML is read into the shape of JSON, and whatever could expand or point elsewhere is refused."""

from __future__ import annotations

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.exchange.openml_xml import load_xml


def load(text: str) -> object:
    return load_xml(Document("x.xml", text.encode()))


def test_leaves_are_texts_repeated_elements_lists_and_attributes_keys() -> None:
    text = (
        '<o:r xmlns:o="http://openml.org/openml"><o:a>1</o:a><o:b>x</o:b><o:b/><o:p name="n">10</o:p><o:q z="1"/></o:r>'
    )
    assert load(text) == {"r": {"a": "1", "b": ["x", ""], "p": {"name": "n", "value": "10"}, "q": {"z": "1"}}}


def test_text_is_kept_with_its_line_breaks_and_entities() -> None:
    assert load("<r><a>one &amp; two\n three &#233;</a><b><![CDATA[<x>]]></b></r>") == {
        "r": {"a": "one & two\n three é", "b": "<x>"}
    }


def test_an_encoding_that_the_declaration_gets_wrong_does_no_harm() -> None:
    assert load('<?xml version="1.0" encoding="UTF-16"?><r><a>é</a></r>') == {"r": {"a": "é"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<!DOCTYPE r [<!ENTITY a "b">]>\n<r>&a;</r>', "document type"),
        ('<!DOCTYPE r SYSTEM "file:///etc/passwd"><r/>', "document type"),
        ("<a>" * 100, "nested more than 60 deep"),
        ("<r>&a;</r>", "undefined entity"),
        ("<r><a></r>", "mismatched tag"),
        ("", "no element found"),
        ("<r/><r/>", "junk after document element"),
    ],
)
def test_what_could_expand_or_is_broken_is_refused_with_file_and_line(text: str, expected: str) -> None:
    with pytest.raises(InvalidDocument, match=expected) as caught:
        load(text)
    assert caught.value.problems[0].file == "x.xml"
    assert caught.value.problems[0].line == 1


def test_a_billion_laughs_is_refused_before_it_expands() -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    with pytest.raises(InvalidDocument, match="document type"):
        load(f'<!DOCTYPE r [<!ENTITY e0 "ha">{entities}]><r>&e9;</r>')
