"""`fairmile status`: what runs, how far it is and when it may end, and what ended last."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from fairmile.base.units import format_duration
from fairmile.cli.out import Out, json_output, place
from fairmile.cli.runs import print_rows
from fairmile.status import Activity, WorkspaceStatus, states_text
from fairmile.workspace import Workspace

_SHOWN = 20
_SOON_S = 86_400.0
_COLOURS = {"running": "green", "queued": "yellow"}


@click.command()
@json_output(WorkspaceStatus)
def status(out: Out) -> None:
    """Show active work here and on every system, with progress and expected end, and recent runs.

    Lists runs, sweeps, studies, flows, jobs and transfers. The expected end comes from the
    progress so far, the prediction of a run, or the time limit of a job.
    """
    out.show(Workspace.open().status(on_problem=out.say), lambda status: _print_status(out, status))


def _print_status(out: Out, status: WorkspaceStatus) -> None:
    out.line(f"runs: {states_text(status.counts) or 'none yet'}")
    if status.active:
        out.line()
        columns = ["active", "id", "state", "on", "progress", "expected end"]
        out.table(columns, [_row(out, each) for each in status.active[:_SHOWN]], shrink=["progress"])
    if len(status.active) > _SHOWN:
        out.hint(f"{len(status.active) - _SHOWN:,} more are unfinished: --json lists them")
    if status.last:
        out.line()
        print_rows(out, status.last)


def _row(out: Out, each: Activity) -> list[str]:
    state = out.colour(each.state, _COLOURS.get(each.state, "dim"))
    return [each.kind, each.id, state, place(each.system), each.progress_text, _end_text(each)]


def _end_text(each: Activity) -> str:
    if each.expected_end is None:
        return ""
    left_s = each.expected_end - time.time()
    if left_s < 0 and each.expected_from == "progress":
        when = "now"
    elif left_s < 0:
        when = f"{format_duration(-left_s)} ago"
    elif left_s < _SOON_S:
        when = f"in {format_duration(left_s)}"
    else:
        when = f"{datetime.fromtimestamp(each.expected_end, UTC).astimezone():%Y-%m-%d %H:%M}"
    return f"{when} ({each.expected_from})"
