"""What becomes a run: a command, a file that describes one, or a card that says how it is run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fairmile.base.errors import InvalidDocument, NotFound, Problem, UsageError
from fairmile.base.lazy import lazy, lazy_pattern
from fairmile.base.placeholders import fill_words
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.specifications import errors_of, expected_by, known_fields
from fairmile.base.words import did_you_mean, slug
from fairmile.base.yaml import Located
from fairmile.catalog.card import ENVIRONMENT_LINKS, Card, as_list
from fairmile.resolve import Nouns, Resolver, Target, Word, refuse_unused_options, resolve
from fairmile.runs.arguments import argument_params, is_program, start_program, with_options
from fairmile.runs.execute.materials import Material
from fairmile.runs.needs import declared_needs
from fairmile.runs.record.values import COUPLED, Value, split_coupled

if TYPE_CHECKING:
    from fairmile.catalog.catalog import Catalog
    from fairmile.catalog.needs import environment_of
    from fairmile.runs.record.spec import MetricSpec, RunSpec
    from fairmile.transfer.credentials import shown_address
else:
    environment_of = lazy("fairmile.catalog.needs:environment_of")
    shown_address = lazy("fairmile.transfer.credentials:shown_address")
    MetricSpec = lazy("fairmile.runs.record.spec:MetricSpec")
    RunSpec = lazy("fairmile.runs.record.spec:RunSpec")

_DATA_LINKS = ("evaluationDataset", "input", "trainedOn", "acceptsDataset")
_INCLUDED = "{python} -m fairmile.benchmarks "  # of a benchmark whose program comes with Fairmile
_PROGRAM_LINKS = ("isBasedOn", "instrument", "evaluationSoftware", "hasPart")
_FILES = (".yaml", ".yml")
_OWN_FOLDER = "{benchmark}"
_INTERPRETERS = lazy_pattern(r"python[0-9.]*|bash|sh|julia|Rscript|perl|node|mpirun|torchrun")


@dataclass(frozen=True)
class Runnable:
    """What will be run, and what has to be there first."""

    spec: RunSpec
    sources: tuple[str, ...] = ()  # assets and addresses whose files go into the folder it runs in
    notes: tuple[str, ...] = ()
    where: str = ""  # where the command stands, for messages, unless a person typed it
    declared: frozenset[str] = frozenset()  # parameters that a card says its program has
    materials: tuple[Material, ...] = ()  # what it finds at places of its folder
    is_complete: bool = False  # its placeholders are filled and its parameters used already


class Maker(Protocol):
    """What a target from another tool holds: it makes a run of itself."""

    def runnable(self, dataset: str, changes: Mapping[str, Any]) -> Runnable:
        """Return what running it on a data set means; `changes` are fields of the specification."""
        ...


class _RunFile(Resolver):
    """A YAML file that describes a run."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        located = word.located if word.text.endswith(_FILES) else None
        if located is None or not (word.verb or (isinstance(located.data, Mapping) and "argv" in located.data)):
            return None
        return Target(word.text, "run-file", path=word.path, load=lambda: located)


class _Program(Resolver):
    """A Python file, or a file that can be executed."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        return Target(word.text, "program", path=word.path) if is_program(word.path) else None


class _RunId(Resolver):
    """A recorded run, by its id, the unique start or end of it, or `last`."""

    def find(self, word: Word, nouns: Nouns) -> Target | None:
        if nouns.runs is None or "/" in word.text:
            return None
        try:
            run = nouns.runs().get(word.text)
        except (NotFound, UsageError):
            return None
        return Target(word.text, "run", id=run.id, load=lambda: run)


RUN_FILE = _RunFile()
PROGRAM = _Program()
RUN_ID = _RunId()


def resolve_run(
    what: str | Sequence[str] | RunSpec,
    catalog: Callable[[], Catalog],
    dataset: str,
    options: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Runnable:
    """Return what running a name, a file, a command or a specification means, the same from every folder.

    `options` are those that the resolver of a kind of target knows; `changes` are fields of the specification.
    """
    if isinstance(what, str):
        target = resolve(what, Nouns(catalog=catalog), for_="run", options=options)
        runnable = runnable_of(target, catalog, dataset, changes)
    elif isinstance(what, Sequence):
        refuse_unused_options(options, "command", " ".join(what))
        runnable = command_target(what, changes)
    else:
        spec = checked_spec({**what.model_dump(exclude_defaults=True), **changes}) if changes else what
        runnable = Runnable(spec)
    return replace(runnable, spec=_lasting(runnable.spec))


def runnable_of(target: Target, catalog: Callable[[], Catalog], dataset: str, changes: Mapping[str, Any]) -> Runnable:
    """Return what running a target on a data set means; `changes` are fields of the specification."""
    if target.kind == "run-file":
        assert target.path is not None
        return file_target(target.path, changes, target.load())
    if target.kind == "program":
        return command_target(changes.get("argv") or [str(target.path)], changes)
    if not isinstance(target.content, Card):
        maker: Maker = target.content
        return maker.runnable(dataset, changes)
    if target.path is None and changes.get("argv"):
        handle = target.content.handle
        return Runnable(checked_spec({"name": handle.name, "asset": str(handle), **changes}), (str(handle),))
    return card_target(catalog(), target.content, dataset, changes, target.path)


def command_target(argv: Sequence[str], changes: Mapping[str, Any]) -> Runnable:
    """Return what a command means: it runs where the person stands. Its arguments are parameters of the run.

    Parameters that a program given by its path declares as options are passed to it as such.
    """
    folder = changes.get("folder") or str(Path.cwd())
    solver, model = split_coupled(argv) if changes.get("coupled") else ([], [])
    if solver and model:
        both = [start_program(words, Path(folder), os.environ) for words in (solver, model)]
        return _with_arguments(
            {"name": _name_of(both[0]), **changes, "folder": folder, "argv": (*both[0], COUPLED, *both[1])}
        )
    command = start_program(argv, Path(folder), os.environ)
    if is_program(Path(folder, os.path.expanduser(argv[0]))):
        names = [*(changes.get("params") or {}), *(["seed"] if changes.get("seed") is not None else [])]
        command = with_options(command, names, Path(folder), os.environ)
    return _with_arguments({"name": _name_of(command), **changes, "folder": folder, "argv": command})


def _with_arguments(fields: Mapping[str, Any], where: str = "", located: Located | None = None) -> Runnable:
    """Return what fields of a run say, whose parameters are joined by the arguments of its command."""
    spec = checked_spec(fields, where, located)
    params = argument_params(spec.argv, Path(spec.folder or "."), os.environ)
    if params:
        spec = spec.model_copy(update={"params": {**params, **spec.params}})
    return Runnable(spec, where=where, declared=frozenset(params.keys() - fields.get("params", {}).keys()))


def file_target(file: Path, changes: Mapping[str, Any], located: Located) -> Runnable:
    """Return what a file describes: the fields of a run, as YAML."""
    if not isinstance(located.data, Mapping):
        raise UsageError(f"{file}: expected fields of a run, such as argv", hint="see docs/runs.md")
    fields = {"name": slug(file.stem) or "run", "folder": str(file.absolute().parent), **located.data}
    if isinstance(fields.get("argv"), str):
        fields["argv"] = shlex.split(fields["argv"])
    if isinstance(fields.get("code", []), list):  # else it is told below what is wrong
        fields["code"] = [*fields.get("code", []), str(file.absolute())]
    return _with_arguments(_merged(fields, changes), str(file), located)


def card_target(
    catalog: Catalog, card: Card, dataset: str, changes: Mapping[str, Any], file: Path | None = None
) -> Runnable:
    """Return what a card with a command means; one in a file needs not be in the catalog and runs beside that file."""
    command = changes.get("argv") or card.get("command")
    name = str(file or card.handle)
    if not command:
        raise UsageError(
            f"{name} cannot be run: its card has no `command`",
            hint=f"`fairmile run {name} -- COMMAND…` runs a command with its files",
        )
    argv = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    data = dataset or ("" if card.get("makesData") is True else _data_of(catalog, card))
    fields: dict[str, Any] = {
        "name": slug(card.handle.name)[:64] or "run",
        "argv": tuple(argv),
        "params": _hyperparameters(card),
        "metrics": _metrics(card),
        "outputs": tuple(str(each) for each in as_list(card.get("outputs"))),
    }
    sources = _sources(catalog, card) if file is None else _addresses(card) or _programs(catalog, card)
    if file is None:
        fields["asset"] = str(card.handle)
    elif any(_OWN_FOLDER in word for word in argv):  # the program lies beside the card, and works elsewhere
        beside = str(file.absolute().parent)
        fields |= {"argv": fill_words(argv, {"benchmark": beside}), "code": (beside,)}
    elif not sources:
        fields |= {"folder": str(file.absolute().parent), "code": (str(file.absolute()),)}
    if data:
        if Word(data).is_path:
            raise UsageError(
                f"{data} is a path, not a data set of the catalog", hint=f"--data data={data} gives a file or a folder"
            )
        fields["dataset"] = str(catalog.get(data).handle)
        fields["inputs"] = {"data": {"asset": fields["dataset"]}}
    bodies: list[Mapping[str, Any]] = [card.body]
    for place in (card,) if file is None else [to for key, to in card.links if key in ENVIRONMENT_LINKS]:
        if "environment" not in fields and (environment := environment_of(catalog, place)) is not None:
            fields["environment"] = str(card.handle) if place is card else place
            bodies.append(environment)
    if needs := declared_needs(bodies):
        fields["needs"] = needs
    declared = frozenset(fields["params"])
    return Runnable(checked_spec(_merged(fields, changes)), sources, where=f"the command of {name}", declared=declared)


def _lasting(spec: RunSpec) -> RunSpec:
    """Return a specification that means the same from every folder; an address with a secret in it is refused."""
    for name, each in spec.inputs.items():
        if shown_address(each.asset) != each.asset:
            raise UsageError(
                f"inputs.{name}: {shown_address(each.asset)} contains a login or key, which would be recorded",
                hint="move it to ~/.netrc",
            )
    if spec.environment.endswith(_FILES) and Path(spec.environment).is_file():
        return spec.model_copy(update={"environment": str(Path(spec.environment).absolute())})
    return spec


def is_run_file(name: str) -> bool:
    """Tell whether a name is that of a file that describes a run."""
    return name.endswith(_FILES)


def checked_spec(given: Mapping[str, Any], file: str = "", located: Located | None = None) -> RunSpec:
    """Return a specification, or every reason why it is none."""
    try:
        return RunSpec.model_validate(given)
    except ValueError as error:
        problems = []
        for each in errors_of(error):
            place = ".".join(str(part) for part in each["loc"])
            message, hint = str(each["msg"]).removeprefix("Value error, "), ""
            if each["type"] == "extra_forbidden":
                message, hint = "no such field", did_you_mean(each["loc"][-1], known_fields(RunSpec, each["loc"][:-1]))
            elif each["type"] == "missing":
                message = "is missing"
            elif each["type"] != "value_error":
                message = f"expected {expected_by(each)}, found {each['input']!r}"
            line = located.line([part for part in each["loc"] if part != "argv"]) if located is not None else None
            problems.append(Problem(message, place, file=file, line=line, hint=hint))
        raise InvalidDocument(problems) from None


def _name_of(argv: Sequence[str]) -> str:
    """Return a name for a command: its script where an interpreter runs one, else its program."""
    names = [Path(word).name for word in argv if not word.startswith("-")]
    is_interpreter = bool(names) and _INTERPRETERS.fullmatch(names[0])
    script = next((name for name in names[1:] if re.search(r"\.[A-Za-z]{1,3}$", name)), "") if is_interpreter else ""
    return (slug(Path(script).stem if script else names[0] if names else "run") or "run")[:64]


def _merged(one: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with those of a person on top; mappings are joined."""
    both = dict(one)
    for name, value in changes.items():
        both[name] = {**both[name], **value} if isinstance(value, Mapping) and name in both else value
    return both


def _hyperparameters(card: Card) -> dict[str, Value]:
    stated = card.get("hyperparameters")
    return (
        {k: v for k, v in stated.items() if v is None or isinstance(v, str | int | float | bool)}
        if isinstance(stated, Mapping)
        else {}
    )


def _metrics(card: Card) -> dict[str, Any]:
    match = card.get("matchSpec")
    if not isinstance(match, Mapping) or not isinstance(match.get("metric"), str):
        return {}
    direction = match.get("direction")
    return {match["metric"]: MetricSpec(better=direction if direction in ("lower", "higher") else "")}


def _data_of(catalog: Catalog, card: Card) -> str:
    """Return the data set that a card names for itself, where it names exactly one that is there."""
    match = card.get("matchSpec")
    named = list(match.get("datasets", [])) if isinstance(match, Mapping) else []
    named += [target for key, target in card.links if key in _DATA_LINKS]
    assets = []
    for name in dict.fromkeys(named):
        try:
            assets.append(str(catalog.get(str(name), kind="dataset").handle))
        except (NotFound, UsageError):
            continue
    if len(assets) > 1:
        raise UsageError(f"{card.handle} needs a data set: {', '.join(assets)}", hint="name one of them after it")
    return assets[0] if assets else ""


def _sources(catalog: Catalog, card: Card) -> tuple[str, ...]:
    """Return what brings the files of a card's command: the card itself, or the programs that it links to."""
    if _INCLUDED in card.text("command"):
        return ()
    return (str(card.handle),) if card.files or card.text("codeRepository") else _programs(catalog, card)


def _programs(catalog: Catalog, card: Card) -> tuple[str, ...]:
    programs = []
    for key, target in card.links:
        with contextlib.suppress(NotFound, UsageError):
            if key in _PROGRAM_LINKS and (program := catalog.get(target)).kind == "program":
                programs.append(str(program.handle))
    return tuple(dict.fromkeys(programs))


def _addresses(card: Card) -> tuple[str, ...]:
    """Return where the files of a card lie that no catalog holds; those beside it need not be brought."""
    named = [card.text("codeRepository"), *(each.url or "" for each in card.files)]
    return tuple(dict.fromkeys(each for each in named if "://" in each or each.startswith("git@")))
