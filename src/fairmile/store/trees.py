"""Trees: lists of files with their digests, each named by its Merkle root, as text files below one pool's folder."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path

from fairmile.base.digest import ManifestEntry, MerkleTree, manifest_text, merkle_root, parse_manifest, small_sha256
from fairmile.base.errors import FairmileError, Integrity, InvalidDocument, NotFound, UsageError
from fairmile.base.files import sync_folder
from fairmile.store.objects import Damage, fanned_out, fanned_path, make_folder, publish, seal, size_of, unlink, writing
from fairmile.store.packs import write_all

_IS_SHA256 = re.compile(r"[0-9a-f]{64}").fullmatch
_MODES = frozenset({0o644, 0o755, 0o120000})
_LINES_AT_ONCE = 1000
_TEXT_BYTES = 256 << 10
_FOLDER_MODE = 0o40000


class Trees:
    """The trees of one pool folder; a tree stays readable, and cheap in memory, with ten million files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = os.path.join(root, "trees")

    def __contains__(self, root: object) -> bool:
        return isinstance(root, str) and size_of(fanned_path(self._folder, root)) is not None

    def put(self, entries: Iterable[ManifestEntry]) -> str:
        """Store a tree and return its Merkle root.

        A list or tuple may come in any order. Any other iterable must come sorted by the bytes of the path; it is
        read once, with memory that grows with the depth of the tree only.
        """
        staging = os.path.join(self.root, "incoming", f"tree-{os.urandom(8).hex()}")
        file = f"{staging}/manifest"
        try:
            with writing(file):
                make_folder(self.root, staging)
            root = _write(file, entries)
            target = fanned_path(self._folder, root)
            with writing(target):
                seal(file)
                make_folder(self.root, os.path.dirname(target))
                publish(file, target)
                sync_folder(os.path.dirname(target))
                sync_folder(self._folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return root

    def entries(self, root: str) -> Iterator[ManifestEntry]:
        """Return the files of a tree, sorted by the bytes of their paths, read as they are asked for.

        Integrity, at the end at the latest, when they are not those that the root stands for.
        """
        if root not in self:
            raise NotFound(f"the tree {root} is not in the pool {self.root}", hint="fetch it again")
        return _checked(fanned_path(self._folder, root), root)

    def digests(self, root: str) -> Iterator[str]:
        """Return the digests of a tree's files, as `entries` does but many times as fast: their paths stay unread."""
        if root not in self:
            raise NotFound(f"the tree {root} is not in the pool {self.root}", hint="fetch it again")
        return _checked_digests(fanned_path(self._folder, root), root)

    def roots(self) -> Iterator[str]:
        """Yield the root of every tree, sorted."""
        return (root for root, _, _ in fanned_out(self._folder))

    def remove(self, roots: Collection[str]) -> int:
        """Remove trees, not their objects, and return how many bytes of disk that gives back."""
        freed = 0
        for root in roots:
            path = fanned_path(self._folder, root)
            with writing(path):
                freed += unlink(path)
        return freed

    def verify(self) -> Iterator[Damage]:
        """Yield every tree whose text is not what its name says."""
        for root, path, _ in fanned_out(self._folder):
            try:
                actual = merkle_root(_read(path))
            except FileNotFoundError:  # removed meanwhile
                continue
            except FairmileError as error:
                yield Damage(root, Path(path), error.message)
                continue
            if actual != root:
                yield Damage(root, Path(path), f"its entries have the root {actual}")


def _write(file: str, entries: Iterable[ManifestEntry]) -> str:
    """Write the manifest of entries and return its Merkle root."""
    with writing(file):
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def written() -> Iterator[ManifestEntry]:
        source, size = _in_order(entries), 0
        while group := list(islice(source, _LINES_AT_ONCE)):
            for entry in group:
                _check(entry)
            text = manifest_text(group).encode()
            with writing(file):
                write_all(fd, text, size)
            size += len(text)
            yield from group

    try:
        return merkle_root(written())
    finally:
        os.close(fd)


def _read(path: str) -> Iterator[ManifestEntry]:
    with open(path, "rb", buffering=1 << 20) as stream:
        yield from read_manifest(stream, path)


def _checked(path: str, root: str) -> Iterator[ManifestEntry]:
    tree = MerkleTree()
    for entry in _read(path):
        try:
            tree.add(entry)
        except UsageError as error:
            raise _damaged(path) from error
        yield entry
    if tree.root() != root:
        raise _damaged(path)


def _checked_digests(path: str, root: str) -> Iterator[str]:
    """Yield the digests in a manifest whose lines, as they stand, have the Merkle root.

    The lines of which a folder's digest is made are those of the manifest, less the folder; a text that is not written
    as `manifest_text` writes it has another root. What a path means is nobody's concern here.
    """
    top = _Folder("")
    stack = [top]
    with open(path, "rb") as stream:
        while data := stream.read(_TEXT_BYTES) + stream.readline():
            try:
                yield from _read_digests(data.decode(), stack)
            except ValueError as error:
                raise _damaged(path) from error
    _go_to("", stack)
    if top.sha256.hexdigest() != root:
        raise _damaged(path)


def _read_digests(text: str, stack: list[_Folder]) -> list[str]:
    """Take whole lines of a manifest into the folders that are open and return their digests.

    As few steps as can be are done for each line: this decides how soon a fetch of what is there is over.
    """
    lines = text.split("\n")
    fields = text.replace("\n", "\t").split("\t")
    if lines.pop() or len(fields) != 4 * len(lines) + 1:
        raise ValueError("the text is cut off")
    sizes, digests = fields[1::4], fields[2::4]
    if set(map(len, digests)) != {64} or len(bytes.fromhex("".join(digests))) != 32 * len(digests):
        raise ValueError("a digest is wrong")
    start = 0
    for folder, group in groupby(name[: name.rfind("/") + 1] for name in fields[0:-1:4]):
        stop = start + sum(1 for _ in group)
        if folder != stack[-1].path:
            _go_to(folder, stack)
        whole = "\n".join(lines[start:stop]) + "\n"
        stack[-1].add(whole[len(folder) :].replace(f"\n{folder}", "\n"), sum(map(int, sizes[start:stop])))
        start = stop
    return digests


class _Folder:
    """A folder of which the files are being read; its path ends in a slash, that of the top is empty."""

    __slots__ = ("path", "sha256", "size_bytes")

    def __init__(self, path: str) -> None:
        self.path = path
        self.size_bytes = 0
        self.sha256 = small_sha256()

    def add(self, lines: str, size_bytes: int) -> None:
        self.sha256.update(lines.encode())
        self.size_bytes += size_bytes


def _go_to(path: str, stack: list[_Folder]) -> None:
    """Close the folders that `path` is not below, and open those that lead to it."""
    while not path.startswith(stack[-1].path):
        done = stack.pop()
        name = done.path[len(stack[-1].path) :]
        line = f"{name}\t{done.size_bytes}\t{done.sha256.hexdigest()}\t{_FOLDER_MODE:o}\n"
        stack[-1].add(line, done.size_bytes)
    while (at := len(stack[-1].path)) < len(path):
        stack.append(_Folder(path[: path.index("/", at) + 1]))


def _damaged(path: str) -> Integrity:
    return Integrity(
        f"the tree {path} is damaged: its files do not match its digest",
        hint="fetch it again, or run `fairmile store repair`, which writes it anew",
    )


def read_manifest(stream: Iterable[bytes], name: str) -> Iterator[ManifestEntry]:
    """Yield the entries of a manifest given as lines, read as they are asked for; `name` says whose it is."""
    lines_before, rest = 0, iter(stream)
    while lines := list(islice(rest, _LINES_AT_ONCE)):
        try:
            yield from parse_manifest(b"".join(lines).decode())
        except InvalidDocument as error:
            problem = error.problems[0]
            line = lines_before + (problem.line or 0)
            raise Integrity(f"{name}:{line}: {problem.message}", hint="fetch the tree again") from error
        except UnicodeDecodeError as error:
            raise Integrity(f"{name} is not UTF-8 text", hint="fetch the tree again") from error
        lines_before += len(lines)


def _in_order(entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
    if not isinstance(entries, list | tuple):
        return iter(entries)
    try:
        return iter(sorted(entries, key=lambda entry: entry.path.encode("utf-8", "surrogateescape")))
    except UnicodeEncodeError as error:
        raise UsageError(f"the path {error.object!r} has characters that a file name cannot contain") from error


def _check(entry: ManifestEntry) -> None:
    """Refuse what could be written but not be read again."""
    if not _IS_SHA256(entry.sha256):
        raise UsageError(f"{entry.path}: {entry.sha256!r} is not a sha256", hint="it has 64 hex digits in lower case")
    if entry.mode not in _MODES or not 0 <= entry.size_bytes < 10**19:
        raise UsageError(
            f"{entry.path}: mode {entry.mode:o} and size {entry.size_bytes} are not those of a file",
            hint="a mode is 644, 755, or 120000 for a symbolic link",
        )
