"""list+https://…: a text file that holds the address of one file per line.

Blank lines and lines that begin with # do not count; an address may be relative to the list's own.
`list+https://HOST/LIST#limit=N` means the first N lines alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from urllib.parse import unquote, urljoin, urlsplit

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import Integrity, InvalidDocument, NotFound, Problem, SystemFailure, Unsupported, UsageError
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import Fetchers
from fairmile.transfer.remote import Body, Context, RangeFetcher, Remote
from fairmile.transfer.schemes import scheme_of

_MOST_BYTES = 256 << 20
_LONGEST_NAME = 255
_NOT_IN_AN_ADDRESS = re.compile(r"[\s<>\"\x00-\x1f\x7f]")
_NOT_IN_A_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")
_LIMIT = re.compile(r"limit=([1-9][0-9]{0,17})")


class FileList:
    """Reads lists, and the files they name through the fetchers of their addresses."""

    def __init__(self, context: Context) -> None:
        self._fetchers = Fetchers(context)

    def find(self, address: str) -> list[Remote]:
        place, _, fragment = address.removeprefix("list+").partition("#")
        match = _LIMIT.fullmatch(fragment)
        if fragment and match is None:
            raise UsageError(f"{shown_address(address)}: expected #limit=N, found #{fragment}")
        return read_list(self._text(place), place, int(match[1]) if match else None)

    def open(self, remote: Remote, start: int, stop: int | None) -> Body:
        return self._ranged(remote.address).open(remote, start, stop)

    def close(self) -> None:
        """Close what the fetchers of the addresses keep open."""
        self._fetchers.close()

    def _text(self, address: str) -> str:
        fetcher = self._ranged(address)
        [remote, *others] = fetcher.find(address)
        if others:
            raise UsageError(f"{shown_address(address)} is a folder where a list is expected")
        data = b""
        buffer = memoryview(bytearray(1 << 20))
        with closing(fetcher.open(remote, 0, None)) as body:
            while count := body.readinto(buffer):
                data += buffer[:count]
                if len(data) > _MOST_BYTES:
                    raise SystemFailure(f"{shown_address(address)} is too large for a list of addresses")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Integrity(f"{shown_address(address)} is not text, so it is not a list of addresses") from error

    def _ranged(self, address: str) -> RangeFetcher:
        # A list in a list would have no end if it named itself.
        fetcher = None if scheme_of(address).startswith("list+") else self._fetchers.ranged(address)
        if fetcher is None:
            raise Unsupported(
                f"{shown_address(address)} is not allowed in a list: it may stand for many files",
                hint="a list names single files; fetch that address separately",
            )
        return fetcher


def read_list(text: str, base: str, limit: int | None = None) -> list[Remote]:
    """Return the files that a list at the address `base` names, or with `limit` those of its first lines.

    A file's path is its name alone; where several files share it, as many folders before it as tell them apart.
    The limit does not change a path. An address that is listed twice counts once. Lines that cannot be used raise
    InvalidDocument, which names each.
    """
    numbered = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in numbered if line and not line.startswith("#")]
    addresses: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in lines:
        try:
            addresses.setdefault(_address(line, base), number)
        except ValueError as error:
            if limit is None or number <= limit:
                problems.append(Problem(str(error), file=shown_address(base), line=number))
    if problems:
        raise InvalidDocument(problems, hint="write one address per line; a comment begins with #")
    paths = _paths(list(addresses))
    wanted = [address for address, number in addresses.items() if limit is None or number <= limit]
    if not wanted:
        raise NotFound(f"{shown_address(base)} lists no address" + (f" in its first {limit} lines" if limit else ""))
    return [Remote(address, paths[address]) for address in wanted]


def _address(line: str, base: str) -> str:
    """Return the address a line means; ValueError says why it means none."""
    shown = shown_address(line if len(line) <= 80 else line[:77] + "...")
    if _NOT_IN_AN_ADDRESS.search(line):
        raise ValueError(f"{shown!r} is not an address: it contains a space, a quote or an angle bracket")
    try:
        address = line if scheme_of(line) else urljoin(base, line)
        parts = urlsplit(address)
    except ValueError as error:
        raise ValueError(f"{shown!r} is not an address: {error}") from error
    scheme = scheme_of(address)
    if not scheme or scheme.startswith("list+"):
        raise ValueError(f"{shown!r} is not an address of a file")
    if scheme == "file" and scheme_of(base) != "file":
        raise ValueError(f"{shown!r} is a file of this machine, which a list from elsewhere cannot name")
    if scheme != "file" and not parts.netloc:
        raise ValueError(f"{shown!r} names no host")
    if _name(parts.path.rpartition("/")[2]) in ("", ".", ".."):
        raise ValueError(f"{shown!r} names a folder, not a file")
    return address


def _paths(addresses: Sequence[str]) -> dict[str, str]:
    """Return a path for each address, of as few parts from its end as keep them all apart."""
    parts = {address: list(_parts(address)) for address in addresses}
    depth = dict.fromkeys(addresses, 1)
    while True:
        paths = {address: "/".join(parts[address][-depth[address] :]) for address in addresses}
        taken = Counter(paths.values())
        folders = {path[:at] for path in taken for at, sign in enumerate(path) if sign == "/"}
        clashing = [each for each, path in paths.items() if taken[path] > 1 or path in folders]
        growing = [address for address in clashing if depth[address] < len(parts[address])]
        if not growing:
            break
        for address in growing:
            depth[address] += 1
    # Even host and folders are the same: what tells them apart is the query, or nothing that a name could show.
    queries = {address: urlsplit(address).query for address in clashing}
    asked = {address: paths[address] + (f"?{_name(query)}" if query else "") for address, query in queries.items()}
    taken += Counter(asked.values())
    for address, path in asked.items():
        folder, slash, name = path.rpartition("/")
        name = name if taken[path] == 1 and path not in folders else f"{sha256_hex(address.encode())[:12]}-{name}"
        paths[address] = folder + slash + _cut(name)
    return paths


def _parts(address: str) -> Iterator[str]:
    split = urlsplit(address)
    for part in (split.netloc.rpartition("@")[2], *split.path.split("/")):
        name = _name(part)
        if name not in ("", ".", ".."):
            yield name


def _name(part: str) -> str:
    """Return a part of an address as a file or folder can be called by it."""
    return _cut(_NOT_IN_A_NAME.sub("_", unquote(part)))


def _cut(name: str) -> str:
    """Return a name short enough for a file system, kept apart from others by a digest."""
    data = name.encode()
    if len(data) <= _LONGEST_NAME:
        return name
    stem, dot, ending = name.rpartition(".")
    ending = f"{dot}{ending}" if stem and len(ending.encode()) <= 16 else ""
    mark = f"-{sha256_hex(data)[:12]}{ending}"
    return data[: _LONGEST_NAME - len(mark.encode())].decode(errors="ignore") + mark
