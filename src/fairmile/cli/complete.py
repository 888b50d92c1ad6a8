"""Answers the completion of a shell: which words fit where the cursor is.

A shell asks at every press of a key, so this imports no command. What commands there are is read from a table in the
user's cache, which is made when the code of the commands has changed. Names come from the folders they live in.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairmile.base.version import __version__

_HERE = Path(__file__).parent
_MOST = 200
_BREAKS = "=:"  # bash completes what is behind these
_RECENT = 5  # runs whose parameters are offered
_FILES = ("file", "folder")


def answer(arguments: Sequence[str]) -> list[str]:
    """Return the lines for a shell: NAME, for zsh and fish with a tab and its meaning; a tab and `file` asks for files.

    `arguments` is the name of the shell and what it knows: bash its line up to the cursor, the others their words.
    """
    shell, *given = arguments
    words = _split(given[0]) if shell == "bash" else given
    *before, current = words or [""]
    matches = {value: help for value, help in _candidates(before, current) if value.startswith(current) or not value}
    files = [f"\t{help}" for value, help in matches.items() if not value]
    names = {value: help for value, help in matches.items() if value}
    if shell == "bash":
        cut = max(current.rfind(each) for each in _BREAKS) + 1
        return [*(value[cut:] for value in names), *files]
    return [*(f"{value}\t{help}" for value, help in names.items()), *files]


def _split(line: str) -> list[str]:
    """Return the words behind the program, the last of which is being typed."""
    words: list[str] = []
    for end in ("", "'", '"'):  # a quote may be open
        with suppress(ValueError):
            words = shlex.split(line + end)
            break
    place = next((i for i, word in enumerate(words) if os.path.basename(word) == "fairmile"), 0)
    return words[place + 1 :] + ([""] if line[-1:].isspace() else [])


def _candidates(before: Sequence[str], current: str) -> Iterator[tuple[str, str]]:
    """Yield what may stand at the cursor, with its meaning; an empty name stands for files."""
    table = _table()
    node, rest = _find_command(table, before)
    if "words" in node:
        yield from node["words"].items()
        return
    options: dict[str, list[Any]] = node["options"]
    positional, expects = _read(rest, options, takes_program=node["program"])
    if "--" in rest or (node["program"] and positional and _is_program(positional[0])):
        if current.startswith("-") and positional:
            yield from ((flag, "argument") for flag in _arguments(Path(positional[0])))
        yield "", "file"
        return
    flag, equals, _ = current.partition("=")
    if expects:
        yield from _values(expects, positional, table)
    elif equals and flag in options:
        values = _values(options[flag][0], positional, table)
        yield from ((f"{flag}={value}" if value else "", help) for value, help in values)
    elif current.startswith("-"):
        yield from ((name, help) for name, (_, help) in options.items())
    elif node["arguments"]:
        place = min(len(positional), len(node["arguments"]) - 1)
        yield from _values(node["arguments"][place], positional, table)


def _find_command(table: dict[str, Any], words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the command that words lead to, and the words behind it."""
    path: list[str] = []
    rest = list(words)
    while "words" in (node := table["commands"][" ".join(path)]):
        if rest and rest[0] in node["words"]:
            path.append(rest.pop(0))
        elif rest and node["default"]:
            path.append(node["default"])
        else:
            break
    return node, rest


def _read(words: Sequence[str], options: dict[str, list[Any]], *, takes_program: bool) -> tuple[list[str], list[str]]:
    """Return the words that are no options, and the kinds of value that the last option still expects."""
    positional: list[str] = []
    expects: list[str] = []
    for word in words:
        if expects:
            expects = []
        elif takes_program and positional and _is_program(positional[0]):
            continue
        elif word.startswith("-") and "=" not in word:
            expects = options.get(word, [[], ""])[0]
        elif not word.startswith("-"):
            positional.append(word)
    return positional, expects


def _is_program(word: str) -> bool:
    return os.path.isfile(word) and (word.endswith(".py") or os.access(word, os.X_OK))


def _values(kinds: Sequence[str], positional: Sequence[str], table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the values of some kinds; a kind that is none of ours is itself a value."""
    for kind in kinds:
        if kind in _FILES:
            yield "", kind
        elif kind == "param":
            yield from _parameters(positional[0] if positional else "", table)
        elif kind == "benchmark":
            yield from ((name, "benchmark") for name in table["parameters"])
        elif kind in _NAMES:
            yield from ((name, kind) for name in _NAMES[kind]())
        elif kind != "any":
            yield kind, ""


def _parameters(target: str, table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, meaning in table["parameters"].get(target.rpartition("/")[2], {}).items():
        yield f"{name}=", meaning
    for name in _recent_parameters(Path(target).stem):
        yield f"{name}=", "parameter of an earlier run"


def _arguments(program: Path) -> list[str]:
    """Return the long options that a Python file declares, and those that successful runs of a program were given."""
    from fairmile.runs.arguments import declared_options

    declared = [flag for flag in declared_options(program) if flag.startswith("--")]
    given = (f"--{name}" for name in _recent_parameters(program.stem))
    # A parameter `batch_size` is the option `--batch-size`.
    return list(dict.fromkeys([*declared, *(flag for flag in given if flag.replace("_", "-") not in declared)]))


def _recent_parameters(name: str) -> list[str]:
    """Return the parameters of the latest successful runs of a name."""
    with suppress(OSError):
        entries = [each for each in os.scandir(_home() / "runs") if each.name.startswith(f"{name}-")]
        latest = sorted(entries, key=lambda entry: entry.stat().st_mtime, reverse=True)[:_RECENT]
        names: dict[str, None] = {}
        for entry in latest:
            with suppress(OSError, ValueError, KeyError, TypeError):
                record = json.loads(Path(entry.path, "run.json").read_bytes())
                if record["state"] == "done":
                    names |= dict.fromkeys(record["spec"]["params"])
        return list(names)
    return []


def _workspace() -> Any:
    from fairmile.workspace import Workspace

    return Workspace.open()


def _home() -> Path:
    home: Path = _workspace().home
    return home


def _listed(folder: Path) -> Iterator[str]:
    """Yield what a folder holds, the newest first."""
    with suppress(OSError):
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
        if len(entries) <= 10 * _MOST:  # a look at each of more would take too long
            entries.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime, reverse=True)
        yield from (entry.name for entry in entries)


def _runs() -> Iterable[str]:
    return ["last", *(name.removesuffix(".zip") for name in _listed(_home() / "runs"))]


def _systems() -> Iterable[str]:
    workspace = _workspace()
    folders = (_HERE.parent / "systems" / "data", Path("/etc/fairmile/systems"), workspace.home / "systems")
    names = [name.removesuffix(".yaml") for folder in folders for name in _listed(folder) if name.endswith(".yaml")]
    return sorted({*names, *workspace.config["systems"]})


def _assets() -> Iterable[str]:
    from fairmile.catalog.database import card_names
    from fairmile.catalog.declared import index_path

    names = card_names(index_path(_home()))
    if not names:  # nobody has searched yet: what comes along
        cards = _HERE.parent / "catalog" / "data" / "cards"
        names = [(kind, name) for kind in _listed(cards) for name in _listed(cards / kind)]
    return sorted({*(name for _, name in names), *(f"{kind}/{name}" for kind, name in names)})


_NAMES = {
    "run": _runs,
    "sweep": lambda: ["last", *_listed(_home() / "sweeps")],
    "flow": lambda: ["last", *_listed(_home() / "flows")],
    "job": lambda: _listed(_home() / "jobs"),
    "env": lambda: sorted({name.partition("-")[2] for name in _listed(_home() / "envs")}),
    "pool": lambda: sorted(_workspace().config["pools"]),
    "system": _systems,
    "asset": _assets,
}


def _table() -> dict[str, Any]:
    """Return the table of commands from the cache, made anew where their code has changed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairmile" / "commands.json"
    stamp = _stamp()
    with suppress(OSError, ValueError, KeyError):
        table: dict[str, Any] = json.loads(cache.read_bytes())
        if table["stamp"] == stamp:
            return table
    from fairmile.base.files import write_atomic
    from fairmile.cli.command_table import make_table

    table = {"stamp": stamp, **make_table()}
    with suppress(OSError):
        write_atomic(cache, json.dumps(table), sync=False)
    return table


def _stamp() -> list[Any]:
    files = sorted(_HERE.glob("*.py"))
    return [__version__, sys.version, str(_HERE), [file.stat().st_mtime_ns for file in files]]
