"""`fairmile report`: one run or several as a page, as figures, or as a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import NotFound, Unsupported, UsageError
from fairmile.cli.out import Out, json_option
from fairmile.reports.leaderboard import leaderboard, parse_where
from fairmile.reports.measures import ALWAYS
from fairmile.reports.page import FORMATS, Format, Report
from fairmile.reports.page import report as report_runs
from fairmile.runs.ledger import Ledger
from fairmile.runs.model import Run
from fairmile.sweeps.record import COMBINED
from fairmile.workspace import Workspace

_LAST = "last"
_OUTPUT: dict[Format, str] = {"html": "report.html", "md": "report.md", "svg": "figures", "png": "figures"}


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option("--output", "-o", type=click.Path(path_type=Path, allow_dash=True), help="Where to; `-` is stdout.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="html, md, or the figures alone.  [default: html]")
@click.option("--metric", "-m", "metrics", multiple=True, help="Report this metric of several runs; may be repeated.")
@click.option("--over", metavar="PARAM,PARAM", help="Draw the heat map of a sweep over these two parameters.")
@click.option("--top", metavar="METRIC", help="Print a leaderboard by that metric instead.")
@click.option(
    "-n", "places", type=click.IntRange(min=1), default=10, show_default=True, help="Places of the leaderboard."
)
@click.option(
    "--where", multiple=True, metavar="KEY=VALUE", help="Only runs with that name, system, tag, state or param."
)
@click.option("--dry-run", is_flag=True, help="Say which files would be written; write nothing.")
@json_option
def report(
    out: Out,
    references: Sequence[str],
    output: Path | None,
    form: Format | None,
    metrics: Sequence[str],
    over: str | None,
    top: str | None,
    places: int,
    where: Sequence[str],
    dry_run: bool,
) -> None:
    """Report runs as one file that opens anywhere; without RUN, what ran last.

    RUN is an id, a group or a name, or `last`: the last run with all others of its
    sweep, study or repeats. With --where alone all runs that fit are meant.
    Several runs are compared, and ranked. The runs of a sweep become a page of what
    its parameters do, the trials of a tuning study one of the way to the best; with
    two metrics also of what one costs the other.

    \b
    Examples:
      fairmile report
      fairmile report tides surge -o both.html
      fairmile report last -o tides.md
      fairmile report tides --over level,x
      fairmile report --top loss -n 5 --where name=tides
    """
    workspace = Workspace.open()
    ledger = workspace.runs
    if top:
        _print_leaderboard(out, _all(ledger, references, top), top, places, where)
        return
    holds = parse_where(where)
    named = _chosen(ledger, references) if references or not where else [ledger.get(row.id) for row in ledger.rows()]
    chosen = [run for run in named if holds(run)]
    if named and not chosen:
        raise NotFound(f"no run has {' and '.join(where)}", hint="`fairmile runs ls` shows what there is")
    axes = [name.strip() for name in over.split(",")] if over else []
    judged = _hindsight(workspace, chosen)
    made = report_runs(chosen, metrics=metrics or None, over=axes, hindsight=judged, supply=workspace.supply)
    _write(out, made, output, form or _form_of(output), dry_run)


def _hindsight(workspace: Workspace, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return how well curves would have been extrapolated, where all runs are trials of one study."""
    studies = {(run.document.get("trial") or {}).get("study", "") for run in runs}
    if len(studies) != 1 or "" in studies:
        return []
    try:
        return workspace.studies.hindsight(workspace.sweeps.get(studies.pop()))
    except (NotFound, Unsupported):  # its runs came from elsewhere, or nothing here can extrapolate
        return []


def _chosen(ledger: Ledger, references: Sequence[str]) -> list[Run]:
    found = [run for reference in references or (_LAST,) for run in ledger.select(_group_of_last(ledger, reference))]
    return list({run.id: run for run in found}.values())


def _group_of_last(ledger: Ledger, reference: str) -> str:
    """Return a word as it is, but for `last` the sweep, the study or the repeats that the last run is part of."""
    if reference != _LAST:
        return reference
    run = ledger.get(_LAST)
    return run.group or run.id.removesuffix(COMBINED)


def _all(ledger: Ledger, references: Sequence[str], metric: str) -> list[Run]:
    """Return the runs that are meant; without any word all that have the metric, or all where none has it."""
    if references:
        return _chosen(ledger, references)
    rows = ledger.rows()
    having = [row for row in rows if metric in ALWAYS or metric in row.metrics] or rows
    return [ledger.get(row.id) for row in having]


def _print_leaderboard(out: Out, runs: Sequence[Run], metric: str, places: int, where: Sequence[str]) -> None:
    board = leaderboard(runs, metric, n=places, where=parse_where(where))
    if out.as_json:
        out.data(board.document())
        return
    out.table(*board.table(), shrink=["what"])
    for note in board.notes:
        out.say(f"note: {note}")
    if board.of > len(board.places):
        out.hint(f"-n {board.of} shows all")


def _form_of(output: Path | None) -> Format:
    ending = output.suffix.removeprefix(".").lower() if output else ""
    return next((form for form in ("html", "md") if form == ending), "html")


def _write(out: Out, made: Report, output: Path | None, form: Format, dry_run: bool) -> None:
    if output is not None and str(output) == "-":
        if form not in ("html", "md"):
            raise UsageError("several figures cannot go to one stream", hint="name a folder with -o")
        out.document(made.html() if form == "html" else made.markdown())
        return
    files = made.write(output or Path(_OUTPUT[form]), form, dry_run=dry_run)
    if out.as_json:
        out.data({"files": [str(file) for file in files], **made.document()})
        return
    for file in files:
        out.line(f"{'would write' if dry_run else 'wrote'}  {file}")
