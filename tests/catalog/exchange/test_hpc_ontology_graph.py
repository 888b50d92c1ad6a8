"""Turtle becomes nodes with facts; whatever is written of them is written once and loses nothing."""

from __future__ import annotations

import builtins
import json
from typing import Any

import pytest
from extras import needs_extra

from fairmile.base.errors import InvalidDocument
from fairmile.catalog.exchange.draft import Document
from fairmile.catalog.exchange.hpc_ontology_graph import NAMESPACES, Literal, Ref, Writer, load_graph, local_name

HEAD = (
    f"@prefix hpc: <{NAMESPACES[0]}> . @prefix ex: <http://example.org/> . "
    "@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .\n"
)


def graph(text: str) -> Any:
    return load_graph(Document("x.ttl", (HEAD + text).encode()))


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_all_name_spaces_are_one(namespace: str) -> None:
    node = graph(f'ex:a a <{namespace}Thing> ; <{namespace}name> "x" .')["http://example.org/a"]
    assert (local_name(node.types[0]), node.facts) == (
        "Thing",
        {"name": [Literal("x", "http://www.w3.org/2001/XMLSchema#string")]},
    )


def test_a_prefix_written_twice_counts_once() -> None:
    assert local_name(NAMESPACES[1] + "hpc:cores") == "cores"
    assert local_name("http://elsewhere.example.net/x") == ""


def test_literals_keep_what_json_would_lose() -> None:
    text = 'ex:a hpc:p "t" , "u"@en , 3 , true , 8025.60 , "x"^^xsd:anyURI , "007"^^xsd:integer .'
    values = graph(text)["http://example.org/a"].facts["p"]
    assert [value.to_json() for value in values] == [
        "t",
        {"@value": "u", "@language": "en"},
        3,
        True,
        {"@value": "8025.60", "@type": "xsd:decimal"},
        {"@value": "x", "@type": "xsd:anyURI"},
        {"@value": "007", "@type": "xsd:integer"},
    ]


def test_a_blank_node_stands_inside_the_one_node_that_refers_to_it() -> None:
    nodes = graph('ex:a hpc:p [ hpc:q [ hpc:r "x" ] ] .')
    assert Writer(nodes).node("http://example.org/a") == {"p": {"q": {"r": "x"}}}


def test_blank_nodes_that_refer_to_each_other_end() -> None:
    nodes = graph("_:a hpc:p _:b . _:b hpc:p _:a . _:c hpc:p _:c .")
    writer = Writer(nodes)
    assert json.dumps([writer.node(key) for key in nodes if key not in writer.written])
    assert writer.written == set(nodes)


def test_a_shared_blank_node_is_not_repeated() -> None:
    # Each level refers twice to the next: written inside, this would double with every level.
    levels = "".join(f"_:n{n} hpc:p _:n{n + 1} ; hpc:q _:n{n + 1} . " for n in range(60))
    writer = Writer(nodes := graph(f"ex:a hpc:p _:n0 . {levels}"))
    assert len(json.dumps([writer.node(key) for key in nodes if key not in writer.written])) < 10_000


def test_a_long_list_is_written_without_deep_nesting() -> None:
    items = " ".join(f'"{n}"' for n in range(2000))
    writer = Writer(nodes := graph(f"ex:a hpc:p ( {items} ) ."))
    written = json.dumps([writer.node(key) for key in nodes if key not in writer.written])
    assert all(f'"{n}"' in written for n in range(2000))


def test_blank_nodes_get_the_same_names_each_time() -> None:
    text = 'ex:a hpc:p [ hpc:q "x" ] . ex:b hpc:p _:s . ex:c hpc:p _:s . _:s hpc:q "y" .'
    assert list(graph(text)) == list(graph(text))
    assert any(value == Ref("_:b2") for value in graph(text)["http://example.org/b"].facts["p"])


@pytest.mark.parametrize("text", ["ex:a hpc:p", "ex:a nope:p 1 .", "<relative> hpc:p 1 .", "{}"])
def test_broken_turtle_is_refused_with_file_and_line(text: str) -> None:
    with pytest.raises(InvalidDocument, match="is not Turtle") as caught:
        graph(text)
    assert caught.value.problems[0].file == "x.ttl"
    assert caught.value.problems[0].line == 2


def test_without_pyoxigraph_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pyoxigraph":
            raise ImportError(name)
        return really(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with needs_extra("rdf"):
        graph("ex:a hpc:p 1 .")
