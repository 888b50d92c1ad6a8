"""What is imported at its first call."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def test_models_of_a_lazy_module_are_built_without_plug_ins_which_nothing_else_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "buoys.py").write_text(
        "import os\nSETTING = os.environ['PYDANTIC_DISABLE_PLUGINS']\ndef get(): return SETTING"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
    assert lazy("buoys:get")() == "__all__"
    assert "PYDANTIC_DISABLE_PLUGINS" not in os.environ
