"""What executing a record from elsewhere would do, to be read before it is done.

A run is a person's own where this workspace recorded it. One that was imported, or lies anywhere else, was made by
somebody whom nobody here need trust: its command, its variables, where it would be submitted and what would be built
for it are shown first, and only what is known to be harmless of its variables is set.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.placeholders import fill_words
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.runs.record.commands import value_texts
from fairmile.runs.record.run import Run
from fairmile.runs.results import ReviewDict
from fairmile.systems.hardware import settable

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec

# Variables by which a loader, a shell, an interpreter or git runs something else; no environment of others sets them.
_NEVER = lazy_pattern(
    r"LD_(?!LIBRARY_PATH$)\w*|DYLD_\w*|BASH_\w*|ENV|IFS|SHELLOPTS|PS4|PROMPT_COMMAND|PYTHON(?!PATH$|HASHSEED$)\w*|"
    r"GIT_\w*|\w*_PROXY|PERL5?\w*|RUBY\w*|NODE_\w*|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|EDITOR|PAGER|VISUAL|SSH_\w*",
    re.IGNORECASE,
)
_FILES = ("/", "./", "../", "~")
_DOCUMENTS = (".yaml", ".yml", ".json")


@dataclass(frozen=True, repr=False)
class Review(Result):
    """What a record from elsewhere would execute, set, ask for, build and read."""

    run: str
    source: str = field(compare=False)  # where the record comes from
    command: tuple[str, ...]  # with its parameters filled in
    params: Mapping[str, Any]
    variables: Mapping[str, str]
    dropped: Mapping[str, str]  # variables and options that the record states and that are not used
    system: str
    account: str
    resources: Mapping[str, Any]
    software: tuple[str, ...]
    launch: str
    environment: tuple[str, ...]  # what would be built, as the record describes it
    inputs: Mapping[str, str]
    fetches: tuple[str, ...]
    files: tuple[str, ...]  # of the program
    outputs: tuple[str, ...]

    def to_dict(self) -> ReviewDict:
        return cast(ReviewDict, asdict(self))

    def summary(self) -> str:
        return f"{self.run} from {self.source}: {shlex.join(self.command)}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield it for a person to read: what each line is about, and the line; no text of it can pass for another."""
        for what, text in self._lines():
            yield what, "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "from", self.source
        yield "command", shlex.join(self.command)
        for name, value in self.params.items():
            yield "param", f"{name}={value}"
        for name, value in self.variables.items():
            yield "set", f"{name}={value}"
        for name, value in self.dropped.items():
            yield "not set", f"{name}={value}"
        yield "system", self.system or "this machine"
        if self.account:
            yield "account", self.account
        for name, value in self.resources.items():
            yield "asks for", f"{name} {value}"
        if self.software or self.launch:
            yield "software", " ".join([*self.software, self.launch]).strip()
        for line in self.environment:
            yield "build", line
        for address in self.fetches:
            yield "fetch", address
        for name, text in self.inputs.items():
            yield "input", f"{name}: {text}"
        for name in self.files:
            yield "file", name
        for pattern in self.outputs:
            yield "output", pattern


def is_foreign(run: Run, root: Path) -> bool:
    """Tell whether a run is of somebody else: imported, made from such a run, or not among those of this workspace."""
    return bool(run.record.imported) or run.record.foreign or run.folder.parent != root


def restrict(spec: RunSpec, original: Run) -> tuple[RunSpec, dict[str, str]]:
    """Return what of a specification from elsewhere is executed, and what it states but does not get."""
    env = settable(spec.env)
    dropped = {name: value for name, value in spec.env.items() if name not in env}
    asked = {"resources": spec.resources, "model_resources": spec.model_resources}
    for name, resources in asked.items():
        if resources is not None and resources.options:
            dropped["scheduler options"] = " ".join([*dropped.get("scheduler options", "").split(), *resources.options])
            asked[name] = resources.model_copy(update={"options": ()})
    variables = (environment_definition(original) or {}).get("variables") or {}
    dropped |= {f"environment {name}": str(value) for name, value in variables.items() if _NEVER.fullmatch(name)}
    return spec.model_copy(update={"env": env, **asked, "anyway": False}), dropped


def environment_definition(original: Run) -> Mapping[str, Any] | None:
    """Return how the environment of a run was described when it was built."""
    return original.captured.environment.definition or None


def harmless_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an environment without variables that nobody else may set."""
    variables = definition.get("variables") or {}
    kept = {name: value for name, value in variables.items() if not _NEVER.fullmatch(name)}
    return {**definition, **({"variables": kept} if variables else {})}


def review(
    original: Run, spec: RunSpec, dropped: Mapping[str, str], files: Sequence[str], source: str, container: str = ""
) -> Review:
    """Return what executing a restricted specification of a record from elsewhere would do."""
    resources = spec.resources.model_dump(mode="json", exclude_defaults=True)
    account = str(resources.pop("account", ""))
    environment = (f"container {container}: no network",) if container else tuple(_environment(original, spec))
    inputs = original.captured.inputs
    fetches = [each.asset for each in original.captured.code.sources]
    fetches += [each.asset for each in inputs.values() if each.asset]
    return Review(
        run=original.id,
        source=source,
        command=fill_words(spec.argv, value_texts(spec)),
        params=dict(spec.params),
        variables=dict(spec.env),
        dropped=dict(dropped),
        system=spec.system,
        account=account,
        resources=resources,
        software=spec.software,
        launch=spec.launch or "",
        environment=environment,
        inputs={name: f"sha256 {each.sha256 or 'unknown'}" for name, each in inputs.items()},
        fetches=tuple(dict.fromkeys(fetches)),
        files=tuple(sorted(files)),
        outputs=spec.outputs,
    )


def _environment(original: Run, spec: RunSpec) -> Iterator[str]:
    """Yield what would be built for a run from elsewhere; a file of this machine that it names is not read."""
    definition = environment_definition(original)
    is_changed = spec.environment != original.spec.environment
    if spec.environment and definition and not is_changed:
        yield from _leaves(harmless_definition(definition))
        return
    is_file = spec.environment.startswith(_FILES) or spec.environment.endswith(_DOCUMENTS)
    if is_file and not is_changed:
        raise NotFound(
            f"the environment of run {original.id} is the file {spec.environment}, which is not included",
            hint="pass one of your environments with --environment",
        )
    if spec.environment:
        yield spec.environment


def refuse_unseen(plan_of: Review) -> UsageError:
    """Return the error of whoever executes a record from elsewhere without having said so."""
    return UsageError(
        f"run {plan_of.run} was recorded by somebody else and needs your consent",
        hint="read `rerun_plan(…).review`, then pass trust=True",
    )


def _leaves(value: Any, place: str = "") -> Iterator[str]:
    """Yield every value of a description with its place, such as `builds.0.commands.0: make`."""
    pairs: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, (list, tuple)):
        pairs = list(enumerate(value))
    elif value not in (None, "", False):
        yield f"{place}: {value}"
    for key, inner in pairs:
        yield from _leaves(inner, f"{place}.{key}" if place else str(key))
