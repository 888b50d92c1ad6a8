"""`fairmile system usage`: what all users' jobs on a system took."""

from __future__ import annotations

import click

from fairmile.base.units import format_duration, format_size
from fairmile.cli.out import Out, json_output
from fairmile.jobs.accounting import GROUPINGS, SystemUsage, Usage
from fairmile.workspace import Workspace

_COLUMNS = ["jobs", "GPU hours", "CPU hours", "CPU use", "memory asked", "memory use", "kWh", "wait", "not completed"]
_J_PER_KWH = 3.6e6


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
    out.table([report.by, *_COLUMNS], [_row(each) for each in [*report, report.total]])


def _row(each: Usage) -> list[str]:
    failures = ", ".join(f"{number} {state.lower().replace('_', ' ')}" for state, number in each.failures.items())
    return [
        each.name,
        f"{each.jobs:,}",
        f"{each.gpu_hours:,.1f}",
        f"{each.cpu_hours:,.1f}",
        _share(each.cpu_efficiency),
        "" if each.memory_asked_bytes is None else format_size(int(each.memory_asked_bytes)),
        _share(each.memory_efficiency),
        "" if each.energy_j is None else f"{each.energy_j / _J_PER_KWH:,.2f}",
        "" if each.wait_s is None else format_duration(each.wait_s),
        failures,
    ]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
