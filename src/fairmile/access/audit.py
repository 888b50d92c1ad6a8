"""The audit log: who did what with which asset, each entry bound to the one before by its digest."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from fairmile.access.database import Database
from fairmile.access.results import AuditEntry, AuditLog, VerifiedAudit

_START = "0" * 64


class Audit:
    """Appends entries and checks that none was changed since."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def note(self, who: str, what: str, asset: str = "", **details: Any) -> None:
        """Add an entry. Secrets do not belong into it."""
        with self._database.changing() as connection:
            self.note_within(connection, who, what, asset, **details)

    def note_within(self, connection: sqlite3.Connection, who: str, what: str, asset: str = "", **details: Any) -> None:
        """Add an entry in the same transaction as the change that it records."""
        last = connection.execute("SELECT number, digest FROM audit ORDER BY number DESC LIMIT 1").fetchone()
        number, before = last or (0, _START)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._clock()))
        facts = {"at": at, "who": who, "what": what, "asset": asset, **details}
        line = json.dumps({key: value for key, value in facts.items() if value not in ("", None)}, ensure_ascii=False)
        digest = _digest(before, number + 1, line)
        connection.execute("INSERT INTO audit VALUES (?, ?, ?)", (number + 1, line, digest))

    def entries(self, limit: int = 100, asset: str = "") -> AuditLog:
        """Return the last entries, the newest first."""
        rows = self._database.rows("SELECT number, line, digest FROM audit ORDER BY number DESC")
        entries = (AuditEntry(number, json.loads(line), digest) for number, line, digest in rows)
        chosen = [entry for entry in entries if not asset or entry.facts.get("asset") == asset]
        return AuditLog(chosen[:limit])

    def verify(self) -> VerifiedAudit:
        """Compute all digests anew, and tell the first entry that was changed, added or removed."""
        before, expected = _START, 1
        for number, line, digest in self._database.rows("SELECT number, line, digest FROM audit ORDER BY number"):
            if number != expected or digest != _digest(before, number, line):
                return VerifiedAudit(expected - 1, before, damaged_at=expected)
            before, expected = digest, number + 1
        return VerifiedAudit(expected - 1, before)


def _digest(before: str, number: int, line: str) -> str:
    return sha256(f"{before}\n{number}\n{line}".encode("utf-8", "replace")).hexdigest()
