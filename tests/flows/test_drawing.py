"""The graph as a picture and as text: every step and edge is there, with its state, whatever its name is."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from fairmile.flows.drawing import COLOURS, draw, lay_out
from fairmile.flows.results import FlowStatus, StepStatus

SVG = "{http://www.w3.org/2000/svg}"


def status(*steps: tuple[str, list[str], str]) -> FlowStatus:
    return FlowStatus("tides-1", [StepStatus(name, needs, "local", state) for name, needs, state in steps])


DIAMOND = status(
    ("a", [], "done"), ("b", ["a"], "running"), ("c", ["a"], "failed"), ("d", ["b", "c"], "waiting")
)  # fmt: skip


def test_a_picture_has_a_box_in_its_colour_for_each_step_and_a_line_for_each_edge() -> None:
    picture = ElementTree.fromstring(draw(DIAMOND, "svg").text)
    boxes = {
        group[2].text: (group[1].get("fill"), float(group[1].get("y") or 0)) for group in picture.findall(f"{SVG}g")
    }
    assert {name: fill for name, (fill, _) in boxes.items()} == {
        **{"a": COLOURS["done"][0], "b": COLOURS["running"][0]},
        **{"c": COLOURS["failed"][0], "d": COLOURS["waiting"][0]},
    }
    assert boxes["a"][1] < boxes["b"][1] == boxes["c"][1] < boxes["d"][1]
    assert len(picture.findall(f"{SVG}path")) == 4


def test_boxes_of_one_layer_do_not_overlap() -> None:
    steps = [("first", [], "done"), *((f"step number {n}", ["first"], "done") for n in range(5))]
    picture = ElementTree.fromstring(draw(status(*steps), "svg").text)
    spans = sorted(
        (float(group[1].get("x") or 0), float(group[1].get("width") or 0))
        for group in picture.findall(f"{SVG}g")
        if group[2].text != "first"
    )
    assert all(x + width < after for (x, width), (after, _) in itertools.pairwise(spans))


def test_edges_go_around_the_boxes_between_their_ends() -> None:
    chain = [("raw", [], "done"), ("params", [], "done"), ("mesh", ["params"], "done"), ("check", ["mesh"], "done")]
    steps = status(
        *chain, ("solve", ["check", "raw"], "done"), ("notes", [], "done"), ("all", ["solve", "notes"], "done")
    )
    drawn = lay_out(steps)
    assert [len(points) for _, _, points in drawn.edges if len(points) > 3] == [7, 9]
    for need, number, points in drawn.edges:
        for box in (each for place, each in enumerate(drawn.boxes) if place not in (need, number)):
            for (x1, y1), (x2, y2) in itertools.pairwise(points):  # the curve stays between these corners
                is_beside = max(x1, x2) < box.x - box.width / 2 or min(x1, x2) > box.x + box.width / 2
                assert is_beside or max(y1, y2) <= box.y or min(y1, y2) >= box.y + box.height, (need, number)


def test_a_picture_with_very_many_long_edges_is_made_at_once() -> None:
    steps = [(f"s{n}", [f"s{n - 1}", f"s{n // 2}"] if n else [], "done") for n in range(400)]
    drawn = lay_out(status(*steps))
    assert len(drawn.boxes) == 400 and len(drawn.edges) == 399


def test_many_nodes_of_one_step_are_one_box() -> None:
    nodes = [(f"fit[{number}]", [], "failed" if number == 7 else "done") for number in range(100)]
    text = draw(status(*nodes, ("all", [name for name, _, _ in nodes], "left out")), "mermaid").text
    assert 'n0["fit × 100<br/>1 failed, 99 done"]:::failed' in text
    assert text.count("-->") == 1


def test_mermaid_has_each_step_and_edge() -> None:
    text = draw(DIAMOND, "mermaid").text
    assert re.findall(r'n(\d)\["(\w)<br/>', text) == [("0", "a"), ("1", "b"), ("2", "c"), ("3", "d")]
    assert re.findall(r"n(\d) --> n(\d)", text) == [("0", "1"), ("0", "2"), ("1", "3"), ("2", "3")]


def test_edges_that_a_longer_way_implies_are_not_drawn() -> None:
    steps = status(("a", [], "done"), ("b", ["a"], "done"), ("c", ["a", "b"], "done"), ("d", ["a", "c"], "done"))
    assert re.findall(r"n(\d) --> n(\d)", draw(steps, "mermaid").text) == [("0", "1"), ("1", "2"), ("2", "3")]
    assert steps.step("d").needs == ["a", "c"]


@pytest.mark.parametrize("format", ["svg", "mermaid"])
def test_names_cannot_break_out_of_their_place(format: str) -> None:
    name = 'a"]; <script>&\n\x1b"'
    text = draw(status((name, [], "done")), format).text
    assert "<script>" not in text
    assert '"];' not in text
    if format == "svg":
        ElementTree.fromstring(text)


def test_shapes_of_other_tools_are_drawn_and_unknown_ones_are_boxes() -> None:
    shapes = {"a": "invhouse", "b": "ellipse", "c": "diamond", "d": "box3d"}
    picture = ElementTree.fromstring(draw(DIAMOND, "svg", shapes=shapes).text)
    outlines = {group[2].text: group[1] for group in picture.findall(f"{SVG}g")}
    corners = {name: len((each.get("points") or "").split()) for name, each in outlines.items()}
    assert corners == {"a": 5, "b": 0, "c": 6, "d": 0}
    assert outlines["b"].get("rx") != outlines["d"].get("rx")
    text = draw(DIAMOND, "mermaid", shapes=shapes).text
    for mark in ('n0[\\"a<br/>done"/]', 'n1(["b', 'n2{{"c', 'n3["d'):
        assert mark in text


def test_the_page_is_dark_where_the_reader_wants_it_so() -> None:
    assert "prefers-color-scheme: dark" in draw(DIAMOND, "svg").text
