"""`fairmile compare`: compare groups of runs, and check them against reference values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fairmile.cli.out import Out, json_output
from fairmile.reports.comparison import Comparison
from fairmile.reports.references import Check
from fairmile.reports.reports import Evaluation
from fairmile.reports.verdicts import Verdict
from fairmile.workspace import Workspace

_COLOURS = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.NOT_COMPARABLE: "yellow", Verdict.TOO_FEW: "yellow"}

_MOST_SIDE_BY_SIDE = 4


@click.command()
@click.argument("references", metavar="RUN...", nargs=-1, required=True)
@click.option("--metric", "-m", "metrics", multiple=True, help="Compare only this metric; repeatable.")
@click.option(
    "--reference", type=click.Path(path_type=Path), help="File of reference values and tolerances for each system."
)
@click.option(
    "--confidence", type=click.FloatRange(0, 1, True, True), default=0.95, show_default=True, help="Confidence level."
)
@json_output(Evaluation)
def compare(
    out: Out, references: Sequence[str], metrics: Sequence[str], reference: Path | None, confidence: float
) -> int:
    """Compare runs, groups of repeats, or all runs of a name with the first RUN.

    RUN is an id, a group or a name. A single group shows its spread. A group is called
    better or worse only if the difference exceeds the noise. With --reference, the
    exit code is 1 if a metric is outside its tolerance.

    \b
    Examples:
      fairmile compare tides surge
      fairmile compare tides surge --metric loss
      fairmile compare tides --reference references.yaml
    """
    reports = Workspace.open().reports
    evaluation = reports.evaluate(*references, metrics=metrics, confidence=confidence, file=reference)
    out.show(evaluation, lambda evaluation: _print_evaluation(out, evaluation))
    if evaluation.check and not out.as_json:
        evaluation.check.require()
    return 0 if evaluation.passed else 1


def _print_evaluation(out: Out, evaluation: Evaluation) -> None:
    if evaluation.comparison:
        _print_comparison(out, evaluation.comparison)
    if evaluation.comparison and evaluation.check:
        out.line()
    if evaluation.check:
        _print_check(out, evaluation.check)


def _print_comparison(out: Out, comparison: Comparison) -> None:
    columns, rows = comparison.table()
    out.table(columns, [_coloured(out, columns, row) for row in rows], shrink=["why"])
    if comparison.differences:
        out.line()
        out.table(*_inputs_table(comparison), shrink=list(comparison.groups))
    for note in comparison.notes:
        out.say(f"note: {note}")


def _print_check(out: Out, check: Check) -> None:
    columns, rows = check.table()
    shown = [[*row[:2], out.colour(row[2], "green" if row[2] == "pass" else "red"), *row[3:]] for row in rows]
    out.table(columns, shown, shrink=["why"])
    for system in check.unchecked:
        out.say(f"note: no reference for {system}")


def _inputs_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return which inputs differ: a column for each group, or a row for each if there are many."""
    values = [[" | ".join(each.values.get(name, ())) for name in comparison.groups] for each in comparison.differences]
    facts = [each.fact for each in comparison.differences]
    if len(comparison.groups) <= max(_MOST_SIDE_BY_SIDE, len(facts)):
        return ["input", *comparison.groups], [[fact, *each] for fact, each in zip(facts, values, strict=True)]
    lines = zip(comparison.groups, *values, strict=True)
    return ["group", *facts], [list(line) for line in lines]


def _coloured(out: Out, columns: Sequence[str], row: Sequence[str]) -> list[str]:
    def shown(column: str, text: str) -> str:
        if column != "verdict" or not text:
            return text
        return out.colour(text, next((name for verdict, name in _COLOURS.items() if text == verdict), "dim"))

    return [shown(column, text) for column, text in zip(columns, row, strict=True)]
