from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairmile.base.errors import UsageError
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.query import MAX_QUERY_CHARACTERS, Query, parse_query

Factory = Callable[..., dict[str, Any]]


def test_words_are_searched_for_as_they_stand() -> None:
    assert parse_query("cosmic  web") == Query(words=("cosmic", "web"))


def test_quotes_make_a_phrase() -> None:
    assert parse_query('big "cosmic web"') == Query(words=("big",), phrases=("cosmic web",))


def test_a_star_at_the_end_makes_a_prefix() -> None:
    assert parse_query("cosmo*") == Query(prefixes=("cosmo",))


def test_slashes_make_a_regular_expression() -> None:
    assert parse_query(r"/^cosmo\/?.*$/ web") == Query(words=("web",), regexes=(r"^cosmo\/?.*$",))


@pytest.mark.parametrize(
    ("text", "facet"),
    [
        ("domain:cosmology", ("domain", "cosmology")),
        ("science:cosmology", ("domain", "cosmology")),
        ("DOMAIN:cosmology", ("domain", "cosmology")),
        ('domain:"high energy physics"', ("domain", "high energy physics")),
        ("license:MIT", ("licence", "MIT")),
        ("author:Doe", ("creator", "Doe")),
        ("keyword:halo", ("tag", "halo")),
        ("system:lassen", ("machine", "lassen")),
        ("kind:model", ("kind", "model")),
        ("kind:Models", ("kind", "model")),
        ("kind:code", ("kind", "program")),
        ("kind:scripts", ("kind", "program")),
        ("kind:data", ("kind", "dataset")),
    ],
)
def test_a_field_takes_a_value_under_any_of_its_names(text: str, facet: tuple[str, str]) -> None:
    assert parse_query(text) == Query(facets=(facet,))


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("-old", Query(not_words=("old",))),
        ('-"very old"', Query(not_words=("very old",))),
        ("-old*", Query(not_prefixes=("old",))),
        ("-kind:run", Query(not_facets=(("kind", "run"),))),
        ('-domain:"fluid dynamics"', Query(not_facets=(("domain", "fluid dynamics"),))),
        ("-https://example.net/x", Query(not_words=("https://example.net/x",))),
    ],
)
def test_a_dash_in_front_leaves_out(text: str, query: Query) -> None:
    assert parse_query(text) == query


def test_a_dash_inside_a_word_is_part_of_it() -> None:
    assert parse_query("resnet-50") == Query(words=("resnet-50",))


def test_a_regular_expression_cannot_be_left_out() -> None:
    with pytest.raises(UsageError, match="cannot be searched for"):
        parse_query("-/abc/")


@pytest.mark.parametrize("text", ["domian:cosmology", 'domian:"dark matter"', "-domian:x", "domian:/x/"])
def test_an_unknown_field_is_refused_with_the_nearest(text: str) -> None:
    with pytest.raises(UsageError, match="no search field named 'domian'; did you mean 'domain'") as caught:
        parse_query(text)
    assert "licence" in str(caught.value.hint)


def test_an_unknown_kind_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no kind named 'modle'; did you mean 'model'"):
        parse_query("kind:modle")


@pytest.mark.parametrize("text", ['domain:""', 'domain:"  "'])
def test_a_field_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="'domain' has no value"):
        parse_query(text)


def test_a_field_takes_no_regular_expression() -> None:
    with pytest.raises(UsageError, match="takes a value"):
        parse_query("domain:/cosmo.*/")


@pytest.mark.parametrize(
    "text",
    [
        "https://example.net/a?b=c#d",
        "doi:10.5281/zenodo.12345",
        "urn:uuid:6f0c5e7a-1a43-5f3b-9c1e-3d2f8d0b7a51",
        "ni:///sha-256;abc",
        "swh:1:dir:abc",
        "pkg:pypi/numpy@2.0",
        "std::vector",
        "12:30:00",
        "C++",
        "a&b|c",
        "{name}",
        "NEAR(a",
        "()",
        "AND",
        "^x",
        "'",
    ],
)
def test_addresses_ids_and_odd_punctuation_are_words(text: str, catalog: Catalog) -> None:
    assert parse_query(text) == Query(words=(text,))
    catalog.search(text)


def test_an_open_quote_is_ignored() -> None:
    assert parse_query('cosmic "web') == Query(words=("cosmic", "web"))


def test_too_long_a_search_is_refused() -> None:
    parse_query("x" * MAX_QUERY_CHARACTERS)
    with pytest.raises(UsageError, match="longer than"):
        parse_query("x" * (MAX_QUERY_CHARACTERS + 1))


def test_a_query_can_be_narrowed_by_values_that_hold_quotes() -> None:
    narrowed = parse_query("web").with_facets(project='the "big" one', science="x")
    assert narrowed == Query(words=("web",), facets=(("project", 'the "big" one'), ("domain", "x")))


_PIECES = st.sampled_from(
    [
        "kind:",
        "domain:",
        "foo:",
        '"',
        "/",
        "-",
        "*",
        ":",
        "\\",
        "(",
        ")",
        " ",
        "AND",
        "NOT",
        "model",
        "\0",
        "\ud800",
        "{",
    ]
)
_TEXTS = st.one_of(st.text(max_size=40), st.lists(st.one_of(_PIECES, st.text(max_size=4)), max_size=12).map("".join))


def test_a_query_leaves_out_one_condition_at_a_time_words_last() -> None:
    query = parse_query('cosmology "dark matter" -kind:model licence:MIT')
    assert list(map(str, query.broader())) == [
        'cosmology "dark matter" licence:MIT',
        'cosmology "dark matter" -kind:model',
        "cosmology licence:MIT -kind:model",
        '"dark matter" licence:MIT -kind:model',
    ]
    assert parse_query("cosmology").broader() == []


@given(_TEXTS)
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        parse_query(text)
    except UsageError as error:
        assert str(error)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=_TEXTS)
def test_searching_for_any_text_answers_or_is_refused(text: str, catalog: Catalog, card: Factory) -> None:
    if not catalog.search():
        catalog.add(card("model", "Alpha model", keywords=["(odd)", "a/b"]))
    try:
        catalog.search(text)
        catalog.search(text, all_versions=True)
    except UsageError as error:
        assert str(error)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=_TEXTS)
def test_looking_up_any_text_finds_nothing_or_is_refused(name: str, catalog: Catalog) -> None:
    with pytest.raises((UsageError, LookupError)) as caught:
        catalog.get(name)
    assert str(caught.value)
