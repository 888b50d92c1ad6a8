"""Flows in the formats of other tools: one module each, with `export` or a `READER`, and one line in the tables.

Readers stand in `files.READERS`, since they are asked what a file is.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import Conflict, UsageError
from fairmile.base.files import safe_join, write_atomic
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.registry import Plugin, Registry
from fairmile.base.results import Result

if TYPE_CHECKING:
    from fairmile.runs.record.packing import new_zip
else:
    new_zip = lazy("fairmile.runs.record.packing:new_zip")


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
    asset: str = ""  # the asset that brings its program
    step: str = ""  # the step that it is a repetition of, or itself
    run: str = ""  # the run that produced the current outputs
    made: Mapping[str, str] = field(default_factory=dict)  # what that run gave: path → sha256


@dataclass(frozen=True)
class ExportedFlow:
    """A flow as other tools need it, its steps in an order in which they can run."""

    name: str
    folder: str
    steps: Sequence[ExportedStep]
    file: Path | None = None
    language: str = ""  # of that file
    params: Mapping[str, Any] = field(default_factory=dict)
    root: Path = Path()  # the folder that holds all files of the flow
    # The files that the flow consists of, by their paths below `root`; asked for by formats that bring them along.
    own_files: Callable[[], Mapping[str, Path]] = dict


@dataclass(frozen=True)
class Bundle:
    """A format that is more than one text: the text goes into the file `main`, beside the other files."""

    text: str
    main: str
    files: Mapping[str, Path]


class ExportDict(TypedDict):
    """A flow as text of another tool's format, and the files that belong to it."""

    format: str
    text: str
    files: list[str]


@dataclass(frozen=True, repr=False)
class Export(Result):
    """A flow as text of another tool's format; `main` and `files` where that is a folder of several files."""

    format: str
    text: str
    main: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)

    def to_dict(self) -> ExportDict:
        return {"format": self.format, "text": self.text, "files": list(self.files)}

    def summary(self) -> str:
        more = f", {len(self.files):,} files" if self.files else ""
        return f"{self.format}, {len(self.text):,} characters{more}"

    def write(self, target: Path) -> None:
        """Write the export to a file; one with several files to a folder, or to a file whose name ends in .zip."""
        if not self.main:
            write_atomic(target, self.text)
            return
        if target.suffix == ".zip":
            with new_zip(target) as archive:
                archive.writestr(self.main, self.text)
                for name, path in self.files.items():
                    archive.write(path, name)
            return
        if target.is_dir() and any(target.iterdir()):
            raise Conflict(f"{target} is not empty", hint="name a new folder, or a file that ends in .zip")
        for name, path in self.files.items():
            place = safe_join(target, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
        write_atomic(target / self.main, self.text)


EXPORTS: Registry[Callable[[ExportedFlow], str | Bundle]] = Registry(
    "format to export flows to",
    {
        "airflow": Plugin("fairmile.flows.exchange.airflow:export"),
        "rocrate": Plugin("fairmile.flows.exchange.rocrate:export"),
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
        names[step.name] = unique_name(word, taken)
    return names


def unique_name(word: str, taken: set[str]) -> str:
    """Return a word, with a number behind it where it is taken; it is taken from now on."""
    name, number = word, 1
    while name in taken:
        number += 1
        name = f"{word}_{number}"
    taken.add(name)
    return name


def check_expressible(flow: ExportedFlow, format: str, conditions: Collection[str]) -> None:
    """Raise UsageError where a step needs what a format does not have: a condition, or files of an asset."""
    for step in flow.steps:
        if step.when not in conditions:
            raise UsageError(f"step {step.name!r} runs when {step.when!r}, which {format} cannot express")
        if step.asset:
            raise UsageError(
                f"step {step.name!r} runs the asset {step.asset}, whose files {format} cannot fetch",
                hint=f"`fairmile fetch {step.asset} --to FOLDER`, and name its program in the step",
            )
