"""A client of the sftp service that ssh servers offer, on top of the system's own ssh; ranges are read ahead."""

from __future__ import annotations

import fcntl
import os
import posixpath
import re
import select
import stat
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote, unquote_to_bytes

from fairmile.base import commands
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.remote import Context

_AUTHORITY = re.compile(
    r"(?:(?P<user>[^@:]*)(?P<password>:[^@]*)?@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9._-]*)(?::(?P<port>[0-9]{1,5}))?"
)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
_ANSWER_S = 60.0  # a folder of a parallel file system may need its time
_LISTING_AHEAD = 4
_IN_FLIGHT = 64  # questions sent ahead of their answers
_AHEAD_BYTES = 4 << 20  # asked for ahead; ssh itself lets 2 MiB through before it waits for the reader
_READ_BYTES = 32 << 10  # what every server sends in one piece
_LARGEST_PACKET = 1 << 20
_PIPE_BYTES = 1 << 20

# The protocol: draft-ietf-secsh-filexfer-02, which is version 3 and what OpenSSH speaks.
_INIT, _VERSION, _OPEN, _CLOSE, _READ, _FSTAT, _OPENDIR, _READDIR, _STAT, _READLINK = 1, 2, 3, 4, 5, 8, 11, 12, 17, 19
_STATUS, _HANDLE, _DATA, _NAME, _ATTRS, _EXTENDED, _EXTENDED_REPLY = 101, 102, 103, 104, 105, 200, 201
_OK, _EOF, _NO_SUCH_FILE, _PERMISSION_DENIED = 0, 1, 2, 3
_NO_CONNECTION, _CONNECTION_LOST = 6, 7


class SftpLocation(NamedTuple):
    """A path on a machine that ssh reaches; without a leading slash it starts in the user's own folder there."""

    scheme: str
    user: str
    host: str
    port: str
    path: bytes

    @classmethod
    def parse(cls, address: str, schemes: Sequence[str]) -> SftpLocation:
        """Return what an address such as ssh://user@host:22/path means; nothing in it can become an option."""
        scheme, _, rest = address.partition("://")
        authority, slash, text = rest.partition("/")
        match = _AUTHORITY.fullmatch(authority)
        user = unquote(match["user"] or "") if match else ""
        if scheme.lower() not in schemes or match is None or (user and not _USER.fullmatch(user)):
            raise UsageError(
                f"{shown_address(address)!r} is not an address that ssh can use",
                hint=f"it looks like {schemes[0]}://user@host/folder/file",
            )
        if match["password"]:
            raise UsageError(
                f"{shown_address(address)!r} contains a password, which must not be part of an address",
                hint="give ssh a key (ssh-copy-id installs it); a password of rsync goes into ~/.netrc",
            )
        try:
            path = unquote_to_bytes(slash + text)
        except UnicodeEncodeError:
            path = b"\0"
        if b"\0" in path:
            raise UsageError(f"{shown_address(address)!r} contains characters that are not allowed in a path")
        if path == b"/~" or path.startswith(b"/~/"):
            path = path[3:] or b"."
        return cls(scheme.lower(), user, match["host"].strip("[]"), match["port"] or "", path or b".")

    @property
    def server(self) -> SftpLocation:
        return self._replace(path=b"")

    @property
    def options(self) -> list[str]:
        """The options of ssh that lead to this machine."""
        return [*(["-l", self.user] if self.user else []), *(["-p", self.port] if self.port else [])]

    def address(self, path: bytes) -> str:
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{user}{host}{port}" + quote(
            path if path.startswith(b"/") else b"/~/" + path, safe="/~"
        )


class Status(NamedTuple):
    size: int
    mode: int
    modified: int

    @property
    def validator(self) -> str:
        return f"{self.size}-{self.modified}"


@dataclass(eq=False)
class _Listing:
    """A folder that is being listed; `in_flight` counts the questions about it that wait for an answer."""

    folder: bytes
    handle: bytes = b""
    in_flight: int = 1
    is_over: bool = False


class Session:
    """One connection to the sftp service of a server; one thread at a time uses it, any may `interrupt` it."""

    def __init__(self, server: SftpLocation, config: Path | None, context: Context) -> None:
        self.server = server
        self.stall_s = context.settings.stall_s
        self.read_bytes = _READ_BYTES
        self._count = 0
        self._stderr_tail = b""
        # The options are those of the program sftp. An open connection of the user's is shared, and none of ours
        # becomes one: it would break the others when it ends.
        off = ("ForwardAgent", "ForwardX11", "PermitLocalCommand", "ControlMaster")
        options = [*server.options, "-s", *(word for name in off for word in ("-o", f"{name}=no"))]
        options += ["-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none"]
        self._popen = _started(commands.Ssh(server.host, options=options, config=config).argv("sftp"), context.environ)
        assert self._popen.stdin is not None and self._popen.stdout is not None and self._popen.stderr is not None
        self._pipes = (self._popen.stdin, self._popen.stdout, self._popen.stderr)
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        with suppress(OSError, AttributeError):  # fewer turns where the system allows it
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self._poll.register(self._err, select.POLLIN)
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def hang_up(self) -> None:
        """End the connection as the protocol has it."""
        self._pipes[0].close()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(2)
        self.close()

    def interrupt(self) -> None:
        """Cut the connection; who reads from it sees its end."""
        self._popen.kill()

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for pipe in self._pipes:
            pipe.close()

    # Packets

    def send(self, kind: int, content: bytes) -> int:
        """Send a request and return its number, which its answer bears."""
        self._count = (self._count + 1) & 0xFFFFFFFF
        self._write(struct.pack(">IBI", len(content) + 5, kind, self._count) + content)
        return self._count

    def header(self, timeout_s: float) -> tuple[int, int, int]:
        """Return kind and number of the next answer, and how many bytes of content follow."""
        head = bytearray(9)
        self.fill(memoryview(head), timeout_s)
        length, kind, number = struct.unpack(">IBI", head)
        if not 5 <= length <= _LARGEST_PACKET:
            raise self.broken_rules(f"announces a packet of {length:,} bytes")
        return kind, number, length - 5

    def answer(self) -> tuple[int, int, bytes]:
        """Return kind, number and content of the next answer."""
        kind, number, length = self.header(_ANSWER_S)
        return kind, number, self.content(length, _ANSWER_S)

    def content(self, length: int, timeout_s: float) -> bytes:
        data = bytearray(length)
        self.fill(memoryview(data), timeout_s)
        return bytes(data)

    def fill(self, view: memoryview, timeout_s: float) -> None:
        while view:
            view = view[self.some(view, timeout_s) :]

    def some(self, view: memoryview, timeout_s: float) -> int:
        """Read what is there, at least one byte."""
        self._wait(timeout_s)
        count = os.readv(self._out, [view])
        if not count:
            raise self._lost()
        return count

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._in, data) :]
        except OSError:
            raise self._lost() from None

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            ready = {fd for fd, _ in self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
            if self._err in ready:
                chunk = os.read(self._err, 4096)
                self._stderr_tail = (self._stderr_tail + chunk)[-4096:]
                if not chunk:
                    self._poll.unregister(self._err)
            if self._out in ready:
                return
            if time.monotonic() >= deadline:
                raise Transient(f"{self.server.host} sent nothing for {timeout_s:g} s")

    def _lost(self) -> Transient:
        with suppress(subprocess.TimeoutExpired):  # its last words may still be on their way
            self._popen.wait(2)
        self._popen.kill()
        self._popen.wait()
        os.set_blocking(self._err, False)
        with suppress(BlockingIOError):
            while chunk := os.read(self._err, 4096):
                self._stderr_tail = (self._stderr_tail + chunk)[-4096:]
        reason = _printable(self._stderr_tail) or "ssh gave no reason"
        return Transient(
            f"the connection to {self.server.host} failed: {reason}",
            hint=f"check that `sftp -o BatchMode=yes {self.server.host}` works, then try again",
        )

    def broken_rules(self, what: str) -> SystemFailure:
        return SystemFailure(
            f"{self.server.host} violates the sftp protocol: it {what}",
            hint="login scripts there must print nothing without a terminal",
        )

    # Questions

    def _greet(self) -> None:
        self._write(struct.pack(">IBI", 5, _INIT, 3))
        kind, version, length = self.header(_ANSWER_S)
        if kind != _VERSION or version < 3:
            raise self.broken_rules("offers no version that is known here")
        extensions = _strings(self.content(length, _ANSWER_S))
        if b"limits@openssh.com" in extensions[::2]:
            kind, content = self.ask(_EXTENDED, _string(b"limits@openssh.com"))
            if kind == _EXTENDED_REPLY and len(content) >= 16:
                most = struct.unpack_from(">Q", content, 8)[0]
                self.read_bytes = max(_READ_BYTES, min(most, _LARGEST_PACKET // 4))

    def ask(self, kind: int, content: bytes) -> tuple[int, bytes]:
        """Send a request and return kind and content of its answer; older answers that nobody waits for are dropped."""
        number = self.send(kind, content)
        while True:
            kind_of_answer, of, answer = self.answer()
            if of == number:
                return kind_of_answer, answer

    def checked(self, wanted: int, answer: tuple[int, bytes], path: bytes) -> bytes:
        """Return the content of an answer of the wanted kind; any other raises an error about `path`."""
        kind, content = answer
        if kind == wanted:
            return content
        if kind != _STATUS or len(content) < 4:
            raise self.broken_rules(f"answers with a packet of kind {kind}")
        raise self.refused(content, path)

    def refused(self, content: bytes, path: bytes) -> FairmileError:
        where, code = shown_address(self.server.address(path)), struct.unpack_from(">I", content)[0]
        if code == _NO_SUCH_FILE:
            return NotFound(f"no {where}")
        if code == _PERMISSION_DENIED:
            return SystemFailure(f"{where} cannot be read", hint="ask its owner for the permission to read it")
        reason = _printable(b"".join(_strings(content[4:])[:1])) or f"error {code}"
        kind = Transient if code in (_NO_CONNECTION, _CONNECTION_LOST) else SystemFailure
        return kind(f"{where} cannot be read: {reason}")

    def status(self, path: bytes) -> Status:
        return self.attributes(self.checked(_ATTRS, self.ask(_STAT, _string(path)), path), 0)[0]

    def opened(self, path: bytes) -> bytes:
        """Open a file for reading and return its handle."""
        return self._handle(self.ask(_OPEN, _string(path) + struct.pack(">II", 1, 0)), path)

    def _handle(self, answer: tuple[int, bytes], path: bytes) -> bytes:
        handle = _strings(self.checked(_HANDLE, answer, path))
        if not handle:
            raise self.broken_rules("sends a handle that is cut off")
        return handle[0]

    def link_text(self, path: bytes) -> bytes:
        return self._names(self.checked(_NAME, self.ask(_READLINK, _string(path)), path))[0][0]

    def below(self, top: bytes) -> Iterator[tuple[bytes, Status]]:
        """Yield every file below a folder by its path within it; many folders are asked about at once."""
        folders = [b""]
        waiting: dict[int, _Listing] = {}
        while folders or waiting:
            while folders and len(waiting) < _IN_FLIGHT:
                listing = _Listing(folders.pop())
                waiting[self.send(_OPENDIR, _string(posixpath.join(top, listing.folder)))] = listing
            kind, number, content = self.answer()
            if number not in waiting:  # the answer to a CLOSE
                continue
            listing = waiting.pop(number)
            listing.in_flight -= 1
            path = posixpath.join(top, listing.folder)
            if not listing.handle:
                listing.handle = self._handle((kind, content), path)
            elif kind == _STATUS and content[:4] == struct.pack(">I", _EOF):
                listing.is_over = True
            else:
                for name, status in self._names(self.checked(_NAME, (kind, content), path)):
                    if name in (b".", b".."):
                        continue
                    if b"/" in name or not name:
                        raise self.broken_rules(f"lists a file named {name!r}")
                    if stat.S_ISDIR(status.mode):
                        folders.append(listing.folder + name + b"/")
                    else:
                        yield listing.folder + name, status
            # A few ahead, since a folder's end is known only when it is reached.
            while not listing.is_over and listing.in_flight < _LISTING_AHEAD:
                waiting[self.send(_READDIR, _string(listing.handle))] = listing
                listing.in_flight += 1
            if not listing.in_flight:
                self.send(_CLOSE, _string(listing.handle))

    def link_texts(self, top: bytes, paths: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield each path below `top` with the text of the symbolic link there."""
        left = list(paths)
        waiting: dict[int, bytes] = {}
        while left or waiting:
            while left and len(waiting) < _IN_FLIGHT:
                path = left.pop()
                waiting[self.send(_READLINK, _string(posixpath.join(top, path)))] = path
            kind, number, content = self.answer()
            if number in waiting:
                path = waiting.pop(number)
                yield path, self._names(self.checked(_NAME, (kind, content), path))[0][0]

    def _names(self, content: bytes) -> list[tuple[bytes, Status]]:
        try:
            (count,) = struct.unpack_from(">I", content)
            at, names = 4, []
            for _ in range(count):
                name, at = _string_at(content, at)
                _, at = _string_at(content, at)  # the line that `ls -l` would print
                status, at = self.attributes(content, at)
                names.append((name, status))
        except struct.error:
            raise self.broken_rules("sends a list of names that is cut off") from None
        if not names:
            raise self.broken_rules("sends an empty list of names")
        return names

    def attributes(self, content: bytes, at: int) -> tuple[Status, int]:
        try:
            (flags,) = struct.unpack_from(">I", content, at)
            at, size, mode, modified = at + 4, 0, stat.S_IFREG | 0o644, 0
            if flags & 0x1:
                (size,), at = struct.unpack_from(">Q", content, at), at + 8
            if flags & 0x2:  # owner and group
                at += 8
            if flags & 0x4:
                (mode,), at = struct.unpack_from(">I", content, at), at + 4
            if flags & 0x8:
                (_, modified), at = struct.unpack_from(">II", content, at), at + 8
            if flags & 0x80000000:
                (count,), at = struct.unpack_from(">I", content, at), at + 4
                for _ in range(2 * count):
                    _, at = _string_at(content, at)
        except struct.error:
            raise self.broken_rules("sends attributes that are cut off") from None
        return Status(size, mode, modified), at


class SftpBody:
    """A range of a file; read to its end and closed, its connection serves the next range."""

    is_whole = False

    def __init__(
        self,
        session: Session,
        place: SftpLocation,
        start: int,
        stop: int | None,
        size_bytes: int | None,
        give_back: Callable[[Session, bool], None],
    ) -> None:
        self.start = start
        self._session = session
        self._give_back = give_back
        self._path = place.path
        self._handle = session.opened(place.path)
        self._asked = self._end = start
        self._waiting: deque[tuple[int, int, int]] = deque()  # number, offset and length, in the order of the file
        self._early: dict[int, tuple[int, bytes]] = {}  # answers that came before their turn
        self._held = memoryview(b"")
        self._left = 0  # bytes of the current piece that are still to be read
        self._is_closed = self._is_over = False
        number = session.send(_FSTAT, _string(self._handle))
        if size_bytes is not None:  # asked for at once: most times the file is as it was found
            self._end = max(start, size_bytes if stop is None else min(stop, size_bytes))
            self._ask_ahead()
        status = session.attributes(session.checked(_ATTRS, self._answer(number), place.path), 0)[0]
        if not stat.S_ISREG(status.mode):
            raise NotFound(f"{shown_address(place.address(place.path))} is not a file")
        self.total_bytes: int | None = status.size
        self.validator = status.validator
        if size_bytes is None:
            self._end = max(start, status.size if stop is None else min(stop, status.size))

    def readinto(self, buffer: memoryview) -> int:
        if self._is_over or not buffer or not (self._left or self._next_piece()):
            return 0
        room = buffer[: self._left]
        if self._held:
            count = len(room)
            room[:], self._held = self._held[:count], self._held[count:]
        else:
            count = self._session.some(room, self._session.stall_s)
        self._left -= count
        return count

    def interrupt(self) -> None:
        if not self._is_closed:
            self._session.interrupt()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = self._is_over = True
        is_usable = not self._waiting and not self._left and self._session.is_alive
        if is_usable:
            try:
                self._session.send(_CLOSE, _string(self._handle))
            except Transient:
                is_usable = False
        self._give_back(self._session, is_usable)

    def _ask_ahead(self) -> None:
        """Keep enough requests under way to fill the line."""
        piece = self._session.read_bytes
        while self._asked < self._end and len(self._waiting) * piece < _AHEAD_BYTES:
            length = min(piece, self._end - self._asked)
            self._waiting.append((self._ask(self._asked, length), self._asked, length))
            self._asked += length

    def _ask(self, offset: int, length: int) -> int:
        return self._session.send(_READ, _string(self._handle) + struct.pack(">QI", offset, length))

    def _next_piece(self) -> bool:
        """Go to the next piece in the order of the file; False at the end."""
        self._ask_ahead()
        if not self._waiting:
            return False
        number, offset, length = self._waiting[0]
        kind, content = self._answer(number, is_data=True)
        if kind == _STATUS and content[:4] == struct.pack(">I", _EOF):
            self._is_over = True  # the file has become shorter; what else was asked for is not waited for
            return False
        size = struct.unpack(">I", self._session.checked(_DATA, (kind, content), self._path)[:4])[0]
        if not 0 < size <= length:
            raise self._session.broken_rules(f"answers with {size:,} bytes where {length:,} were asked for")
        self._waiting.popleft()
        if size < length:  # a server may send less at once than it is asked for
            self._waiting.appendleft((self._ask(offset + size, length - size), offset + size, length - size))
        self._held, self._left = memoryview(content)[4:], size
        return True

    def _answer(self, number: int, is_data: bool = False) -> tuple[int, bytes]:
        """Return the answer to a request; of a piece of the file only its length, the bytes stay in the pipe."""
        if number in self._early:
            return self._early.pop(number)
        session = self._session
        while True:
            kind, answered, length = session.header(session.stall_s if is_data else _ANSWER_S)
            if answered == number and is_data and kind == _DATA and length >= 4:
                return kind, session.content(4, session.stall_s)
            content = session.content(length, session.stall_s)
            if answered == number:
                return kind, content
            if any(answered == each for each, _, _ in self._waiting):
                self._early[answered] = kind, content


def _started(argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            env=dict(environ),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise SystemFailure(f"cannot run {argv[0]!r}: {error.strerror}", hint="install the OpenSSH client") from error


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _string_at(content: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">I", content, at)
    at += 4
    if at + length > len(content):
        raise struct.error
    return content[at : at + length], at + length


def _strings(content: bytes) -> list[bytes]:
    """Return the strings that follow one another, as far as they are complete."""
    texts, at = [], 0
    with suppress(struct.error):
        while at < len(content):
            text, at = _string_at(content, at)
            texts.append(text)
    return texts


def _printable(reason: bytes) -> str:
    lines = reason.decode(errors="replace").strip().splitlines()[-5:]
    return "; ".join("".join(letter if letter.isprintable() else " " for letter in line).strip() for line in lines)
