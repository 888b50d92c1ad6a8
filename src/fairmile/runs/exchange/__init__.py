"""Exchange of runs with other programs: one module for each format."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fairmile.base.errors import FairmileError, InvalidDocument, Problem
from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.registry import Plugin, Registry
from fairmile.runs.record.crate import card_text
from fairmile.runs.record.layout import CARD, write_record
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run

if TYPE_CHECKING:
    from fairmile.runs.record.packing import extract
else:
    extract = lazy("fairmile.runs.record.packing:extract")

_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)

Files = Callable[[], Iterable[tuple[str, Path]]]  # names, written with '/', and where the files lie


@contextlib.contextmanager
def well_formed(place: Path | str, what: str) -> Iterator[None]:
    """Turn what a malformed document of another program makes a reader trip over into one sentence that names it."""
    try:
        yield
    except FairmileError:
        raise
    except KeyError as error:
        raise InvalidDocument([Problem(f"is missing in {what}", file=str(place), field=str(error.args[0]))]) from error
    except _MALFORMED as error:
        raise InvalidDocument([Problem(f"cannot be read as {what}: {error}", file=str(place))]) from error


def no_files() -> Iterable[tuple[str, Path]]:
    """Yield nothing: an export without code."""
    return ()


@dataclass(frozen=True)
class ImportedRun:
    """A run that another program or another workspace recorded; `record` is what run.json is to hold.

    `files` are the names of what comes with it: its log, what it printed, what it made; in an RO-Crate also its program
    below `code/` and what went in below `inputs/`.
    """

    record: RunRecord
    files: tuple[str, ...]
    source: str  # what it was read from, in words
    lay_files: Callable[[Path], object]

    @property
    def id(self) -> str:
        return self.record.id

    def lay(self, folder: Path) -> Run:
        """Write the run into a new folder: its files, its record and a card of its own."""
        with well_formed(self.source, "a run"):
            self.lay_files(folder)
            write_record(folder, self.record)
            write_atomic(folder / CARD, card_text(self.record, folder))
        return Run(self.record, folder)


class Exchange(Protocol):
    """Writes runs in one foreign form and reads them back."""

    def export(self, run: Run, target: Path, *, code: Files = no_files, most_input_bytes: int = 0) -> list[Path]:
        """Write a run to `target` and return what was written.

        `code` yields the program of the run. What went in is taken along up to `most_input_bytes`; the rest is named
        by its digest. A form that has no place for either leaves it out.
        """
        ...

    def read(self, source: Path) -> list[ImportedRun]:
        """Return the runs that a file or folder holds."""
        ...


_HERE = "fairmile.runs.exchange"
EXCHANGES: Registry[Exchange] = Registry(
    "exchange",
    {
        "rocrate": Plugin(f"{_HERE}.rocrate", summary="RO-Crate (zip) that another workspace imports and reruns"),
        "mlflow": Plugin(f"{_HERE}.mlflow", extra="interop", summary="MLflow 3 store (SQLite) in a folder"),
        "clearml": Plugin(f"{_HERE}.clearml", summary="ClearML offline session (zip)"),
        "openml": Plugin(f"{_HERE}.openml", extra="interop", summary="OpenML run and flow (XML) in a folder"),
        "zenodo": Plugin(f"{_HERE}.zenodo", summary="RO-Crate and description of a Zenodo deposition, in a folder"),
        "tensorboard": Plugin(f"{_HERE}.tensorboard", summary="TensorBoard event file with all metrics, in a folder"),
    },
    entry_points="fairmile.exchanges",
)


@contextlib.contextmanager
def folder_of(run: Run) -> Iterator[Path]:
    """Give the folder of a run; that of a packed one exists only as long as the block."""
    if not run.packed:
        yield run.folder
        return
    import tempfile  # only archives are unpacked

    with tempfile.TemporaryDirectory(prefix="fairmile-run-") as scratch:
        folder = Path(scratch) / run.id
        extract(run.folder, folder, limits=None)
        yield folder
