"""`fairmile benchmark compare`: all benchmarks in one table."""

from __future__ import annotations

from pathlib import Path

import click

from fairmile.base.files import write_atomic
from fairmile.benchmarks.comparison import COLUMNS, BenchmarkTable
from fairmile.cli.out import Out, json_output
from fairmile.workspace import Workspace


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the table as Markdown.")
@json_output(BenchmarkTable)
def compare(out: Out, runs: tuple[str, ...], output: Path | None) -> None:
    """Show the results of all benchmarks in one table, from recorded runs.

    RUN is a run, a group, or a name that several runs share.  [default: every run of a benchmark]

    Runs that differ only in their seed share a row: the mean, and its 95 % interval from three
    seeds on. Of several classical baselines the best is shown. "Model is" compares model and
    baseline seed by seed.

    \b
    Examples:
      fairmile benchmark compare
      fairmile benchmark compare mnist --json
    """
    table = Workspace.open().benchmarks.compare(*runs)
    if output is not None:
        write_atomic(output, table.to_markdown())
    out.show(table, lambda table: out.table(COLUMNS, [each.cells() for each in table]))
    if output is not None:
        out.say(f"wrote {output}")
