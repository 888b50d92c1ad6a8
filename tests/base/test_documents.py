from __future__ import annotations

import json

import pytest

from fairmile.base.documents import load_json, locate

DATA = {"name": "x", "files": [{"path": "a/b"}, {"path": "\N{GRINNING FACE}", "size": 3}], "on": {"deep": [1, 2]}}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(DATA, indent=2),
        json.dumps(DATA, indent="\t"),
        json.dumps(DATA, indent="\t").replace("/", "\\/"),
        "name: x\nfiles:\n- path: a/b\n- path: '\N{GRINNING FACE}'\n  size: 3\n'on':\n  deep:\n  - 1\n  - 2\n",
    ],
)
def test_a_part_is_located_in_either_format(text: str) -> None:
    lines = text.splitlines()
    expected: dict[tuple[str | int, ...], str] = {
        ("name",): "name",
        ("files",): "files",
        ("files", 1, "size"): "size",
        ("on",): "on",
    }
    for path, fragment in expected.items():
        line = locate(text, path)
        assert line is not None
        assert fragment in lines[line - 1]
    two = locate(text, ["on", "deep", 1])
    assert two is not None
    assert "2" in lines[two - 1]
    assert locate(text, ["files", 1, "no", "such"]) == locate(text, ["files", 1])


def test_nothing_is_located_in_a_text_that_cannot_be_read() -> None:
    assert locate("{", ["a"]) is None
    assert locate("", ["a"]) is None


def test_json_is_read_strictly_here_too() -> None:
    assert load_json('{"a": 1}') == {"a": 1}
