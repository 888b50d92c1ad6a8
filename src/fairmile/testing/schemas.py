"""The JSON Schema of what each command prints with `--json`, from the types of its results.

`python -m fairmile.testing.schemas docs/schemas` writes one file for each command, and removes the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from fairmile.base.results import Result
from fairmile.base.schemas import schema_of_results
from fairmile.cli.main import command_group

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def commands(group: click.Group | None = None, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its words, such as `runs ls`."""
    group = group or command_group()
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{prefix}{name}", command


def result_types(command: click.Command) -> tuple[type[Result], ...]:
    """Return the results that a command prints; empty where it does not say."""
    types: tuple[type[Result], ...] = getattr(command.callback, "result_types", ())
    return types


def schema_of(name: str, results: tuple[type[Result], ...]) -> dict[str, Any]:
    """Return the JSON Schema of what a command with these results prints."""
    body, definitions = schema_of_results(results)
    more = {"$defs": dict(sorted(definitions.items()))} if definitions else {}
    return {"$schema": _DIALECT, **body, "title": f"fairmile {name} --json", **more}


def schema_files() -> dict[str, str]:
    """Return the files of docs/schemas, by name."""
    return {
        f"{name.replace(' ', '-')}.json": json.dumps(schema_of(name, types), indent=1) + "\n"
        for name, command in commands()
        if (types := result_types(command))
    }


def write_schemas(folder: Path) -> None:
    """Write the schema of every command into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = schema_files()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    for old in folder.glob("*.json"):
        if old.name not in files:
            old.unlink()


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1]))
