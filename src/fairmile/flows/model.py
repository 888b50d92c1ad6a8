"""What a flow is: steps with what each needs and gives. The same objects whether a file or a program makes them.

    Flow(name="tides", steps={
        "clean": Step(command="python clean.py", inputs="raw.csv", outputs="clean.csv"),
        "fit": Step(command="python fit.py", inputs="clean.csv", outputs="fit.json"),
    })

A step that is repeated over values becomes several nodes of the graph (see `graph`); every other step is one node.
`Flow.save` writes a flow as the file that `fairmile flow run` takes. Nothing here asks a machine.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from fairmile.base.files import write_atomic
from fairmile.base.specifications import Before, Limits, Specification, check
from fairmile.base.units import parse_duration
from fairmile.base.yaml import dump
from fairmile.jobs.spec import Resources
from fairmile.runs.record.commands import is_inside
from fairmile.runs.record.spec import MetricSpec
from fairmile.runs.record.values import Value

HERE = ("", "local", "laptop")  # what `on` says of a step of this machine
_LONGEST_NAME = 200
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a shell does and `command`, which no shell reads, would hand to the program as a word.
_SHELL_WORDS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>", "2>&1"})
_PROGRAMS = ("command", "shell", "run", "notebook", "flow")


def _words(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"{given!r} is not a command: {str(error).lower()}") from None
    operator = next((word for word in words if word in _SHELL_WORDS), "")
    if operator:
        raise ValueError(f"{operator!r} needs a shell: write `shell:` instead of `command:`")
    return words


def _several(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


def _named_inputs(given: Any) -> Any:
    """Return inputs by name; those of a list are named after their files, `data/raw.csv` is `raw`."""
    given = _several(given)
    if not isinstance(given, Sequence):
        return given
    named: dict[str, Any] = {}
    for each in given:
        stem = re.sub(r"\W+", "_", PurePosixPath(str(each)).stem).strip("_") or "input"
        name, number = stem, 1
        while name in named:
            number += 1
            name = f"{stem}_{number}"
        named[name] = each
    return named


Words = Annotated[tuple[str, ...], Before(_words)]
Texts = Annotated[tuple[str, ...], Before(_several)]
Seconds = Annotated[float, Before(parse_duration), Limits(ge=0, finite=True)]
Patterns = Annotated[Mapping[str, str], Before(_named_inputs)]


class FromFiles(Specification):
    """Values that files give: the paths that a pattern matches, the lines of a file, or the list in a JSON file.

    Where a step makes those files, the values are unknown until it has run.
    """

    glob: str = ""
    lines: str = ""
    json_: str = ""
    file_names: ClassVar[Mapping[str, str]] = {"json_": "json"}

    def _check_whole(self) -> None:
        if sum(map(bool, (self.glob, self.lines, self.json_))) != 1:
            raise ValueError("expected exactly one of glob, lines and json")

    @property
    def path(self) -> str:
        """The file or pattern that the values come from."""
        return self.glob or self.lines or self.json_


Over = Mapping[str, FromFiles | Any]


class Step(Specification):
    """One step as it is written: what it executes, where, and what goes in and comes out."""

    command: Words = ()  # a program and its arguments; no shell reads it
    shell: str = ""  # a text that sh executes, which ends at the first command that fails
    run: str = ""  # whatever `fairmile run` takes: a program, a benchmark, an asset, a run file
    notebook: str = ""
    flow: str = ""  # another flow, whose steps take the place of this one
    on: str = ""  # SYSTEM or SYSTEM/PARTITION; empty: this machine
    folder: str = ""  # where it runs and where its paths begin, as seen from the folder of the flow
    inputs: Patterns = {}  # name → path, pattern, or asset
    outputs: Texts = ()  # paths or patterns
    after: Texts = ()  # steps that must have ended, beside those whose outputs are inputs
    over: Over | str = {}  # repeats the step: variable → values, or a sweep file
    params: Mapping[str, Value] = {}
    env: Mapping[str, str] = {}
    environment: str = ""
    code: Texts = ()
    metrics: Mapping[str, MetricSpec] = {}
    resources: Resources = Resources()
    seed: int | None = None
    when: str = ""  # empty: all before it succeeded; `failed`, `always`, or a condition on metrics
    retries: Annotated[int, Limits(ge=0, le=100)] = 0
    backoff: Seconds = 0.0  # pause before the first retry in seconds; doubles with each further one
    timeout: Seconds | None = None
    keep: bool | None = None  # whether the store keeps its outputs; None: unless they are large
    pilot: bool | None = None  # whether it runs in pilot jobs of its system; None: as the flow says
    # How a predecessor's file has it drawn, which nothing else looks at.
    label: str = ""
    shape: str = ""
    style: str = ""

    @check("inputs", "outputs")
    @classmethod
    def _are_paths(cls, value: Any) -> Any:
        for each in value.values() if isinstance(value, Mapping) else value:
            if not each or "\0" in each:
                raise ValueError("expected a path, found an empty text")
        return value

    @check("outputs")
    @classmethod
    def _stay_inside(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if not is_inside(each):
                raise ValueError(f"{each!r} leads out of the folder of the flow: write a path inside it")
        return value

    @check("over")
    @classmethod
    def _has_variables(cls, value: Over | str) -> Over | str:
        for name in value if isinstance(value, Mapping) else ():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a name for a variable: use letters, digits and underscores")
        return value

    def _check_whole(self) -> None:
        given = [name for name in _PROGRAMS if getattr(self, name)]
        if len(given) != 1:
            what = f"both {given[0]} and {given[1]}" if given else "nothing to execute"
            raise ValueError(f"{what}: expected exactly one of {', '.join(_PROGRAMS)}")
        if self.pilot and not self.system:
            raise ValueError("pilot jobs are jobs of a system: name it with `on`")

    @property
    def system(self) -> str:
        """The system that it runs on; empty: this machine."""
        return "" if self.on in HERE else self.on.partition("/")[0]

    @property
    def partition(self) -> str:
        return "" if self.on in HERE else self.on.partition("/")[2]


class Flow(Specification):
    """A graph of steps, as it is written."""

    name: Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$")] = "flow"
    steps: Annotated[Mapping[str, Step], Limits(min_length=1)]
    params: Mapping[str, Value] = {}  # values that every step may use
    limits: Mapping[str, Annotated[int, Limits(ge=1)]] = {}  # steps at once: `local`, or the name of a system
    pilots: Annotated[int, Limits(ge=0, le=1000)] = 0  # pilot jobs on each system, for its steps; 0: a job each
    folder: str = ""  # where paths begin; empty: where the person stands

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write this flow to a YAML file that `fairmile flow run` takes, and return the file.

        Its paths begin where they did: where that is not the folder of the file, the file says so.
        """
        target = Path(path).absolute()
        document = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"folder"})
        folder = os.path.relpath(self.folder or os.getcwd(), target.parent)
        steps = {name: _written(step) for name, step in document.pop("steps").items()}
        head = {"name": self.name, **({} if folder == "." else {"folder": folder})}
        write_atomic(target, dump({**head, **document, "steps": steps}))
        return target

    @check("steps")
    @classmethod
    def _have_names(cls, steps: Mapping[str, Step]) -> Mapping[str, Step]:
        for name in steps:
            if not name.strip() or "\0" in name or len(name) > _LONGEST_NAME:
                raise ValueError(f"{name[:50]!r} is not a name for a step: expected 1 to {_LONGEST_NAME} characters")
        return steps


def _written(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step as a person would write it: a command, and lists of one, as texts."""
    if "command" in step:
        text = " ".join(step["command"])
        if re.search(r"[\\'\"\s]", "".join(step["command"])) or "" in step["command"]:
            text = shlex.join(step["command"])
        if not _SHELL_WORDS.intersection(step["command"]) and "\n" not in text:
            step = {**step, "command": text}
    short = {key: step[key][0] for key in ("outputs", "after", "code") if len(step.get(key, ())) == 1}
    times = {key: f"{step[key]:.15g}s" for key in ("timeout", "backoff") if step.get(key)}
    return {**step, **short, **times}


def is_in_pilot(flow: Flow, step: Step) -> bool:
    """Tell whether a step runs in pilot jobs."""
    return bool(step.system) and (flow.pilots > 0 if step.pilot is None else step.pilot)


Condition = Literal["done", "failed", "always"]


def condition_of(step: Step) -> Condition:
    """Return what a step asks of those before it; one with a condition on metrics asks that they succeeded."""
    return "failed" if step.when == "failed" else "always" if step.when == "always" else "done"


def metric_condition(step: Step) -> str:
    """Return the condition on metrics that decides whether a step runs; empty where there is none."""
    return "" if step.when in ("", "failed", "always") else step.when
