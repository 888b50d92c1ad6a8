"""Records of runs that others made: what they tell, in the form of ours, and checked before it is trusted."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from fairmile.base.errors import InvalidDocument, Problem, SystemFailure, UsageError
from fairmile.base.files import safe_join, write_atomic
from fairmile.base.words import slug
from fairmile.meter.lines import FILE, Log, Logged, Writer, number_text
from fairmile.meter.summaries import metric_documents
from fairmile.runs.record.layout import OUTPUT, WORK
from fairmile.runs.record.record import (
    FORMAT,
    Attempt,
    Captured,
    CapturedCode,
    CapturedEnvironment,
    Metric,
    RecordedSpec,
    RunRecord,
    RunResult,
    RunState,
)
from fairmile.runs.record.spec import RunSpec
from fairmile.runs.record.values import better_of

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,300})(\.\d+)?([eE][+-]?\d{1,3})?", re.ASCII)
_LONGEST_NAME = 64
_LAST_TIME = 253_402_300_800  # the end of the year 9999, where calendars end


def _inside(path: str) -> str:
    safe_join(Path("run"), path)
    return path


_Time = Annotated[float, Field(ge=0, lt=_LAST_TIME)]
_Number = Annotated[float, Field(strict=True)]  # a text such as "NaN" stands for what JSON has no number for
_Digest = Annotated[str, Field(pattern=r"^(?:[0-9a-f]{64})?$")]
_Inside = Annotated[str, AfterValidator(_inside)]


class _Part(BaseModel):
    """A part of a record as far as it is relied on; whatever else stands in it is kept."""

    model_config = ConfigDict(extra="allow")


class _Git(_Part):
    commit: str | None = None
    root: str = ""


class _CodeFile(_Part):
    name: _Inside
    path: str
    sha256: _Digest


class _Source(_Part):
    asset: str
    sha256: _Digest


class _Code(_Part):
    git: _Git | None = None
    files: list[_CodeFile] = []
    sources: list[_Source] = []
    snapshot: _Digest = ""


class _InputFacts(_Part):
    path: str = ""
    asset: str = ""
    sha256: _Digest = ""
    size_bytes: int | None = None
    place: _Inside = "."
    file: _Inside = "."


class _EnvironmentFacts(_Part):
    name: str = ""
    digest: _Digest = ""
    python: str | None = ""
    lock: list[str] | None = None
    definition: dict[str, Any] | None = None


class _Captured(_Part):
    code: _Code | None = None
    inputs: dict[_Inside, _InputFacts] | None = None
    environment: _EnvironmentFacts | None = None
    hardware: dict[str, Any] | None = None
    software: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    variables: dict[str, str] | None = None


class _Figures(_Part):
    value: _Number | str
    first: _Number | str
    min: _Number | str
    max: _Number | str
    mean: _Number | str
    count: int
    unit: str
    better: str
    tolerance: float | None = None

    @field_validator("value", "first", "min", "max", "mean")
    @classmethod
    def _is_a_number(cls, value: float | str) -> float | str:
        float(value)
        return value


class _OutputFacts(_Part):
    sha256: _Digest
    size_bytes: int | None = None


class _Energy(_Part):
    total_j: float | None = None
    parts: list[dict[str, Any]] = []


class _Result(_Part):
    started: _Time | None = None
    ended: _Time | None = None
    elapsed_s: float | None = None
    exit_code: int | None = None
    reason: str | None = ""
    metrics: dict[str, _Figures] | None = None
    outputs: dict[_Inside, _OutputFacts] | None = None
    spans: dict[str, dict[str, Any]] | None = None
    usage: dict[str, float | None] | None = None
    energy: _Energy | None = None
    notes: list[str] = []


class _Attempt(_Part):
    started: _Time


class _Attempts(BaseModel):
    attempts: list[_Attempt]


_Checked = TypeVar("_Checked", bound=BaseModel)


@dataclass(frozen=True)
class Point:
    """One value of a metric."""

    name: str
    value: float
    step: float | None
    at_s: float  # unix time


@dataclass
class ForeignRun:
    """What another program tells of one of its runs."""

    format: str
    key: str  # its id over there
    name: str
    created_s: float
    ended_s: float | None = None
    state: RunState = RunState.DONE
    reason: str = ""
    argv: Sequence[str] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    group: str = ""
    points: Sequence[Point] = ()
    code: Mapping[str, Any] = field(default_factory=dict)
    lock: Sequence[str] = ()
    host: str = ""
    agent: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)  # what it made, laid into `work/`
    printed: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> RunRecord:
        """Return it as a record of ours."""
        spec = RecordedSpec(
            name=run_name(self.name),
            argv=[str(word) for word in self.argv] or ["unknown"],
            params={str(key): _scalar(value) for key, value in self.params.items()},
            tags=[str(tag) for tag in self.tags],
            group=self.group,
        )
        result = RunResult(
            state=self.state,
            reason=self.reason,
            started=self.created_s,
            ended=self.ended_s,
            elapsed_s=None if self.ended_s is None else max(0.0, self.ended_s - self.created_s),
            metrics=metric_figures(self.points),
        )
        captured = Captured(
            code=CapturedCode.from_dict(dict(self.code), f"{self.format} run {self.key}"),
            environment=CapturedEnvironment(lock=list(self.lock)),
            hardware={"host": self.host} if self.host else {},
            agent={"name": self.agent} if self.agent else {},
        )
        made = RunRecord(
            id=f"{spec.name[:80]}-{_tail(self.key)}",
            created=self.created_s,
            spec=spec,
            captured=captured,
            attempts=[Attempt(started=self.created_s, host=self.host)],
            state=self.state,
            result=result if self.state.is_end else None,
            imported={"format": self.format, "id": self.key, **self.more},
        )
        return checked_record(made.to_dict(), f"{self.format} run {self.key}")

    def lay(self, folder: Path) -> None:
        """Write what comes with the run into a new folder."""
        lay_copies({f"{WORK}/{name}": path for name, path in self.files.items()}, folder)
        if self.points:
            write_atomic(folder / FILE, events_text(self.points, self.host or self.format))
        if self.printed:
            write_atomic(folder / OUTPUT, self.printed)

    def names(self) -> tuple[str, ...]:
        """Return the names of the files that `lay` writes."""
        own = [FILE] * bool(self.points) + [OUTPUT] * bool(self.printed)
        return (*own, *(f"{WORK}/{name}" for name in self.files))


def validated(model: type[_Checked], data: Any, place: str) -> _Checked:
    """Return a document of another program with its types checked; the first field that is wrong is named."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(step) for step in first["loc"])
        said = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r:.80}"
        raise InvalidDocument([Problem(said, file=place, field=field)]) from error


def refuse_links_out(folder: Path) -> None:
    """Refuse a folder in which a symbolic link leads to files outside of it."""
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):
        for path in (os.path.join(place, name) for name in (*folders, *files)):
            if os.path.islink(path) and not os.path.realpath(path).startswith(root.rstrip("/") + "/"):
                raise UsageError(
                    f"{path} is a symbolic link that leads out of {folder}", hint="replace it by what it stands for"
                )


def run_name(text: str) -> str:
    """Return a text as the name of a run."""
    return slug(text, keep_case=True)[:_LONGEST_NAME].lstrip("._-") or "run"


def checked_record(document: Any, place: str) -> RunRecord:
    """Return the record of a run from elsewhere, or raise InvalidDocument that names what is wrong in it."""
    if not isinstance(document, dict):
        raise _wrong(place, "", "is no record of a run")
    if document.get("format") != FORMAT:
        raise _wrong(place, "format", f"is {document.get('format')!r}, expected {FORMAT!r}")
    if not isinstance(document.get("id"), str) or not _ID.fullmatch(document["id"]):
        raise _wrong(place, "id", "is no name of a folder")
    created = document.get("created")
    if isinstance(created, bool) or not isinstance(created, (int, float)) or not 0 <= created < _LAST_TIME:
        raise _wrong(place, "created", "is no time")
    for name in ("captured", "result", "prediction", "job"):
        if not isinstance(document.get(name) or {}, dict):
            raise _wrong(place, name, "is no object")
    state = (document.get("result") or {}).get("state") or document.get("state")
    if state not in [str(each) for each in RunState]:
        raise _wrong(place, "state", f"is {state!r}, which is no state of a run")
    parts: tuple[tuple[str, type[BaseModel], Any], ...] = (
        ("spec", RunSpec, document.get("spec")),
        ("captured", _Captured, document.get("captured") or {}),
        ("result", _Result, document.get("result") or {}),
        ("attempts", _Attempts, {"attempts": document.get("attempts") or []}),
    )
    for part, model, value in parts:
        try:
            model.model_validate(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join([part, *(str(step) for step in first["loc"] if step != part)])
            raise _wrong(place, where, first["msg"].removeprefix("Value error, ")) from error
    try:
        return RunRecord.from_dict(document, place)
    except SystemFailure as error:
        raise InvalidDocument([Problem(error.message)], hint="it was not written by `fairmile`") from error


def metric_figures(points: Iterable[Point]) -> dict[str, Metric]:
    """Return what a record tells of each metric."""
    writer = Writer("", 0, None, 0, 0)
    logged = [Logged(each.name, each.value, each.step, round(each.at_s * 1e9), writer) for each in points]
    figures = metric_documents(Log(metrics=logged))
    return {name: Metric.from_dict({**each, "better": better_of(name)}) for name, each in figures.items()}


def events_text(points: Iterable[Point], host: str) -> str:
    """Return values of metrics as the log of a run has them."""
    lines: list[Mapping[str, Any]] = [{"writer": {"host": host, "rank": None, "wall_ns": 0, "clock_ns": 0}, "p": 0}]
    for point in points:
        line: dict[str, Any] = {"log": {point.name: number_text(point.value)}, "at": round(point.at_s * 1e9), "p": 0}
        if point.step is not None:
            line["step"] = point.step
        lines.append(line)
    return "".join(json.dumps(line) + "\n" for line in lines)


def typed(text: str) -> str | int | float | bool | None:
    """Return the value that a text stands for, where a form keeps every parameter as text."""
    if text in ("True", "true", "False", "false"):
        return text in ("True", "true")
    if text in ("None", "null"):
        return None
    # Only what is written as a number is one: 007, 1_000 and nan stay texts.
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return float(text) if match[1] or match[2] else int(text)


def _scalar(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(number_text(value))
    return json.dumps(value, default=str)


def _tail(key: str) -> str:
    """Return the end of an id that tells two runs of one name apart."""
    letters = re.sub(r"[^a-z0-9]", "", key.lower())
    return letters[-12:] or "0"


def _wrong(place: str, field: str, message: str) -> InvalidDocument:
    return InvalidDocument([Problem(message, file=place, field=field, hint="it was not written by `fairmile`")])


def files_below(folder: Path) -> list[str]:
    """Return the names of all plain files below a folder; links are not followed."""
    found = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        inside = os.path.relpath(place, folder)
        for each in sorted(files):
            name = each if inside == "." else f"{inside}/{each}"
            if stat.S_ISREG(os.lstat(folder / name).st_mode):
                found.append(name)
    return found


def lay_copies(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files into a new folder."""
    folder.mkdir(parents=True)
    for name, path in files.items():
        target = safe_join(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
