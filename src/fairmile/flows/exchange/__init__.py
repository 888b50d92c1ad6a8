"""Flows in the formats of other tools: one module each, with `export` or a `READER`, and one line in the tables.

Readers stand in `files.READERS`, since they are asked what a file is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

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
        "snakemake": Plugin("fairmile.flows.exchange.snakemake:export"),
        "wfformat": Plugin("fairmile.flows.exchange.wfformat:export"),
    },
    entry_points="fairmile.flow_exports",
)
