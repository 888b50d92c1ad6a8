"""Digests that name content: sha256, RFC 6920 names, canonical JSON, manifests, Merkle roots and SWHIDs."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import InvalidDocument, Problem, SystemFailure, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass

if TYPE_CHECKING:
    import hashlib
    from hashlib import sha256 as _own_sha256
    from pathlib import Path
else:  # Python's own, as for `random`: the library behind `hashlib` takes longer to load than small data to digest
    try:
        from _sha2 import sha256 as _own_sha256
    except ImportError:
        try:
            from _sha256 import sha256 as _own_sha256
        except ImportError:
            from hashlib import sha256 as _own_sha256

_HEX_LENGTHS = {"crc32c": 8, "md5": 32, "sha1": 40, "sha224": 56, "sha256": 64, "sha384": 96, "sha512": 128}
# Eight letters may be any word, so a crc32c must be called one.
_BY_LENGTH = {length: name for name, length in _HEX_LENGTHS.items() if name != "crc32c"}
_PREFIXED = lazy_pattern(r"(crc32c|md5|sha-?(?:1|224|256|384|512))\s*[:=-]\s*(\S+)", re.IGNORECASE)
_NI = lazy_pattern(r"ni://[^/;?#\s]*/sha-256;([A-Za-z0-9_-]{43})")
_HEX = lazy_pattern(r"[0-9a-fA-F]+")
_SHA256 = lazy_pattern(r"[0-9a-f]{64}")
_SIZE = lazy_pattern(r"0|[1-9][0-9]{0,18}")
_MODE = lazy_pattern(r"[0-7]{1,6}")
_CHUNK, _SMALL = 1 << 20, 32 << 10
_LINK_MODE = 0o120000
_FOLDER_MODE = 0o40000


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of `data` in lower-case hex."""
    digest = small_sha256() if len(data) <= _SMALL else large_sha256()
    digest.update(data)
    return digest.hexdigest()


def small_sha256(data: bytes = b"") -> hashlib._Hash:
    """Return a sha256 for little data."""
    return _own_sha256(data)


def large_sha256() -> hashlib._Hash:
    """Return a sha256 for much data: it is several times as fast, once it is loaded."""
    from hashlib import sha256

    return sha256()


def sha256_file(path: str | os.PathLike[str], *, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the sha256 of a file in lower-case hex, telling `on_bytes` the size of each piece as it is read."""
    digest: hashlib._Hash | None = None
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for piece in _pieces(descriptor):
            if digest is None:
                digest = small_sha256() if len(piece) < _SMALL else large_sha256()
            digest.update(piece)
            if on_bytes is not None:
                on_bytes(len(piece))
    finally:
        os.close(descriptor)
    return (digest or small_sha256()).hexdigest()


def _pieces(descriptor: int) -> Iterator[bytes | memoryview]:
    """Yield what a file holds: most are small, and read at once; then once more to see that this was all."""
    while piece := os.read(descriptor, _SMALL):
        yield piece
        if len(piece) == _SMALL:
            break
    else:
        return
    buffer = memoryview(bytearray(_CHUNK))
    while count := os.readv(descriptor, [buffer]):
        yield buffer[:count]


@lru_cache(maxsize=64)  # a card is asked for the same few several times
def ni(sha256_hex: str) -> str:
    """Return the RFC 6920 name of a sha256 given in hex."""
    if not _SHA256.fullmatch(sha256_hex.lower()):
        raise UsageError(f"{sha256_hex!r} is not a sha256", hint="a sha256 has 64 hex digits")
    return "ni:///sha-256;" + base64.urlsafe_b64encode(bytes.fromhex(sha256_hex)).decode().rstrip("=")


def from_ni(text: str) -> str:
    """Return the sha256 in hex that an RFC 6920 name carries."""
    match = _NI.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not an ni: name of a sha256", hint="it looks like ni:///sha-256;… with 43 characters"
        )
    raw = base64.urlsafe_b64decode(match[1] + "=")
    if ni(raw.hex()).rpartition(";")[2] != match[1]:
        # 43 characters hold 258 bits; the last two must be zero or two names would mean one digest.
        raise UsageError(f"{text!r} is not an ni: name of a sha256: its last character is out of range")
    return raw.hex()


@dataclass(frozen=True)
class Checksum:
    """A digest together with its algorithm; `hex` is lower case."""

    algorithm: str
    hex: str


def parse_checksum(text: str, algorithm: str | None = None) -> Checksum | None:
    """Return the checksum that `text` states in any usual notation, or None when it states none.

    Hex, `sha256:…`, `sha256-…` (base64 as in web pages), padded base64 and `ni:` names are understood. Without
    `algorithm` the length decides. A text that contradicts `algorithm` states none.
    """
    text = text.strip()
    wanted = _algorithm_name(algorithm) if algorithm is not None else None
    if algorithm is not None and wanted is None:
        return None
    if text.startswith("ni:"):
        try:
            return Checksum("sha256", from_ni(text)) if wanted in (None, "sha256") else None
        except UsageError:
            return None
    match = _PREFIXED.fullmatch(text)
    if match is not None:
        stated = _algorithm_name(match[1])
        if wanted not in (None, stated):
            return None
        wanted, text = stated, match[2]
    if _HEX.fullmatch(text):
        guess = "crc32c" if wanted == "crc32c" and len(text) == 8 else _BY_LENGTH.get(len(text))
        if guess is not None and wanted in (None, guess):
            return Checksum(guess, text.lower())
        if wanted != "crc32c":
            return None
    return _parse_base64(text, wanted)


def _algorithm_name(text: str) -> str | None:
    name = text.strip().lower().replace("-", "").replace("_", "")
    return name if name in _HEX_LENGTHS else None


def _parse_base64(text: str, wanted: str | None) -> Checksum | None:
    # Unpadded text of the right length may be any word, so without a stated algorithm padding is required.
    if wanted is None and not text.endswith("="):
        return None
    try:
        raw = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return None
    guess = "crc32c" if wanted == "crc32c" and len(raw) == 4 else _BY_LENGTH.get(2 * len(raw))
    return Checksum(guess, raw.hex()) if guess is not None and wanted in (None, guess) else None


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a JSON value, the only form that is ever digested or signed."""
    plain = plain_json(value)
    if plain is not None:
        return plain
    import rfc8785

    try:
        return rfc8785.dumps(value)
    except RecursionError as error:
        raise UsageError("the value is nested too deeply for JSON") from error
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        place, culprit = _not_canonical(value)
        where = f" at {place}" if place else ""
        if "\\udc" in culprit:  # how Python reads a byte of a file name that is no UTF-8
            raise UsageError(f"{culprit}{where} is not valid UTF-8", hint="rename the file or folder") from error
        raise UsageError(
            f"{culprit}{where} has no canonical JSON form",
            hint="numbers must be finite, whole ones within ±2^53; texts must be valid Unicode, and keys texts",
        ) from error


def plain_json(value: Any) -> bytes | None:
    """Return the canonical JSON of a plain value by the standard library, many times as fast; None of any other."""
    try:
        return _PLAIN_JSON(value).encode() if _is_plain(value) else None
    except (RecursionError, UnicodeEncodeError):
        return None


_PLAIN_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
_EXACT = 1 << 53  # whole numbers that canonical JSON can write are smaller


def _is_plain(value: Any) -> bool:
    """Tell whether a value has only texts, small whole numbers, true, false and null, and keys of ASCII."""
    kind = type(value)
    if kind is str:
        return True
    if kind is int:
        return bool(-_EXACT < value < _EXACT)
    if kind is dict:
        return all(type(key) is str and key.isascii() and _is_plain(each) for key, each in value.items())
    if kind is list:
        return all(map(_is_plain, value))
    return value is None or kind is bool


def _not_canonical(value: Any) -> tuple[str, str]:
    """Return the path and a short rendering of the first part that canonical JSON refuses."""
    import rfc8785

    todo: list[tuple[str, Any]] = [("", value)]
    while todo:
        path, part = todo.pop()
        if isinstance(part, dict):
            for key, inner in part.items():
                if not isinstance(key, str):
                    return path, f"the key {key!r}"
                todo.append((f"{path}.{key}" if path else key, inner))
            children = list(part)
        elif isinstance(part, (list, tuple)):
            todo.extend((f"{path}[{index}]", inner) for index, inner in enumerate(part))
            children = []
        else:
            children = [part]
        for child in children:
            try:
                rfc8785.dumps(child)
            except (rfc8785.CanonicalizationError, UnicodeEncodeError):
                shown = repr(child)
                return path, shown if len(shown) <= 60 else shown[:57] + "..."
    return "", "the value"


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file of a tree: `path` uses '/', `mode` is 0o644, 0o755, or 0o120000 for a symbolic link."""

    path: str
    size_bytes: int
    sha256: str
    mode: int


def manifest_text(entries: Iterable[ManifestEntry]) -> str:
    r"""Return the manifest: a line per file with path, size, sha256 and octal mode, sorted by the path's bytes.

    Fields are separated by a tab and lines end in LF. In a path, a tab, LF, CR and backslash are written \t, \n,
    \r and \\, and a byte that is not UTF-8 is written \xNN.
    """
    ordered = sorted(entries, key=lambda entry: _path_bytes(entry.path))
    return "".join(_line(entry.path, entry.size_bytes, entry.sha256, entry.mode) for entry in ordered)


def parse_manifest(text: str) -> list[ManifestEntry]:
    """Return the entries of a manifest, or raise InvalidDocument that names the line."""
    lines = text.split("\n")
    if lines.pop():
        raise _bad_manifest(len(lines) + 1, "the last line has no line feed: the manifest is truncated")
    return [_parse_line(line, number) for number, line in enumerate(lines, 1)]


def _parse_line(line: str, number: int) -> ManifestEntry:
    fields = line.split("\t")
    if len(fields) != 4:
        raise _bad_manifest(
            number, f"expected path, size, sha256 and mode separated by tabs, found {len(fields)} fields"
        )
    path, size, digest, mode = fields
    if not _SIZE.fullmatch(size):
        raise _bad_manifest(number, f"the size {size!r} is not a whole number")
    if not _SHA256.fullmatch(digest):
        raise _bad_manifest(number, f"{digest!r} is not a sha256 of 64 lower-case hex digits")
    if not _MODE.fullmatch(mode):
        raise _bad_manifest(number, f"the mode {mode!r} is not an octal number")
    try:
        return ManifestEntry(_unescape(path), int(size), digest, int(mode, 8))
    except ValueError as error:
        raise _bad_manifest(number, str(error)) from error


def _bad_manifest(number: int, message: str) -> InvalidDocument:
    return InvalidDocument([Problem(message, field="manifest", line=number)])


def _line(name: str, size_bytes: int, digest: str, mode: int) -> str:
    return f"{_escape(name)}\t{size_bytes}\t{digest}\t{mode:o}\n"


def _escape(path: str) -> str:
    if path.isprintable() and "\\" not in path:
        return path
    out = path.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    # os.fsdecode hides a byte that is not UTF-8 in U+DC80 to U+DCFF.
    return re.sub("[\udc80-\udcff]", lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", out)


def _unescape(text: str) -> str:
    if text and "\\" not in text:
        return text
    plain = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}

    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if code in plain:
            return plain[code]
        if len(code) == 3 and int(code[1:], 16) >= 0x80:
            return chr(0xDC00 + int(code[1:], 16))
        raise ValueError(f"the path holds the unknown escape \\{code}")

    path = re.sub(r"\\(x[0-9a-f]{2}|.|$)", replace, text, flags=re.DOTALL)
    if not path:
        raise ValueError("the path is empty")
    return path


def _path_bytes(path: str) -> bytes:
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the path {path!r} holds characters that no file name can have") from error


@dataclass(slots=True)
class _Folder:
    name: bytes
    digest: Any = field(default_factory=small_sha256)
    size_bytes: int = 0
    # File names that are a prefix of the latest name: only these can still turn up as a folder's name.
    files: list[bytes] = field(default_factory=list)

    def add(self, name: bytes, is_folder: bool, size_bytes: int, digest: str, mode: int) -> None:
        shown = name.decode("utf-8", "surrogateescape") + ("/" if is_folder else "")
        self.digest.update(_line(shown, size_bytes, digest, mode).encode())
        self.size_bytes += size_bytes

    def enter(self, name: bytes, is_folder: bool) -> None:
        while self.files and not name.startswith(self.files[-1]):
            self.files.pop()
        if name in self.files:
            raise UsageError(f"the path {os.fsdecode(name)!r} is listed twice, or as a file and as a folder")
        if not is_folder:
            self.files.append(name)


class MerkleTree:
    """Computes the digest of a tree from its files, given one after the other, sorted by the bytes of their paths.

    The digest of a folder is the sha256 over the lines of its children. A file's line is
    ``name TAB size TAB sha256 TAB octal mode LF``; a folder's line is ``name/ TAB size TAB digest TAB 40000 LF``,
    where size is the sum over all files below it. Names are escaped as in `manifest_text`, and lines are sorted by
    the bytes of the name, a folder's name taken with its slash. Empty folders do not count; an empty tree has the
    digest of no bytes. Memory grows with the depth only.
    """

    def __init__(self) -> None:
        self._stack = [_Folder(b"")]
        self._last = b""

    def add(self, entry: ManifestEntry) -> None:
        """Take the next file."""
        stack, path = self._stack, _path_bytes(entry.path)
        *folders, name = path.split(b"/")
        if not all(part not in (b"", b".", b"..") for part in (*folders, name)):
            raise UsageError(f"the path {entry.path!r} is not a plain relative path")
        if self._last >= path:
            problem = "is listed twice" if self._last == path else "is out of order"
            raise UsageError(f"the path {entry.path!r} {problem}", hint="sort entries by the bytes of their paths")
        self._last = path
        same = 0
        while same < min(len(folders), len(stack) - 1) and stack[same + 1].name == folders[same]:
            same += 1
        while len(stack) > same + 1:
            _close(stack)
        for part in folders[same:]:
            stack[-1].enter(part, True)
            stack.append(_Folder(part))
        stack[-1].enter(name, False)
        stack[-1].add(name, False, entry.size_bytes, entry.sha256, entry.mode)

    def root(self) -> str:
        """Return the sha256 in hex that stands for all files; none may follow."""
        while len(self._stack) > 1:
            _close(self._stack)
        return str(self._stack[0].digest.hexdigest())


def merkle_root(entries: Iterable[ManifestEntry]) -> str:
    """Return the sha256 in hex that stands for a whole tree of files; see `MerkleTree`.

    A list or tuple is sorted here; any other iterable must come sorted by the bytes of the path.
    """
    if isinstance(entries, (list, tuple)):
        entries = sorted(entries, key=lambda entry: _path_bytes(entry.path))
    tree = MerkleTree()
    for entry in entries:
        tree.add(entry)
    return tree.root()


def _close(stack: list[_Folder]) -> None:
    done = stack.pop()
    stack[-1].add(done.name, True, done.size_bytes, done.digest.hexdigest(), _FOLDER_MODE)


def scan_tree(root: Path, *, links_may_lead_out: bool = False) -> Iterator[ManifestEntry]:
    """Yield every file below `root`, sorted by the bytes of its path, with size, sha256 and mode.

    The mode is 0o755 for what its owner may execute and else 0o644, so that the umask leaves no trace. A symbolic
    link is an entry of its own (mode 0o120000, the digest is that of its target's text) and is never followed;
    one that leads out of `root`, unless that is allowed, or a pipe, socket or device, raises UsageError.
    """
    top = os.path.realpath(root)
    stack = [_sorted_folder(os.fspath(root))]
    prefixes = [""]
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
            prefixes.pop()
            continue
        path = prefixes[-1] + item.name
        if item.is_dir(follow_symlinks=False):
            stack.append(_sorted_folder(item.path))
            prefixes.append(path + "/")
        elif item.is_symlink():
            target = os.readlink(item.path)
            real = os.path.realpath(item.path)
            leads_out = target.startswith("/") or (real != top and not real.startswith(top.rstrip("/") + "/"))
            if leads_out and not links_may_lead_out:
                raise UsageError(f"the symbolic link {item.path} leads out of {root}, to {target}")
            data = os.fsencode(target)
            yield ManifestEntry(path, len(data), sha256_hex(data), _LINK_MODE)
        elif item.is_file(follow_symlinks=False):
            sizes: list[int] = []
            digest = sha256_file(item.path, on_bytes=sizes.append)
            executable = item.stat(follow_symlinks=False).st_mode & stat.S_IXUSR
            yield ManifestEntry(path, sum(sizes), digest, 0o755 if executable else 0o644)
        else:
            raise UsageError(f"{item.path} is neither a file, a folder nor a symbolic link", hint="remove it")


def content_sha256(path: Path) -> str:
    """Return the sha256 of a file, or the root of the tree that a folder is."""
    return merkle_root(scan_tree(path)) if path.is_dir() else sha256_file(path)


def _sorted_folder(path: str) -> Iterator[os.DirEntry[str]]:
    def key(item: os.DirEntry[str]) -> bytes:
        return os.fsencode(item.name) + (b"/" if item.is_dir(follow_symlinks=False) else b"")

    try:
        with os.scandir(path) as items:
            return iter(sorted(items, key=key))
    except OSError as error:
        raise SystemFailure(f"cannot list the folder {path}: {error.strerror}") from error


def swhid_content(data: bytes) -> str:
    """Return the SWHID of a file's content, which equals git's blob id."""
    return "swh:1:cnt:" + _git_object("blob", data).hex()


def swhid_directory(root: Path) -> str:
    """Return the SWHID of a folder, which equals the id of the tree that git would store.

    As in git, `.git` and empty folders are left out, only the execute bit counts, and links are not followed.
    """
    # Each level holds the folder's remaining items, its finished lines, and its name in the level above.
    stack: list[tuple[Iterator[os.DirEntry[str]], list[bytes], bytes]] = [(_sorted_folder(os.fspath(root)), [], b"")]
    while True:
        items, lines, own_name = stack[-1]
        item = next(items, None)
        if item is None:
            stack.pop()
            digest = _git_object("tree", b"".join(lines))
            if not stack:
                return "swh:1:dir:" + digest.hex()
            if lines:
                stack[-1][1].append(b"40000 " + own_name + b"\0" + digest)
            continue
        name = os.fsencode(item.name)
        if name == b".git":
            continue
        if item.is_dir(follow_symlinks=False):
            stack.append((_sorted_folder(item.path), [], name))
        else:
            mode, blob = _git_leaf(item)
            lines.append(mode + b" " + name + b"\0" + blob)


def _git_leaf(item: os.DirEntry[str]) -> tuple[bytes, bytes]:
    if item.is_symlink():
        return b"120000", _git_object("blob", os.fsencode(os.readlink(item.path)))
    if not item.is_file(follow_symlinks=False):
        raise UsageError(f"{item.path} is neither a file, a folder nor a symbolic link", hint="remove it")
    with open(item.path, "rb") as stream:
        status = os.fstat(stream.fileno())
        import hashlib

        digest = hashlib.sha1(b"blob %d\0" % status.st_size, usedforsecurity=False)
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return (b"100755" if status.st_mode & stat.S_IXUSR else b"100644"), digest.digest()


def _git_object(kind: str, data: bytes) -> bytes:
    import hashlib

    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).digest()
