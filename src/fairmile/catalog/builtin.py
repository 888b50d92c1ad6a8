"""The cards that ship with the package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fairmile.catalog.declared import BUILTIN
from fairmile.catalog.folder import CatalogFolder, Stamp
from fairmile.catalog.identity import Handle

_CARD_OF_BENCHMARK = "card.jsonld"


class _Builtin(CatalogFolder):
    """The cards shipped with the package, those of benchmarks in their own folders; they change only with it."""

    @property
    def suite(self) -> Path:
        return self.root.parents[1] / "benchmarks" / "suite"

    def generation(self) -> str:
        try:
            names = [name.stat().st_mtime_ns for kind in os.scandir(self.cards_root) for name in os.scandir(kind)]
            names += [status.st_mtime_ns for _, status in self._of_suite()]
        except OSError:
            return ""
        return f"{self.root} {len(names)} {max(names, default=0)}"

    def scan(self) -> Iterator[tuple[str, Stamp]]:
        yield from super().scan()
        for file, status in self._of_suite():
            yield os.path.relpath(file, self.cards_root), Stamp(status.st_size, status.st_mtime_ns)

    def relative_path(self, handle: Handle) -> str:
        own = self.suite / handle.name / _CARD_OF_BENCHMARK
        is_own = handle.kind == "benchmark" and own.is_file()
        return os.path.relpath(own, self.cards_root) if is_own else super().relative_path(handle)

    def _of_suite(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in os.scandir(self.suite):
            file = Path(folder.path, _CARD_OF_BENCHMARK)
            with suppress(FileNotFoundError, NotADirectoryError):
                yield file, file.stat()


def builtin_folder() -> CatalogFolder:
    """Return the catalog that ships with the package."""
    return _Builtin(BUILTIN, Path(__file__).with_name("data"))
