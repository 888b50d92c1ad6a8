"""`fairmile report`: write a page or figures of runs, or print a leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fairmile.base.errors import UsageError
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, json_output
from fairmile.reports.figures import PAPER_WIDTH_MM
from fairmile.reports.leaderboard import Leaderboard
from fairmile.reports.page import FORMATS, Format, Report, ReportFiles
from fairmile.workspace import Workspace

_OUTPUT: dict[Format, str] = {
    "html": "report.html",
    "md": "report.md",
    "svg": "figures",
    "png": "figures",
    "pdf": "figures",
}


@click.command()
@click.argument("references", metavar="[RUN]...", nargs=-1)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, allow_dash=True), help="Output file or folder; `-` is stdout."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Format: html, md, or figures only as svg, png or pdf.  [default: html]",
)
@click.option(
    "--width",
    "width_mm",
    type=float,
    default=PAPER_WIDTH_MM,
    show_default=True,
    help="Width of figures in mm; a journal column is about 85 mm wide.",
)
@click.option("--metric", "-m", "metrics", multiple=True, help="Report only this metric; repeatable.")
@click.option("--over", metavar="PARAM,PARAM", help="Two parameters for the heat map of a sweep.")
@click.option("--top", metavar="METRIC", help="Print a leaderboard by this metric instead of a report.")
@click.option(
    "-n",
    "places",
    type=click.IntRange(min=1),
    metavar="N",
    default=10,
    show_default=True,
    help="Number of places on the leaderboard.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="KEY=VALUE",
    help="Report only runs with this name, system, tag, state or parameter; repeatable.",
)
@DRY_RUN
@json_output(ReportFiles, Leaderboard)
def report(
    out: Out,
    references: Sequence[str],
    output: Path | None,
    form: Format | None,
    width_mm: float,
    metrics: Sequence[str],
    over: str | None,
    top: str | None,
    places: int,
    where: Sequence[str],
    dry_run: bool,
) -> None:
    """Write a report of runs as one file. Without RUN, report the latest runs.

    RUN is an id, a group or a name, or `last`: the last run with all others of its
    sweep, study or repeats. With --where alone, all matching runs are reported.
    Several runs are compared and ranked. The report of a sweep shows parameter
    effects. The report of a study shows its progress, and the Pareto front for two
    objectives.

    \b
    Examples:
      fairmile report
      fairmile report tides surge -o both.html
      fairmile report last -o tides.md
      fairmile report tides --over level,x
      fairmile report tides --format pdf --width 85 -o figures
      fairmile report --top loss -n 5 --where name=tides
    """
    reports = Workspace.open().reports
    if top:
        board = reports.leaderboard(top, *references, n=places, where=where)
        out.show(board, lambda board: _print_leaderboard(out, board))
        return
    axes = [name.strip() for name in over.split(",")] if over else []
    made = reports.page(*references, metrics=metrics, where=where, over=axes)
    _write(out, made, output, form or _form_of(output), width_mm, dry_run)


def _print_leaderboard(out: Out, board: Leaderboard) -> None:
    out.table(*board.table(), shrink=["what"])
    for note in board.notes:
        out.say(f"note: {note}")
    if board.of > len(board.places):
        out.hint(f"-n {board.of} shows all")


def _form_of(output: Path | None) -> Format:
    ending = output.suffix.removeprefix(".").lower() if output else ""
    return next((form for form in ("html", "md") if form == ending), "html")


def _write(out: Out, made: Report, output: Path | None, form: Format, width_mm: float, dry_run: bool) -> None:
    if output is not None and str(output) == "-":
        if form not in ("html", "md"):
            raise UsageError("figures cannot be written to stdout", hint="name a folder with -o")
        out.document(made.html() if form == "html" else made.markdown())
        return
    verb = "would write" if dry_run else "wrote"

    def render(files: ReportFiles) -> None:
        for file in files:
            out.line(f"{verb}  {file}")
        if made.lacks_figures:
            out.hint("`pip install 'fairmile[plots]'` adds figures")

    out.show(made.write(output or Path(_OUTPUT[form]), form, width_mm=width_mm, dry_run=dry_run), render)
