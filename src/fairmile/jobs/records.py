"""What we remember of a job: a folder with its specification, its submissions and its last known status."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import DiskFailure, NotFound, SystemFailure, UsageError
from fairmile.base.files import Lock, safe_join, write_atomic, write_failure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.jobs.judge import TaskStatus
from fairmile.jobs.spec import JobSpec
from fairmile.jobs.states import Observed, State, Usage

_JOB = "job.json"
# The file, and its field, have the name that the first version gave them.
_STATUS, _STATUS_FIELD, _OBSERVED_FIELD = "standing.json", "standing", "told"
_FIELDS = {"status": _STATUS_FIELD, "observed": _OBSERVED_FIELD}  # what the file calls them since version 0.1
_SUBMITTED = "submitted.json"
_CANCELLED = "cancelled"
_KEYS = ".keys"
_LAST = "last"
_LONGEST = 200
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 of them, so that a random byte means each as often


@dataclass(frozen=True)
class Known:
    """The last known status of a job and of its tasks, and what the scheduler last said of those that go on."""

    status: TaskStatus
    tasks: dict[int, TaskStatus] = dataclasses.field(default_factory=dict)
    observed: dict[str, Observed] = dataclasses.field(default_factory=dict)
    missing_since: float | None = None
    trouble: str = ""
    counted: bool = False  # whether what it used is known as well as it will ever be

    @property
    def is_over(self) -> bool:
        return self.status.state.is_end and all(task.state.is_end for task in self.tasks.values())


@dataclass(frozen=True)
class Record:
    """One job of ours."""

    id: str
    spec: JobSpec
    system: str
    created: float
    folder: Path
    submitted: tuple[str, ...] = ()  # the scheduler's ids, one for each attempt
    cancelled: bool = False

    @property
    def scheduler_id(self) -> str:
        return self.submitted[-1] if self.submitted else ""

    @property
    def key(self) -> str:
        """What the scheduler is told, so that a submission whose answer was lost is found again."""
        return f"fairmile:{self.id}:{len(self.submitted)}"

    def log_name(self, task: int | None, *, errors: bool = False) -> str:
        """Return the file with the output of a job or of one of its tasks; the default of an array is task 0."""
        stem = "err" if errors else "out"
        has_tasks = self.spec.array is not None or self.spec.parts is not None
        if self.spec.array is not None and task is None:
            task = 0
        if task is not None and not has_tasks:
            raise UsageError(f"job {self.id} is not an array: it has no task {task}")
        tasks = self.spec.array.count if self.spec.array else self.spec.parts
        if task is not None and tasks is not None and task >= tasks:
            raise UsageError(f"job {self.id} has no task {task}: its tasks are 0 to {tasks - 1}")
        return f"{stem}.log" if task is None else f"{stem}.{task}.log"


class Records:
    """All jobs below one folder; thousands of processes may each add their own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, spec: JobSpec, system: str, now: float) -> tuple[Record, bool]:
        """Return the record of a new job, or of the one that had the same key first, and whether it is new."""
        while True:
            id = f"{spec.name}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(6))}"
            folder = self.root / id
            try:
                if not os.path.isdir(self.root):
                    os.makedirs(self.root, exist_ok=True)
                os.mkdir(folder, 0o700)  # scripts and settings are nobody else's business
            except FileExistsError:
                continue
            except OSError as error:
                raise write_failure(str(folder), error) from error
            break
        record = Record(id, spec, system, now, folder)
        specification = spec.model_dump(mode="json", exclude_defaults=True)
        document = {"id": id, "system": system, "created": now, "spec": specification}
        try:
            write_atomic(folder / _JOB, json.dumps(document), mode=0o600)
        except DiskFailure:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if spec.key and (first := self._claim(spec.key, id)) != id:
            with contextlib.suppress(OSError):
                (folder / _JOB).unlink()
                folder.rmdir()
            return self.get(first), False
        return record, True

    def _claim(self, key: str, id: str) -> str:
        """Return the id of the job that took a key first, which may be this one."""
        file = self.root / _KEYS / sha256_hex(key.encode())
        file.parent.mkdir(exist_ok=True)
        try:
            write_atomic(file, id, exclusive=True)
        except FileExistsError:
            first = file.read_text()
            if (self.root / first / _JOB).exists():
                return first
            write_atomic(file, id)  # its job was removed
        return id

    def with_key(self, key: str) -> Record | None:
        """Return the job that took a key; None where nobody has it, or its job was removed."""
        try:
            return self.get((self.root / _KEYS / sha256_hex(key.encode())).read_text())
        except (FileNotFoundError, NotFound):
            return None

    def get(self, reference: str) -> Record:
        """Return the job that an id, the unique start or end of one, or `last` means."""
        is_name = 0 < len(reference) <= _LONGEST and "/" not in reference
        if not is_name or not os.path.isfile(f"{self.root}/{reference}/{_JOB}"):
            reference = self._complete(reference)
        folder = self.root / reference
        document = _read(f"{folder}/{_JOB}")
        attempts = _attempts(folder)
        try:
            return Record(
                document["id"],
                JobSpec.model_validate(document["spec"]),
                document["system"],
                document["created"],
                folder,
                tuple(attempt["id"] for attempt in attempts),
                os.path.exists(f"{folder}/{_CANCELLED}"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SystemFailure(f"{folder / _JOB} is damaged: {str(error).splitlines()[0]}") from error

    def turn(self, record: Record, *, timeout_s: float) -> Lock:
        """Return what lets one process at a time submit a job."""
        return Lock(record.folder / ".turn", timeout_s=timeout_s)

    def _complete(self, reference: str) -> str:
        return complete_id(self.root, reference, self.ids())

    def ids(self) -> list[str]:
        """Return the ids of all jobs."""
        try:
            with os.scandir(self.root) as entries:
                return sorted(e.name for e in entries if not e.name.startswith(".") and (self.root / e / _JOB).exists())
        except FileNotFoundError:
            return []

    def note_submission(
        self, record: Record, scheduler_id: str, now: float, *, ends_with_power: bool = False
    ) -> Record:
        """Remember the scheduler's id of one more attempt; one that `ends_with_power` is gone after a cut."""
        earlier = _attempts(record.folder) if record.submitted else []
        attempts = [*earlier, {"id": scheduler_id, "time": now}]
        sync = not ends_with_power or len(attempts) > 1
        write_atomic(record.folder / _SUBMITTED, json.dumps({"attempts": attempts}), sync=sync)
        (record.folder / _STATUS).unlink(missing_ok=True)
        return dataclasses.replace(record, submitted=(*record.submitted, scheduler_id))

    def note_cancel(self, record: Record) -> Record:
        """Remember that somebody wanted the end of a job."""
        write_atomic(record.folder / _CANCELLED, "")
        return dataclasses.replace(record, cancelled=True)

    def known(self, record: Record) -> Known | None:
        """Return the last known status of a job, or None for one that nobody looked at yet."""
        try:
            document = _read(f"{record.folder}/{_STATUS}")
            return Known(
                _as(TaskStatus, document[_STATUS_FIELD]),
                {int(index): _as(TaskStatus, task) for index, task in document["tasks"].items()},
                {id: _as(Observed, each) for id, each in document[_OBSERVED_FIELD].items()},
                document["missing_since"],
                document["trouble"],
                document["counted"],
            )
        except (FileNotFoundError, SystemFailure, AttributeError, KeyError, TypeError, ValueError):
            return None  # it is only a memory: what cannot be read, or is of another version, is found out again

    def remove(self, record: Record) -> None:
        """Forget a job."""
        shutil.rmtree(record.folder, ignore_errors=True)

    def discard(self, id: str) -> None:
        """Remove the folder of a job whose record cannot be read."""
        shutil.rmtree(safe_join(self.root, id), ignore_errors=True)

    def remember(self, record: Record, known: Known, *, ends_with_power: bool = False) -> None:
        """Keep the status of a job; of one that `ends_with_power` a cut may take as much as of what it wrote."""
        sync = known.is_over and not ends_with_power
        document = {_FIELDS.get(name, name): value for name, value in vars(known).items()}
        write_atomic(record.folder / _STATUS, json.dumps(document, default=vars), sync=sync)


T = TypeVar("T", TaskStatus, Observed)


def _as(kind: type[T], document: dict[str, Any]) -> T:
    usage = document.pop("usage")
    return kind(**document | {"state": State(document["state"]), "usage": Usage(**usage) if usage else None})


def _attempts(folder: Path) -> list[dict[str, Any]]:
    """Return the submissions of a job; none where a power cut left the file of them empty."""
    try:
        attempts: list[dict[str, Any]] = _read(f"{folder}/{_SUBMITTED}", empty={}).get("attempts", [])
        return attempts
    except FileNotFoundError:
        return []


def _read(file: str, *, empty: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the object that a file holds; `empty`, where it is given, for a file without content."""
    try:
        with open(file, "rb") as stream:
            data = stream.read()
        value = json.loads(data) if data or empty is None else empty
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise SystemFailure(f"cannot read {file}: {error}") from error
    if not isinstance(value, dict):
        raise SystemFailure(f"{file} is damaged: expected an object")
    return value


def complete_id(root: Path, reference: str, ids: Sequence[str]) -> str:
    """Return the one of some ids that a reference means: an id, the unique start or end of one, or `last`."""
    if not reference:
        raise UsageError("the name of the job is empty", hint="`fairmile job ls` lists all")
    if reference == _LAST:
        if not ids:
            raise NotFound("no jobs yet", hint="`fairmile job submit -- PROGRAM …` starts one")
        return max(ids, key=lambda each: os.stat(root / each / _JOB).st_mtime_ns)
    matches = (
        [reference]
        if reference in ids
        else [each for each in ids if each.startswith(reference) or each.endswith(f"-{reference}")]
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(sorted(matches)[:5])
        raise NotFound(f"{reference!r} is ambiguous: {shown}", hint="give a longer part of the id")
    near = did_you_mean(reference, ids)
    raise NotFound(f"no job named {reference!r}" + (f"; {near}" if near else ""), hint="`fairmile job ls` lists all")
