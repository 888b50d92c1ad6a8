"""`fairmile compare`: groups of runs side by side, and whether they keep to a reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fairmile.base.errors import UsageError
from fairmile.cli.out import Out, json_option
from fairmile.reports.comparison import Comparison
from fairmile.reports.references import Check
from fairmile.reports.verdicts import Verdict
from fairmile.workspace import Workspace

_COLOURS = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.NOT_COMPARABLE: "yellow", Verdict.TOO_FEW: "yellow"}

_MOST_SIDE_BY_SIDE = 4


@click.command()
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@click.option("--metric", "-m", "metrics", multiple=True, help="Compare this metric only; may be repeated.")
@click.option("--reference", type=click.Path(path_type=Path), help="A file of values with tolerances, per system.")
@click.option("--confidence", type=click.FloatRange(0, 1, True, True), default=0.95, show_default=True)
@json_option
def compare(
    out: Out, references: Sequence[str], metrics: Sequence[str], reference: Path | None, confidence: float
) -> int:
    """Compare runs, groups of repeats or all runs of a name with the first one.

    RUN is an id, a group or a name; of one group alone the spread is shown. A verdict
    is given only where the difference is larger than what noise does. With
    --reference the exit code is 1 when a metric leaves its tolerance.

    \b
    Examples:
      fairmile compare tides surge
      fairmile compare tides surge --metric loss
      fairmile compare tides --reference references.yaml
    """
    reports = Workspace.open().reports
    several = sum(map(len, reports.groups(*references).values())) > 1
    if not several and reference is None:
        raise UsageError("there is nothing to compare it with", hint="name a second run, group or name, or --reference")
    compared = reports.compare(*references, metrics=metrics, confidence=confidence) if several else None
    checked = reports.check(*references, file=reference) if reference else None
    if out.as_json:
        told = {"comparison": compared and compared.document(), "check": checked and checked.document()}
        out.data(told)
        return 0 if checked is None or checked.passed else 1
    _render(out, compared, checked)
    if checked:
        checked.require()
    return 0


def _render(out: Out, compared: Comparison | None, checked: Check | None) -> None:
    if compared:
        columns, rows = compared.table()
        out.table(columns, [_coloured(out, columns, row) for row in rows], shrink=["why"])
        if compared.differences:
            out.line()
            out.table(*_what_went_in(compared), shrink=list(compared.groups))
        for note in compared.notes:
            out.say(f"note: {note}")
    if checked:
        if compared:
            out.line()
        columns, rows = checked.table()
        shown = [[*row[:2], out.colour(row[2], "green" if row[2] == "pass" else "red"), *row[3:]] for row in rows]
        out.table(columns, shown, shrink=["why"])
        for system in checked.unchecked:
            out.say(f"note: no reference is for {system}")


def _what_went_in(compared: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return a column for each group, or a line for each where they are many."""
    values = [[" | ".join(each.values.get(name, ())) for name in compared.groups] for each in compared.differences]
    facts = [each.fact for each in compared.differences]
    if len(compared.groups) <= max(_MOST_SIDE_BY_SIDE, len(facts)):
        return ["what went in", *compared.groups], [[fact, *each] for fact, each in zip(facts, values, strict=True)]
    lines = zip(compared.groups, *values, strict=True)
    return ["what went in", *facts], [list(line) for line in lines]


def _coloured(out: Out, columns: Sequence[str], row: Sequence[str]) -> list[str]:
    def shown(column: str, text: str) -> str:
        if column != "verdict" or not text:
            return text
        return out.colour(text, next((name for verdict, name in _COLOURS.items() if text == verdict), "dim"))

    return [shown(column, text) for column, text in zip(columns, row, strict=True)]
