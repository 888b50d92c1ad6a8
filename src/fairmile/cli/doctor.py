"""`fairmile doctor`: what is set, where from, and what is missing."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fairmile import __version__
from fairmile.base.errors import FairmileError
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.catalog.sources import shown_location
from fairmile.cli.catalog import catalog_table
from fairmile.cli.failures import Failure
from fairmile.cli.out import Out, json_option
from fairmile.workspace import Workspace


@click.command()
@json_option
def doctor(out: Out) -> int:
    """Show the settings with their origin, the catalogs with their state, and what does not work."""
    workspace = Workspace.open(on_progress=out.progress)
    catalogs: list[dict[str, Any]] = []
    problems = _home_problems(workspace.home)
    try:
        catalogs = workspace.catalog.catalogs()
    except (FairmileError, OSError, sqlite3.Error) as error:
        problems.append(Failure.of(error).message)
    problems += [f"source {each['name']}: {each['error']}" for each in catalogs if each.get("error")]
    missing = {name: str(error) for name, error in {**READERS.failures(), **WRITERS.failures()}.items()}
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "settings": [
            {"key": each.key, "value": _plain(each.value), "origin": each.origin}
            for each in workspace.config.settings()
        ],
        "catalogs": catalogs,
        "unavailable": missing,
        "problems": problems,
    }
    if out.as_json:
        out.data(facts)
    else:
        _render(facts, out)
    return 0


def _home_problems(home: Path) -> list[str]:
    if home.exists() and not home.is_dir():
        return [f"home: {home} is not a folder"]
    parent = next((each for each in (home, *home.absolute().parents) if os.path.lexists(each)), home)
    if not os.access(parent, os.W_OK | os.X_OK):
        return [f"home: {home} cannot be written, so nothing can be added"]
    return []


def _plain(value: Any) -> Any:
    """Return a setting as data, without the passwords and tokens that an address may hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return shown_location(str(value))


def _text(value: Any) -> str:
    return ", ".join(f"{key}: {each}" for key, each in value.items()) if isinstance(value, dict) else value


def _render(facts: Mapping[str, Any], out: Out) -> None:
    out.line(f"fairmile {facts['version']}, Python {facts['python']}, SQLite {facts['sqlite']}")
    out.line()
    settings = [[each["key"], _text(each["value"]), each["origin"]] for each in facts["settings"]]
    out.table(["setting", "value", "origin"], settings)
    if facts["catalogs"]:
        out.line()
        catalog_table(facts["catalogs"], out)
    for problem in facts["problems"]:
        out.say(f"problem: {problem}")
    for name, error in facts["unavailable"].items():
        out.say(f"not available: {name}: {error}")
