from __future__ import annotations

import math
from typing import Any

import pytest
from cases import for_each
from hypothesis import example, given
from hypothesis import strategies as st

from fairmile.base import yaml
from fairmile.base.errors import UsageError

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from("ab:#-'\"[]{}&*!|>%@`,? \n\t~=<."))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | texts
    | st.sampled_from(
        ["12:00:00", "no", "on", "null", "1e3", "2024-01-31", "0x1F", "---", "...", "<<", "=", "- a", "y"]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values)
@example({"a": "x\n\n  y\n", "b": "x\ny", "c": "x\n\n", "d": [[], {}, [[1]], [{"a": [2]}]], "e": "x \ny"})
@example({"k" * 2000: "long key", "a\nb": 1})
@example(["\x85", "\u2028", "\ufeff", "\x7f", "\xa0", "a\rb", "é", "\N{GRINNING FACE}"])
def test_what_is_dumped_loads_as_the_same_data(value: Any) -> None:
    assert yaml.load(yaml.dump(value)) == value


def test_the_text_is_what_a_person_would_write() -> None:
    data = {
        "name": "cosmoflow",
        "time": "12:00:00",
        "flag": "no",
        "text": "one\ntwo\n",
        "files": [{"path": "a/b.txt", "size": 3}, "x y"],
        "none": None,
        "empty": [],
        "deep": [[1, 2], {"k": {"v": 1.5}}],
    }
    assert yaml.dump(data) == (
        "name: cosmoflow\n"
        'time: "12:00:00"\n'
        'flag: "no"\n'
        "text: |\n  one\n  two\n"
        "files:\n  - path: a/b.txt\n    size: 3\n  - x y\n"
        "none: null\n"
        "empty: []\n"
        "deep:\n  - - 1\n    - 2\n  - k:\n      v: 1.5\n"
    )


@for_each("value, text", [(1e16, "1.0e+16"), (1.5e-7, "1.5e-07"), (0.1, "0.1"), (math.inf, ".inf")])
def test_floats_have_a_point_so_that_older_readers_see_a_number(value: float, text: str) -> None:
    assert yaml.dump(value) == text + "\n"


def test_not_a_number_is_written_and_read() -> None:
    assert math.isnan(yaml.load(yaml.dump({"x": math.nan}))["x"])


@for_each("value", [object(), {"a": {1, 2}}, {None: 1}, {(1,): 2}, "\ud800", b"x"])
def test_what_yaml_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        yaml.dump(value)


def test_endless_nesting_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="more than 100 deep"):
        yaml.dump(value)
