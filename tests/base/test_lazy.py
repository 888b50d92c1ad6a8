"""What is imported at its first call."""

from __future__ import annotations

import sys

import pytest

from fairmile.base.lazy import lazy


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
