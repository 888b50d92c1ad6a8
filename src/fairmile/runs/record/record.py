"""The record of a run, typed: what was asked, what was captured, how often it was tried, and how it ended.

`run.json` holds it as JSON; `layout` is the one place that reads and writes that file. Nothing but the standard
library, `base` and `meter` is needed: the record goes wherever the recorder goes.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Self

from fairmile.base.errors import SystemFailure
from fairmile.runs.record.parts import Part, Stated, part
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


# What was asked for


@part
class DeclaredMetric(Part):
    """How a metric is found and judged."""

    pattern: str = ""
    unit: str = ""
    better: Better = ""
    tolerance: float | None = None


@part
class RecordedSpec(Part):
    """A specification as a record holds it: without what was left at its default, and without secrets.

    The fields and their defaults are those of `RunSpec`.
    """

    name: Stated[str] = "run"
    argv: Stated[list[str]] = field(default_factory=list)
    coupled: bool = False
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
    model_resources: dict[str, Any] | None = None
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

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with other values of some fields, as JSON states them."""
        return type(self).from_dict(self.to_dict() | dict(changes), "the specification of a run")


# What was captured when it started


@part
class CodeFile(Part):
    """A file, or a folder with so many files, that is part of a program."""

    name: Stated[str] = ""
    path: str = ""
    sha256: Stated[str] = ""
    size_bytes: Stated[int] = 0
    files: int | None = None


@part
class CodeSource(Part):
    """An asset of the catalog whose files a program is made of."""

    asset: Stated[str] = ""
    sha256: Stated[str] = ""


@part
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


@part
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


@part
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


@part
class CapturedEnvironment(Part):
    """The Python and the packages that the program saw."""

    name: Stated[str] = ""
    digest: Stated[str] = ""
    python: Stated[str] = ""
    interpreter: str = ""  # where it lay
    lock: Stated[list[str]] = field(default_factory=list)  # name==version
    definition: dict[str, Any] = field(default_factory=dict)  # how it was described when it was built


@part
class ReadFile(Part):
    """A file, or the names in a folder, that a program was seen to read."""

    sha256: str = ""  # empty where it is too large to read again; then its stamp tells whether it changed
    size_bytes: int | None = None
    stamp: list[int] = field(default_factory=list)
    absent: bool = False  # it looked for the file, and there was none
    trouble: str = ""  # why there is no digest


@part
class Coverage(Part):
    """Whether everything that the program could read has a digest."""

    uncovered: Stated[list[str]] = field(default_factory=list)
    variables_sha256: Stated[str] = ""
    left: list[str] | None = None  # what it changed without declaring that; None: nobody looked
    reads: dict[str, ReadFile] | None = None  # by path, what it opened of all that is not covered; None: not watched
    restored: list[str] = field(default_factory=list)  # of a rerun: files that changed since, brought back as they were
    beside_sha256: str = ""  # of the names of all that is not covered in its folder
    watched: list[str] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether all that the program could read is covered, or it was seen what it did read."""
        return not self.uncovered or self.reads is not None


@part
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


@part
class Attempt(Part):
    """One time that a run was started."""

    started: Stated[float] = 0.0
    host: Stated[str] = ""
    pid: Stated[int] = 0
    holder: str = ""  # the process of its recorder, by which others know whether it lives


@part
class JobReference(Part):
    """The job, or the task of a job array, that carries a run."""

    key: Stated[str] = ""
    system: Stated[str] = ""
    task: int | None = None


@part
class TrialReference(Part):
    """Which trial of which study a run is."""

    study: Stated[str] = ""
    number: int | None = None
    generation: int | None = None
    objectives: Stated[dict[str, Better]] = field(default_factory=dict)  # each metric with the better direction


# How it ended


@part
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
    source: str = ""  # "output" or "event files" where it was read from what the program printed or wrote

    def __repr__(self) -> str:
        best = f", best {self.best:.6g}" if self.better and self.best != self.value else ""
        return f"<Metric: {self.value:.6g}{f' {self.unit}' if self.unit else ''}{best}, {self.count:,} values>"

    @property
    def best(self) -> float:
        """The best value ever seen, by the metric's direction; the last one where it has none."""
        return {"lower": self.min, "higher": self.max}.get(self.better, self.value)


@part
class EnergyUse(Part):
    """The energy of all that was measured, counted once, and of what it is made up."""

    total_j: Stated[float | None] = None
    parts: Stated[list[dict[str, Any]]] = field(default_factory=list)
    left_out: Stated[dict[str, Any]] = field(default_factory=dict)
    missing: Stated[dict[str, str]] = field(default_factory=dict)


@part
class OutputFile(Part):
    """A file that a run made or changed."""

    sha256: Stated[str] = ""
    size_bytes: Stated[int] = 0


@part
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


@part
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

    def copy(self) -> Self:
        """Return a record whose parts can be changed without changing this one."""
        import pickle  # only batches copy records

        copied: Self = pickle.loads(pickle.dumps(self, -1))  # our own bytes; each member of a batch needs one
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
    if written in (None, FORMAT):
        return
    match = re.fullmatch(rf"{_NAME}/(\d+)(?:\.\d+)?", str(written))
    if match is None:
        raise SystemFailure(f"{source} is damaged: format is {written!r:.60}, expected {FORMAT}")
    if int(match[1]) > int(_MAJOR):
        raise SystemFailure(
            f"{source} has the format {written}, and this version of Fairmile reads {FORMAT}",
            hint="update Fairmile to the version that wrote it",
        )
