"""Accounts, sessions and tokens. Secrets are kept as digests: passwords by argon2id, all others, which are random,
by SHA-256."""

from __future__ import annotations

import hmac
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from typing import Any

from fairmile.access.attempts import Attempts, NotLoggedIn
from fairmile.access.audit import Audit
from fairmile.access.database import Database
from fairmile.access.oidc import Person
from fairmile.access.results import NewToken, RemovedUser, Token, Tokens, User, Users
from fairmile.access.rules import Right, rights_of
from fairmile.base.errors import Conflict, NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry

DAY_S = 86_400.0
SESSION_S = 12 * 3600.0
_RENEWED_S = 900.0  # a session gets a new secret this often
_OVERLAP_S = 30.0  # requests that were under way may still use the old one
TOKEN_DAYS = 30.0
_MOST_TOKEN_DAYS = 366.0
_SHORTEST_PASSWORD = 12
_LONGEST_PASSWORD = 1_000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TOKEN = re.compile(r"fairmile_(?:pat|job)_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_USED_EVERY_S = 60.0  # the time of the last use need not be exact
_HASHERS: Registry[Any] = Registry("hash of passwords", {"argon2": Plugin("argon2:PasswordHasher", extra="web")})


@dataclass(frozen=True)
class Known:
    """Somebody who has proved who they are, with what they may do here and now."""

    user: User
    rights: frozenset[Right]
    assets: tuple[str, ...] = ()  # a token may be for the files of these alone
    by: str = "session"


class Accounts:
    """People who may use a server, and how they prove who they are."""

    def __init__(
        self,
        database: Database,
        audit: Audit,
        *,
        clock: Callable[[], float] = time.time,
        hasher: Callable[[], Any] = lambda: _HASHERS["argon2"](),
    ) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._new_hasher = hasher
        self._hasher: Any = None
        self._decoy = ""
        self._hashing = threading.BoundedSemaphore(2)  # each takes 64 MiB
        self.by_name = Attempts(10)
        self.by_address = Attempts(30)

    # Accounts

    def add(
        self,
        name: str,
        *,
        password: str = "",
        subject: str = "",
        rights: Iterable[str] = (),
        groups: Iterable[str] = (),
        dry_run: bool = False,
    ) -> User:
        """Add an account that logs in with a password, or with the identity `subject` of an OIDC provider."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of an account", hint="use lower-case letters, digits, dots and dashes"
            )
        if not subject:
            check_password(password)
        kept = " ".join(sorted(rights_of({"browse", *rights})))
        grouped = " ".join(sorted({_group(each) for each in groups}))
        if self._where("name = ?", name) is not None:
            raise Conflict(f"account {name!r} already exists", hint="choose another name")
        if dry_run:
            return _user((name, kept, grouped, subject, self._clock()))
        hashed = "" if subject else self._hash(password)
        with self._database.changing() as connection:
            values = (name, hashed, subject or None, kept, grouped, self._clock())
            try:
                connection.execute("INSERT INTO user VALUES (?, ?, ?, ?, ?, ?)", values)
            except sqlite3.IntegrityError:  # added meanwhile
                raise Conflict(f"account {name!r} already exists", hint="choose another name") from None
            self._audit.note_within(connection, "owner", "add user", user=name, rights=kept, groups=grouped)
        return self.get(name)

    def update(
        self,
        name: str,
        *,
        password: str | None = None,
        rights: Iterable[str] | None = None,
        groups: Iterable[str] | None = None,
        by: str = "owner",
        dry_run: bool = False,
    ) -> User:
        """Change an account; what is not given stays. A new password ends its sessions and tokens."""
        old = self.get(name)
        if password is not None:
            if old.login != "password":
                raise UsageError(f"{name} logs in at {old.login}", hint="its password is changed there")
            check_password(password)
        kept = " ".join(sorted(old.rights if rights is None else rights_of({"browse", *rights})))
        grouped = " ".join(sorted(old.groups if groups is None else {_group(each) for each in groups}))
        subject = old.login if old.login != "password" else ""
        if dry_run:
            return _user((name, kept, grouped, f"{subject}#" if subject else "", old.created_s))
        hashed = None if password is None else self._hash(password)
        with self._database.changing() as connection:
            sql = "UPDATE user SET rights = ?, groups = ?, password = coalesce(?, password) WHERE name = ?"
            connection.execute(sql, (kept, grouped, hashed, name))
            if hashed is not None:
                for table in ("session", "token"):
                    connection.execute(f"DELETE FROM {table} WHERE user = ?", (name,))
            facts = {"rights": kept, "groups": grouped, "password": "changed" if hashed else ""}
            self._audit.note_within(connection, by, "change user", user=name, **facts)
        return self.get(name)

    def get(self, name: str) -> User:
        """Return an account."""
        user = self._where("name = ?", name)
        if user is None:
            raise NotFound(f"no account named {name!r}", hint="`fairmile access user ls` lists them")
        return user

    def by_subject(self, subject: str) -> User | None:
        """Return the account of an identity of an OIDC provider."""
        return self._where("subject = ?", subject)

    def _where(self, condition: str, value: str) -> User | None:
        columns = "name, rights, groups, subject, created_s"
        rows = self._database.rows(f"SELECT {columns} FROM user WHERE {condition}", (value,))
        return _user(rows[0]) if rows else None

    def ls(self) -> Users:
        """Return all accounts."""
        rows = self._database.rows("SELECT name, rights, groups, subject, created_s FROM user ORDER BY name")
        return Users(_user(row) for row in rows)

    def remove(self, name: str, *, dry_run: bool = False) -> RemovedUser:
        """Remove an account with its sessions, tokens and grants."""
        self.get(name)
        if not dry_run:
            with self._database.changing() as connection:
                connection.execute("DELETE FROM user WHERE name = ?", (name,))
                for table, column in (("session", "user"), ("token", "user"), ("access", "who")):
                    connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (name,))
                self._audit.note_within(connection, "owner", "remove user", user=name)
        return RemovedUser(name, dry_run)

    # Passwords

    def log_in(self, name: str, password: str, address: str) -> tuple[User, str]:
        """Return an account and the secret of a new session for who knows its password."""
        self.by_address.check(address)
        self.by_name.check(name)
        rows = self._database.rows("SELECT password FROM user WHERE name = ?", (name,))
        hashed = str(rows[0][0]) if rows else ""
        # A name that is not there takes as long as one that is.
        is_right = self._verify(hashed or self._decoy_hash(), password[:_LONGEST_PASSWORD])
        if not hashed or not is_right:
            self.by_name.failed(name)
            self.by_address.failed(address)
            self._audit.note("", "log in failed", user=name if hashed else "", address=address)
            raise NotLoggedIn("name or password is wrong")
        self.by_name.succeeded(name)
        self._audit.note(name, "log in", address=address)
        return self.get(name), self.new_session(name)

    def log_in_person(self, person: Person, address: str) -> User:
        """Return the account of somebody whom a provider vouches for.

        It is added at the first login; at later ones, groups and rights follow the provider. An account that has the
        same name and logs in otherwise is somebody else's.
        """
        user = self.by_subject(person.subject)
        if user is None:
            try:
                user = self.add(
                    person.name, subject=person.subject, rights=person.rights or (), groups=person.groups or ()
                )
            except (Conflict, UsageError) as error:
                self._audit.note("", "log in failed", user=person.name, address=address)
                raise NotLoggedIn(f"{error}", hint="ask the owner of this server") from error
        groups = user.groups if person.groups is None else frozenset(person.groups)
        rights = user.rights if person.rights is None else rights_of({"browse", *person.rights})
        if (groups, rights) != (user.groups, user.rights):
            user = self.update(user.name, rights=rights, groups=groups, by=user.login)
        self._audit.note(user.name, "log in", address=address, provider=user.login)
        return user

    def _hash(self, password: str) -> str:
        with self._hashing:
            self._hasher = self._hasher or self._new_hasher()
            return str(self._hasher.hash(password))

    def _verify(self, hashed: str, password: str) -> bool:
        from argon2.exceptions import Argon2Error, InvalidHashError

        with self._hashing:
            self._hasher = self._hasher or self._new_hasher()
            try:
                return bool(self._hasher.verify(hashed, password))
            except (Argon2Error, InvalidHashError):
                return False

    def _decoy_hash(self) -> str:
        self._decoy = self._decoy or self._hash(secrets.token_urlsafe())
        return self._decoy

    # Sessions

    def new_session(self, name: str) -> str:
        """Return the secret of a new session, and forget those that have ended."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        with self._database.changing() as connection:
            connection.execute("DELETE FROM session WHERE expires_s < ?", (now,))
            connection.execute(
                "INSERT INTO session VALUES (?, ?, ?, ?, ?)", (_digest(secret), name, now, now, now + SESSION_S)
            )
        return secret

    def of_session(self, secret: str) -> Known:
        """Return who a session belongs to."""
        row = self._session(secret)
        user = self._where("name = ?", row[0])
        if user is None:
            raise NotLoggedIn("this session has ended")
        return Known(user, rights_of(user.rights))

    def _session(self, secret: str) -> tuple[Any, ...]:
        sql = "SELECT user, renewed_s, expires_s FROM session WHERE digest = ? AND expires_s > ?"
        rows = self._database.rows(sql, (_digest(secret), self._clock()))
        if not rows:
            raise NotLoggedIn("this session has ended")
        return rows[0]

    def renewed(self, secret: str) -> str:
        """Return a new secret for a session whose secret is old; empty where it is not."""
        user, renewed_s, expires_s = self._session(secret)
        now = self._clock()
        if now - renewed_s < _RENEWED_S or expires_s - now <= _OVERLAP_S:
            return ""
        fresh = secrets.token_urlsafe(32)
        with self._database.changing() as connection:
            values = (_digest(fresh), user, now, now, expires_s)
            connection.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", values)
            sql = "UPDATE session SET renewed_s = ?, expires_s = ? WHERE digest = ?"
            connection.execute(sql, (now, now + _OVERLAP_S, _digest(secret)))
        return fresh

    def end_session(self, secret: str) -> None:
        """Log out."""
        with self._database.changing() as connection:
            connection.execute("DELETE FROM session WHERE digest = ?", (_digest(secret),))

    # Tokens

    def new_token(
        self,
        user: User,
        label: str = "",
        *,
        rights: Collection[str] = ("browse",),
        assets: Iterable[str] = (),
        days: float = TOKEN_DAYS,
        kind: str = "pat",
        by: str = "",
    ) -> NewToken:
        """Return a token that stands for an account, with some of its rights, for some days."""
        if not 0 < days <= _MOST_TOKEN_DAYS:
            raise UsageError(f"a token cannot last {days:g} days", hint=f"at most {_MOST_TOKEN_DAYS:g}")
        wanted = rights_of(rights)
        if not wanted <= user.rights:
            raise UsageError(
                f"{user.name} has no right to {', '.join(sorted(wanted - user.rights))}",
                hint="a token has at most the rights of its account",
            )
        number, secret, now = secrets.token_hex(6), secrets.token_urlsafe(32), self._clock()
        whole = f"fairmile_{kind}_{number}_{secret}"
        token = Token(number, label[:100], user.name, wanted, tuple(assets), now, now + days * DAY_S)
        values = (number, _digest(whole), user.name, token.label, " ".join(wanted), "\n".join(token.assets))
        with self._database.changing() as connection:
            connection.execute("DELETE FROM token WHERE expires_s < ?", (now,))
            sql = "INSERT INTO token VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)"
            connection.execute(sql, (*values, now, token.expires_s))
            facts = {"user": user.name, "token": number, "kind": kind, "rights": values[4]}
            self._audit.note_within(connection, by or user.name, "new token", **facts)
        return NewToken(token, whole)

    def of_token(self, text: str, address: str) -> Known:
        """Return whom a token stands for; its rights are those that the account still has."""
        self.by_address.check(address)
        match, now = _TOKEN.fullmatch(text), self._clock()
        columns = "id, label, user, rights, assets, created_s, expires_s, used_s, digest"
        rows = self._database.rows(f"SELECT {columns} FROM token WHERE id = ?", (match[1],)) if match else []
        kept = rows[0][8] if rows else "0" * 64
        is_right = hmac.compare_digest(kept, _digest(text))
        user = self._where("name = ?", rows[0][2]) if rows and is_right and rows[0][6] > now else None
        if user is None:
            self.by_address.failed(address)
            raise NotLoggedIn("this token is wrong or has expired")
        token = _token(rows[0])
        if token.used_s is None or now - token.used_s > _USED_EVERY_S:
            with self._database.changing() as connection:
                connection.execute("UPDATE token SET used_s = ? WHERE id = ?", (now, token.id))
        return Known(user, rights_of(token.rights) & rights_of(user.rights), token.assets, by=f"token {token.id}")

    def tokens(self, user: str) -> Tokens:
        """Return the tokens of an account that have not expired."""
        columns = "id, label, user, rights, assets, created_s, expires_s, used_s"
        sql = f"SELECT {columns} FROM token WHERE user = ? AND expires_s > ? ORDER BY created_s DESC"
        return Tokens(_token(row) for row in self._database.rows(sql, (user, self._clock())))

    def revoke_token(self, user: str, id: str, *, by: str = "", dry_run: bool = False) -> Token:
        """Remove a token of an account."""
        token = next((each for each in self.tokens(user) if each.id == id), None)
        if token is None:
            raise NotFound(f"no token {id!r}", hint="it may have expired")
        if dry_run:
            return token
        with self._database.changing() as connection:
            connection.execute("DELETE FROM token WHERE id = ? AND user = ?", (id, user))
            self._audit.note_within(connection, by or user, "revoke token", user=user, token=id)
        return token


def check_password(password: str) -> None:
    """Refuse a password that is too short to protect an account."""
    if len(password) < _SHORTEST_PASSWORD:
        raise UsageError(f"a password needs at least {_SHORTEST_PASSWORD} characters", hint="use a few words")
    if len(password) > _LONGEST_PASSWORD:
        raise UsageError(f"a password has at most {_LONGEST_PASSWORD:,} characters")


def _group(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be the name of a group", hint="use lower-case letters, digits and dashes")
    return name


def _digest(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _user(row: tuple[Any, ...]) -> User:
    name, rights, groups, subject, created_s = row
    login = subject.partition("#")[0] if subject else "password"
    return User(name, frozenset(rights.split()), frozenset(groups.split()), login, created_s)


def _token(row: tuple[Any, ...]) -> Token:
    assets = tuple(row[4].splitlines())
    return Token(row[0], row[1], row[2], frozenset(row[3].split()), assets, row[5], row[6], row[7])
