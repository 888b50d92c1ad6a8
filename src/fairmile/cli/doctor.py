"""`fairmile doctor`: what is set, where from, and what is missing."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from fairmile import __version__
from fairmile.base.errors import FairmileError
from fairmile.base.registry import Registry
from fairmile.base.units import format_size
from fairmile.catalog.exchange import READERS, WRITERS
from fairmile.cli.catalog import print_catalog_table
from fairmile.cli.failures import Failure
from fairmile.cli.out import Out, json_option
from fairmile.envs.containers import RUNTIMES
from fairmile.envs.steps import KINDS
from fairmile.jobs.schedulers import SCHEDULERS
from fairmile.store.pools import Ranked
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.fetchers import FETCHERS
from fairmile.workspace import Workspace, ignored_text

_T = TypeVar("_T")
_NAMED: dict[str, Registry[Any]] = {
    "fetcher": FETCHERS,
    "scheduler": SCHEDULERS,
    "container runtime": RUNTIMES,
    "part of an environment": KINDS,
}


@click.command()
@json_option
def doctor(out: Out) -> int:
    """Show the settings with their origin, catalogs and pools with their state, and what does not work."""
    workspace = Workspace.open(on_progress=out.progress)
    problems = _home_problems(workspace.home)
    if workspace.project is not None and workspace.config.ignored:
        problems.append(ignored_text(str(workspace.project), workspace.config.ignored))
    catalogs = _told(lambda: workspace.catalog.catalogs(), problems)
    problems += [f"source {each['name']}: {each['error']}" for each in catalogs if each.get("error")]
    pools = [_pool(each) for each in _told(lambda: workspace.store.pools.ranked(), problems)]
    problems += [f"pool {each['name']}: {each['trouble']}" for each in pools if each["trouble"]]
    failures = READERS.failures() | WRITERS.failures()
    # A format and a fetcher may have one name.
    for noun, registry in _NAMED.items():
        failures |= {f"{noun} {name}": error for name, error in registry.failures().items()}
    systems = _told(lambda: workspace.systems.registry.rows(), problems)
    problems += [f"system {each.name}: {each.problem}" for each in systems if each.problem]
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "settings": [
            {"key": each.key, "value": _plain(each.value), "origin": each.origin}
            for each in workspace.config.settings()
        ],
        "catalogs": catalogs,
        "pools": pools,
        "unavailable": {name: str(error) for name, error in failures.items()},
        "problems": problems,
    }
    if out.as_json:
        out.data(facts)
    else:
        _render(facts, out)
    return 0


def _told(ask: Callable[[], list[_T]], problems: list[str]) -> list[_T]:
    """Return the answer, or nothing and one problem more."""
    try:
        return ask()
    except (FairmileError, OSError, sqlite3.Error) as error:
        problems.append(shown_address(Failure.of(error).message))
        return []


def _pool(each: Ranked) -> dict[str, Any]:
    space = each.space
    return {
        "name": each.pool.name,
        "folder": str(each.pool.folder),
        "free_bytes": space.free_bytes if space else None,
        "limited_by": space.limited_by if space else "",
        "trouble": each.trouble,
    }


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
    return shown_address(str(value))


def _text(value: Any) -> str:
    return ", ".join(f"{key}: {each}" for key, each in value.items()) if isinstance(value, dict) else value


def _render(facts: Mapping[str, Any], out: Out) -> None:
    out.line(f"fairmile {facts['version']}, Python {facts['python']}, SQLite {facts['sqlite']}")
    out.line()
    settings = [[each["key"], _text(each["value"]), each["origin"]] for each in facts["settings"]]
    out.table(["setting", "value", "origin"], settings)
    if facts["catalogs"]:
        out.line()
        print_catalog_table(facts["catalogs"], out)
    if facts["pools"]:
        out.line()
        rows = [
            [
                each["name"],
                "unknown" if each["free_bytes"] is None else format_size(each["free_bytes"]),
                each["limited_by"],
                "failed" if each["trouble"] else "ok",
                each["folder"],
            ]
            for each in facts["pools"]
        ]
        out.table(["pool", "free", "limited by", "state", "folder"], rows)
    for problem in facts["problems"]:
        out.say(f"problem: {problem}")
    for name, error in facts["unavailable"].items():
        out.say(f"not available: {name}: {error}")
