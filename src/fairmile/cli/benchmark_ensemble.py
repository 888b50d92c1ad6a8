"""`fairmile benchmark ensemble`: join runs that differ in their seed, and judge the uncertainty of the whole."""

from __future__ import annotations

from pathlib import Path

import click

from fairmile.benchmarks.ensembles.results import Ensemble
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.workspace import Workspace


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--calibrate",
    "calibration_share",
    type=float,
    default=0.5,
    show_default=True,
    metavar="SHARE",
    help="Share of the validation samples that calibrates; the others judge.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draw of these samples.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write a page with a reliability figure."
)
@DRY_RUN
@json_output(Ensemble)
def ensemble(
    out: Out, runs: tuple[str, ...], calibration_share: float, seed: int, output: Path | None, dry_run: bool
) -> None:
    """Join runs to an ensemble, calibrate its uncertainty and judge it.

    RUN is a run, a group of repeats or a sweep, or a name that several runs share. The
    runs must differ in their seed only and keep their predictions, with
    `-p predictions=true`. Reports coverage and width of intervals, CRPS and likelihood
    of a regression; accuracy, likelihood and calibration error of a classification.

    \b
    Examples:
      fairmile benchmark ensemble last
      fairmile benchmark ensemble waves -o ensemble.html --dry-run
    """
    benchmarks = Workspace.open().benchmarks
    joined = benchmarks.ensemble(
        runs, calibration_share=calibration_share, seed=seed, output=None if dry_run else output
    )

    def render(joined: Ensemble) -> None:
        _print(out, joined)
        if output is not None:
            out.line(f"{'would write' if dry_run else 'wrote'} {output}")

    out.show(joined, render)


def _print(out: Out, joined: Ensemble) -> None:
    data = joined.data
    columns = [name for name in joined.columns[data["kind"]] if any(name in row["values"] for row in data["methods"])]
    rows = [
        (
            row["output"],
            row["method"],
            *(f"{row['values'][name]:.4g}" if name in row["values"] else "" for name in columns),
        )
        for row in data["methods"]
    ]
    out.line(
        f"{count(len(data['runs']), 'run')}; calibrated on {data['calibration_samples']:,} samples, "
        f"judged on {data['test_samples']:,} others"
    )
    out.table(("output", "method", *(name.replace("_", " ") for name in columns)), rows)
    for each in data["gains"]:
        out.line(each["verdict"])
    for note in data["notes"]:
        out.say(f"note: {note}")
