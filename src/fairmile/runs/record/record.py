"""The record of a run, typed: what was asked, what was captured, how often it was tried, and how it ended.

`run.json` holds it as JSON; `layout` is the one place that reads and writes that file. A key of the file that this
version does not know stays where it is, in `extra` of its part. A missing key, or null, stands for the default of its
field. Nothing but the standard library, `base` and `meter` is needed: the record goes wherever the recorder goes.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

from fairmile.base.errors import SystemFailure
from fairmile.meter.lines import number, number_text
from fairmile.runs.record.values import Better

FORMAT = "fairmile-run/1"
_NAME, _, _MAJOR = FORMAT.partition("/")


class RunState(StrEnum):
    """The state of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # its end was never recorded: killed, a lost node, a power cut

    @property
    def is_end(self) -> bool:
        return self not in (RunState.QUEUED, RunState.RUNNING)


T = TypeVar("T")
_STATED = "stated"
Stated = Annotated[T, _STATED]  # a field that a record states also where it has its default


@dataclass(kw_only=True)
class Part:
    """A part of a record; `extra` are the keys of the file that this version does not know."""

    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_dict(cls, data: Any, source: str = "the record of a run") -> Self:
        """Return what JSON states; SystemFailure that names `source` and the field where a value is of a wrong kind."""
        try:
            return cls._read(data)
        except _Misfit as misfit:
            raise SystemFailure(f"{source} is damaged: {misfit}") from misfit

    @classmethod
    def _read(cls, data: Any) -> Self:
        if not isinstance(data, dict):
            raise _Misfit(data, "an object")
        values: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        slots, required = _slots(cls)
        for key, value in data.items():
            slot = slots.get(key)
            if slot is None:
                extra[key] = value
            elif value is not None:
                try:
                    values[key] = slot.read(value)
                except _Misfit as misfit:
                    misfit.path.insert(0, key)
                    raise
        for name in required:
            if name not in values:
                raise _Misfit(data, f"an object with {name}")
        return cls(**values, extra=extra)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON states it."""
        made: dict[str, Any] = {}
        slots, _ = _slots(type(self))
        for name, slot in slots.items():
            value = getattr(self, name)
            if slot.is_stated or value != slot.default:
                made[name] = slot.write(value)
        return made | self.extra


class _Misfit(Exception):
    """A value is not of the kind that its field has."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(value, expected)
        self.path: list[str] = []
        self._value, self._expected = value, expected

    def __str__(self) -> str:
        return f"{'.'.join(self.path) or 'it'} is {self._value!r:.60}, expected {self._expected}"


class _Slot(NamedTuple):
    """How one field of a part is read and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    default: Any  # to compare with; MISSING where a value must be stated
    is_stated: bool


_SLOTS: dict[type[Part], tuple[dict[str, _Slot], tuple[str, ...]]] = {}


def _slots(part: type[Part]) -> tuple[dict[str, _Slot], tuple[str, ...]]:
    """Return how the fields of a part are read and written, and which it must have; the first call finds that out."""
    if part not in _SLOTS:
        slots = _find_slots(part)
        _SLOTS[part] = slots, tuple(name for name, slot in slots.items() if slot.default is MISSING)
    return _SLOTS[part]


def _find_slots(part: type[Part]) -> dict[str, _Slot]:
    hints = get_type_hints(part, include_extras=True)
    made = {}
    for each in fields(part):
        if each.name != "extra":
            hint = hints[each.name]
            is_stated = get_origin(hint) is Annotated
            read, write = _conversion(get_args(hint)[0] if is_stated else hint)
            made[each.name] = _Slot(read, write, _default(each), is_stated)
    return made


def _default(described: Any) -> Any:
    return described.default if described.default_factory is MISSING else described.default_factory()


def _conversion(hint: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return how a value of a type is read from JSON, and written to it."""
    if isinstance(hint, UnionType):  # of a type and None, which nobody reads
        (kind,) = (each for each in get_args(hint) if each is not NoneType)
        read, write = _conversion(kind)
        return read, lambda value: None if value is None else write(value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return _list_conversion(*_conversion(arguments[0]))
    if origin is dict:
        return _dict_conversion(*_conversion(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Part):
        return hint._read, hint.to_dict
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint), str
    if hint is float:
        return _read_float, number_text
    return _SCALARS.get(hint, _keep), _keep


def _keep(value: Any) -> Any:
    return value


def _list_conversion(
    read: Callable[[Any], Any], write: Callable[[Any], Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def read_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _Misfit(value, "a list")
        try:
            return [read(each) for each in value]
        except _Misfit:
            return [_inside(str(index), read, each) for index, each in enumerate(value)]  # which tells where

    return read_list, list if write is _keep else lambda value: [write(each) for each in value]


def _dict_conversion(
    read: Callable[[Any], Any], write: Callable[[Any], Any]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def read_dict(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Misfit(value, "an object")
        if read is _keep:
            return dict(value)
        return {key: _inside(key, read, each) for key, each in value.items() if each is not None}

    return read_dict, dict if write is _keep else lambda value: {key: write(each) for key, each in value.items()}


def _inside(name: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except _Misfit as misfit:
        misfit.path.insert(0, name)
        raise


def _enum_reader(kind: type[StrEnum]) -> Callable[[Any], StrEnum]:
    def read(value: Any) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            raise _Misfit(value, f"one of {', '.join(kind)}") from None

    return read


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Misfit(value, "a text")
    return value


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Misfit(value, "a whole number")
    return value


def _read_float(value: Any) -> float:
    try:
        return number(value)
    except ValueError:
        raise _Misfit(value, "a number") from None


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Misfit(value, "true or false")
    return value


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    str: _read_text,
    Better: _read_text,
    int: _read_int,
    bool: _read_bool,
}


# What was asked for


@dataclass(kw_only=True)
class DeclaredMetric(Part):
    """How a metric is found and judged."""

    pattern: str = ""
    unit: str = ""
    better: Better = ""
    tolerance: float | None = None


@dataclass(kw_only=True)
class RecordedSpec(Part):
    """A specification as a record holds it: without what was left at its default, and without secrets.

    The fields and their defaults are those of `RunSpec`.
    """

    name: Stated[str] = "run"
    argv: Stated[list[str]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    reads_params: bool = False
    seed: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    subfolder: str = ""
    code: list[str] = field(default_factory=list)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    metrics: dict[str, DeclaredMetric] = field(default_factory=dict)
    environment: str = ""
    system: str = ""
    resources: dict[str, Any] = field(default_factory=dict)
    software: list[str] = field(default_factory=list)
    launch: str | None = None
    needs: list[str] = field(default_factory=list)
    anyway: bool = False
    timeout_s: float | None = None
    watch_s: float = 1.0
    asset: str = ""
    dataset: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)

    def changed(self, changes: Mapping[str, Any]) -> RecordedSpec:
        """Return a copy with other values of some fields, as JSON states them."""
        return RecordedSpec.from_dict(self.to_dict() | dict(changes), "the specification of a run")


# What was captured when it started


@dataclass(kw_only=True)
class CodeFile(Part):
    """A file, or a folder with so many files, that is part of a program."""

    name: Stated[str] = ""
    path: str = ""
    sha256: Stated[str] = ""
    size_bytes: Stated[int] = 0
    files: int | None = None


@dataclass(kw_only=True)
class CodeSource(Part):
    """An asset of the catalog whose files a program is made of."""

    asset: Stated[str] = ""
    sha256: Stated[str] = ""


@dataclass(kw_only=True)
class GitState(Part):
    """The repository of a program, and what differs from its commit."""

    root: Stated[str] = ""
    commit: Stated[str] = ""
    branch: Stated[str] = ""
    remote: str = ""
    dirty: bool | None = None  # None: git was not asked, as in the repository of another user
    diff_sha256: str = ""
    diff: str = ""
    untracked: list[CodeFile] = field(default_factory=list)
    untracked_files: int = 0
    loose: list[str] = field(default_factory=list)  # files and folders whose content nothing of that tells
    problem: str = ""


@dataclass(kw_only=True)
class CapturedCode(Part):
    """What program it was."""

    git: GitState | None = None
    files: Stated[list[CodeFile]] = field(default_factory=list)
    sources: list[CodeSource] = field(default_factory=list)
    snapshot: str = ""  # the root of the tree in the store that holds it
    trouble: str = ""  # why there is no snapshot

    @property
    def root(self) -> str:
        """The folder of its repository; empty where there is none."""
        return self.git.root if self.git is not None else ""

    @property
    def commit(self) -> str:
        return self.git.commit if self.git is not None else ""

    @property
    def is_known(self) -> bool:
        """Whether a repository or a file of it was seen."""
        return self.git is not None or bool(self.files)


@dataclass(kw_only=True)
class CapturedInput(Part):
    """Something that went in: its digest, and where it was."""

    path: str = ""
    asset: str = ""
    sha256: Stated[str] = ""
    size_bytes: int | None = None
    files: int | None = None
    place: str = ""  # where the commands of a model expect it, in the folder of the run
    at: str = ""  # where it lies in the folder that the program was started from
    there: str = ""  # its path on another machine


@dataclass(kw_only=True)
class CapturedEnvironment(Part):
    """The Python and the packages that the program saw."""

    name: Stated[str] = ""
    digest: Stated[str] = ""
    python: Stated[str] = ""
    lock: Stated[list[str]] = field(default_factory=list)  # name==version
    definition: dict[str, Any] = field(default_factory=dict)  # how it was described when it was built


@dataclass(kw_only=True)
class Coverage(Part):
    """Whether everything that the program could read has a digest."""

    uncovered: Stated[list[str]] = field(default_factory=list)
    variables_sha256: Stated[str] = ""
    left: list[str] | None = None  # what it changed without declaring that; None: nobody looked


@dataclass(kw_only=True)
class Captured(Part):
    """What was captured when a run started."""

    code: Stated[CapturedCode] = field(default_factory=CapturedCode)
    inputs: Stated[dict[str, CapturedInput]] = field(default_factory=dict)
    environment: Stated[CapturedEnvironment] = field(default_factory=CapturedEnvironment)
    agent: dict[str, str] = field(default_factory=dict)
    coverage: Coverage | None = None
    hardware: Stated[dict[str, Any]] = field(default_factory=dict)
    software: Stated[dict[str, Any]] = field(default_factory=dict)
    scheduler: Stated[dict[str, Any]] = field(default_factory=dict)
    variables: Stated[dict[str, str]] = field(default_factory=dict)
    needs: list[dict[str, Any]] = field(default_factory=list)
    start: str = ""  # the folder that a run was started from which works in one of its own
    recorded_by: str = ""  # who wrote the end where the recorder did not live to it


# How often it was tried, and what carries it


@dataclass(kw_only=True)
class Attempt(Part):
    """One time that a run was started."""

    started: Stated[float] = 0.0
    host: Stated[str] = ""
    pid: Stated[int] = 0
    holder: str = ""  # the process of its recorder, by which others know whether it lives


@dataclass(kw_only=True)
class JobReference(Part):
    """The job, or the task of a job array, that carries a run."""

    key: Stated[str] = ""
    system: Stated[str] = ""
    task: int | None = None


@dataclass(kw_only=True)
class TrialReference(Part):
    """Which trial of which study a run is."""

    study: Stated[str] = ""
    number: int | None = None
    generation: int | None = None
    objectives: Stated[dict[str, Better]] = field(default_factory=dict)  # each metric with the better direction


# How it ended


@dataclass(kw_only=True)
class Metric(Part):
    """A metric of a run, over all values that were logged; `value` is the last."""

    value: float
    first: float
    min: float
    max: float
    mean: float
    count: int
    unit: Stated[str] = ""
    better: Stated[Better] = ""
    tolerance: Stated[float | None] = None
    source: str = ""  # "output" where it was read from what the program printed

    @property
    def best(self) -> float:
        """The best value ever seen, by the metric's direction; the last one where it has none."""
        return {"lower": self.min, "higher": self.max}.get(self.better, self.value)


@dataclass(kw_only=True)
class EnergyUse(Part):
    """The energy of all that was measured, counted once, and of what it is made up."""

    total_j: Stated[float | None] = None
    parts: Stated[list[dict[str, Any]]] = field(default_factory=list)
    left_out: Stated[dict[str, Any]] = field(default_factory=dict)
    missing: Stated[dict[str, str]] = field(default_factory=dict)


@dataclass(kw_only=True)
class OutputFile(Part):
    """A file that a run made or changed."""

    sha256: Stated[str] = ""
    size_bytes: Stated[int] = 0


@dataclass(kw_only=True)
class RunResult(Part):
    """How a run ended, what it used, and what was measured."""

    state: Stated[RunState] = RunState.INTERRUPTED
    exit_code: Stated[int | None] = None
    signal: Stated[str] = ""
    reason: Stated[str] = ""
    hint: Stated[str] = ""
    started: Stated[float | None] = None
    ended: Stated[float | None] = None
    elapsed_s: Stated[float | None] = None
    usage: Stated[dict[str, float]] = field(default_factory=dict)
    metrics: Stated[dict[str, Metric]] = field(default_factory=dict)
    spans: Stated[dict[str, dict[str, Any]]] = field(default_factory=dict)
    energy: Stated[EnergyUse] = field(default_factory=EnergyUse)
    outputs: Stated[dict[str, OutputFile]] = field(default_factory=dict)
    damaged_lines: Stated[int] = 0
    untouched: list[str] = field(default_factory=list)  # what its outputs match and it left as it was
    notes: list[str] = field(default_factory=list)


@dataclass(kw_only=True, repr=False)
class RunRecord(Part):
    """The record of one run. One without an id is what many runs share before they begin."""

    id: str = ""
    created: float = 0.0
    identity: Stated[str] = ""  # the digest of all that went in; empty where something of it is not known
    spec: Stated[RecordedSpec] = field(default_factory=RecordedSpec)
    captured: Stated[Captured] = field(default_factory=Captured)
    prediction: Stated[dict[str, Any]] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    job: Stated[JobReference | None] = None
    state: Stated[RunState] = RunState.RUNNING
    result: Stated[RunResult | None] = None
    argv: list[str] = field(default_factory=list)  # the command with its placeholders filled in
    rerun_of: str = ""
    imported: dict[str, Any] = field(default_factory=dict)  # where a run of somebody else came from
    foreign: bool = False  # done again from the record of somebody else
    inside: bool = False  # a part of another program
    container: str = ""
    trial: TrialReference | None = None
    trouble: str = ""
    before: dict[str, list[int]] = field(default_factory=dict)  # stamps of files that were there when it began

    def __repr__(self) -> str:
        return f"RunRecord({self.id!r}, {self.state})"

    @classmethod
    def from_dict(cls, data: Any, source: str = "the record of a run") -> Self:
        """Return the record that JSON of this or an earlier version states; see `Part.from_dict`."""
        if isinstance(data, dict):
            _check_format(data.get("format"), source)
            data = _migrated(data)
        return super().from_dict(data, source)

    def copy(self) -> RunRecord:
        """Return a record whose parts can be changed without changing this one."""
        copied: RunRecord = pickle.loads(pickle.dumps(self, -1))  # our own bytes; each member of a batch needs one
        return copied

    def to_dict(self) -> dict[str, Any]:
        """Return it as run.json holds it."""
        return {"format": FORMAT} | super().to_dict()


def _migrated(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier version wrote as this one writes it."""
    data = {key: value for key, value in data.items() if key != "format"}
    data |= {key: None for key in ("job", "result", "trial") if data.get(key) == {}}  # as good as none
    captured = data.get("captured")
    if isinstance(captured, dict) and isinstance(captured.get("agent"), str):  # before an agent had more than a name
        data["captured"] = captured | {"agent": {"name": captured["agent"]}}
    result = data.get("result")
    if isinstance(result, dict) and not result.get("state") and data.get("state"):
        data["result"] = result | {"state": data["state"]}
    return data


def _check_format(written: Any, source: str) -> None:
    if written is None:
        return
    found = re.fullmatch(rf"{_NAME}/(\d+)(?:\.\d+)?", str(written))
    if found is None:
        raise SystemFailure(f"{source} is damaged: format is {written!r:.60}, expected {FORMAT}")
    if int(found[1]) > int(_MAJOR):
        raise SystemFailure(
            f"{source} has the format {written}, and this version of Fairmile reads {FORMAT}",
            hint="update Fairmile to the version that wrote it",
        )
