"""`fairmile system certify`: a short suite, run by a machine's own scheduler, and its record."""

from __future__ import annotations

import click

from fairmile.base.units import parse_duration, parse_size
from fairmile.cli.out import Out, count, json_option
from fairmile.jobs.certify import Certificate, Check, plan
from fairmile.jobs.certify import certify as run_suite
from fairmile.jobs.spec import Resources
from fairmile.workspace import Workspace

_COLOURS = {"passed": "green", "failed": "red", "not applicable": "dim"}


@click.command()
@click.argument("name", default="laptop")
@click.option("--software", multiple=True, metavar="NAME", help="These frameworks only, instead of all.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the jobs that run on several.")
@click.option("--partition", default="", metavar="NAME", help="The partition or queue.")
@click.option("--account", default="", metavar="NAME", help="The account that pays.")
@click.option("--memory", metavar="SIZE", help="Memory of each node, as 4GiB.")
@click.option("--patience", default="4h", metavar="TIME", show_default=True, help="How long the jobs may take.")
@click.option("--dry-run", is_flag=True, help="Say which checks would be made; submit nothing.")
@json_option
def certify(
    name: str,
    software: tuple[str, ...],
    nodes: int | None,
    partition: str,
    account: str,
    memory: str | None,
    patience: str,
    dry_run: bool,
    out: Out,
) -> int:
    """Run a short suite on a system, through its own scheduler, and keep the record.

    Jobs, arrays and cancelling, exit codes and output, module lines, Python, GPUs,
    file systems, tasks that start together, MPI and distributed torch: each check
    passes, fails or does not apply, with the reason. The exit code is 1 when one failed.

    \b
    Examples:
      fairmile system certify laptop --dry-run
      fairmile system certify deep --software ddp --account my-project --dry-run
    """
    workspace = Workspace.open()
    gib = parse_size(memory) / (1 << 30) if memory else None
    resources = Resources(nodes=nodes, partition=partition, account=account, memory_gib=gib)
    chosen = software or None
    if dry_run:
        _show_plan(name, plan(workspace.jobs, name, software=chosen, resources=resources), out)
        return 0
    made = run_suite(
        workspace.jobs,
        name,
        software=chosen,
        resources=resources,
        patience_s=parse_duration(patience),
        watch=lambda check: None if out.as_json else _show(check, out),
    )
    file = made.keep(workspace.home / "systems" / "certificates")
    if out.as_json:
        out.data({**made.record(), "file": str(file)})
    else:
        out.line(_summary(made))
        out.say(f"kept {file}")
    return 0 if made.passed else 1


def _show_plan(name: str, checks: list[str], out: Out) -> None:
    if out.as_json:
        out.data({"system": name, "checks": checks, "dry_run": True})
        return
    for check in checks:
        out.line(f"would check {check}")


def _show(check: Check, out: Out) -> None:
    seconds = "" if check.seconds is None else f"{check.seconds:.0f} s"
    label = f"{out.colour(f'{check.outcome:<14}', _COLOURS[check.outcome])}  {seconds:>5}  {check.name}"
    out.item(f"{label}: " if check.reason else label, check.reason)
    if check.outcome == "failed" and check.job:
        out.hint(f"`fairmile job log {check.job}` shows what it said")


def _summary(made: Certificate) -> str:
    outcomes = [check.outcome for check in made.checks]
    numbers = [f"{outcomes.count(word)} {word}" for word in _COLOURS if word in outcomes]
    return f"{made.system}: {count(len(outcomes), 'check')}: {', '.join(numbers)}"
