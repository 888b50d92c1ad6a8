"""The files of a tree while they become known: some in memory, millions on disk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from fairmile.base.digest import ManifestEntry
from fairmile.base.errors import UsageError

if TYPE_CHECKING:
    import sqlite3

_IN_MEMORY = 1 << 16
_AT_ONCE = 1000
_CACHE_KIB = 4096
_LINK_MODE = 0o120000
_TABLE = (
    "CREATE TABLE files (path BLOB PRIMARY KEY, size TEXT, sha256 BLOB, mode INTEGER, target BLOB, "
    "repeats INTEGER) WITHOUT ROWID"
)
_PUT = (
    "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (path) DO UPDATE SET size = excluded.size, "
    "sha256 = excluded.sha256, mode = excluded.mode, target = excluded.target, "
    "repeats = repeats + 1 + excluded.repeats"
)
_Row = tuple[bytes, str, bytes, int, bytes, int]


class Listing(Collection[ManifestEntry]):
    """Files by their path, iterated sorted by its bytes; beyond some thousands they lie in a nameless file on disk.

    A path that is put again stands for the later file. `check` is called now and then while the listing is read; what
    it raises ends the reading. Threads may use it one after the other.
    """

    def __init__(
        self,
        entries: Iterable[ManifestEntry] = (),
        *,
        check: Callable[[], None] = lambda: None,
        in_memory: int = _IN_MEMORY,
    ) -> None:
        self._check = check
        self._in_memory = in_memory
        self._rows: dict[bytes, _Row] = {}
        self._has_links = self._has_repeats = False  # the latter as far as memory tells
        self._disk: sqlite3.Connection | None = None
        for entry in entries:
            self.put(entry)

    def put(self, entry: ManifestEntry, target: str = "") -> None:
        """Add a file, or replace the one of its path; `target` is where a symbolic link leads."""
        path = _bytes(entry.path)
        known = self._rows.get(path)
        repeats = known[5] + 1 if known is not None else 0
        self._has_repeats = self._has_repeats or known is not None
        self._has_links = self._has_links or entry.mode == _LINK_MODE
        self._rows[path] = (
            path, str(entry.size_bytes), bytes.fromhex(entry.sha256), entry.mode, _bytes(target), repeats
        )  # fmt: skip
        if len(self._rows) >= self._in_memory:
            self._spill()

    def get(self, path: str) -> ManifestEntry | None:
        """Return the file of a path; None where there is none."""
        row = self._row(path)
        return _entry(row) if row is not None else None

    def target(self, path: str) -> str | None:
        """Return where the symbolic link of a path leads; None where there is no link."""
        row = self._row(path)
        return _text(row[4]) if row is not None and row[3] == _LINK_MODE else None

    def links(self) -> Iterator[tuple[str, str]]:
        """Yield path and target of each symbolic link."""
        rows = self._sorted(f"WHERE mode = {_LINK_MODE}", _LINK_MODE) if self._has_links else ()
        return ((_text(row[0]), _text(row[4])) for row in rows)

    def repeated(self) -> tuple[int, str]:
        """Return how many paths were put more than once, and the first of them."""
        count, first = 0, b""
        for row in self._sorted("WHERE repeats > 0") if self._has_repeats or self._disk is not None else ():
            if row[5]:
                count, first = count + 1, first or row[0]
        return count, _text(first)

    def through(self) -> tuple[str, str] | None:
        """Return a path that leads through another file, and that file; None where there is none.

        All that begins with the name of a file follows it in the order of bytes, so few names need be remembered.
        """
        open_files: list[bytes] = []
        for row in self._sorted():
            path = row[0]
            while open_files and not path.startswith(open_files[-1]):
                open_files.pop()
            for file in open_files:
                if path[len(file) : len(file) + 1] == b"/":
                    return _text(path), _text(file)
            open_files.append(path)
        return None

    def __len__(self) -> int:
        if self._disk is None:
            return len(self._rows)
        self._spill()
        return int(self._disk.execute("SELECT count(*) FROM files").fetchone()[0])

    def __iter__(self) -> Iterator[ManifestEntry]:
        return map(_entry, self._sorted())

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, ManifestEntry) and self.get(entry.path) == entry

    def total_bytes(self) -> int:
        """Return the sizes of all files together."""
        if self._disk is None:
            return sum(int(row[1]) for row in self._rows.values())
        self._spill()
        return sum(int(size) for (size,) in self._disk.execute("SELECT size FROM files"))

    def _row(self, path: str) -> _Row | None:
        key = _bytes(path)
        row = self._rows.get(key)
        if row is None and self._disk is not None:
            row = self._disk.execute("SELECT * FROM files WHERE path = ?", (key,)).fetchone()
        return row

    def _sorted(self, where: str = "", mode: int | None = None) -> Iterator[_Row]:
        if self._disk is None:
            rows: Iterator[_Row] = iter(sorted(self._rows.values()))
        else:
            self._spill()
            rows = self._disk.execute(f"SELECT * FROM files {where} ORDER BY path")
        while some := list(islice(rows, _AT_ONCE)):
            self._check()
            yield from (row for row in some if mode is None or row[3] == mode)

    def _spill(self) -> None:
        if self._disk is None:
            import sqlite3  # slow, and needed for very many files only

            # Without a name SQLite keeps it in the system's folder for temporary files, where it vanishes in the end.
            self._disk = sqlite3.connect("", check_same_thread=False, isolation_level=None)
            self._disk.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._disk.execute("PRAGMA journal_mode = OFF")
            self._disk.execute("PRAGMA temp_store = FILE")
            self._disk.execute(_TABLE)
        self._disk.execute("BEGIN")
        self._disk.executemany(_PUT, sorted(self._rows.values()))
        self._disk.execute("COMMIT")
        self._rows.clear()


def _entry(row: _Row) -> ManifestEntry:
    return ManifestEntry(_text(row[0]), int(row[1]), row[2].hex(), row[3])


def _bytes(path: str) -> bytes:
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UsageError(f"the path {path!r} has characters that a file name cannot contain") from error


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
