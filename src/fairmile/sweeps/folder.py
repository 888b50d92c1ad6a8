"""What the folder of a sweep tells of it; light enough for every list."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import SystemFailure, UsageError
from fairmile.base.files import Holder, write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.runs.record.values import Better, Value
from fairmile.sweeps.record import StudyRecord, SweepRecord

SWEEP = "sweep.json"
COMBINED = "-combined"  # ends the id of the run that combines the results of a sweep
_MAKING = ".making"  # who makes a sweep, in its folder until that is done
_REMOVED = ".removed"
_ABANDONED_S = 86400.0  # where nobody can tell whether somebody is still at it


class SweepDict(TypedDict):
    """A sweep or study: how many points it has, and the values of each axis."""

    id: str
    name: str
    count: int
    created: float
    system: str
    study: bool
    axes: dict[str, list[Value]]


@dataclass(frozen=True, repr=False)
class Sweep(Result):
    """A sweep or study as its folder describes it."""

    folder: Path
    record: SweepRecord

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def created(self) -> float:
        return self.record.created

    @property
    def count(self) -> int:
        return self.record.count

    @property
    def system(self) -> str:
        return self.record.system

    @property
    def is_study(self) -> bool:
        return self.record.study is not None

    @property
    def study(self) -> StudyRecord:
        """What makes it a study; UsageError for a sweep."""
        if self.record.study is None:
            raise UsageError(f"{self.id} is a sweep, not a study", hint=f"`fairmile sweep show {self.id}`")
        return self.record.study

    @property
    def most_trials(self) -> int:
        """How many trials a study may have; 0 where their number has no limit."""
        return self.study.settings.trials or 0

    @property
    def axes(self) -> Mapping[str, list[Value]]:
        """The values of each axis."""
        return self.record.axes

    @property
    def objectives(self) -> list[tuple[str, Better]]:
        """The metrics that its file names, each with its direction where the file tells it."""
        if self.record.study is not None:
            return [(each.metric, each.better) for each in self.record.study.objectives]
        return [(self.record.best, "")] if self.record.best else []

    def to_dict(self) -> SweepDict:
        return {
            "id": self.id,
            "name": self.name,
            "count": self.count,
            "created": self.created,
            "system": self.system,
            "study": self.is_study,
            "axes": dict(self.axes),
        }

    def summary(self) -> str:
        where = f" on {self.system}" if self.system else ""
        return f"{self.id}, {'study' if self.is_study else f'{self.count:,} points'}{where}"


def list_sweeps(root: Path) -> list[Sweep]:
    """Return all sweeps below a folder, the newest first; a damaged one is left out."""
    sweeps = []
    for file in root.glob(f"[!.]*/{SWEEP}"):
        with contextlib.suppress(SystemFailure, UsageError):  # the latter for one of another version
            sweeps.append(read_sweep(file.parent))
    return sorted(sweeps, key=lambda sweep: sweep.created, reverse=True)


def read_sweep(folder: Path) -> Sweep:
    """Return the sweep that a folder holds."""
    file = folder / SWEEP
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SystemFailure(f"cannot read {file}: {error}") from error
    return Sweep(folder, SweepRecord.from_dict(document, str(file)))


def write_sweep(folder: Path, record: SweepRecord) -> Sweep:
    """Keep a sweep in its folder, for its owner alone: commands and variables may hold secrets."""
    write_atomic(folder / SWEEP, json.dumps(record.to_dict()), mode=0o600)
    return Sweep(folder, record)


@contextlib.contextmanager
def making(folder: Path) -> Iterator[None]:
    """Make a sweep in a folder that is new; nothing stays of one that fails."""
    try:
        write_atomic(folder / _MAKING, Holder.me().text())
        yield
        (folder / _MAKING).unlink()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def remove_folder(folder: Path) -> None:
    """Remove a sweep, which no longer exists from the first moment on."""
    gone = folder.with_name(f".{folder.name}{_REMOVED}")
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def clear_leftovers(root: Path) -> None:
    """Remove what processes that were killed left of sweeps that they made or removed."""
    half_made = [file.parent for file in root.glob(f"[!.]*/{_MAKING}") if not (file.parent / SWEEP).exists()]
    for folder in (*half_made, *root.glob(f".*{_REMOVED}")):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # it is gone meanwhile, or nobody made it
        if time.time() - folder.stat().st_mtime > _ABANDONED_S:
            return True
        return Holder.parse((folder / _MAKING).read_text(), 0).is_dead_here()
    return False
