"""`fairmile system usage`: what all users' jobs on a system took."""

from __future__ import annotations

import click

from fairmile.base.units import format_duration
from fairmile.cli.out import Out, json_output
from fairmile.jobs.accounting import COLUMNS, GROUPINGS, SystemUsage
from fairmile.workspace import Workspace


@click.command()
@click.argument("system", metavar="SYSTEM")
@click.option("--since", metavar="TIME", default="30d", show_default=True, help="How far to look back, such as 7d.")
@click.option("--by", type=click.Choice(list(GROUPINGS)), default="project", show_default=True, help="Group jobs by.")
@json_output(SystemUsage)
def usage(system: str, since: str, by: str, out: Out) -> int:
    """Show hours, efficiency, memory, energy and failures of all users' jobs on a system.

    Reads Slurm's accounting and changes nothing. Slurm shows jobs of others to administrators and operators, and to
    everybody where the site allows it. Memory use is that of the largest task.

    \b
    Examples:
      fairmile system usage my-cluster --since 7d --by user
    """
    out.show(Workspace.open().systems.usage(system, since=since, by=by), lambda report: _print_usage(out, report))
    return 0


def _print_usage(out: Out, report: SystemUsage) -> None:
    if not report:
        out.say(f"no job on {report.system} ended in the last {format_duration(report.since_s)}")
        return
    for note in report.notes:
        out.say(note)
    rows = [[each.name, *each.texts()] for each in [*report, report.total]]
    out.table([report.by, *COLUMNS], rows)
