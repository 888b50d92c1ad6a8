"""Flows in the formats of other tools: one module each, with `export` or a `READER`, and one line in the tables.

Readers stand in `files.READERS`, since they are asked what a file is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result


@dataclass(frozen=True)
class ExportedStep:
    """A step as other tools need it: a complete command, files, and what it comes after."""

    name: str
    argv: tuple[str, ...]
    needs: Sequence[str]
    inputs: Sequence[str]  # paths
    outputs: Sequence[str]
    on: str = "local"
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    retries: int = 0
    timeout_s: float | None = None
    started: float | None = None  # of its last good run, in seconds since the epoch
    elapsed_s: float | None = None
    cores: int = 1
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of the files that are there
    when: str = "done"  # what it asks of those before it: done, failed, always, or a condition on metrics
    backoff_s: float = 0.0


@dataclass(frozen=True)
class ExportedFlow:
    """A flow as other tools need it, its steps in an order in which they can run."""

    name: str
    folder: str
    steps: Sequence[ExportedStep]


class ExportDict(TypedDict):
    """A flow as text of another tool's format."""

    format: str
    text: str


@dataclass(frozen=True, repr=False)
class Export(Result):
    """A flow as text of another tool's format."""

    format: str
    text: str

    def to_dict(self) -> ExportDict:
        return {"format": self.format, "text": self.text}

    def summary(self) -> str:
        return f"{self.format}, {len(self.text):,} characters"


EXPORTS: Registry[Callable[[ExportedFlow], str]] = Registry(
    "format to export flows to",
    {
        "airflow": Plugin("fairmile.flows.exchange.airflow:export"),
        "snakemake": Plugin("fairmile.flows.exchange.snakemake:export"),
        "wfformat": Plugin("fairmile.flows.exchange.wfformat:export"),
    },
    entry_points="fairmile.flow_exports",
)


def command_text(step: ExportedStep) -> str:
    """Return what a shell is given to run a step from the folder of the flow, apart from its variables."""
    words = shlex.join(step.argv)
    return f"cd {shlex.quote(step.folder)} && {words}" if step.folder else words


def task_names(flow: ExportedFlow, reserved: Collection[str] = ()) -> dict[str, str]:
    """Return for each step a name of letters, digits and underscores, no two the same and none a reserved one."""
    names: dict[str, str] = {}
    taken = set(reserved)
    for step in flow.steps:
        word = re.sub(r"\W+", "_", step.name, flags=re.ASCII).strip("_") or "step"
        word = f"step_{word}" if word[0].isdigit() or word in reserved else word
        name, number = word, 1
        while name in taken:
            number += 1
            name = f"{word}_{number}"
        names[step.name] = name
        taken.add(name)
    return names


def refuse_conditions(flow: ExportedFlow, format: str, known: Collection[str]) -> None:
    """Raise UsageError where a step runs under a condition that a format cannot express."""
    for step in flow.steps:
        if step.when not in known:
            raise UsageError(f"step {step.name!r} runs when {step.when!r}, which {format} cannot express")
