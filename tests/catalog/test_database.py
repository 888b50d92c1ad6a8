"""The file behind the index: how one of its states is told from another."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fairmile.catalog.database import Changes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as connection:
        connection.executescript("CREATE TABLE card(name TEXT); INSERT INTO card VALUES ('lake')")
    return tmp_path / "index.sqlite"


def test_every_change_gives_another_state_and_a_look_gives_none(file: Path) -> None:
    changes = Changes(file)
    states = {changes.state(), changes.state()}
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO card VALUES ('river')")
    states.add(changes.state())
    other = file.with_name("made-aside")
    other.write_bytes(file.read_bytes())
    other.replace(file)
    states.add(changes.state())
    assert len(states) == 3
    file.unlink()
    assert changes.state() == (0, b"")


def test_a_look_leaves_a_reader_its_lock(file: Path) -> None:
    """A process loses its locks on a file as soon as it closes any descriptor of it."""
    write = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN EXCLUSIVE')"
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM card").fetchall()
        changes = Changes(file)
        changes.state()
        changes.state()
        writer = subprocess.run([sys.executable, "-c", write, str(file)], capture_output=True, text=True)
    assert "database is locked" in writer.stderr
