"""`fairmile system script`: the batch script that is right on a system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairmile.base.files import write_atomic
from fairmile.base.units import format_duration
from fairmile.cli.job_options import job_options, spec_from
from fairmile.cli.out import Out, json_option
from fairmile.jobs.request import Request
from fairmile.jobs.script import Script
from fairmile.workspace import Workspace

_ROWS = {
    "partition": "partition",
    "nodes": "nodes",
    "tasks_per_node": "tasks per node",
    "cpus_per_task": "CPUs per task",
    "gpus_per_node": "GPUs per node",
    "memory_gib": "memory per node",
    "time_s": "time",
    "account": "account",
    "qos": "quality of service",
    "launch": "launch",
}


@click.command()
@job_options
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the script to a file.")
@click.option("--explain", is_flag=True, help="Show where each value comes from instead of the script.")
@json_option
def script(out: Out, on: str, output: Path | None, explain: bool, **options: Any) -> int:
    """Print the batch script that is right on a system.

    What you leave open comes from the system: GPUs, tasks and CPUs by partition and
    framework, modules, launcher, binding. A value that the partition cannot give is
    refused with the limit. Nothing is submitted; `fairmile job submit` takes the same
    options and does.

    \b
    Examples:
      fairmile system script --on jureca --software ddp --nodes 2 --time 1:00:00 -- python train.py
      fairmile system script --on lumi --software ddp --explain -- python train.py
    """
    made = Workspace.open().systems[on].script(spec_from(options))
    if output is not None:
        write_atomic(output, made.text)
    if out.as_json:
        out.data(_document(made, output))
        return 0
    if explain:
        out.table(["value", "", "where it comes from"], _explained(made.request), shrink=["where it comes from"])
    elif output is None:
        out.document(made.text)
    else:
        out.say(f"wrote {output}")
    for note in made.notes:
        out.say(f"note: {note}")
    return 0


def _document(made: Script, output: Path | None) -> dict[str, Any]:
    request = made.request
    values = {name: {"value": getattr(request, name), "origin": request.origins.get(name, "")} for name in _ROWS}
    written = {"file": str(output)} if output is not None else {}
    facts = {"system": request.system, "values": values, "options": list(request.options)}
    return {**facts, "script": made.text, "notes": list(made.notes), **written}


def _explained(request: Request) -> list[list[str]]:
    rows = []
    for name, label in _ROWS.items():
        value = getattr(request, name)
        if value not in (None, ""):
            shown = format_duration(value) if name == "time_s" else str(value)
            rows.append([label, f"{value:g} GiB" if name == "memory_gib" else shown, request.origins.get(name, "")])
    return rows
