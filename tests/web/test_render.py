"""Pages are made from templates that are compiled once, where Python keeps what it compiles."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import Environment

from fairmile.web.render import Pages
from fairmile.web.static_files import StaticFiles


def compiled_anew(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Make pages and load the template of one; return what had to be compiled for it."""
    compiled: list[str | None] = []
    compile = Environment.compile

    def note(self: Environment, source: str, name: str | None = None, *rest: object, **options: object) -> object:
        compiled.append(name)
        return compile(self, source, name, *rest, **options)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(Environment, "compile", note)
        assert "content" in Pages(StaticFiles(), [])._templates.get_template("runs.html").blocks
    return compiled


def test_templates_are_compiled_once_and_again_if_what_was_kept_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert compiled_anew(monkeypatch) == ["runs.html"]
    assert compiled_anew(monkeypatch) == []
    (kept,) = tmp_path.rglob("*.template")
    kept.write_bytes(kept.read_bytes()[:100])
    assert compiled_anew(monkeypatch) == ["runs.html"]
    assert compiled_anew(monkeypatch) == []


def test_nothing_is_kept_where_python_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compiled_anew(monkeypatch) == compiled_anew(monkeypatch) == ["runs.html"]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "file"))  # nothing can be written there
    assert compiled_anew(monkeypatch) == ["runs.html"]
