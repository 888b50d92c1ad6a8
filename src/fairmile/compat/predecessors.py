"""Imports and commands of predecessors under their published names: where they lie, and what each command is here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import NotFound, Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.words import did_you_mean

_FOLDER = Path(__file__).parent / "published"
# Options of `cms ee generate` that change nothing here: scripts get variables of the shell only where they name them.
_WITHOUT_EFFECT = frozenset({"verbose", "noos", "os", "nocm", "flat", "mode", "out"})
_AXIS = re.compile(r"([\w.]+)=(\S+)")


class PublishedPathDict(TypedDict):
    python: str
    commands: str
    modules: list[str]
    programs: list[str]


class TranslationDict(TypedDict):
    words: list[str]
    command: list[str]


@dataclass(frozen=True, repr=False)
class PublishedPath(Result):
    """The folder for PYTHONPATH with the predecessors' modules, and the one for PATH with their commands."""

    python: Path
    commands: Path
    modules: tuple[str, ...]
    programs: tuple[str, ...]

    def summary(self) -> str:
        """Return the folder for PYTHONPATH."""
        return str(self.python)

    def to_dict(self) -> PublishedPathDict:
        """Return both folders and what they hold."""
        return {
            "python": str(self.python),
            "commands": str(self.commands),
            "modules": list(self.modules),
            "programs": list(self.programs),
        }


@dataclass(frozen=True, repr=False)
class Translation(Result):
    """A command line of a predecessor, and the arguments of `fairmile` that do the same."""

    words: tuple[str, ...]
    command: tuple[str, ...]

    def summary(self) -> str:
        """Return the command line to type."""
        return shlex.join(["fairmile", *self.command])

    def to_dict(self) -> TranslationDict:
        """Return both as lists of words."""
        return {"words": list(self.words), "command": list(self.command)}


def published_path() -> PublishedPath:
    """Return where the modules and commands of predecessors lie."""
    files = sorted(_FOLDER.rglob("*.py"))
    modules = [".".join(file.relative_to(_FOLDER).with_suffix("").parts) for file in files if file.stem != "__init__"]
    commands = _FOLDER / "bin"
    return PublishedPath(_FOLDER, commands, tuple(modules), tuple(sorted(file.name for file in commands.iterdir())))


def translate(words: Sequence[str]) -> Translation:
    """Return what does the same as a published command line, such as `lamec gen deep ddp`."""
    for start, translated in _COMMANDS.items():
        if tuple(words[: len(start)]) == start:
            return Translation(tuple(words), tuple(translated(list(words[len(start) :]))))
    known = [" ".join(start) for start in _COMMANDS]
    typed = " ".join([word for word in words if not word.startswith("-") and word != "help"][:3])
    if whole := [each for each in known if each.startswith(f"{typed} ")]:
        raise UsageError(f"{typed!r} is only the start of a command", hint=f"known: {', '.join(whole)}")
    near = did_you_mean(typed, known)
    raise NotFound(
        f"no published command {typed!r} is known" + (f"; {near}" if near else ""), hint=f"known: {', '.join(known)}"
    )


def _generate(words: list[str]) -> list[str]:
    """Return what `cms ee generate` is here: the folders of all experiments."""
    given, rest = _options(words)
    template = given.pop("source", "") or (rest.pop(0) if rest else "")
    if not template or rest:
        raise UsageError("expected `cms ee generate --source=TEMPLATE --name=NAME --config=FILES`")
    if given.pop("attributes", "None") != "None":
        raise Unsupported("--attributes has no effect in cloudmesh-ee either", hint="write the values into the config")
    folder = Path(given.pop("source_dir", "."))
    configs = [str(folder / name) for name in _listed(given.pop("config", ""))]
    if not configs:
        raise UsageError("`cms ee generate` needs --config=FILES here", hint="its `experiment:` has the parameters")
    command = ["sweep", "generate", *configs, "--template", str(folder / template)]
    if name := given.pop("name", ""):
        command += ["--name", Path(name).stem]
    command += ["--out", given.pop("output_dir", "") or Path(name).stem or "experiment"]
    for key, values in _AXIS.findall(given.pop("experiment", "")):
        command += ["-p", f"{key}={values}"]
    for code in _listed(given.pop("copycode", "")):
        command += ["--code", str(folder / code)]
    if "dryrun" in given:
        del given["dryrun"]
        command.append("--dry-run")
    if unknown := sorted(set(given) - _WITHOUT_EFFECT):
        raise UsageError(f"`cms ee generate` has no option --{unknown[0]}")
    return command


def _watch(words: list[str]) -> list[str]:
    """Return what `cms gpu watch` is here."""
    given, rest = _options(words)
    command = ["watch", "--source", "nvidia", "--live"]
    for theirs, ours in (("delay", "--every"), ("logfile", "--log"), ("gpu", "--gpu")):
        if theirs in given:
            value = given.pop(theirs)
            command += [ours, f"{value}s" if theirs == "delay" and value.replace(".", "").isdigit() else value]
    given.pop("dense", None)
    if rest or given:
        raise UsageError(f"`cms gpu watch` has no {(rest or [f'option --{next(iter(given))}'])[0]} here")
    return command


def _gen(words: list[str]) -> list[str]:
    """Return what `lamec gen SYSTEM SOFTWARE…` is here: the module block."""
    if len(words) < 2:
        raise UsageError("expected `lamec gen SYSTEM SOFTWARE…`, such as `lamec gen deep ddp`")
    return ["system", "modules", words[0].lower(), *(word.lower() for word in words[1:])]


def _eval(words: list[str]) -> list[str]:
    """Return what `lamec eval` is here; its options have the same names."""
    return ["system", "eval", *words]


_COMMANDS: dict[tuple[str, ...], Callable[[list[str]], list[str]]] = {
    ("cms", "ee", "generate"): _generate,
    ("cms", "sbatch", "generate"): _generate,
    ("cms", "ee", "list"): lambda words: ["sweep", "ls"],
    ("cms", "gpu", "watch"): _watch,
    ("cms", "gpu", "count"): lambda words: ["watch", "--list"],
    ("lamec", "gen"): _gen,
    ("lamec", "eval"): _eval,
}


def _options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return options, written --name=value, --name value or --name, and the words between them."""
    given: dict[str, str] = {}
    rest: list[str] = []
    flags = {"verbose", "noos", "nocm", "flat", "dryrun", "dense"}
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            rest.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        given[name] = value if equals or name in flags or not left else left.pop(0)
    return given, rest


def _listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]
