"""rsync://host/module/path and rsync+ssh://user@host/path: whole folders with the program rsync."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fairmile.base import commands
from fairmile.base.errors import FairmileError, NotFound, SystemFailure, Transient, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers.command import Growth, last_words, passed_on
from fairmile.transfer.remote import Context, Remote
from fairmile.transfer.sftp import SftpLocation

_MODULE = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_. -]*")
_LISTED = re.compile(r"(\S{10}\S?) +([0-9]+) ([0-9/?]+) ([0-9:?]+) (.+)")
_ESCAPED = re.compile(rb"\\#([0-3][0-7]{2})")
_WILDCARD = re.compile(r"[*?\[]")
_LINK_MODE = 0o120000
_NOTHING_THERE = 23  # some files could not be had; when it comes with no list at all, what was named is not there
_TRANSIENT = frozenset({10, 12, 24, 30, 35, 255})  # socket, broken stream, vanished files, timeouts, ssh


class _Entry(NamedTuple):
    kind: str  # the first letter of `ls -l`
    size: int
    modified: str
    path: bytes
    link: bytes
    executable: bool


class Rsync:
    """Brings folders with rsync, which sends only what is missing and checks what it sent.

    Files grow in place, so that the next attempt goes on with what an interrupted one left.
    """

    def __init__(self, context: Context, *, config: Path | None = None) -> None:
        self._context = context
        self._config = config

    def find(self, address: str) -> list[Remote]:
        place = _parse(address)
        top, entries = self._list(place, address, is_deep=True)
        remotes = []
        for entry in entries:
            name = entry.path.removeprefix(top or b"")
            if entry.kind == "d":
                continue
            if entry.kind not in "-l":
                raise UsageError(f"{shown_address(address)}: {_text(name)!r} is neither a file, a folder nor a link")
            if entry.kind == "l":
                leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(name), entry.link))
                if entry.link.startswith(b"/") or leads_to.split(b"/")[0] == b"..":
                    raise UsageError(
                        f"{shown_address(address)}: the symbolic link {_text(name)!r} leads out of the folder",
                        hint="replace it with its target, or fetch the target separately",
                    )
            mode = _LINK_MODE if entry.kind == "l" else 0o755 if entry.executable else 0o644
            remotes.append(
                Remote(address, _text(name), entry.size, validator=f"{entry.size}-{entry.modified}", mode=mode)
            )
        if not remotes:
            raise NotFound(f"the folder {shown_address(address)} has no files")
        return sorted(remotes, key=lambda remote: os.fsencode(remote.path))

    def bring(self, address: str, folder: Path, on_bytes: Callable[[int], None]) -> None:
        place = _parse(address)
        top, _ = self._list(place, address, is_deep=False)
        is_folder = top is not None
        growth = Growth(folder, on_bytes)
        options = ["--recursive", "--links", "--times", "--chmod=Du+rwx,Fu+rw", "--inplace", "--progress"]
        if is_folder:  # what an earlier attempt brought and is gone now must not stay
            options.append("--delete")
            place = place._replace(path=place.path.rstrip(b"/") + b"/")
        self._run(place, address, options, [f"{folder.absolute()}/"], growth.look_now_and_then)
        growth.look()

    def _list(self, place: SftpLocation, address: str, *, is_deep: bool) -> tuple[bytes | None, list[_Entry]]:
        """Return what stands before the paths of a folder, None when it is a file, and what is there."""
        options = ["--list-only", "--links", "--no-human-readable", *(["--recursive"] if is_deep else [])]
        lines = self._run(place, address, options, []).splitlines()
        entries = [_entry(line, address) for line in lines]
        name = posixpath.basename(place.path)  # empty where the path ends in a slash: then "." stands for the folder
        first = next((entry for entry in entries if entry.path == (name or b".")), None)
        if first is None:
            raise NotFound(f"{shown_address(address)} does not exist")
        if first.kind == "l":
            raise UsageError(
                f"{shown_address(address)} is a symbolic link, which rsync does not follow",
                hint="name what it leads to, or add a '/' when that is a folder",
            )
        if first.kind != "d":
            return None, entries
        return (name + b"/" if name else b""), entries

    def _run(
        self,
        place: SftpLocation,
        address: str,
        options: Sequence[str],
        target: Sequence[str],
        on_wait: Callable[[], None] | None = None,
    ) -> str:
        # In the C locale every byte that is not a plain letter is shown by its number, so that no name is misread.
        env = {**passed_on(self._context.environ), "LC_ALL": "C", "TZ": "UTC"}
        path = _literal(os.fsdecode(place.path))
        host = f"[{place.host}]" if ":" in place.host else place.host
        if place.scheme == "rsync":
            login = self._context.credentials.login(place.host)
            user = place.user or (login.user if login else "")
            if login is not None and user == login.user:
                env["RSYNC_PASSWORD"] = login.password
            at, port = f"{user}@" if user else "", f":{place.port}" if place.port else ""
            source, how = f"rsync://{at}{host}{port}{path}", ["--no-motd", "--contimeout=30"]
        else:
            ssh = commands.Ssh(place.host, options=place.options, config=self._config).argv("")
            # rsync itself takes the words apart and adds the host; with --protect-args no shell sees the path.
            source, how = f"{host}:{path}", ["--protect-args", "--rsh=" + " ".join(map(_quoted, ssh[:-2]))]
        argv = ["rsync", *how, "--timeout=60", *options, "--", source, *target]
        result = self._context.runner.run(argv, env=env, check=False, on_wait=on_wait)
        if result.exit_code != 0:
            raise _failure(address, result.exit_code, result.stderr, is_list=not target)
        return result.stdout


def _parse(address: str) -> SftpLocation:
    place = SftpLocation.parse(address, ("rsync", "rsync+ssh"))
    if any(byte < 32 for byte in place.path):
        raise UsageError(f"{shown_address(address)!r} contains a control character, which rsync does not support")
    if b"\\" in place.path and _WILDCARD.search(os.fsdecode(place.path)):
        raise UsageError(
            f"{shown_address(address)!r} contains a backslash and a wildcard; rsync accepts only one of them"
        )
    if place.scheme == "rsync":
        module, _, path = place.path[1:].partition(b"/")
        if not place.path.startswith(b"/") or not _MODULE.fullmatch(module):
            raise UsageError(
                f"{shown_address(address)!r} does not name a module of an rsync server",
                hint=f"`rsync rsync://{place.host}/` lists them; then give rsync://host/module/path",
            )
        if path.startswith(b"-"):  # the server parts the path from its module before it looks for options
            path = b"./" + path
        return place._replace(path=b"/" + module + b"/" + path)
    return place._replace(path=place.path + b"/") if place.path in (b".", b"..") else place


def _literal(path: str) -> str:
    """Return a path that rsync does not take for a pattern."""
    return _WILDCARD.sub(r"\\\g<0>", path)


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if re.search(r"[\s\"']", word) else word


def _entry(line: str, address: str) -> _Entry:
    match = _LISTED.fullmatch(line)
    if match is None:
        raise SystemFailure(f"rsync lists {shown_address(address)} in an unknown format: {line[:200]!r}")
    mode, size, day, hour, shown = match.groups()
    path = _ESCAPED.sub(lambda octal: bytes([int(octal[1], 8)]), shown.encode())
    link = b""
    if mode[0] == "l":  # the size is that of the link's text, so an arrow within a name does no harm
        path, arrow, link = path[: -int(size) - 4], path[-int(size) - 4 : -int(size)], path[-int(size) :]
        if arrow != b" -> ":
            raise SystemFailure(f"rsync lists {shown_address(address)} in an unknown format: {line[:200]!r}")
    return _Entry(mode[0], int(size), f"{day}-{hour}", path, link, mode[3] in "xs")


def _failure(address: str, code: int, printed: str, *, is_list: bool) -> FairmileError:
    message = f"rsync could not fetch {shown_address(address)} (exit code {code}): {last_words(printed)}"
    if code == _NOTHING_THERE and is_list:
        return NotFound(message)
    if code in _TRANSIENT:
        return Transient(message)
    return SystemFailure(message, hint="try the same with rsync by hand; a password for a module goes into ~/.netrc")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
