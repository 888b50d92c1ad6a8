"""ftp:// and ftps://: byte ranges over connections that are kept for the next range."""

from __future__ import annotations

import ftplib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import Login, shown_address
from fairmile.transfer.remote import Context, Remote

_IMPLICIT_TLS_PORT = 990  # there TLS is spoken from the first byte; on any other port AUTH TLS switches to it
_DEEPEST = 40  # folders within folders; a server that shows more follows a link in circles
_UNKNOWN_COMMAND = ("500", "501", "502", "504")
_HUNG_UP = (EOFError, ConnectionError, ftplib.error_temp, ftplib.error_reply)
_LOGIN_REFUSED = ("530", "532")
_TYPE = re.compile(r";type=[aid]$", re.IGNORECASE)
T = TypeVar("T")


class _Server(NamedTuple):
    scheme: str
    user: str  # empty: none is given
    host: str
    port: int | None

    def address(self, path: bytes) -> str:
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port is not None else ""
        absolute = path.startswith(b"/")
        return f"{self.scheme}://{user}{host}{port}/{'%2F' if absolute else ''}{quote(path[absolute:])}"


class Ftp:
    """Reads byte ranges from FTP servers, with the login stored for a host or else as an anonymous guest.

    As RFC 1738 has it, a path starts in the folder that the login leads to; `ftp://host/%2Fpub` is absolute.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._idle: dict[_Server, list[_Connection]] = {}
        self._passwords: dict[_Server, str] = {}
        self._lock = threading.Lock()
        self._closed = False

    def find(self, address: str) -> list[Remote]:
        server, path = self._parse(address)

        def look(connection: _Connection) -> list[Remote]:
            remotes = connection.find(path)
            self._give_back(connection)
            return remotes

        remotes = self._use(server, address, look)
        if not remotes:
            raise NotFound(f"the folder {shown_address(address)} has no files")
        return remotes

    def open(self, remote: Remote, start: int, stop: int | None) -> FtpBody:
        server, path = self._parse(remote.address)
        return self._use(
            server, remote.address, lambda connection: FtpBody(connection, path, start, stop, self._give_back)
        )

    def close(self) -> None:
        """Close the connections that wait for their next range."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def _parse(self, address: str) -> tuple[_Server, bytes]:
        """Return the server and the path that an address means; a password in it is kept here and nowhere else."""
        scheme, _, rest = address.partition("://")
        place, _, path = rest.partition("/")
        try:
            parts = urlsplit(f"//{place}")
            user, password, host, port = unquote(parts.username or ""), parts.password, parts.hostname, parts.port
            raw = unquote_to_bytes(_TYPE.sub("", path))
        except ValueError:  # no number for a port, half a surrogate pair
            host = None
        if scheme.lower() not in ("ftp", "ftps") or not host or not host.isprintable() or " " in host:
            raise UsageError(
                f"{shown_address(address)!r} is not an FTP address", hint="it looks like ftp://host/folder/file"
            )
        if any(byte in b"\0\r\n" for byte in raw + user.encode(errors="replace") + unquote_to_bytes(password or "")):
            raise UsageError(f"{shown_address(address)!r} contains a line break or NUL, which FTP does not support")
        server = _Server(scheme.lower(), user, host, port)
        if password is not None:
            self._passwords[server] = unquote(password)
        return server, raw

    def _use(self, server: _Server, address: str, work: Callable[[_Connection], T]) -> T:
        with _explained(address):
            while True:
                with self._lock:
                    idle = self._idle.get(server)
                    waiting = idle.pop() if idle else None
                connection = waiting or _Connection(server, self._login(server), self._context)
                try:
                    return work(connection)
                except BaseException as error:
                    connection.close()
                    # A server may have hung up while the connection waited.
                    if waiting is None or not isinstance(error, _HUNG_UP):
                        raise

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.setdefault(connection.server, []).append(connection)
                return
        connection.close()

    def _login(self, server: _Server) -> Login:
        if server in self._passwords:
            return Login(server.user, self._passwords[server])
        stored = self._context.credentials.login(server.host)
        if stored is not None and server.user in ("", stored.user):
            return stored
        return Login(server.user or "anonymous", "" if server.user else "anonymous@")


class _FtpTls(ftplib.FTP_TLS):
    def ntransfercmd(self, cmd: str, rest: int | str | None = None) -> tuple[socket.socket, int | None]:
        # Many servers take a data connection only with the TLS session of the control connection, which the
        # standard library does not offer.
        plain, size = ftplib.FTP.ntransfercmd(self, cmd, rest)
        try:
            session = self.sock.session if isinstance(self.sock, ssl.SSLSocket) else None
            return self.context.wrap_socket(plain, server_hostname=self.host, session=session), size
        except BaseException:
            plain.close()
            raise


class _Connection:
    """One login on a server; a path is in bytes and starts where the login leads to."""

    def __init__(self, server: _Server, login: Login, context: Context) -> None:
        self.server = server
        self.buffer_bytes = context.settings.socket_buffer_bytes
        # Latin-1 maps every byte to one character: names pass as they are, whatever their encoding.
        timeout_s = context.settings.stall_s
        if server.scheme == "ftps":
            tls = ssl.create_default_context(cafile=context.environ.get("SSL_CERT_FILE") or None)
            self.ftp: ftplib.FTP = _FtpTls(context=tls, timeout=timeout_s, encoding="latin-1")
        else:
            self.ftp = ftplib.FTP(timeout=timeout_s, encoding="latin-1")
        try:
            self._connect()
            self.ftp.login(_as_sent(login.user), _as_sent(login.password))
            if isinstance(self.ftp, ftplib.FTP_TLS):
                self.ftp.prot_p()
            self._home = self.ftp.pwd().encode("latin-1")
        except BaseException:
            self.ftp.close()
            raise

    def _connect(self) -> None:
        host, port = self.server.host, self.server.port or 0
        if not isinstance(self.ftp, ftplib.FTP_TLS) or (port or _IMPLICIT_TLS_PORT) != _IMPLICIT_TLS_PORT:
            self.ftp.connect(host, port)
            return
        self.ftp.host, self.ftp.port = host, port or _IMPLICIT_TLS_PORT
        plain = socket.create_connection((self.ftp.host, self.ftp.port), self.ftp.timeout)
        try:
            self.ftp.sock = self.ftp.context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        self.ftp.af = plain.family
        self.ftp.file = self.ftp.sock.makefile("r", encoding=self.ftp.encoding)
        self.ftp.welcome = self.ftp.getresp()

    def close(self) -> None:
        self.ftp.close()

    def full(self, path: bytes) -> str:
        """Return a path as it is sent; absolute, so that it is never taken for an option of the server's `ls`."""
        return (path if path.startswith(b"/") else self._home.rstrip(b"/") + b"/" + path).decode("latin-1")

    def describe(self, path: bytes) -> tuple[int | None, str]:
        """Return the size of a file, as far as the server tells it, and its validator."""
        answer = self.ftp.sendcmd("TYPE I")  # some servers count bytes only in this mode
        if not answer.startswith("200"):  # one that belongs to an earlier question
            raise ftplib.error_reply(answer)
        size = _number(self._tried("SIZE", path))
        return size, _validator(size, self._tried("MDTM", path))

    def find(self, path: bytes) -> list[Remote]:
        if path and not path.endswith(b"/"):
            size, validator = self.describe(path)
            if size is not None:
                return [Remote(self.server.address(path), _name(path.rpartition(b"/")[2]), size, validator=validator)]
            if not self._is_folder(path):
                return [self._of_unknown_size(path)]
        remotes = list(self._below(path.rstrip(b"/") + b"/" if path else b"", b"", _DEEPEST))
        return sorted(remotes, key=lambda remote: remote.path.encode("utf-8", "surrogateescape"))

    def _of_unknown_size(self, path: bytes) -> Remote:
        try:
            self.ftp.sendcmd(f"SIZE {self.full(path)}")
        except ftplib.error_perm as error:
            if _code(error) not in _UNKNOWN_COMMAND:
                raise
        return Remote(self.server.address(path), _name(path.rpartition(b"/")[2]))

    def _below(self, top: bytes, prefix: bytes, deepest: int) -> Iterator[Remote]:
        if not deepest:
            raise SystemFailure(
                f"{shown_address(self.server.address(top + prefix))} is more than {_DEEPEST} folders deep",
                hint="a link on the server may form a loop; name the folder below it",
            )
        for name, facts in self._listed(top + prefix):
            if b"/" in name or name in (b"", b".", b".."):
                raise SystemFailure(
                    f"{shown_address(self.server.address(top + prefix))} lists a file named {_name(name)!r}, "
                    "which is not a plain name"
                )
            path = prefix + name
            kind = facts.get("type", "").lower()
            if kind == "dir" or (kind != "file" and self._is_folder(top + path)):
                yield from self._below(top, path + b"/", deepest - 1)
                continue
            size, validator = _number(facts.get("size")), _validator(_number(facts.get("size")), facts.get("modify"))
            if not validator:
                size, validator = self.describe(top + path)
            yield Remote(self.server.address(top + path), _name(path), size, validator=validator)

    def _listed(self, folder: bytes) -> list[tuple[bytes, dict[str, str]]]:
        """Return the names in a folder with what the server tells about them; nothing where it has no MLSD."""
        full = self.full(folder).rstrip("/") or "/"
        try:
            entries = list(self.ftp.mlsd(full))
        except ftplib.error_perm as error:
            if _code(error) not in _UNKNOWN_COMMAND:
                raise
        else:
            own = ("cdir", "pdir")
            return [
                (name.encode("latin-1"), facts) for name, facts in entries if facts.get("type", "").lower() not in own
            ]
        # NLST takes patterns: without an argument none is found in a name.
        self.ftp.voidcmd(f"CWD {full}")
        try:
            names = self.ftp.nlst()
        except ftplib.error_perm as error:
            if _code(error) != "550":  # so some servers say that a folder is empty
                raise
            names = []
        ends = [name.rpartition("/")[2].encode("latin-1") for name in names]
        return [(name, {}) for name in ends if name not in (b"", b".", b"..")]

    def _is_folder(self, path: bytes) -> bool:
        return self._tried("CWD", path) is not None

    def _tried(self, command: str, path: bytes) -> str | None:
        """Return what the server answers to a question about a path; None when it refuses."""
        try:
            return self.ftp.sendcmd(f"{command} {self.full(path)}")[4:].strip()
        except ftplib.error_perm:
            return None


class FtpBody:
    """The bytes of a file from an offset on; closed at its end, its connection serves the next range."""

    def __init__(
        self,
        connection: _Connection,
        path: bytes,
        start: int,
        stop: int | None,
        give_back: Callable[[_Connection], None],
    ) -> None:
        self.total_bytes, self.validator = connection.describe(path)
        self.start, self.is_whole = start, False
        self._address = connection.server.address(path)
        self._connection: _Connection | None = connection
        self._give_back = give_back
        command = f"RETR {connection.full(path)}"
        try:
            self._data, _ = connection.ftp.ntransfercmd(command, start or None)
        except ftplib.error_perm as error:
            if not start or _code(error) not in _UNKNOWN_COMMAND:
                raise
            self._data, _ = connection.ftp.ntransfercmd(command)
            self.start, self.is_whole = 0, True
        if connection.buffer_bytes:
            self._data.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, connection.buffer_bytes)
        self._left = float("inf") if stop is None or self.is_whole else max(0, stop - self.start)
        self._is_complete = self._is_broken = False

    def readinto(self, buffer: memoryview) -> int:
        room = int(min(len(buffer), self._left))
        if not room or self._is_complete or self._connection is None:
            return 0
        with _explained(self._address):
            try:
                count = self._data.recv_into(buffer[:room])
                if self._is_broken:
                    raise ConnectionAbortedError("the transfer was interrupted")
                self._left -= count
                if not count:
                    self._end()
            except BaseException:
                self._is_broken = True
                raise
        return count

    def _end(self) -> None:
        """Hear from the server whether that was all: a transfer that broke off ends in the same way."""
        if isinstance(self._data, ssl.SSLSocket):
            with suppress(OSError):
                self._data.unwrap()
        self._data.close()
        if self._connection is not None:
            self._connection.ftp.voidresp()
        self._is_complete = True

    def interrupt(self) -> None:
        self._is_broken = True
        with suppress(OSError):
            # Not SSLSocket.shutdown, after which a reader would take encrypted bytes for the file's.
            socket.socket.shutdown(self._data, socket.SHUT_RDWR)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._data.close()
        if not self._is_broken and not self._is_complete:
            try:
                connection.ftp.getmultiline()  # what the server says about the transfer that we broke off
            except ftplib.all_errors:
                self._is_broken = True
        if self._is_broken:
            connection.close()
        else:
            self._give_back(connection)


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turn what the FTP library raises into errors of ours that name the address."""
    try:
        yield
    except FairmileError:  # some of them are also OSErrors
        raise
    except ftplib.all_errors as error:
        raise _failure(shown_address(address), error) from error


def _failure(where: str, error: Exception) -> FairmileError:
    reason = "".join(letter if letter.isprintable() else " " for letter in str(error))[:300]
    if isinstance(error, ftplib.error_perm):
        if _code(error) in _LOGIN_REFUSED:
            return SystemFailure(
                f"{where}: the server refuses the login: {reason}", hint="store user and password for it in ~/.netrc"
            )
        if _code(error) == "550":
            return NotFound(f"{where} is not available: {reason}")
        return SystemFailure(f"{where}: the server refuses: {reason}")
    if isinstance(error, ssl.SSLCertVerificationError):
        return SystemFailure(
            f"{where}: the server's certificate cannot be trusted: {error.verify_message}",
            hint="SSL_CERT_FILE may name a file with the certificates you trust",
        )
    if isinstance(error, TimeoutError):
        return Transient(f"{where}: the server stopped responding")
    return Transient(f"{where}: the connection failed: {reason or 'the server closed the connection'}")


def _code(error: Exception) -> str:
    return str(error)[:3]


def _as_sent(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _validator(size: int | None, modified: str | None) -> str:
    # Some commands tell fractions of a second and others do not.
    return f"{size}-{modified[:14]}" if size is not None and modified else ""
