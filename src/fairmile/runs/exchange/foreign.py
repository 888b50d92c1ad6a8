"""Records of runs that others made: what they tell, in the form of ours, and checked before it is trusted."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fairmile.base.errors import InvalidDocument, Problem, SystemFailure, UsageError
from fairmile.base.files import safe_join, write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import slug
from fairmile.meter.lines import FILE, Log, Logged, Writer, metric_lines, number_text
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
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_NAME = 64
_NOT_OURS = "it was not written by Fairmile"
_LAST_TIME = 253_402_300_800  # the end of the year 9999, where calendars end


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
            values = ((each.name, each.value, each.step, each.at_s) for each in self.points)
            write_atomic(folder / FILE, metric_lines(values, self.host or self.format))
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
        message = f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r:.80}"
        raise InvalidDocument([Problem(message, file=place, field=field)]) from error


def refuse_links_out(folder: Path) -> None:
    """Refuse a folder in which a symbolic link leads to files outside of it."""
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):
        for path in (os.path.join(place, name) for name in (*folders, *files)):
            if os.path.islink(path) and not os.path.realpath(path).startswith(root.rstrip("/") + "/"):
                raise UsageError(f"{path} is a symbolic link to outside {folder}", hint="replace it with its target")


def run_name(text: str) -> str:
    """Return a text as the name of a run."""
    return slug(text, keep_case=True)[:_LONGEST_NAME].lstrip("._-") or "run"


def checked_record(data: Any, place: str) -> RunRecord:
    """Return the record of a run from elsewhere, or raise InvalidDocument that names what is wrong in it."""
    try:
        record = RunRecord.from_dict(data, place)
    except SystemFailure as error:
        raise InvalidDocument([Problem(error.message)], hint=_NOT_OURS) from error
    if data.get("format") != FORMAT:
        raise _wrong(place, "format", f"is {data.get('format')!r}, expected {FORMAT!r}")
    try:
        RunSpec.model_validate(record.spec.to_dict())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["spec", *map(str, first["loc"])])
        raise _wrong(place, where, first["msg"].removeprefix("Value error, ")) from error
    for where, message in _refused(record):
        raise _wrong(place, where, message)
    return record


def _refused(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield the fields of a record from elsewhere that nobody may rely on, each with what is wrong with it."""
    if not _ID.fullmatch(record.id):
        yield "id", "is not a valid folder name"
    for number, file in enumerate(record.captured.code.files):
        if not file.path:
            yield f"captured.code.files.{number}.path", "is missing"
    for where, digest in _digests(record):
        if digest and not _DIGEST.fullmatch(digest):
            yield where, f"is {digest!r:.80}, expected a sha256"
    for where, path in _paths(record):
        try:
            safe_join(Path("run"), path)
        except UsageError as error:
            yield where, error.message
    for where, time_s in _times(record):
        if not 0 <= time_s < _LAST_TIME:
            yield where, f"is {time_s}, expected a time"


def _digests(record: RunRecord) -> Iterator[tuple[str, str]]:
    captured = record.captured
    yield "captured.code.snapshot", captured.code.snapshot
    yield "captured.environment.digest", captured.environment.digest
    for number, file in enumerate(captured.code.files):
        yield f"captured.code.files.{number}.sha256", file.sha256
    for number, source in enumerate(captured.code.sources):
        yield f"captured.code.sources.{number}.sha256", source.sha256
    for name, given in captured.inputs.items():
        yield f"captured.inputs.{name}.sha256", given.sha256
    for name, made in record.result.outputs.items() if record.result is not None else ():
        yield f"result.outputs.{name}.sha256", made.sha256


def _paths(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Yield what is joined to the folder of a run, or becomes a file in it."""
    for number, file in enumerate(record.captured.code.files):
        yield f"captured.code.files.{number}.name", file.name
    for name, given in record.captured.inputs.items():
        yield "captured.inputs", name
        yield f"captured.inputs.{name}.place", given.place or "."
        yield f"captured.inputs.{name}.file", str(given.extra.get("file") or ".")
    for name in record.result.outputs if record.result is not None else ():
        yield "result.outputs", name


def _times(record: RunRecord) -> Iterator[tuple[str, float]]:
    yield "created", record.created
    for number, attempt in enumerate(record.attempts):
        yield f"attempts.{number}.started", attempt.started
    if record.result is not None:
        yield "result.started", record.result.started or 0.0
        yield "result.ended", record.result.ended or 0.0


def metric_figures(points: Iterable[Point]) -> dict[str, Metric]:
    """Return what a record tells of each metric."""
    writer = Writer("", 0, None, 0, 0)
    logged = [Logged(each.name, each.value, each.step, round(each.at_s * 1e9), writer) for each in points]
    figures = metric_documents(Log(metrics=logged))
    return {name: Metric.from_dict({**each, "better": better_of(name)}) for name, each in figures.items()}


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
    return InvalidDocument([Problem(message, file=place, field=field, hint=_NOT_OURS)])


def files_below(folder: Path) -> list[str]:
    """Return the names of all plain files below a folder; links are not followed."""
    names = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        inside = os.path.relpath(place, folder)
        for each in sorted(files):
            name = each if inside == "." else f"{inside}/{each}"
            if stat.S_ISREG(os.lstat(folder / name).st_mode):
                names.append(name)
    return names


def lay_copies(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files into a new folder."""
    folder.mkdir(parents=True)
    for name, path in files.items():
        target = safe_join(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
