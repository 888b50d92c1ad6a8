from __future__ import annotations

import json
from typing import Any

import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st

from fairmile.base.errors import InvalidDocument
from fairmile.base.line_numbers import Position
from fairmile.base.strict_json import load_json, scan

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.thorough
@given(values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_valid_json_gives_its_value(value: Any, indent: int | str | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert load_json(text) == value


def lines_of(value: Any, place: Position) -> None:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    assert len(place.inside) == (len(value) if isinstance(value, (dict, list)) else 0)
    for key, inner in parts:
        lines_of(inner, place.inside[key])


@given(values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_the_scan_finds_a_place_for_every_part(value: Any, indent: int | str | None, ascii_only: bool) -> None:
    lines_of(value, scan(json.dumps(value, indent=indent, ensure_ascii=ascii_only)))


def test_the_scan_gives_the_line_of_keys_and_items() -> None:
    place = scan('\n{"a": 1,\n "b\\u0021": [\n  10,\n  {"c":\n   2}], "d": {}\n}')
    assert place.line == 2
    expected: dict[tuple[str | int, ...], int] = {
        ("a",): 2,
        ("b!",): 3,
        ("b!", 0): 4,
        ("b!", 1): 5,
        ("b!", 1, "c"): 5,
        ("d",): 6,
    }
    assert {path: place.find(path) for path in expected} == expected
    assert place.find(["b!", 1, "nothing", "there"]) == 5
    assert place.find(["nothing"]) == 2


@for_each(
    "text, line, message",
    [
        ('{\n"a": 1,\n"a": 2}', 3, "the key 'a' appears twice in one object"),
        ('{"a": {\n"b": 1}, "b": [{"c": 1,\n\n"c": 2}]}', 4, "the key 'c' appears twice"),
        ('{"a":\n NaN}', 2, "NaN is not a JSON number"),
        ('{"a":\n -Infinity}', 2, "-Infinity is not a JSON number"),
        ("[1,\n1e999]", 2, "the number 1e999 is too large"),
        ("[1,\n" + "9" * 5000 + "]", 2, "too many digits"),
        ('["ok",\n"\\ud800"]', 2, "unpaired surrogate"),
        ('{"ok": 1,\n"\\ud800": 2}', 2, "unpaired surrogate"),
        ('["ok",\n"\ud800"]', 2, "unpaired surrogate"),
        ("\n".join("[" * 101) + "]" * 101, 101, "more than 100 deep"),
        ("[" * 200_000, 1, "deep|expected a value"),
    ],
)
def test_what_the_grammar_allows_and_we_do_not_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(InvalidDocument, match=message) as caught:
        load_json(text, file="card.json")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("card.json", line)


def test_nesting_of_a_hundred_levels_is_read() -> None:
    assert load_json("[" * 100 + "]" * 100 + " ") is not None


@for_each(
    "text, line, column, expected",
    [
        ('{"a": 1,\n "b" 2}', 2, 6, "expected ':' after the key, found '2}'"),
        ('{"a": 1\n "b": 2}', 2, 2, "expected ',' or the closing bracket"),
        ("{a: 1}", 1, 2, "expected a key in double quotes, found 'a: 1}'"),
        ('{"a": }', 1, 7, "expected a value, found '}'"),
        ('{"a": 1} x', 1, 10, "expected the end of the document"),
        ('{"a": "x', 1, 7, 'expected a closing "'),
        ('{"a": "x\ny"}', 1, 9, "expected no raw line break"),
        ('{"a": "\\q"}', 1, 8, "expected a known escape"),
        ('{"a": [1, 2', 1, 12, "expected ',' or the closing bracket, found the end"),
    ],
)
def test_a_syntax_error_says_line_column_and_what_was_expected(
    text: str, line: int, column: int, expected: str
) -> None:
    with pytest.raises(InvalidDocument) as caught:
        load_json(text, file="x.json")
    assert str(caught.value).startswith(f"x.json:{line}: column {column}: {expected}")


def test_a_trailing_comma_is_pointed_at() -> None:
    with pytest.raises(InvalidDocument, match=r"column \d+: expected"):
        load_json('{"a": 1,}')


def test_an_empty_document_is_said_to_be_empty() -> None:
    with pytest.raises(InvalidDocument, match="the document is empty"):
        load_json(" \n")


def test_a_byte_order_mark_is_passed_over() -> None:
    assert load_json('\ufeff{"a": 1}') == {"a": 1}
