"""`fairmile system script`: print the batch script of a job on a system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairmile.cli.job_options import job_options, spec_from
from fairmile.cli.options import SectionedCommand
from fairmile.cli.out import Out, json_output
from fairmile.jobs.script import Script
from fairmile.workspace import Workspace


@click.command(cls=SectionedCommand)
@job_options
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the script to this file.")
@click.option("--explain", is_flag=True, help="Print where each value comes from instead of the script.")
@json_output(Script)
def script(out: Out, on: str, output: Path | None, explain: bool, **options: Any) -> int:
    """Print the batch script of a job on a system.

    The system's file supplies what you omit: GPUs, tasks and CPUs by partition and
    framework, modules, launcher, binding. Values beyond a partition's limit are refused.
    `fairmile job submit` takes the same options and submits the job.

    \b
    Examples:
      fairmile system script --on jureca --software ddp --nodes 2 --time 1:00:00 -- python train.py
      fairmile system script --on lumi --software ddp --variant container -- python train.py
      fairmile system script --on lumi --software ddp --explain -- python train.py
    """
    made = Workspace.open().systems[on].script(spec_from(options), output=output)
    out.show(made, lambda made: _print_script(out, made, explain))
    return 0


def _print_script(out: Out, script: Script, explain: bool) -> None:
    if explain:
        out.table(["value", "", "where it comes from"], script.explained(), shrink=["where it comes from"])
    elif not script.file:
        out.document(script.text)
    else:
        out.say(f"wrote {script.file}")
    for note in script.notes:
        out.say(f"note: {note}")
