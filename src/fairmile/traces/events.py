"""One table for what every rank did when: a row for each event, a numpy array for each column.

A row is what happened in one lane (a thread, or a stream of a device) of one rank. Times are nanoseconds, since the
epoch where a trace tells so, else since its start; `fairmile.traces.clocks` puts ranks on one clock.

Rules that every reader keeps:
- A collective (or a message between two ranks) is one COLLECTIVE (P2P) row for each rank that took part, where its
  time was spent: the kernel on the device where there is one, else the back end's span, else the call. The call on the
  host that only issues it is a LAUNCH or a REGION.
- What keeps a device busy are the KERNEL, COLLECTIVE, P2P, MEMCPY and MEMSET rows whose lane is of a device. REGION
  and PHASE rows there are ranges that somebody named.
- PHASE rows are iterations (`ProfilerStep#3`, an epoch, a step of a solver): `step` is the number. Other rows carry
  the number of the innermost iteration they belong to, -1 outside; a kernel belongs to that of its launch.
- `correlation` is the same number in a LAUNCH row and in the row of the device it led to, within one rank; -1: none.
- `sequence` counts the collectives of one group (in `group`) from 0, the same on all its ranks; -1: not known.
- `bytes` is the size of the message on this rank, of what goes in or what comes out the larger one; or what was
  copied, read or allocated (less than 0: released); -1: not known.
- The attribute `moves` of a COLLECTIVE row, where a trace tells it, is when its data moved (start, end): what lies
  between the last rank that came and that start is a queue.
- `value` is what a COUNTER or MEMORY row states, NaN elsewhere.
- `rank` is unique within a component; `component` is 0 (named "") where a program has one part only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum
from itertools import pairwise
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result

Array = npt.NDArray[Any]
T = TypeVar("T")
MOST_RANKS = 1 << 20  # more than any program has: a larger number in a trace is a broken one


class EventKind(IntEnum):
    """What a row tells."""

    REGION = 0  # a function, an operator, a named block
    PHASE = 1  # one iteration: a training step, an epoch, a step of a solver
    COLLECTIVE = 2
    P2P = 3  # a message between two ranks of one program
    EXCHANGE = 4  # data handed from one component to another
    IO = 5  # files and input: reading, writing, waiting for the loader
    KERNEL = 6
    MEMCPY = 7
    MEMSET = 8
    LAUNCH = 9  # a call on the host that puts work on a device
    SYNC = 10  # the host waits for a device or for another thread
    COUNTER = 11
    MEMORY = 12  # an allocation or release; `value` is what is in use after it where known
    MARKER = 13  # one moment


ON_DEVICE = (EventKind.KERNEL, EventKind.COLLECTIVE, EventKind.P2P, EventKind.MEMCPY, EventKind.MEMSET)

COLUMNS: Mapping[str, tuple[Any, Any]] = {
    "start_ns": (np.int64, 0),
    "end_ns": (np.int64, 0),
    "rank": (np.int32, 0),
    "kind": (np.int8, EventKind.REGION),
    "name": (np.int32, 0),
    "lane": (np.int32, 0),
    "parent": (np.int32, -1),
    "correlation": (np.int64, -1),
    "sequence": (np.int32, -1),
    "group": (np.int32, -1),
    "bytes": (np.int64, -1),
    "value": (np.float64, np.nan),
    "step": (np.int32, -1),
    "component": (np.int16, 0),
}


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of the timeline: one thread of a rank, or one stream of its device."""

    rank: int
    label: str
    on_device: bool = False
    component: str = ""
    number: int = 0  # the thread's or stream's own number
    device: int = -1


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks that take part in a collective; empty `ranks` where a trace names the group only."""

    name: str
    ranks: tuple[int, ...] = ()
    backend: str = ""  # "nccl", "gloo", "mpi"
    size: int = -1  # how many ranks, also where they are not named

    @property
    def ranks_count(self) -> int:
        """Return how many ranks the group has, -1 where the trace does not tell."""
        return len(self.ranks) or self.size


@dataclass(frozen=True, slots=True)
class Process:
    """One rank as its trace tells it, and how its clock was moved: t -> t + offset_ns + drift * (t - origin_ns)."""

    rank: int
    component: str = ""
    file: str = ""
    format: str = ""
    host: str = ""
    boot: str = ""  # equal on processes that share one monotonic clock
    pid: int = -1
    world: int = -1  # how many ranks the program had, -1 where the trace does not tell
    device: str = ""  # "NVIDIA H200"
    since_epoch: bool = True  # False: times count from the start of the trace
    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Attribute:
    """A value that some rows have: `rows` (ascending) are their numbers, `values` what each has."""

    rows: Array
    values: Array

    def get(self, row: int, default: Any = None) -> Any:
        """Return the value of a row."""
        place = int(np.searchsorted(self.rows, row))
        return self.values[place] if place < len(self.rows) and self.rows[place] == row else default


@dataclass(slots=True, eq=False, repr=False)
class EventTable(Result):
    """The events of all ranks; columns are arrays of one length, `attributes` hold what only some rows have.

    Common attributes: "dtype", "root", "peer" (the other rank of a P2P row), "tag", "algorithm", "operator",
    "inputs" (of an operator: JSON with shapes, types and values), "arrivals" (Horovod: when each rank was ready),
    "state" (flight recorder), "key", "how", "peer" (a component) and "wait_ns" of EXCHANGE rows, whose `sequence` is
    the version of what was exchanged.
    """

    start_ns: Array
    end_ns: Array
    rank: Array
    kind: Array
    name: Array
    lane: Array
    parent: Array
    correlation: Array
    sequence: Array
    group: Array
    bytes: Array
    value: Array
    step: Array
    component: Array
    names: list[str] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    groups: list[RankGroup] = field(default_factory=list)
    components: list[str] = field(default_factory=lambda: [""])
    processes: list[Process] = field(default_factory=list)
    attributes: dict[str, Attribute] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Mapping[str, Any] | None = None, **about: Any) -> EventTable:
        """Return a table of the given columns, each other column at its default; `about` are names, lanes and so on."""
        given = columns or {}
        rows = max((len(column) for column in given.values()), default=0)
        filled: dict[str, Any] = {
            column: np.asarray(given[column], dtype) if column in given else np.full(rows, default, dtype)
            for column, (dtype, default) in COLUMNS.items()
        }
        return cls(**filled, **about)

    def __len__(self) -> int:
        return len(self.start_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return what there is in numbers; `to_pandas()` has the events."""
        return {
            "events": len(self),
            "ranks": self.ranks,
            "missing_ranks": self.missing_ranks,
            "components": self.components,
            "span_s": float(self.end_ns.max() - self.start_ns.min()) / 1e9 if len(self) else 0.0,
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        ranks = len(self.ranks)
        return f"{len(self):,} events of {ranks:,} rank{'s' * (ranks != 1)}"

    def _rows(self) -> list[dict[str, Any]]:
        columns = {name: self.column(name).tolist() for name in COLUMNS}
        columns["name"] = [self.names[place] for place in columns["name"]]
        columns["kind"] = [EventKind(each).name for each in columns["kind"]]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @property
    def duration_ns(self) -> Array:
        """Return how long each event took."""
        return self.end_ns - self.start_ns

    @property
    def ranks(self) -> list[int]:
        """Return the ranks that have a trace."""
        known = {process.rank for process in self.processes}
        return sorted(known | set(np.unique(self.rank).tolist()))

    @property
    def missing_ranks(self) -> list[int]:
        """Return the ranks that the traces speak of and that have none."""
        return sorted({rank for _, rank in self.missing()})

    def missing(self) -> list[tuple[str, int]]:
        """Return component and rank of each process that the traces speak of and that has none."""
        there = {(process.component, process.rank) for process in self.processes}
        world: dict[str, int] = {}
        for process in self.processes:
            if process.world <= MOST_RANKS:
                world[process.component] = max(world.get(process.component, 0), process.world)
        return [(part, rank) for part, size in world.items() for rank in range(size) if (part, rank) not in there]

    def column(self, name: str) -> Array:
        """Return a column by its name."""
        return cast("Array", getattr(self, name))

    def name_of(self, row: int) -> str:
        """Return the name of an event."""
        return self.names[int(self.name[row])]

    def named(self, *names: str) -> Array:
        """Return a mask of the rows that bear one of these names."""
        return cast("Array", np.isin(self.name, [place for place, name in enumerate(self.names) if name in names]))

    def of_kind(self, *kinds: EventKind) -> Array:
        """Return a mask of the rows of these kinds."""
        if len(kinds) == 1:
            return cast("Array", self.kind == kinds[0])
        wanted = np.zeros(128, bool)
        wanted[list(kinds)] = True
        return wanted[self.kind]

    def of_rank(self, rank: int, component: str | None = None) -> Array:
        """Return a mask of the rows of a rank."""
        mask = self.rank == rank
        if component is not None:
            known = component in self.components
            mask &= self.component == (self.components.index(component) if known else -1)
        return cast("Array", mask)

    def on_device(self) -> Array:
        """Return a mask of the rows whose lane is a stream of a device."""
        if not self.lanes:
            return np.zeros(len(self), bool)
        return np.array([lane.on_device for lane in self.lanes], bool)[self.lane]

    def attribute(self, name: str) -> Array:
        """Return what each row has of an attribute, None where it has nothing."""
        values = np.full(len(self), None, object)
        if name in self.attributes:
            values[self.attributes[name].rows] = self.attributes[name].values
        return values

    def select(self, rows: Array) -> EventTable:
        """Return the rows of a mask or in the order of given numbers; a parent that is left out becomes -1."""
        rows = np.flatnonzero(rows) if rows.dtype == bool else np.asarray(rows)
        place = np.full(len(self) + 1, -1, np.int32)  # the last one answers for the row -1
        place[rows] = np.arange(len(rows), dtype=np.int32)
        columns = {column: getattr(self, column)[rows] for column in COLUMNS}
        columns["parent"] = place[columns["parent"]]
        attributes = {name: moved for name, each in self.attributes.items() if len((moved := _moved(each, place)).rows)}
        return replace(self, **columns, attributes=attributes, notes=list(self.notes))

    def by_rank(self) -> Iterator[tuple[str, int, EventTable]]:
        """Yield component, rank and events of each rank that has any."""
        if not len(self):
            return
        low, high = int(self.rank.min()), int(self.rank.max())
        key = self.component.astype(np.int64) * (high - low + 1) + (self.rank - low)
        for each in np.unique(key).tolist():
            part, rank = divmod(each, high - low + 1)
            yield self.components[part], rank + low, self.select(key == each)

    def sorted(self) -> EventTable:
        """Return the rows in order of time, an outer event before what lies within it."""
        if bool(np.all(self.start_ns[1:] > self.start_ns[:-1])):
            return self
        return self.select(np.lexsort((-self.end_ns, self.start_ns)))

    def with_parents(self) -> EventTable:
        """Return the table with `parent` set: the innermost event of the same lane that holds the row whole."""
        return replace(self, parent=_parents(self.lane, self.start_ns, self.end_ns, self.of_kind(*_FLAT)))

    def with_steps(self) -> EventTable:
        """Return the table with `step` set from the PHASE rows of each rank; a kernel takes that of its launch."""
        return replace(self, step=_steps(self))

    def validate(self) -> list[str]:
        """Return a sentence for each thing that breaks the rules of the table."""
        wrong = [
            f"column {column} has {len(getattr(self, column))} rows, start_ns has {len(self)}"
            for column in COLUMNS
            if len(getattr(self, column)) != len(self)
        ]
        if wrong or not len(self):
            return wrong
        limits = [("name", self.names, 0), ("lane", self.lanes, 0), ("group", self.groups, -1)]
        limits += [("component", self.components, 0)]
        for column, entries, least in cast("list[tuple[str, list[Any], int]]", limits):
            low, high = int(getattr(self, column).min()), int(getattr(self, column).max())
            if low < least or high >= len(entries):
                wrong.append(f"column {column} goes from {low} to {high}, there are {len(entries)} entries")
        if int(self.parent.max()) >= len(self):
            wrong.append(f"column parent names row {int(self.parent.max())} of {len(self)}")
        if negative := int(np.count_nonzero(self.end_ns < self.start_ns)):
            wrong.append(f"{negative} events end before they start")
        for name, attribute in self.attributes.items():
            if len(attribute.rows) and int(attribute.rows[-1]) >= len(self):
                wrong.append(f"attribute {name} names row {int(attribute.rows[-1])} of {len(self)}")
        return wrong


_FLAT = (EventKind.COUNTER, EventKind.MARKER, EventKind.MEMORY)


def concat(tables: Sequence[EventTable], *, consume: bool = False) -> EventTable:
    """Return the rows of all tables one after the other, names, lanes, groups and components written once.

    With `consume` the given tables lose their columns, so that they never lie in memory twice.
    """
    tables = [table for table in tables if len(table) or table.processes or table.notes]
    if not tables:
        return EventTable.of()
    if len(tables) == 1:
        return tables[0]
    names, lanes, groups, parts = _Merged[str](), _Merged[Lane](), _Merged[RankGroup](), _Merged[str]()
    ids = [
        {
            "name": names.take(table.names),
            "lane": lanes.take(table.lanes),
            "group": groups.take(table.groups),
            "component": parts.take(table.components),
        }
        for table in tables
    ]
    starts = np.cumsum([0] + [len(table) for table in tables])
    columns: dict[str, Any] = {}
    for column, (dtype, _) in COLUMNS.items():
        whole = columns[column] = np.empty(int(starts[-1]), dtype)
        for table, renamed, begin, end in zip(tables, ids, starts[:-1], starts[1:], strict=True):
            values = getattr(table, column)
            if column in renamed:
                values = renamed[column][values]
            elif column == "parent":
                values = np.where(values >= 0, values + begin, -1)
            whole[begin:end] = values
            if consume:
                setattr(table, column, values[:0].copy())
    return EventTable(
        **columns,
        names=names.entries,
        lanes=lanes.entries,
        groups=groups.entries,
        components=parts.entries,
        processes=[process for table in tables for process in table.processes],
        attributes=_joined(tables, starts.tolist()),
        notes=list(dict.fromkeys(note for table in tables for note in table.notes)),
    )


class Rows:
    """Collects events one by one, for formats that are read that way; `table` makes the columns."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
        self._attributes: dict[str, tuple[list[int], list[Any]]] = {}
        self._names, self._lanes, self._groups = _Merged[str](), _Merged[Lane](), _Merged[RankGroup]()
        self._components = _Merged[str]()

    def __len__(self) -> int:
        return len(self._columns["start_ns"])

    def add(
        self,
        kind: EventKind,
        name: str,
        start_ns: int,
        end_ns: int,
        lane: Lane,
        *,
        group: RankGroup | None = None,
        with_: Mapping[str, Any] | None = None,
        **columns: float,
    ) -> int:
        """Add an event and return its row; `columns` are values of further columns, `with_` attributes."""
        row = len(self)
        fields: dict[str, Any] = {
            "start_ns": start_ns,
            "end_ns": end_ns,
            "rank": lane.rank,
            "kind": kind,
            "name": self._names.number(name),
            "lane": self._lanes.number(lane),
            "group": -1 if group is None else self._groups.number(group),
            "component": self._components.number(lane.component),
            **columns,
        }
        for column, (_, default) in COLUMNS.items():
            self._columns[column].append(fields.get(column, default))
        for key, value in (with_ or {}).items():
            rows, values = self._attributes.setdefault(key, ([], []))
            rows.append(row)
            values.append(value)
        return row

    def end(self, row: int, end_ns: int) -> None:
        """Set when an event ended that was open so far."""
        self._columns["end_ns"][row] = end_ns

    def change(
        self, row: int, *, group: RankGroup | None = None, with_: Mapping[str, Any] | None = None, **columns: float
    ) -> None:
        """Set what became known of an event after it was added."""
        if group is not None:
            columns["group"] = self._groups.number(group)
        for column, value in columns.items():
            self._columns[column][row] = value
        for key, value in (with_ or {}).items():
            rows, values = self._attributes.setdefault(key, ([], []))
            rows.append(row)
            values.append(value)

    def table(self, processes: Iterable[Process] = (), notes: Iterable[str] = ()) -> EventTable:
        """Return what was collected; a number that no column can hold is not known; OverflowError for a time."""
        table = EventTable.of(
            {column: _held(column, values) for column, values in self._columns.items()},
            names=self._names.entries,
            lanes=self._lanes.entries,
            groups=self._groups.entries,
            components=self._components.entries or [""],
            processes=list(processes),
            notes=list(notes),
        )
        for name, (rows, values) in self._attributes.items():
            order = np.argsort(rows, kind="stable")
            table.attributes[name] = Attribute(np.array(rows, np.int32)[order], objects(values)[order])
        return table


def _held(column: str, values: list[Any]) -> Any:
    dtype, default = COLUMNS[column]
    try:
        return np.array(values, dtype)
    except OverflowError:
        if column in ("start_ns", "end_ns"):
            raise
        most = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else float(np.finfo(dtype).max)
        return np.array([value if -most <= value <= most else default for value in values], dtype)


def objects(values: Sequence[Any]) -> Array:
    """Return values as an array of objects, whatever they are."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


class _Merged(Generic[T]):
    """Entries of several lists written once."""

    def __init__(self) -> None:
        self.entries: list[T] = []
        self._number: dict[T, int] = {}

    def number(self, entry: T) -> int:
        place = self._number.get(entry)
        if place is None:
            place = self._number[entry] = len(self.entries)
            self.entries.append(entry)
        return place

    def take(self, entries: Iterable[T]) -> Array:
        """Return the new number of each entry; the one behind the last answers for -1."""
        return np.array([*map(self.number, entries), -1], np.int32)


def _moved(attribute: Attribute, place: Array) -> Attribute:
    rows = place[attribute.rows]
    kept = rows >= 0
    rows, values = rows[kept], attribute.values[kept]
    order = np.argsort(rows, kind="stable")
    return Attribute(rows[order], values[order])


def _joined(tables: Sequence[EventTable], starts: Sequence[int]) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    for name in dict.fromkeys(name for table in tables for name in table.attributes):
        parts = [
            (table.attributes[name], at) for table, at in zip(tables, starts, strict=False) if name in table.attributes
        ]
        rows = np.concatenate([each.rows.astype(np.int32) + np.int32(at) for each, at in parts])
        alike = len({each.values.dtype for each, _ in parts}) == 1
        values = [each.values if alike else each.values.astype(object) for each, _ in parts]
        attributes[name] = Attribute(rows, np.concatenate(values))
    return attributes


def _parents(lane: Array, start: Array, end: Array, flat: Array) -> Array:
    """Return the row of the innermost event of the same lane that holds each event, -1 where there is none.

    In order of lane and time the depth of an event is how many began before it less how many of those ended; its
    parent is the last one before it that lies one less deep.
    """
    parent = np.full(len(start), -1, np.int32)
    inner = np.flatnonzero(~flat)
    for rows in _by_value(lane[inner]):
        mine = inner[rows]
        mine = mine[np.lexsort((mine, -end[mine], start[mine]))]
        begins, ends = start[mine], end[mine]
        # An event without length ends behind itself, or it would count as ended before it began.
        depth = np.arange(len(mine)) - np.searchsorted(np.sort(np.maximum(ends, begins + 1)), begins, side="right")
        inside = np.full(len(mine), -1, np.int64)
        levels = _by_value(depth)
        for above, level in pairwise(levels):
            inside[level] = above[np.searchsorted(above, level) - 1]
        for _ in range(len(levels)):  # events that only overlap: go up to the one that really holds it
            torn = np.flatnonzero((inside >= 0) & (ends[inside] < ends))
            if not len(torn):
                break
            inside[torn] = inside[inside[torn]]
        held = inside >= 0
        parent[mine[held]] = mine[inside[held]]
    return parent


def _by_value(values: Array) -> list[Array]:
    """Return the places of each value, ascending, in the order of the values."""
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(values) else []


def _steps(table: EventTable) -> Array:
    step = np.where(table.of_kind(EventKind.PHASE), table.step, np.int32(-1)).astype(np.int32)
    phases = np.flatnonzero(table.of_kind(EventKind.PHASE) & (table.step >= 0))
    if not len(phases):
        return table.step
    key = table.component.astype(np.int64) << 32 | table.rank
    on_device = table.on_device()
    for each in np.unique(key[phases]).tolist():
        mine = phases[key[phases] == each]
        host = mine[~on_device[mine]]
        mine = host if len(host) else mine
        mine = mine[np.argsort(table.end_ns[mine] - table.start_ns[mine])[::-1]]
        rows = np.flatnonzero((key == each) & ~table.of_kind(EventKind.PHASE))
        step[rows] = _containing(table, mine, table.start_ns[rows])
        caused = rows[on_device[rows] & (table.correlation[rows] >= 0)]
        if len(caused):
            launches = rows[~on_device[rows] & (table.correlation[rows] >= 0)]
            launches = launches[np.argsort(table.correlation[launches], kind="stable")]
            known = table.correlation[launches]
            place = np.minimum(np.searchsorted(known, table.correlation[caused]), max(len(known) - 1, 0))
            if len(known):
                matches = known[place] == table.correlation[caused]
                step[caused[matches]] = step[launches[place[matches]]]
    return step


def _containing(table: EventTable, phases: Array, moments: Array) -> Array:
    """Return the step of the innermost phase at each moment, -1 outside; `phases` come longest first."""
    edges = np.unique(np.concatenate([table.start_ns[phases], table.end_ns[phases]]))
    at = np.full(len(edges) + 1, -1, np.int32)
    for phase in phases.tolist():
        first, last = np.searchsorted(edges, [table.start_ns[phase], table.end_ns[phase]])
        at[first + 1 : last + 1] = table.step[phase]
    return cast("Array", at[np.searchsorted(edges, moments, side="right")])
