"""`fairmile doctor`: what is set, where from, and what is missing."""

from __future__ import annotations

import platform
import sqlite3

import click

from fairmile import __version__
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.cli.out import Out, json_option
from fairmile.workspace import Workspace


@click.command()
@json_option
def doctor(out: Out) -> int:
    """Show the settings with their origin, the catalogs with their state, and what could not be loaded."""
    workspace = Workspace.open(on_progress=out.progress)
    catalogs = workspace.catalog.catalogs()
    failures = {**READERS.failures(), **WRITERS.failures()}
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "settings": [{"key": s.key, "value": str(s.value), "origin": s.origin} for s in workspace.config.settings()],
        "catalogs": catalogs,
        "unavailable": {name: str(error) for name, error in failures.items()},
    }
    if out.as_json:
        out.data(facts)
        return 0
    out.line(f"fairmile {__version__}, Python {facts['python']}, SQLite {facts['sqlite']}")
    out.line()
    out.table(["setting", "value", "origin"], [[s.key, s.value, s.origin] for s in workspace.config.settings()])
    out.line()
    rows = [[c["name"], c["cards"], len(c["clashes"]), c.get("error") or "ok", c["location"]] for c in catalogs]
    out.table(["catalog", "cards", "clashes", "state", "location"], rows)
    for name, error in failures.items():
        out.say(f"{name}: {error}")
    return 0
