"""What measuring the loaders of a benchmark returns."""

from __future__ import annotations

import json
from typing import TypedDict, cast

from fairmile.base.errors import RunFailed
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.runs.record.run import Run, RunState

_FILE = "loaders.json"


class WayDict(TypedDict):
    """A way to feed a training: median seconds per step, and the share of it that waits for data."""

    name: str
    settings: str
    step_s: float
    wait_share: float


class SlowerDict(TypedDict):
    """How much slower a way is than the best one, with a 95 % interval over the rounds."""

    name: str
    ratio: float
    low: float
    high: float


class AnswerDict(TypedDict):
    """The fastest way; `cannot_tell` are those that may be as fast."""

    best: str
    settings: str
    others: list[SlowerDict]
    cannot_tell: list[str]


class CompressedDict(TypedDict):
    name: str
    ratio: float
    compress_bytes_per_s: float
    decompress_bytes_per_s: float
    lossless: bool


class CompressionDict(TypedDict):
    advice: str
    reading_is_the_limit: bool
    methods: list[CompressedDict]


class LoaderChoiceDict(TypedDict):
    run: str
    device: str
    batch_size: int
    steps: int
    rounds: int
    ways: list[WayDict]
    answer: AnswerDict
    left_out: dict[str, str]
    compression: CompressionDict


@dataclass(frozen=True, repr=False)
class LoaderChoice(Result):
    """Ways to feed a training, measured in turns, and which one to use."""

    data: LoaderChoiceDict

    def to_dict(self) -> LoaderChoiceDict:
        return self.data

    def summary(self) -> str:
        answer = self.data["answer"]
        if answer["cannot_tell"]:
            return f"cannot tell {answer['best']} from {', '.join(answer['cannot_tell'])}"
        return f"use {answer['best']}: {answer['settings']}"


def read_choice(run: Run) -> LoaderChoice:
    """Return what a run measured."""
    file = run.work / _FILE
    if run.state != RunState.DONE or not file.is_file():
        raise RunFailed(f"run {run.id} measured no loaders", hint=f"`fairmile runs log {run.id}` prints its output")
    return LoaderChoice(cast(LoaderChoiceDict, {"run": run.id, **json.loads(file.read_text())}))
