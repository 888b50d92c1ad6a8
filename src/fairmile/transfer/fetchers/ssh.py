"""ssh://, sftp:// and scp://: byte ranges from the sftp service of any ssh server, through the system's own ssh."""

from __future__ import annotations

import os
import posixpath
import stat
import threading
from pathlib import Path

from fairmile.base.errors import NotFound, UsageError
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers.file import TextBody
from fairmile.transfer.remote import Context, Remote
from fairmile.transfer.sftp import Session, SftpBody, SftpLocation, Status

_SCHEMES = ("ssh", "sftp", "scp")
_LINK_MODE = 0o120000
_HANDSHAKES = 4  # at once: servers begin to drop new connections when ten wait for their login (MaxStartups)


class Ssh:
    """Reads byte ranges over ssh; logins are ssh's own, and nobody is ever asked for a password.

    The sftp service answers on every usual server, also where no command may be run, and takes paths as bytes:
    no shell over there reads them. Each range in progress has a connection of its own, kept for the next one.
    """

    def __init__(self, context: Context, *, config: Path | None = None) -> None:
        self._context = context
        self._config = config
        self._idle: dict[SftpLocation, list[Session]] = {}
        self._lock = threading.Lock()
        self._handshakes = threading.BoundedSemaphore(_HANDSHAKES)
        self._closed = False

    def find(self, address: str) -> list[Remote]:
        place = SftpLocation.parse(address, _SCHEMES)
        session = self._take(place.server)
        try:
            remotes = _list_remotes(session, place)
        except BaseException as error:
            self._return(session, is_usable=isinstance(error, (NotFound, UsageError)))
            raise
        self._return(session, is_usable=True)
        return remotes

    def open(self, remote: Remote, start: int, stop: int | None) -> SftpBody | TextBody:
        place = SftpLocation.parse(remote.address, _SCHEMES)
        session = self._take(place.server)
        try:
            if remote.mode != _LINK_MODE:
                return SftpBody(session, place, start, stop, remote.size_bytes, self._return)
            text = session.link_text(place.path)
        except BaseException as error:
            self._return(session, is_usable=isinstance(error, NotFound))
            raise
        self._return(session, is_usable=True)
        return TextBody(text, start, stop)

    def close(self) -> None:
        """End the connections that wait for their next range."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, {}
        for sessions in idle.values():
            for session in sessions:
                session.hang_up()

    def _take(self, server: SftpLocation) -> Session:
        with self._lock:
            idle = self._idle.get(server, [])
            while idle:
                session = idle.pop()
                if session.is_alive:
                    return session
                session.close()
        with self._handshakes:
            return Session(server, self._config, self._context)

    def _return(self, session: Session, is_usable: bool) -> None:
        with self._lock:
            if is_usable and not self._closed:
                self._idle.setdefault(session.server, []).append(session)
                return
        session.close()


def _list_remotes(session: Session, place: SftpLocation) -> list[Remote]:
    """Return the file at a place, or those below it when it is a folder, by the rules of `scan_tree`."""
    status = session.status(place.path)
    where = shown_address(place.address(place.path))
    if stat.S_ISREG(status.mode):
        name = posixpath.basename(place.path.rstrip(b"/"))
        return [_remote(place, place.path, name, status)]
    if not stat.S_ISDIR(status.mode):
        raise UsageError(f"{where} is neither a file nor a folder")
    remotes, links = [], []
    for path, each in session.below(place.path):
        if stat.S_ISLNK(each.mode):
            links.append(path)
        elif stat.S_ISREG(each.mode):
            remotes.append(_remote(place, posixpath.join(place.path, path), path, each))
        else:
            raise UsageError(f"{where}: {_text(path)!r} is neither a file, a folder nor a symbolic link")
    for path, text in session.link_texts(place.path, links):
        leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(path), text))
        if text.startswith(b"/") or leads_to.split(b"/")[0] == b"..":
            raise UsageError(
                f"{where}: the symbolic link {_text(path)!r} leads out of the folder, to {_text(text)!r}",
                hint="replace it with its target, or fetch the target separately",
            )
        address = place.address(posixpath.join(place.path, path))
        remotes.append(Remote(address, _text(path), len(text), mode=_LINK_MODE))
    if not remotes:
        raise NotFound(f"the folder {where} has no files")
    return sorted(remotes, key=lambda remote: os.fsencode(remote.path))


def _remote(place: SftpLocation, full: bytes, name: bytes, status: Status) -> Remote:
    mode = 0o755 if status.mode & stat.S_IXUSR else 0o644
    return Remote(place.address(full), _text(name), status.size, validator=status.validator, mode=mode)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
