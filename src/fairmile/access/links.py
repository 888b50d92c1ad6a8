"""Signed links, with which one may read one file until they expire, and sealed texts that a browser keeps for us."""

from __future__ import annotations

import base64
import hmac
import secrets
from binascii import Error as NotBase64
from hashlib import sha256

from fairmile.access.database import Database

LINK_S = 300.0


class Links:
    """Signs and checks links; the key is made once and stays in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = b""

    def sign(self, path: str, user: str, expires_s: float) -> str:
        """Return the signature of a link to a path for a user until a time."""
        return hmac.new(self._secret(), f"GET\n{path}\n{user}\n{expires_s:.0f}".encode(), sha256).hexdigest()

    def is_valid(self, path: str, user: str, expires_s: float, signature: str, now_s: float) -> bool:
        """Tell whether a link was signed here and has not expired."""
        expected = self.sign(path, user, expires_s)
        is_ours = hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))
        return is_ours and now_s < expires_s

    def seal(self, text: str, expires_s: float) -> str:
        """Return a text that somebody else keeps and cannot change, for a cookie."""
        body = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{expires_s:.0f}.{body}.{self._seal_of(f'{expires_s:.0f}.{body}')}"

    def unseal(self, sealed: str, now_s: float) -> str:
        """Return a text that was sealed here and has not expired; else an empty one."""
        content, _, seal = sealed.rpartition(".")
        expires, _, body = content.partition(".")
        if not hmac.compare_digest(self._seal_of(content).encode(), seal.encode("utf-8", "replace")):
            return ""
        try:
            return base64.urlsafe_b64decode(body).decode() if now_s < float(expires) else ""
        except (NotBase64, ValueError):
            return ""

    def _seal_of(self, content: str) -> str:
        return hmac.new(self._secret(), f"SEAL\n{content}".encode("utf-8", "replace"), sha256).hexdigest()

    def _secret(self) -> bytes:
        if not self._key:
            with self._database.changing() as connection:
                connection.execute("INSERT OR IGNORE INTO secret VALUES ('links', ?)", (secrets.token_bytes(32),))
                self._key = connection.execute("SELECT value FROM secret WHERE name = 'links'").fetchone()[0]
        return self._key
