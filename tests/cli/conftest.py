"""The command line in this process: a home of its own, the examples of the documentation at hand."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairmile.cli.main import run

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


class Result(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Fairmile = Callable[..., Result]


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal and keeps what is written."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        data: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return data.decode(self.encoding)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder a user stands in: the examples of the documentation, an empty home, no settings."""
    for name in [
        name
        for name in os.environ
        if name.startswith(("FAIRMILE", "XDG_CONFIG", "XDG_DATA", "XDG_STATE", "NO_COLOR", "COLUMNS"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("FAIRMILE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm")
    shutil.copytree(EXAMPLES, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def fairmile(place: Path, indexed_home: Path, capsys: pytest.CaptureFixture[str]) -> Fairmile:
    """Run a command line as a user types it, in a home without cards."""
    shutil.copytree(indexed_home, place.parent / "home")

    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def lake(place: Path, fairmile: Fairmile, filled_home: Path) -> Fairmile:
    """Run a command line in a home that holds the lake's card and program."""
    shutil.rmtree(place.parent / "home")
    shutil.copytree(filled_home, place.parent / "home")
    return fairmile


@pytest.fixture(scope="session")
def indexed_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home without cards whose index is made; made once, since that takes a third of a second."""
    home = tmp_path_factory.mktemp("indexed") / "home"
    _run_in(home, "search")
    return home


@pytest.fixture(scope="session")
def filled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the lake's card and the lake's program; made once."""
    home = tmp_path_factory.mktemp("filled") / "home"
    _run_in(home, "catalog", "add", str(EXAMPLES / "lake.jsonld"), str(EXAMPLES / "codemeta.json"))
    return home


def _run_in(home: Path, *arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home.parent))
        patch.setenv("FAIRMILE_HOME", str(home))
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "stderr", io.StringIO())
        assert run(list(arguments)) == 0


@pytest.fixture
def at_terminal(fairmile: Fairmile, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command line at a terminal of that many columns and return what it shows."""

    def call(*arguments: str, columns: int = 80, encoding: str = "utf-8") -> str:
        screen = Terminal(encoding)
        monkeypatch.setenv("COLUMNS", str(columns))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            assert run(list(arguments)) == 0
        return screen.text()

    return call
