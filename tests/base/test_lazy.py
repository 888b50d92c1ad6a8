"""What is imported at its first call."""

from __future__ import annotations

import re
import sys

import pytest

from fairmile.base.lazy import lazy, lazy_pattern


def test_a_module_is_imported_when_its_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    convert = lazy("colorsys:rgb_to_yiq")
    assert "colorsys" not in sys.modules
    assert convert(1.0, 1.0, b=1.0)[0] == pytest.approx(1.0)
    assert "colorsys" in sys.modules


def test_a_class_gives_its_own_attributes() -> None:
    fraction = lazy("fractions:Fraction")
    assert str(fraction.from_float(0.5)) == "1/2"


def test_a_name_that_is_not_there_is_an_error_at_the_call() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        lazy("fractions:no_such_name")()


def test_a_pattern_is_compiled_at_its_first_use() -> None:
    pattern = lazy_pattern(r"(tide)-(\d+)", re.IGNORECASE)
    wrong = lazy_pattern("(")
    match = pattern.fullmatch("TIDE-12")
    assert match is not None and match[2] == "12"
    assert pattern.findall("tide-1 tide-2") == [("tide", "1"), ("tide", "2")]
    assert pattern.groups == 2 and pattern.pattern == r"(tide)-(\d+)"
    with pytest.raises(re.error):
        wrong.search("tide")


def test_a_pattern_of_bytes_stays_one() -> None:
    assert lazy_pattern(rb"\d+").sub(b"n", b"a12") == b"an"
