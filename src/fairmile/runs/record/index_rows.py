"""The rows of the index of runs: which columns it has, and what each holds of a record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fairmile.base.errors import SystemFailure
from fairmile.base.files import Holder
from fairmile.base.lazy import lazy
from fairmile.base.results import Result
from fairmile.meter.lines import number_text
from fairmile.runs.execute.processes import find_processes
from fairmile.runs.record.layout import PACKED, read_record
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.shapes import RunRowDict
from fairmile.runs.record.values import Value

if TYPE_CHECKING:
    from fairmile.runs.record.packing import read_packed
else:
    read_packed = lazy("fairmile.runs.record.packing:read_packed")

T = TypeVar("T")

COLUMNS = (
    *("id", "stamp", "name", "state", "created", "elapsed_s", "energy_j", "identity", "run_group", "system"),
    *("asset", "reason", "params", "metrics", "units", "tags", "job", "inputs", "has"),
)

# The columns that a list shows, in the order in which `RunRow` reads them.
LISTED = ", ".join(name for name in COLUMNS[:16] if name not in ("stamp", "units")) + ", units"


def read_row(id: str, stamp: str, root: Path, seen: dict[str, Run]) -> tuple[Any, ...] | None:
    """Return the row of a run as its record states it, None where it has just been removed; `seen` gets a run."""
    folder, pack = root / id, root / f"{id}{PACKED}"
    try:
        try:
            record, path = read_record(folder), folder
        except (FileNotFoundError, NotADirectoryError):
            record, path = read_packed(pack), pack
        run = Run(record, path, packed=path is pack)
        state = run.state
        if state.is_end and len(seen) < _MOST_SEEN:
            seen[id] = run
        return row_of(id, stamp, record, state if state.is_end else state_seen(state, record, path))
    except FileNotFoundError:
        return None
    except SystemFailure as error:
        reason = f"its record cannot be read: {error}"
        damaged = {"id": id, "stamp": stamp, "name": "", "state": "interrupted", "created": 0.0, "reason": reason}
        return tuple(damaged.get(column, _EMPTY.get(column, "")) for column in COLUMNS)


_MOST_SEEN = 100  # runs that are held for who asks next; an index that is built anew reads all of them
_EMPTY: dict[str, Any] = {
    "elapsed_s": None,
    "energy_j": None,
    "params": "{}",
    "metrics": "{}",
    "units": "{}",
    "tags": "[]",
    "job": 0,
    "inputs": "[]",
    "has": "[]",
}


def row_of(id: str, stamp: str, record: RunRecord, state: RunState) -> tuple[Any, ...]:
    """Return the row of a run in a state."""
    run = Run(record, Path())
    measured = record.result.metrics if record.result is not None else {}
    metrics = {name: number_text(each.value) for name, each in measured.items()}
    values = {
        "id": id,
        "stamp": stamp,
        "name": run.name,
        "state": str(state),
        "created": run.created,
        "elapsed_s": run.elapsed_s,
        "energy_j": run.energy_j,
        "identity": run.identity,
        "run_group": run.group,
        "system": run.system,
        "asset": record.spec.asset,
        "reason": run.reason,
        "params": json.dumps(run.params),
        "metrics": json.dumps(metrics),
        "units": json.dumps({name: each.unit for name, each in measured.items() if each.unit}),
        "tags": json.dumps(record.spec.tags),
        "job": int(record.job is not None),
        "inputs": json.dumps(assets_of(record)),
        "has": json.dumps(["trace"] if run.has_trace else []),
    }
    return tuple(values[column] for column in COLUMNS)


def assets_of(record: RunRecord) -> list[str]:
    """Return the assets that a run executed or read, each as recorded and as `kind/name`, whichever its version."""
    names = {record.spec.asset, record.spec.dataset, *(each.asset for each in record.captured.inputs.values())}
    return sorted(names_of(names | {each.asset for each in record.captured.code.sources}))


def names_of(assets: Iterable[str]) -> set[str]:
    """Return assets as they were stated, and as `kind/name`."""
    names = set(assets) - {""}
    return names | {"/".join(name.partition("@")[0].split("/")[-2:]) for name in names}


class JsonObject(Mapping[str, Any]):
    """An object of the index, decoded when it is looked at: of many runs that are listed most are not."""

    __slots__ = ("_text", "_values")

    def __init__(self, text: str) -> None:
        self._text = text

    def _decoded(self) -> dict[str, Any]:
        if not hasattr(self, "_values"):
            self._values = self.decode(self._text)
        return self._values

    @staticmethod
    def decode(text: str) -> dict[str, Any]:
        """Return what the text holds."""
        values: dict[str, Any] = json.loads(text)
        return values

    def __getitem__(self, name: str) -> Any:
        return self._decoded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())

    def __repr__(self) -> str:
        return repr(self._decoded())


class JsonNumbers(JsonObject):
    """Numbers; those that JSON has no form for, as texts."""

    __slots__ = ()

    @staticmethod
    def decode(text: str) -> dict[str, Any]:
        """Return the numbers that the text holds."""
        return {name: float(value) for name, value in json.loads(text).items()}


class _Field(Generic[T]):
    """A field of a row that is what the index holds, at its place in `LISTED`."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, row: RunRow, _: type[RunRow]) -> T:
        value: T = row._values[self._place]
        return value


class RunRow(Result):
    """What a list of runs shows of each: a row of the index, whose fields are parsed when they are first used."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self._values = values  # in the order of `LISTED`

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunRow) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    id = _Field[str](0)
    name = _Field[str](1)
    created = _Field[float](3)
    elapsed_s = _Field["float | None"](4)
    energy_j = _Field["float | None"](5)
    identity = _Field[str](6)
    group = _Field[str](7)
    system = _Field[str](8)
    asset = _Field[str](9)
    reason = _Field[str](10)

    @property
    def state(self) -> RunState:
        return _STATES[self._values[2]]

    @cached_property
    def params(self) -> Mapping[str, Value]:
        return JsonObject(self._values[11])

    @cached_property
    def metrics(self) -> Mapping[str, float]:
        return JsonNumbers(self._values[12])

    @cached_property
    def tags(self) -> tuple[str, ...]:
        return tuple(json.loads(self._values[13]))

    @cached_property
    def units(self) -> Mapping[str, str]:
        """The units of metrics that have one."""
        return JsonObject(self._values[14])

    def to_dict(self) -> RunRowDict:
        return {
            "id": self.id,
            "name": self.name,
            "state": str(self.state),
            "created": self.created,
            "elapsed_s": self.elapsed_s,
            "energy_j": self.energy_j,
            "identity": self.identity,
            "group": self.group,
            "system": self.system,
            "asset": self.asset,
            "reason": self.reason,
            "params": dict(self.params),
            "metrics": {name: number_text(value) for name, value in self.metrics.items()},
            "tags": list(self.tags),
            "units": dict(self.units),
        }

    def summary(self) -> str:
        return f"{self.id} {self.state}"


_STATES = {str(state): state for state in RunState}


def state_seen(state: RunState, record: RunRecord, folder: Path) -> RunState:
    """Return the state of a run that has not ended by its own word: one of a job is the scheduler's to tell.

    A program that outlives its recorder still runs.
    """
    is_lost = state is RunState.RUNNING and lost_its_recorder(record)
    return RunState.INTERRUPTED if is_lost and not find_processes(folder) else state


def lost_its_recorder(record: RunRecord) -> bool:
    """Tell whether the process that records the run is known to be gone."""
    if not record.attempts or record.job is not None:
        return False
    return Holder.parse(record.attempts[-1].holder, 0).is_dead_here()
