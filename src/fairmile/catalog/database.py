"""The SQLite file behind the index: its tables, who may change it, and its failures in our words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from fairmile.base.errors import SystemFailure
from fairmile.base.files import Lock

# Fewer than SQLite's own default of 32,766.
_MOST_VARIABLES = 10_000
_CHANGE_COUNTER = (4, 24)  # bytes in the head of the file
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
FAILED = (
    *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL),
)
SCHEMA_VERSION = "6"
_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE card(
  id INTEGER PRIMARY KEY, catalog TEXT, path TEXT, size INTEGER, mtime INTEGER,
  kind TEXT, name TEXT, version TEXT, version_key TEXT, iri TEXT, title TEXT,
  digest TEXT, content TEXT, gone INTEGER, latest INTEGER, uses INTEGER, summary TEXT);
CREATE TABLE alias(value TEXT, what TEXT, card INTEGER);
CREATE TABLE facet(facet TEXT, value TEXT, card INTEGER);
CREATE TABLE link(card INTEGER, relation TEXT, target TEXT);
CREATE TABLE names(chunk INTEGER PRIMARY KEY, ids TEXT, lines BLOB);
CREATE TABLE tag(id INTEGER PRIMARY KEY, raw TEXT UNIQUE, value TEXT);
CREATE TABLE tags(chunk INTEGER PRIMARY KEY, ids TEXT, lines BLOB);
CREATE TABLE word(id INTEGER PRIMARY KEY, word TEXT UNIQUE);
CREATE VIRTUAL TABLE gram USING fts5(word, tokenize='trigram', content='', detail=none);
"""
# Apart from the tables: many cards are written faster before these exist.
INDEXES = {
    "card_path": "CREATE UNIQUE INDEX card_path ON card(catalog, path)",
    "card_name": "CREATE INDEX card_name ON card(name, kind)",
    "card_asset": "CREATE INDEX card_asset ON card(kind, name, catalog) WHERE latest AND NOT gone",
    "card_rank": "CREATE INDEX card_rank ON card(id, gone, uses, name, version_key)",
    "alias_value": "CREATE INDEX alias_value ON alias(value)",
    "alias_card": "CREATE INDEX alias_card ON alias(card)",
    "facet_value": "CREATE INDEX facet_value ON facet(facet, value)",
    "facet_card": "CREATE INDEX facet_card ON facet(card)",
    "link_target": "CREATE INDEX link_target ON link(target)",
    "link_card": "CREATE INDEX link_card ON link(card)",
}
# Latest versions and older ones are apart, so that a search need not sift the older ones out.
_TEXT_TABLE = """
CREATE VIRTUAL TABLE {} USING fts5(
  words, marks, tokenize='porter unicode61 remove_diacritics 2', prefix='3');
"""
SCHEMA = _TABLES + ";\n".join([*INDEXES.values(), ""]) + _TEXT_TABLE.format("latest") + _TEXT_TABLE.format("older")


def lock_of(path: Path) -> Lock:
    """Return the lock that who changes the file must hold."""
    return Lock(path.with_name(path.name + ".lock"), timeout_s=600.0)


def can_create(path: Path) -> bool:
    """Tell whether the file can be made, with its folder where that is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(path.parent, os.W_OK)


def is_writable(path: Path) -> bool:
    """Tell whether the file can be changed or made anew."""
    return (os.access(path, os.W_OK) or not os.path.exists(path)) and os.access(path.parent, os.W_OK)


def code_of(error: sqlite3.DatabaseError) -> int:
    """Return SQLite's primary result code; the upper bits only tell where it arose."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def failure_of(path: Path | None, error: sqlite3.DatabaseError) -> SystemFailure:
    """Return what SQLite says in our words."""
    what = f"the index {path}" if path else "the index in memory"
    if code_of(error) in BUSY:
        return SystemFailure(f"{what} is in use by another process: {error}", hint="try again when it has finished")
    if code_of(error) in DAMAGED:
        return SystemFailure(f"{what} was damaged: {error}", hint="run the command again: it is rebuilt from the files")
    return SystemFailure(f"{what} cannot be used: {error}")


def is_busy(error: SystemFailure) -> bool:
    """Tell whether the failure is that another process uses the file."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.DatabaseError) and code_of(cause) in BUSY


def batches(values: Iterable[str]) -> Iterator[list[str]]:
    """Yield the values in lists that SQLite takes as the variables of one statement."""
    rest = list(values)
    for start in range(0, len(rest), _MOST_VARIABLES):
        yield rest[start : start + _MOST_VARIABLES]


class _Descriptor:
    """A file that is open to be read, as long as somebody has this object."""

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class Changes:
    """Tells one state of the file from another, without a query.

    The file stays open: to close it would end the locks that connections of this process hold on it.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._opened: tuple[int, _Descriptor] | None = None

    def state(self) -> tuple[int, bytes]:
        """Return what differs after every change: which file it is, and SQLite's own count of changes."""
        opened = self._opened
        try:
            inode = os.stat(self._path).st_ino
            if opened is None or opened[0] != inode:
                opened = self._opened = inode, _Descriptor(self._path)
            return inode, os.pread(opened[1].number, *_CHANGE_COUNTER)
        except OSError:
            return 0, b""


def card_names(path: Path) -> list[tuple[str, str]]:
    """Return kind and name of every card that an index lists, without a look at the cards; none if it fails."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return connection.execute("SELECT DISTINCT kind, name FROM card WHERE latest AND NOT gone").fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        return []
