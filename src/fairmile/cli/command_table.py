"""All commands as data: their options, and what kind of value each takes. For completion, which imports no command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click

from fairmile.benchmarks import program
from fairmile.cli.main import command_group
from fairmile.cli.run_options import WithCommand
from fairmile.cli.sweep import GroupOrTarget

_ANY = ["any"]  # a value follows, and nothing can be offered for it
_BY_METAVAR = {
    "RUN": ["run"],
    "RUN|CRATE": ["run", "file"],
    "SWEEP": ["sweep"],
    "STUDY": ["sweep"],
    "JOB": ["job"],
    "SYSTEM": ["system"],
    "ENV": ["env", "file"],
    "NAME|URL": ["asset", "file"],
    "FILE|NAME": ["asset", "file"],
    "NAME|FOLDER": ["benchmark", "file"],
    "CONFIG": ["sweep", "benchmark", "file"],
    "TARGET": ["benchmark", "file"],
    "DATASET": ["asset"],
    "ASSET": ["asset"],
    "PATH": ["file"],
    "FILE": ["file"],
    "SCRIPT": ["file"],
    "FOLDER": ["folder"],
    "POOL": ["pool"],
}
# What NAME names depends on the command.
_NAMES = {
    "run": ["benchmark", "asset", "file"],
    "show": ["asset", "file"],
    "system": ["system"],
    "store pool": ["pool"],
    "catalog source": _ANY,
    "benchmark new": _ANY,
    "catalog": ["asset"],
    "store": ["asset"],
    "match": ["asset"],
}


def make_table() -> dict[str, Any]:
    """Return all commands, by the words that lead to them, and the parameters of the benchmarks."""
    return {
        "commands": dict(_nodes(command_group(), "")),
        "parameters": {name: _parameters(name) for name in program.names()},
    }


def _parameters(benchmark: str) -> dict[str, str]:
    settings = program.load(program.SUITE / benchmark, "settings").Settings
    return {each.name: str(each.metadata.get("meaning", "")) for each in fields(settings)}


def _nodes(command: click.Command, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    context = click.Context(command, info_name=path.rpartition(" ")[2])
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        children = {name: command.get_command(context, name) for name in names}
        commands = {name: child for name, child in children.items() if child is not None}
        yield (
            path,
            {
                "words": {name: child.get_short_help_str(80) for name, child in commands.items()},
                "default": "run" if isinstance(command, GroupOrTarget) else "",
            },
        )
        for name, child in commands.items():
            yield from _nodes(child, f"{path} {name}".strip())
        return
    parameters = command.get_params(context)
    options = {
        flag: [_kinds(each, path), (each.help or "").partition("\n")[0]]
        for each in parameters
        if isinstance(each, click.Option) and not each.hidden
        for flag in (*each.opts, *each.secondary_opts)
    }
    arguments = [_kinds(each, path) for each in parameters if isinstance(each, click.Argument)]
    yield path, {"options": options, "arguments": arguments, "program": isinstance(command, WithCommand)}


def _kinds(parameter: click.Parameter, path: str) -> list[str]:
    """Return the kinds of value that a parameter takes, or its values where they are fixed; none for a flag."""
    if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
        return []
    if isinstance(parameter.type, click.Choice):
        return [str(each) for each in parameter.type.choices]
    if isinstance(parameter.type, click.Path):
        return ["file" if parameter.type.file_okay else "folder"]
    metavar = (parameter.metavar or (parameter.name or "").upper()).strip("[].…")
    if metavar == "RUN" and path in ("compare", "report"):
        return ["run", "sweep"]
    if {"-p", "-a"} & set(parameter.opts):
        return ["param"]
    if metavar.startswith("SYSTEM") or parameter.opts == ["--system"]:
        return ["system"]
    if isinstance(parameter, click.Option) and parameter.opts[-1] in ("--model", "--dataset"):
        return ["asset"]
    if metavar == "NAME" and isinstance(parameter, click.Argument):
        return next((kinds for start, kinds in _NAMES.items() if path == start or path.startswith(f"{start} ")), _ANY)
    return _BY_METAVAR.get(metavar, _ANY)
