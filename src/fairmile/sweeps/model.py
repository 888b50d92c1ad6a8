"""The words of sweeps: a point, a space of points, and the definition that a file gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Protocol

from fairmile.base.quick_dataclass import dataclass
from fairmile.runs.record.values import Value

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of values. Its `id` is a file name, unique in its sweep and the same whenever it is made."""

    number: int
    id: str
    values: Mapping[str, Value]
    repeat: int | None = None  # which of several repeats, from 1


class Points(Protocol):
    """A space of points that can be counted and walked without being held."""

    @property
    def axes(self) -> Mapping[str, Sequence[Value]]:
        """All values of each axis, in the order of the file; repeats are no axis."""

    @property
    def linked(self) -> Sequence[Sequence[str]]:
        """Axes that advance together."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Point]: ...


class Origin(Protocol):
    """Tells where something stands, for messages."""

    def __call__(self, *path: str | int) -> str:
        """Return `file:line` of a setting, the file where no line is known, or the option that says it, as typed."""


def place_of(origin: Origin | None, *path: str | int) -> str:
    """Return where a setting stands and what it is called; an option is its own name."""
    where = origin(*path) if origin is not None else ""
    return where if where.startswith("-") else f"{where} {'.'.join(map(str, path))}".strip()


@dataclass(frozen=True)
class Objective:
    """A metric that is to become as low or as high as possible."""

    metric: str
    better: Better


@dataclass(frozen=True)
class Dialect:
    """In what the files of a tool differ from one another; without arguments, ours."""

    name: str = "fairmile"
    text: Callable[[Any], str] | None = None  # how a value is written into a text; None: as JSON would
    keeps_null: bool = True  # a setting without a value is one
    allows_variables: bool = False  # {os.NAME} may name any variable, also one that the file does not allow
    has_repeat: bool = True  # {repeat} is the number of the repeat
    reads_settings: bool = False  # programs read the settings of their point, so that they use all axes
    leaves_unused: bool = False  # an undefined name in a setting that nothing uses stays as it is
    checks_runs: bool = True  # what a point executes is checked before a sweep is made


@dataclass(frozen=True)
class Definition:
    """What a file, or several, or a command line, says of a sweep; the same for every dialect.

    `settings` is the tree that placeholders are looked up in, and `prefix` where in it the values of a point appear:
    `{lr}` with an empty prefix, as in our own files, `{experiment.lr}` with another. `fields` are those of the run of a
    point (see RunSpec), beside `run` (the name of an asset or of a run file) and `notebook`; their texts may hold
    placeholders. Axes of a tuning that are distributions stand in `distributions` instead of `points`.
    """

    name: str
    points: Points
    settings: Mapping[str, Any]
    origin: Origin
    prefix: str = ""
    variables: tuple[str, ...] = ()  # names of environment variables that placeholders {os.NAME} may use
    fields: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    objectives: tuple[Objective, ...] = ()
    tuning: Mapping[str, Any] = field(default_factory=dict)
    select: str = ""  # a filter: only the points for which it holds
    best: str = ""  # the metric by which one point wins
    combine: tuple[str, ...] = ()  # a command over the outputs of all points
    sources: tuple[str, ...] = ()  # the files it came from
    dialect: Dialect = Dialect()
    notes: tuple[str, ...] = ()  # what a person should know of the files
