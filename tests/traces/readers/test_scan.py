from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("msgspec")

import msgspec

from fairmile.base.errors import Integrity
from fairmile.traces.readers import scan
from fairmile.traces.readers.scan import Events, typed_decoder


class Small(msgspec.Struct):
    name: str = ""
    ts: float = 0.0


def one(value: Any) -> Small | None:
    return Small(value["name"], 0.0) if isinstance(value, dict) and isinstance(value.get("name"), str) else None


def read(file: Path) -> tuple[list[Small], Events[Small]]:
    events = Events[Small](file, typed_decoder(Small), one)
    return [each for batch in events for each in batch], events


def text_of(events: list[dict[str, Any]], *, indent: int | None = None, array: bool = False) -> str:
    body: Any = events if array else {"head": {"a": [1]}, "traceEvents": events, "tail": [{"x": 1}, {"y": 2}]}
    return json.dumps(body, indent=indent)


nested = st.recursive(
    st.none()
    | st.integers(-9, 9)
    | st.text(max_size=6)
    | st.sampled_from(["},{", '"}, {"', "]", "\\", '"traceEvents": [']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
events_lists = st.lists(
    st.fixed_dictionaries({"name": st.text(max_size=8), "ts": st.floats(0, 1e9), "args": nested}), max_size=12
)


@pytest.mark.thorough
@settings(max_examples=examples(150), deadline=None)
@given(events_lists, st.integers(1, 200), st.sampled_from([None, 1]), st.booleans())
def test_every_event_is_read_once_wherever_the_text_is_cut(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], block: int, indent: int | None, array: bool
) -> None:
    file = tmp_path_factory.mktemp("scan") / "trace.json"
    file.write_text(text_of(events, indent=indent, array=array), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_BLOCK", block)
        found, reading = read(file)
    assert [(each.name, each.ts) for each in found] == [(each["name"], each["ts"]) for each in events]
    assert reading.notes == []
    if not array:
        assert reading.head == {"head": {"a": [1]}, "tail": [{"x": 1}, {"y": 2}]} | {"traceEvents": []}


EVENTS = [
    {"name": f"event {number}", "ts": float(number), "args": {"list": [{"a": 1}, {"b": 2}]}} for number in range(500)
]


@pytest.fixture(params=[64, 1000, 1 << 18])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(scan, "_BLOCK", request.param)
    return int(request.param)


@pytest.mark.parametrize("indent", [None, 2])
def test_of_a_file_that_was_cut_off_all_whole_events_are_read_and_the_place_is_told(
    tmp_path: Path, block: int, indent: int | None
) -> None:
    text = text_of(EVENTS, indent=indent)
    cut = text.index('"event 400"') + 5
    whole = text[:cut].rindex('"event 399"')
    file = tmp_path / "rank0.json"
    file.write_text(text[:cut], encoding="utf-8")
    found, reading = read(file)
    assert [each.name for each in found] == [f"event {number}" for number in range(400)]
    (note,) = reading.notes
    assert note.startswith("rank0.json is truncated: no complete event after byte ")
    told = int(note.split("after byte ")[1].split(",")[0])
    assert whole < told < cut
    assert note.endswith(f"the last {cut - told} bytes are lost")


def test_a_file_that_ends_behind_an_event_is_told_too(tmp_path: Path, block: int) -> None:
    text = text_of(EVENTS)
    file = tmp_path / "rank0.json"
    file.write_text(text[: text.index(', {"name": "event 10"')], encoding="utf-8")
    found, reading = read(file)
    assert len(found) == 10
    assert reading.notes == [f"rank0.json is truncated after its last complete event, at byte {file.stat().st_size}"]


def test_an_array_may_lack_its_last_bracket(tmp_path: Path, block: int) -> None:
    file = tmp_path / "timeline.json"
    file.write_text("[\n" + ",\n".join(json.dumps(each) for each in EVENTS) + ",\n", encoding="utf-8")
    found, reading = read(file)
    assert len(found) == 500
    assert reading.notes == []


def test_bytes_in_the_middle_that_are_no_json_cost_the_events_around_them_only(tmp_path: Path) -> None:
    text = text_of(EVENTS)
    broken = text.replace('"event 250", "ts": 250.0', '"event 250", \x00garbage 250.0')
    file = tmp_path / "rank0.json"
    file.write_text(broken, encoding="utf-8")
    found, reading = read(file)
    names = {each.name for each in found}
    assert {f"event {number}" for number in range(500)} - names == {"event 250"}
    (note,) = reading.notes
    assert "bytes that are not JSON, first at byte" in note and "skipped" in note


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ('{"name": "event 250"', '["name": "event 250"'),  # another bracket
        ('{"name": "event 250"', '{{"name": "event 250"'),  # one too many
        ('"event 250"', '"event 250'),  # a quote lost
        ('"event 250", "ts"', '"event 250" "ts"'),
    ],
)
@pytest.mark.parametrize("size", [1000, 1 << 18])
def test_a_lost_bracket_or_quote_costs_few_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, behind: str, size: int
) -> None:
    monkeypatch.setattr(scan, "_BLOCK", size)
    monkeypatch.setattr(scan, "_LONGEST_EVENT", 20_000)
    text = text_of(EVENTS)
    assert text.count(before) == 1
    file = tmp_path / "rank0.json"
    file.write_text(text.replace(before, behind), encoding="utf-8")
    found, reading = read(file)
    lost = {each["name"] for each in EVENTS} - {each.name for each in found}
    assert len(lost) <= 3
    assert len({each.name for each in found}) == len(found)
    assert any("first at byte" in note for note in reading.notes)


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "NaN", "Infinity"])
def test_numbers_that_only_c_prints_cost_nothing(tmp_path: Path, number: str) -> None:
    file = tmp_path / "rank0.json"
    file.write_text(
        '{"traceEvents": [{"name": "inf", "args": {"x": N, "y": [N, 1]}}, {"name": "b"}]}'.replace("N", number)
    )
    found, reading = read(file)
    assert [each.name for each in found] == ["inf", "b"]
    assert reading.notes == []


def test_bytes_that_are_no_utf8_are_replaced(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    file.write_bytes(b'{"traceEvents": [{"name": "a\xff"}, {"name": "b"}]}')
    found, _ = read(file)
    assert [each.name for each in found] == ["a\ufffd", "b"]


def test_values_that_are_no_events_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    file.write_text('{"traceEvents": [{"name": "a"}, {"name": 3}, {"name": "b"}, 7]}', encoding="utf-8")
    found, reading = read(file)
    assert [each.name for each in found] == ["a", "b"]
    assert reading.notes == ["rank0.json: skipped 2 events that do not follow the format"]


def test_a_damaged_head_costs_the_head_alone(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    file.write_text(text_of(EVENTS).replace('{"head": {"a"', '{"head": {a"'), encoding="utf-8")
    found, reading = read(file)
    assert len(found) == 500
    assert "rank0.json: the header is damaged, so rank and clock may be wrong" in reading.notes


def test_a_gzipped_file_that_was_cut_off_gives_what_is_whole(tmp_path: Path) -> None:
    packed = gzip.compress(text_of(EVENTS * 20).encode())
    file = tmp_path / "rank0.json.gz"
    file.write_bytes(packed[: len(packed) // 2])
    found, reading = read(file)
    assert 1000 < len(found) < 10_000
    assert found[999].name == "event 499"
    assert any("compressed file is truncated or damaged" in note for note in reading.notes)
    assert any("is truncated: no complete event after byte" in note for note in reading.notes)


@pytest.mark.parametrize("lost", [1, 8, 20, 200])
def test_a_small_gzipped_file_without_its_end_gives_what_is_whole_too(tmp_path: Path, lost: int) -> None:
    file = tmp_path / "rank0.json.gz"
    file.write_bytes(gzip.compress(text_of(EVENTS).encode())[:-lost])
    found, reading = read(file)
    assert [each.name for each in found] == [f"event {number}" for number in range(len(found))]
    assert len(found) == 500 if lost <= 8 else 200 < len(found) <= 500
    assert any("compressed file is truncated or damaged" in note for note in reading.notes)


@pytest.mark.parametrize("text", ["", "{}", '{"a": 1}', "hello"])
def test_a_file_without_a_list_of_events_is_an_error_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rank0.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(Integrity, match=r"rank0\.json has no list of events"):
        read(file)


def test_endless_brackets_are_passed_over_and_told(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    deep = '{"name": "deep", "args": ' + "[" * 5000 + "]" * 5000 + "}"
    file.write_text('{"traceEvents": [{"name": "a"}, ' + deep + ', {"name": "b"}]}', encoding="utf-8")
    _, reading = read(file)
    assert any("first at byte" in note or "truncated" in note for note in reading.notes)
