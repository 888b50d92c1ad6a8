"""The one file behind accounts and access: SQLite below the home, for its owner alone."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairmile.base.errors import SystemFailure

_SCHEMA = """
CREATE TABLE IF NOT EXISTS user(
  name TEXT PRIMARY KEY, password TEXT, subject TEXT UNIQUE, rights TEXT, groups TEXT, created_s REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS session(
  digest TEXT PRIMARY KEY, user TEXT, created_s REAL, renewed_s REAL, expires_s REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS token(
  id TEXT PRIMARY KEY, digest TEXT, user TEXT, label TEXT, rights TEXT, assets TEXT,
  created_s REAL, expires_s REAL, used_s REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS policy(
  asset TEXT PRIMARY KEY, metadata TEXT, files TEXT, until TEXT, groups TEXT, owner TEXT, terms TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS access(
  asset TEXT, who TEXT, until_s REAL, given_by TEXT, given_s REAL, PRIMARY KEY(asset, who)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS request(
  id INTEGER PRIMARY KEY, asset TEXT, user TEXT, reason TEXT, asked_s REAL, status TEXT, decided_by TEXT,
  decided_s REAL);
CREATE TABLE IF NOT EXISTS acceptance(user TEXT, digest TEXT, asset TEXT, at_s REAL, PRIMARY KEY(user, digest));
CREATE TABLE IF NOT EXISTS audit(number INTEGER PRIMARY KEY, line TEXT, digest TEXT);
CREATE TABLE IF NOT EXISTS secret(name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
"""
_PATIENCE_S = 10.0


class Database:
    """A connection that the threads of a server share; statements run one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows; no rows if there is no database yet."""
        if self._connection is None and not self.exists:
            return []
        with self._lock:
            try:
                return self._opened().execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self._failure(error) from error

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection whose changes are kept together, or not at all."""
        with self._lock:
            try:
                connection = self._opened()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._failure(error) from error

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                # Made before SQLite opens it, so that nobody else can read it even for a moment.
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise SystemFailure(f"cannot write {self.path}: {error.strerror}") from error
            connection = sqlite3.connect(self.path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(_SCHEMA)
            self._connection = connection
        return self._connection

    def _failure(self, error: sqlite3.Error) -> SystemFailure:
        return SystemFailure(f"{self.path} cannot be used: {error}")
