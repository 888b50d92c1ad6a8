"""The JSON of runs: what `to_dict()` of a run, of a row of a list and of a change gives.

The shapes of a run are those of the parts of `RunRecord`; a number that is NaN or infinite is a text.
"""

from __future__ import annotations

from typing import Any, NotRequired

from fairmile.base.quick_typed_dict import TypedDict
from fairmile.runs.record.values import Better, Value

Number = float | str


class DeclaredMetricDict(TypedDict):
    """How a metric is found and judged."""

    pattern: NotRequired[str]
    unit: NotRequired[str]
    better: NotRequired[Better]
    tolerance: NotRequired[Number]


class RecordedSpecDict(TypedDict):
    """What was asked for, without fields that have their default."""

    name: str
    argv: list[str]
    coupled: NotRequired[bool]
    params: NotRequired[dict[str, Value]]
    reads_params: NotRequired[bool]
    seed: NotRequired[int]
    env: NotRequired[dict[str, str]]
    folder: NotRequired[str]
    subfolder: NotRequired[str]
    code: NotRequired[list[str]]
    inputs: NotRequired[dict[str, dict[str, Any]]]
    outputs: NotRequired[list[str]]
    metrics: NotRequired[dict[str, DeclaredMetricDict]]
    environment: NotRequired[str]
    system: NotRequired[str]
    resources: NotRequired[dict[str, Any]]
    model_resources: NotRequired[dict[str, Any]]
    software: NotRequired[list[str]]
    launch: NotRequired[str]
    needs: NotRequired[list[str]]
    anyway: NotRequired[bool]
    timeout_s: NotRequired[Number]
    watch_s: NotRequired[Number]
    asset: NotRequired[str]
    dataset: NotRequired[str]
    group: NotRequired[str]
    tags: NotRequired[list[str]]


class CodeFileDict(TypedDict):
    name: str
    sha256: str
    size_bytes: int
    path: NotRequired[str]
    files: NotRequired[int]


class CodeSourceDict(TypedDict):
    asset: str
    sha256: str


class GitStateDict(TypedDict):
    """The repository of a program, and what differs from its commit."""

    root: str
    commit: NotRequired[str]
    branch: NotRequired[str]
    remote: NotRequired[str]
    dirty: NotRequired[bool]
    diff_sha256: NotRequired[str]
    diff: NotRequired[str]
    untracked: NotRequired[list[CodeFileDict]]
    untracked_files: NotRequired[int]
    loose: NotRequired[list[str]]
    problem: NotRequired[str]


class CapturedCodeDict(TypedDict):
    files: list[CodeFileDict]
    git: NotRequired[GitStateDict]
    sources: NotRequired[list[CodeSourceDict]]
    snapshot: NotRequired[str]
    trouble: NotRequired[str]


class CapturedInputDict(TypedDict):
    sha256: str
    path: NotRequired[str]
    asset: NotRequired[str]
    size_bytes: NotRequired[int]
    files: NotRequired[int]
    place: NotRequired[str]
    at: NotRequired[str]
    there: NotRequired[str]


class CapturedEnvironmentDict(TypedDict):
    """The Python and the packages that the program saw."""

    name: str
    digest: str
    python: str
    interpreter: NotRequired[str]
    lock: list[str]
    definition: NotRequired[dict[str, Any]]


class ReadFileDict(TypedDict):
    """A file, or the names in a folder, that a program was seen to read."""

    sha256: NotRequired[str]
    size_bytes: NotRequired[int]
    stamp: NotRequired[list[int]]
    absent: NotRequired[bool]
    trouble: NotRequired[str]


class CoverageDict(TypedDict):
    """Whether everything that the program could read has a digest."""

    uncovered: list[str]
    variables_sha256: str
    left: NotRequired[list[str]]
    reads: NotRequired[dict[str, ReadFileDict]]
    restored: NotRequired[list[str]]
    beside_sha256: NotRequired[str]
    watched: NotRequired[list[str]]
    unwatched: NotRequired[list[str]]


class CapturedDict(TypedDict):
    """What was captured when a run started."""

    code: CapturedCodeDict
    inputs: dict[str, CapturedInputDict]
    environment: CapturedEnvironmentDict
    agent: NotRequired[dict[str, str]]
    coverage: NotRequired[CoverageDict]
    hardware: NotRequired[dict[str, Any]]
    software: NotRequired[dict[str, Any]]
    scheduler: NotRequired[dict[str, Any]]
    variables: NotRequired[dict[str, str]]
    needs: NotRequired[list[dict[str, Any]]]
    start: NotRequired[str]
    recorded_by: NotRequired[str]


class AttemptDict(TypedDict):
    started: Number
    host: str
    pid: int
    holder: NotRequired[str]


class JobReferenceDict(TypedDict):
    """The job, or the task of a job array, that carries a run."""

    key: str
    system: str
    task: NotRequired[int]


class TrialReferenceDict(TypedDict):
    study: str
    objectives: dict[str, Better]
    number: NotRequired[int]
    generation: NotRequired[int]


class MetricDict(TypedDict):
    """A metric over all values that were logged; `value` is the last."""

    value: Number
    first: Number
    min: Number
    max: Number
    mean: Number
    count: int
    unit: str
    better: Better
    tolerance: Number | None


class EnergyDict(TypedDict):
    total_j: Number | None
    parts: list[dict[str, Any]]
    left_out: dict[str, Any]
    missing: dict[str, str]


class OutputFileDict(TypedDict):
    sha256: str
    size_bytes: int


class RunResultDict(TypedDict):
    """How a run ended, what it used, and what was measured."""

    state: str
    exit_code: int | None
    signal: str
    reason: str
    hint: str
    started: Number | None
    ended: Number | None
    elapsed_s: Number | None
    usage: dict[str, Number]
    metrics: dict[str, MetricDict]
    spans: dict[str, dict[str, Any]]
    energy: EnergyDict
    outputs: dict[str, OutputFileDict]
    damaged_lines: int
    untouched: NotRequired[list[str]]
    notes: NotRequired[list[str]]


class RunDict(TypedDict):
    """The record of one execution, as run.json holds it."""

    format: str
    id: str
    created: Number
    identity: str
    spec: RecordedSpecDict
    captured: CapturedDict
    prediction: dict[str, dict[str, Any]]
    job: JobReferenceDict | None
    state: str
    result: RunResultDict | None
    attempts: NotRequired[list[AttemptDict]]
    argv: NotRequired[list[str]]
    rerun_of: NotRequired[str]
    imported: NotRequired[dict[str, Any]]
    foreign: NotRequired[bool]
    inside: NotRequired[bool]
    container: NotRequired[str]
    trial: NotRequired[TrialReferenceDict]
    trouble: NotRequired[str]
    before: NotRequired[dict[str, list[int]]]


class RunRowDict(TypedDict):
    """One run of a list."""

    id: str
    name: str
    state: str
    created: float
    elapsed_s: float | None
    energy_j: float | None
    identity: str
    group: str
    system: str
    asset: str
    reason: str
    params: dict[str, Value]
    metrics: dict[str, Number]
    tags: list[str]
    units: dict[str, str]


class RunRowsDict(TypedDict):
    runs: list[RunRowDict]


class RunPageDict(RunRowsDict):
    start: int
    total: int
    states: dict[str, int]


class IndexDict(TypedDict):
    runs: int


class ChangesDict(TypedDict):
    """What a command changed: ids or files, and the verb."""

    done: list[str]
    what: str
