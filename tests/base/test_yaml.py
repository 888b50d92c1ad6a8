from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from cases import for_each

from fairmile.base import yaml
from fairmile.base.errors import InvalidDocument, SystemFailure


@for_each(
    "text, value",
    [
        ("12:00:00", "12:00:00"),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("2024-01-31", "2024-01-31"),
        ("1_000", "1_000"),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("-12", -12),
        ("1.5e3", 1500.0),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("+1", 1),
        ("+", "+"),
        ("-x", "-x"),
        ("1.2.3", "1.2.3"),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("~", None),
        ("null", None),
        ("", None),
        ("'12'", "12"),
        ('"true"', "true"),
        ('"\\ud83d\\ude00"', "\N{GRINNING FACE}"),
        ("!!str 12", "12"),
        ("!!float 1", 1.0),
        ("! 12", "12"),
        ("|\n  a\n  b\n", "a\nb\n"),
        ("=", "="),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = yaml.load(f"k: {text}\n")["k"]
    assert found == value
    assert type(found) is type(value)


def test_an_empty_document_is_none() -> None:
    assert yaml.load("") is None
    assert yaml.load("# only a comment\n") is None
    assert yaml.load_located("").line(["a"]) is None


@for_each(
    "text, line, message",
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' appears twice"),
        ("a:\n  x: 1\n  x: 2\n", 3, "the key 'x' appears twice"),
        ('{"a": 1,\n"a": 2}', 2, "the key 'a' appears twice"),
        ("{a: 1,\na: 2}", 2, "the key 'a' appears twice"),
        ("a: 1\nb: !python/object:os.system x\n", 2, "the tag '!python/object:os.system' is not allowed"),
        ("a: !!binary aGk=\n", 1, "the tag 'binary' is not allowed"),
        ("a: !!set {x}\n", 1, "the tag 'set' is not allowed"),
        ("a: !!int x\n", 1, "'x' is not an int"),
        ("---\na: 1\n---\nb: 2\n", 3, "a second document"),
        ("a: 1\n\tb: 2\n", 2, "a tab is used to indent; use spaces"),
        ("a: b: c\n", 1, "unexpected ':'"),
        ("a: 1\nb: 'x\n", 3, "a quoted text is not closed"),
        ("a: [1, 2\nb: 3\n", 2, "expected"),
        ("- a\nb: 1\n", 2, "the indent does not match"),
        ("a: *x\n", 1, r"the alias \*x has no anchor"),
        ("a: &x\n  b: *x\n", 2, "contains itself"),
        ("? [a, b]\n: 1\n", 1, "a key must be"),
        ("~: 1\n", 1, "a key must be"),
        ("a: 1\nb: \x00\n", 2, "a character that YAML does not allow"),
        ('a: "\\ud800"\n', 1, "unpaired surrogate"),
        ("a: 1\nb: " + "9" * 2000, 2, "more than 1000 digits"),
        ("<<: 3\n", 1, "'<<' takes a mapping"),
        ("[" * 101 + "]" * 101, 1, "more than 100 deep"),
        ("- " * 101 + "a", 1, "more than 100 deep"),
    ],
)
def test_a_bad_document_is_refused_with_file_line_and_plain_words(text: str, line: int, message: str) -> None:
    with pytest.raises(InvalidDocument, match=message) as caught:
        yaml.load(text, file="c.yaml")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == ("c.yaml", line)


def test_a_billion_laughs_are_refused_and_an_ordinary_alias_is_not() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(InvalidDocument, match="aliases repeat too much"):
        yaml.load("\n".join(lines))
    data = yaml.load("base: &b {x: [1]}\none: *b\ntwo: *b\n")
    data["one"]["x"].append(2)
    assert data["two"] == data["base"] == {"x": [1]}


def test_aliases_cannot_nest_deeper_than_the_bound() -> None:
    lines = ["a0: &a0 []", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 120))]
    with pytest.raises(InvalidDocument, match="more than 100 deep"):
        yaml.load("\n".join(lines))


def test_merge_keys_fill_in_what_is_not_given() -> None:
    text = "d: &d {a: 1, b: 2}\ne: &e {c: 3, a: 9}\nm:\n  b: 5\n  <<: [*d, *e]\nn: {'<<': x}\n"
    data = yaml.load(text)
    assert data["m"] == {"a": 1, "b": 5, "c": 3}
    assert data["n"] == {"<<": "x"}


def test_a_document_over_16_mb_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="larger than 16 MB"):
        yaml.load("#" * 16_000_001)
    with pytest.raises(InvalidDocument, match="larger than 16 MB"):
        yaml.load("#" + "é" * 8_000_000)


def test_lines_are_those_of_keys_and_items() -> None:
    text = "# head\na:\n  - x\n  -\n    b: 1\n    c: |\n      text\nd: {e: [1,\n 2]}\n5: y\n"
    located = yaml.load_located(text)
    expected = {("a",): 2, ("a", 0): 3, ("a", 1): 5, ("a", 1, "c"): 6, ("d", "e"): 8, ("d", "e", 1): 9, (5,): 10}
    assert {path: located.line(path) for path in expected} == expected
    assert located.line(["a", 7, "z"]) == 2
    assert located.line([]) == 2


@pytest.mark.parametrize("indent", [2, "\t"])
def test_json_is_read_as_yaml_with_its_lines(indent: int | str) -> None:
    data = {"url": "a/b", "face": "\N{GRINNING FACE}", "del": "\x7f", "list": [1, {"x": None}]}
    text = json.dumps(data, indent=indent).replace("/", "\\/")
    located = yaml.load_located(text)
    assert located.data == data
    assert located.line(["list", 1, "x"]) == 8


def test_flow_style_that_is_no_json_is_still_yaml() -> None:
    assert yaml.load("{a: [x, 'y'], }") == {"a": ["x", "y"]}


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(
        "# my settings\ncatalog:\n    base: 'here'   # quoted on purpose\n\n# the list\nsources:\n    - one  # first\n"
        "    - two\nwhen: 12:00:00\nflag: no\nday: 2024-01-31\nnumber: 0x1F\n"
    )
    return path


def test_an_edit_keeps_comments_quotes_indents_and_everything_else(settings: Path) -> None:
    before = settings.read_text()

    def change(data: Any) -> None:
        data["catalog"]["base"] = "there"
        data["new"] = {"a": 1}

    yaml.update_file(settings, change)
    after = settings.read_text().splitlines()
    changed = after.pop(2)
    assert yaml.load(changed) == {"base": "there"}
    assert changed.startswith("    base: ")
    assert changed.endswith("# quoted on purpose")
    kept = before.splitlines()
    kept.pop(2)
    assert after == [*kept, "new:", "    a: 1"]
    assert os.listdir(settings.parent) == ["config.yaml"]


@pytest.mark.parametrize("text", ["a:\n- 1\n- 2\n", "a:\n  - 1\n  - b: 2\n    c: 3\n", "# note\na: 1 # x\n"])
def test_an_edit_that_changes_nothing_leaves_the_text_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    yaml.update_file(path, lambda _: None)
    assert path.read_text() == text


def test_a_missing_or_empty_file_starts_as_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "config.yaml"
    yaml.update_file(path, lambda data: data.update(a=1))
    assert path.read_text() == "a: 1\n"
    path.write_text("# a comment alone\n")
    yaml.update_file(path, lambda data: data.update(a=1))
    assert path.read_text() == "# a comment alone\na: 1\n"


def test_a_failing_or_impossible_edit_leaves_the_file_alone(settings: Path) -> None:
    before = settings.read_text()

    def fail(data: Any) -> None:
        data["catalog"] = 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        yaml.update_file(settings, fail)
    assert settings.read_text() == before
    settings.write_text("a: [")
    with pytest.raises(InvalidDocument, match=r"config\.yaml:1"):
        yaml.update_file(settings, lambda _: None)
    settings.write_bytes(b"a: \xff")
    with pytest.raises(SystemFailure, match="cannot read"):
        yaml.update_file(settings, lambda _: None)


def test_a_linked_file_is_edited_where_it_lies(settings: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to("config.yaml")
    yaml.update_file(link, lambda data: data.update(flag="yes"))
    assert link.is_symlink()
    assert yaml.load(settings.read_text())["flag"] == "yes"


def test_edits_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    threads = [
        threading.Thread(target=yaml.update_file, args=(path, lambda data, i=i: data.update({f"k{i}": i})))
        for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert yaml.load(path.read_text()) == {f"k{i}": i for i in range(6)}


def test_aliases_of_a_long_text_are_bounded_by_its_length() -> None:
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 200)}]\n"
    with pytest.raises(InvalidDocument, match="aliases repeat too much data"):
        yaml.load(text)
