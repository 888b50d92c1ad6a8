"""`fairmile benchmark submit`: make a submission for a benchmark committee, and run its checkers on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairmile.base.units import format_duration
from fairmile.benchmarks.submission.results import Submission
from fairmile.benchmarks.submission.rules import AVAILABILITIES, TARGETS
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.workspace import Workspace

_MOST_MESSAGES = 6


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--to", required=True, type=click.Choice(TARGETS), help="Committee whose rules apply.")
@click.option(
    "-o", "--output", "folder", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="New folder."
)
@click.option("--org", required=True, metavar="NAME", help="Organization that submits.")
@click.option("--division", type=click.Choice(("open", "closed")), default="open", show_default=True, help="Division.")
@click.option(
    "--availability",
    type=click.Choice(AVAILABILITIES),
    default=AVAILABILITIES[0],
    show_default=True,
    help="Availability of the system.",
)
@click.option("--system-name", "system", default="", metavar="NAME", help="Name of the system.  [default: as recorded]")
@click.option(
    "--describe",
    "description",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="YAML or JSON file with fields of the system description, such as cooling.",
)
@click.option(
    "--descriptor",
    default="experiment-1",
    show_default=True,
    metavar="NAME",
    help="Name of the experiment, for mlcommons-science.",
)
@DRY_RUN
@json_output(Submission)
def submit(out: Out, runs: tuple[str, ...], folder: Path, **options: Any) -> int:
    """Make a submission from recorded runs, and run the committee's checkers on it.

    RUN is a run, a group, or a name that several runs share. The folder holds the system
    description, the code, scripts to run it, the logs and a README, as the rules of
    the committee require. Lists what is missing, run by run; exit code 1 if anything is,
    except with --dry-run.

    The closed division accepts only runs on the full data set.

    \b
    Examples:
      fairmile benchmark submit cosmoflow --to mlperf-hpc --org Lake -o submission --dry-run
      fairmile benchmark submit cosmoflow --to mlperf-hpc --org Lake -o lake --system-name lake-one --dry-run
    """
    submission = Workspace.open().benchmarks.submit(runs, folder, **options)
    out.show(submission, lambda submission: _print_submission(out, submission))
    return 0 if submission.accepted or submission.dry_run else 1


def _print_submission(out: Out, submission: Submission) -> None:
    what = "would write" if submission.dry_run else "wrote"
    out.line(f"{what} {submission.folder}: {count(len(submission.files), 'file')}, {submission.summary()}")
    out.line()
    rows = [
        (
            each.run,
            each.benchmark,
            each.system,
            "" if each.seed is None else str(each.seed),
            "" if each.elapsed_s is None else format_duration(each.elapsed_s),
            "; ".join(each.missing) or "complete",
        )
        for each in submission.runs
    ]
    out.table(("run", "benchmark", "system", "seed", "time", "missing"), rows)
    for score in submission.scores:
        if score.time_to_solution_s is not None:
            out.line(f"{score.benchmark} on {score.system}: {format_duration(score.time_to_solution_s)} to the target")
    for each in submission.missing:
        out.line(f"missing  {each}")
    out.line()
    for check in submission.checks:
        note = "" if check.is_required else "  (only the closed division needs it)"
        out.line(f"{'passed' if check.passed else 'failed'}  {check.checker}  {check.path}{note}")
        for message in [] if check.passed else check.messages[:_MOST_MESSAGES]:
            out.item("  ", message)
