"""`fairmile doctor`: settings with their origin, what is missing for what, and what does not work."""

from __future__ import annotations

from typing import Any

import click

from fairmile.base.units import format_size
from fairmile.cli.catalog import print_catalog_table
from fairmile.cli.out import Out, json_output
from fairmile.doctor import Diagnosis, PoolStateDict
from fairmile.workspace import Workspace


@click.command()
@json_output(Diagnosis)
def doctor(out: Out) -> int:
    """Check the installation: missing parts and how to fix them, settings, catalogs and pools."""
    out.show(Workspace.open(on_progress=out.progress).diagnose(), lambda diagnosis: _print_diagnosis(diagnosis, out))
    return 0


def _print_diagnosis(diagnosis: Diagnosis, out: Out) -> None:
    data = diagnosis.to_dict()
    out.line(f"fairmile {data['version']}, Python {data['python']}, SQLite {data['sqlite']}")
    out.line()
    changed = [each for each in data["settings"] if each["key"] == "home" or each["origin"] != "default"]
    out.table(
        ["setting", "value", "origin"], [[each["key"], _value_text(each["value"]), each["origin"]] for each in changed]
    )
    if data["catalogs"]:
        out.line()
        print_catalog_table(data["catalogs"], out)
    if data["pools"]:
        out.line()
        out.table(["pool", "free", "limited by", "state", "folder"], [_pool_row(each) for each in data["pools"]])
    out.line()
    out.item("works: ", ", ".join(each.name for each in diagnosis.checks if each.state == "ok"))
    bad = [each for each in diagnosis.checks if each.state != "ok"]
    if bad:
        out.line()
    out.table(["state", "what", "for", "fix"], [[each.state, each.name, each.serves, each.fix] for each in bad])
    for each in bad:
        if each.state != "missing":
            out.item(f"{each.name}: ", each.detail)
    for problem in data["problems"]:
        out.say(f"problem: {problem}")
    for name, error in data["unavailable"].items():
        out.say(f"not available: {name}: {error}")
    if len(changed) < len(data["settings"]):
        out.hint(f"{len(data['settings']) - len(changed)} settings have their default: --json lists them")


def _pool_row(pool: PoolStateDict) -> list[str]:
    free = "unknown" if pool["free_bytes"] is None else format_size(pool["free_bytes"])
    return [pool["name"], free, pool["limited_by"], "failed" if pool["trouble"] else "ok", pool["folder"]]


def _value_text(value: Any) -> str:
    return ", ".join(f"{key}: {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
