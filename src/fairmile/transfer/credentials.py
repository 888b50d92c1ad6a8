"""Credentials from the places where they belong: netrc, the tools' own stores, a keyring; never from a card."""

from __future__ import annotations

import json
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_named_tuple import NamedTuple

_SECRET_WORDS = lazy_pattern(
    r"(?i)([?&;#](?:[\w.-]*(?:token|jwt|policy|key|secret|signature|passw|pwd|credential|auth|sig)[\w.-]*))=[^&;#\s]*"
)
# A password may hold an @ itself; the last one before the path ends it. Behind a colon that no port follows it may
# also hold ? and #, though it should not. A path takes one of the two slashes away.
_USER_INFO = lazy_pattern(r"(?i)\b([a-z][a-z0-9+.-]*:/{1,2})(?:[^/\s?#:]*:(?!\d*[?#])[^/\s]*|[^/\s?#]*)@")


class Login(NamedTuple):
    """A user and a password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r}, password=…)"


class Credentials:
    """Looks up what a user has stored for a host."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def login(self, host: str) -> Login | None:
        """Return user and password for a host: from netrc, else from the keyring where one is installed."""
        return self.from_netrc(host) or self._from_keyring(host)

    def token(self, variables: tuple[str, ...], *files: str) -> str | None:
        """Return a token from the first variable that is set, else from the first file that is there."""
        for name in variables:
            if self._environ.get(name):
                return self._environ[name].strip()
        for name in files:
            try:
                text = self.home_file(name).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError):
                continue
            if text:
                return text
        return None

    def bearer(self, server: str) -> str | None:
        """Return the token that the user keeps for a Fairmile server, given as https://HOST:PORT."""
        return dict(self.bearers()).get(server)

    def bearers(self) -> list[tuple[str, str]]:
        """Return the servers for which the user keeps a token, with the token of each."""
        try:
            tokens = json.loads(self.tokens_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        pairs = tokens.items() if isinstance(tokens, dict) else ()
        return [(server, token) for server, token in pairs if server.startswith("https://") and isinstance(token, str)]

    @property
    def tokens_file(self) -> Path:
        """The file with the tokens of Fairmile servers, for its owner alone."""
        settings = self._environ.get("XDG_CONFIG_HOME")
        return (Path(settings) if settings else self.home_file(".config")) / "fairmile" / "tokens.json"

    def keep_bearer(self, server: str, token: str) -> None:
        """Keep the token of a Fairmile server."""
        self._write_bearers({**dict(self.bearers()), server: token})

    def drop_bearer(self, server: str) -> None:
        """Forget the token of a Fairmile server."""
        self._write_bearers({name: token for name, token in self.bearers() if name != server})

    def _write_bearers(self, tokens: Mapping[str, str]) -> None:
        write_atomic(self.tokens_file, json.dumps(tokens, indent=1) + "\n", mode=0o600)

    def home_file(self, name: str) -> Path:
        """Return the path of a file below the user's own folder; an absolute path stays."""
        return Path(self._environ.get("HOME") or os.path.expanduser("~")) / name

    def from_netrc(self, host: str) -> Login | None:
        """Return what netrc has for a host; a keyring takes longer to ask."""
        path = Path(self._environ.get("NETRC") or self.home_file(".netrc"))
        try:
            entry = netrc.netrc(str(path)).authenticators(host)
        except FileNotFoundError:
            return None
        except (netrc.NetrcParseError, UnicodeDecodeError) as error:
            # Its own message may quote a part of a password.
            line = f":{error.lineno}" if isinstance(error, netrc.NetrcParseError) else ""
            raise UsageError(
                f"{path}{line} cannot be parsed", hint="expected `machine HOST login USER password PASSWORD`"
            ) from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        return Login(entry[0], entry[2] or "") if entry else None

    def _from_keyring(self, host: str) -> Login | None:
        try:
            import keyring
            import keyring.errors
        except ImportError:
            return None
        try:
            credential = keyring.get_credential(f"fairmile:{host}", None)
        except keyring.errors.KeyringError:  # none is unlocked, or there is none on this machine
            return None
        return Login(credential.username, credential.password) if credential is not None else None


def shown_address(text: str) -> str:
    """Return a text without the secrets of the addresses in it: passwords before the host, keys in the query."""
    return _SECRET_WORDS.sub(r"\1=…", _USER_INFO.sub(r"\1", text))


def holds_secret(address: str) -> bool:
    """Tell whether an address carries a password before its host, or a key in its query."""
    login = without_login(address)[1]
    return bool(login and login.password) or _SECRET_WORDS.search(address) is not None


def without_login(address: str) -> tuple[str, Login | None]:
    """Return an address without user and password, and these as they are meant: percent signs decoded."""
    try:
        parts = urlsplit(address)
    except ValueError as error:
        raise UsageError(f"{shown_address(address)!r} is not an address") from error
    if "@" not in parts.netloc:
        return address, None
    bare = parts.netloc.rpartition("@")[2]
    login = Login(unquote(parts.username or ""), unquote(parts.password or ""))
    return urlunsplit(parts._replace(netloc=bare)), login
