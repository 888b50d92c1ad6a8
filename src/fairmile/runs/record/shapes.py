"""The JSON of runs: what `to_dict()` of a run, of a row of a list and of a change gives."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from fairmile.runs.record.values import Value


class RunDict(TypedDict):
    """The record of one execution, as run.json holds it."""

    format: str
    id: str
    created: float
    spec: dict[str, Any]
    captured: dict[str, Any]
    identity: NotRequired[str]
    prediction: NotRequired[dict[str, Any]]
    job: NotRequired[dict[str, Any] | None]
    argv: NotRequired[list[str]]
    attempts: NotRequired[list[dict[str, Any]]]
    state: NotRequired[str]
    result: NotRequired[dict[str, Any] | None]
    rerun_of: NotRequired[str]
    imported: NotRequired[dict[str, Any]]
    foreign: NotRequired[bool]
    container: NotRequired[str]
    inside: NotRequired[bool]
    trouble: NotRequired[str]


class RunRowDict(TypedDict):
    """One run of a list; a metric that is NaN or infinite is a text."""

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
    metrics: dict[str, float | str]
    tags: list[str]


class RunRowsDict(TypedDict):
    runs: list[RunRowDict]


class IndexDict(TypedDict):
    runs: int


class ChangesDict(TypedDict):
    """What a command changed: ids or files, and the verb."""

    done: list[str]
    what: str
