"""Fields hands out what is asked for, refuses what is of the wrong kind, and keeps the rest in its place."""

from __future__ import annotations

from typing import Any

import pytest

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.exchange.common.taking import Fields, keep_rest, kind_of, scalar_text, settle_typed
from fairmile.catalog.exchange.draft import Document, Draft

DOCUMENT = Document("some.json", b"")


def fields(**data: Any) -> Fields:
    return Fields(DOCUMENT, data)


def test_what_is_taken_is_gone_and_the_rest_stays_in_its_place() -> None:
    whole = fields(name="a", other=1, inner={"x": 1, "y": 2}, many=[{"p": 1}, {"p": 2, "q": [None]}], emptied={"z": 1})
    assert whole.text("name") == "a"
    inner, emptied = whole.mapping("inner"), whole.mapping("emptied")
    assert inner is not None and emptied is not None
    assert (inner.text("x"), emptied.text("z")) == ("1", "1")
    assert [each.text("p") for each in whole.mappings("many")] == ["1", "2"]
    assert whole.rest() == {"other": 1, "inner": {"y": 2}, "many": [{}, {"q": [None]}]}


@pytest.mark.parametrize("nothing", [None, "", []])
def test_null_an_empty_text_and_an_empty_list_are_nothing(nothing: Any) -> None:
    assert fields(a=nothing).text("a") is None
    assert fields(a=nothing).texts("a") == []
    assert fields(a=nothing).mappings("a") == []
    assert fields().text("a") is None


def test_numbers_are_texts_and_truths_are_not() -> None:
    assert fields(a=0.1).text("a") == "0.1"
    assert fields(a=[1, "b"]).texts("a") == ["1", "b"]
    with pytest.raises(InvalidDocument, match=r"some\.json a: expected a text, found true or false"):
        fields(a=True).text("a")


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("text", {"x": 1}, "outer.a: expected a text, found a mapping"),
        ("texts", ["x", {}], r"outer.a\[1\]: expected a text, found a mapping"),
        ("mapping", "x", "outer.a: expected a mapping, found a text"),
        ("mappings", [{}, 3], r"outer.a\[1\]: expected a mapping, found a number"),
        ("required", "", "outer.a: is missing"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_path(method: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidDocument, match=expected):
        getattr(Fields(DOCUMENT, {"a": value}, "outer"), method)("a")


def test_kinds_have_names_that_people_use() -> None:
    values: list[Any] = [None, {}, [], "x", True, 1, 1.5]
    assert [kind_of(each) for each in values] == [
        "nothing",
        "a mapping",
        "a list",
        "a text",
        "true or false",
        "a number",
        "a number",
    ]
    assert [scalar_text(each) for each in values] == [None, None, None, "x", "true", "1", "1.5"]


def test_what_is_kept_twice_stands_beside_what_was_there() -> None:
    draft = Draft("dataset", {}, foreign={"checksums": 1})
    keep_rest(draft, {"checksums": 2, "other": 3})
    assert draft.foreign == {"checksums": 1, "checksums'": 2, "other": 3}


def test_what_has_not_the_form_of_the_profile_is_set_aside_with_a_warning() -> None:
    body = {
        "name": "a",
        "datePublished": "soon",
        "url": ["https://x.example.net/", "x.example.net"],
        "keywords": [" ", "b"],
    }
    draft = settle_typed(Draft("dataset", body))
    assert draft.body == {"name": "a", "url": "https://x.example.net/", "keywords": "b"}
    assert draft.foreign == {"datePublished": "soon", "url": "x.example.net"}
    assert [entry["field"] for entry in draft.warnings] == ["datePublished", "url"]


def test_a_draft_in_good_form_stays_as_it_is() -> None:
    body = {"name": "a", "datePublished": "2014-04-06", "url": "https://x.example.net/", "keywords": ["b", "c"]}
    assert settle_typed(Draft("dataset", dict(body))) == Draft("dataset", body)
