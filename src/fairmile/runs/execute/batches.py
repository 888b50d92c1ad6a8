"""Many runs that are prepared once: what they share is frozen in a folder, for a pool here or for job arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.jobs.spec import Array, JobSpec, Resources
from fairmile.runs.execute.worker import BATCH, MEMBER, MEMBERS, Batch
from fairmile.runs.record.commands import recorded_spec, start_command
from fairmile.runs.record.spec import RunSpec

if TYPE_CHECKING:
    from fairmile.jobs.queue import JobStatus

WORKER = "fairmile.runs.execute.worker"  # the module that executes the members of a task
_PRIVATE = 0o600  # variables of a program may be secrets


@dataclass(frozen=True)
class Frozen:
    """What the runs of a batch share, as it lies in a folder; `values` are what placeholders of inputs stand for."""

    folder: Path
    spec: RunSpec
    values: Mapping[str, str]
    notes: tuple[str, ...] = ()  # what a person should know before they run

    def member(self, id: str, **changes: Any) -> dict[str, Any]:
        """Return one run of the batch; `changes` are fields of its specification that differ."""
        spec = self.spec.model_copy(update=changes)
        shared, own = recorded_spec(self.spec).to_dict(), recorded_spec(spec).to_dict()
        member: dict[str, Any] = {
            "id": id,
            "spec": {name: value for name, value in own.items() if shared.get(name) != value},
            "argv": start_command(spec, self.values),
        }
        if spec.env != self.spec.env:
            member["env"] = dict(spec.env)
        return member

    def write_members(self, members: Iterable[Mapping[str, Any]]) -> None:
        """Keep all members, in their order."""
        text = "".join(f"{json.dumps(each)}\n" for each in members)
        write_atomic(self.folder / MEMBERS, text, mode=_PRIVATE)


@dataclass(frozen=True)
class ArrayState:
    """Where a job array stands: which of its tasks have ended, and whether all of them have."""

    job: str
    is_over: bool
    ended: frozenset[int]
    sentence: str

    @classmethod
    def of(cls, job: JobStatus) -> ArrayState:
        ended = frozenset(index for index, status in job.tasks.items() if status.state.is_end)
        return cls(job.id, job.is_over, ended, job.status.sentence)


def write_batch(batch: Batch) -> None:
    """Keep what all members of a batch share, where their workers find it."""
    write_atomic(batch.folder / BATCH, batch.text(), mode=_PRIVATE)


def write_tasks(folder: Path, number: int, key: str, system: str, tasks: Sequence[Sequence[int]]) -> str:
    """Keep which members each task of a job executes, and return the name of the file."""
    name = f"tasks-{number}.json"
    write_atomic(folder / name, json.dumps({"key": key, "system": system, "tasks": [list(each) for each in tasks]}))
    return name


def read_tasks(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the jobs of a batch, the oldest first: the key, the system and the members of each task."""
    files = sorted(folder.glob("tasks-*.json"), key=lambda file: int(file.stem.removeprefix("tasks-")))
    for file in files:
        yield json.loads(file.read_bytes())


def batch_folder(job: JobSpec) -> Path | None:
    """Return the folder of the batch whose members a job array executes; None for a job that is none of these."""
    words = job.recorder
    return Path(words[words.index(WORKER) + 1]) if WORKER in words else None


def array_job(
    spec: RunSpec,
    words: Sequence[str],
    *,
    count: int,
    at_once: int | None,
    resources: Resources,
    key: str,
) -> JobSpec:
    """Return the job array whose tasks execute members; `words` start the worker of a task."""
    is_one = (resources.nodes or 1) * (resources.tasks_per_node or 1) == 1
    return JobSpec(
        argv=(MEMBER,),
        name=spec.name,
        env={},  # each member has its own
        resources=resources,
        software=spec.software,
        # A program of one process needs no launcher, which could start only one at a time.
        launch=spec.launch or ("plain" if is_one and not spec.software else None),
        recorder=(*words, "--"),
        array=Array(count=count, at_once=at_once),
        key=key,
    )
