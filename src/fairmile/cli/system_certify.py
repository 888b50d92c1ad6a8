"""`fairmile system certify`: run a short test suite through a machine's own scheduler, and keep the record."""

from __future__ import annotations

import click

from fairmile.base.units import parse_size, parse_time
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.jobs.certify import Certificate, CertificationPlan, Check
from fairmile.jobs.spec import Resources
from fairmile.workspace import Workspace

_COLOURS = {"passed": "green", "failed": "red", "not applicable": "dim"}


@click.command()
@click.argument("name", default="laptop")
@click.option("--software", multiple=True, metavar="NAME", help="Test this framework; repeatable.  [default: all]")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes of multi-node jobs.")
@click.option("--partition", default="", metavar="NAME", help="Submit to this partition or queue.")
@click.option("--account", default="", metavar="NAME", help="Charge this account.")
@click.option("--memory", metavar="SIZE", help="Memory per node, such as 64GiB.")
@click.option("--patience", default="4h", metavar="TIME", show_default=True, help="Maximum time to wait for the jobs.")
@DRY_RUN
@json_output(Certificate, CertificationPlan)
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
    """Run a short test suite on a system, through its own scheduler, and keep the record.

    The suite covers jobs, arrays, cancelling, exit codes, output, module lines, Python,
    GPUs, file systems, tasks that start together, MPI and distributed torch. Each check
    passes, fails or does not apply, with the reason. The exit code is 1 if one fails.

    \b
    Examples:
      fairmile system certify laptop --dry-run
      fairmile system certify deep --software ddp --account my-project --dry-run
    """
    jobs = Workspace.open().jobs
    gib = parse_size(memory) / (1 << 30) if memory else None
    resources = Resources(nodes=nodes, partition=partition, account=account, memory_gib=gib)
    chosen = software or None
    if dry_run:
        plan = jobs.plan_certification(name, software=chosen, resources=resources)
        out.show(plan, lambda plan: _print_plan(out, plan))
        return 0
    certificate = jobs.certify(
        name,
        software=chosen,
        resources=resources,
        patience_s=parse_time(patience),
        watch=lambda check: None if out.as_json else _print_check(out, check),
    )
    out.show(certificate, lambda certificate: _print_certificate(out, certificate))
    return 0 if certificate.passed else 1


def _print_plan(out: Out, plan: CertificationPlan) -> None:
    for check in plan.checks:
        out.line(f"would check {check}")


def _print_check(out: Out, check: Check) -> None:
    seconds = "" if check.seconds is None else f"{check.seconds:.0f} s"
    label = f"{out.colour(f'{check.outcome:<14}', _COLOURS[check.outcome])}  {seconds:>5}  {check.name}"
    out.item(f"{label}: " if check.reason else label, check.reason)
    if check.outcome == "failed" and check.job:
        out.hint(f"`fairmile job log {check.job}` shows its output")


def _print_certificate(out: Out, certificate: Certificate) -> None:
    numbers = ", ".join(f"{number} {outcome}" for outcome, number in certificate.counts().items())
    out.line(f"{certificate.system}: {count(len(certificate.checks), 'check')}: {numbers}")
    out.say(f"kept {certificate.file}")
