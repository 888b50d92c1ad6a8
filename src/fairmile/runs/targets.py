"""What becomes a run: a command, a file that describes one, or a card that says how it is run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.lazy import lazy, lazy_pattern
from fairmile.base.words import slug
from fairmile.base.yaml import Located
from fairmile.resolve import Nouns, Resolver, Target, Word, refuse_unused_options, resolve
from fairmile.runs.arguments import argument_params, is_program, start_program, with_options
from fairmile.runs.record.values import COUPLED, split_coupled
from fairmile.runs.runnable import Runnable, checked_spec, merged

if TYPE_CHECKING:
    from fairmile.catalog.catalog import Catalog
    from fairmile.runs.card_targets import card_target
    from fairmile.runs.record.spec import RunSpec
    from fairmile.transfer.credentials import shown_address
else:
    card_target = lazy("fairmile.runs.card_targets:card_target")
    shown_address = lazy("fairmile.transfer.credentials:shown_address")

_FILES = (".yaml", ".yml")
_INTERPRETERS = lazy_pattern(r"python[0-9.]*|bash|sh|julia|Rscript|perl|node|mpirun|torchrun")


@runtime_checkable
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
    if isinstance(target.content, Maker):
        return target.content.runnable(dataset, changes)
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
    return _with_arguments(merged(fields, changes), str(file), located)


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


def _name_of(argv: Sequence[str]) -> str:
    """Return a name for a command: its script where an interpreter runs one, else its program."""
    names = [Path(word).name for word in argv if not word.startswith("-")]
    is_interpreter = bool(names) and _INTERPRETERS.fullmatch(names[0])
    script = next((name for name in names[1:] if re.search(r"\.[A-Za-z]{1,3}$", name)), "") if is_interpreter else ""
    return (slug(Path(script).stem if script else names[0] if names else "run") or "run")[:64]
