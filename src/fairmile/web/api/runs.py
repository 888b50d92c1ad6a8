"""Runs: list, show, compare, cancel; as `fairmile runs`, `compare`, `report --top` and `status` do."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import Query, Request
from pydantic import Field, StringConstraints

from fairmile.base.results import Result
from fairmile.runs.record.record import RunState
from fairmile.web.answers import Part, cursor_at, position_of
from fairmile.web.errors import Refused
from fairmile.web.hiding import visible_status
from fairmile.web.parameters import Cursor, DryRun, Id, Limit, ParamValue, Word
from fairmile.web.routes import Routes, workspace_of
from fairmile.web.starting import Where, program_of, start

routes = Routes("runs")
# Of ids, groups and names: never the path of a folder, which the call would take as well.
_Reference = Annotated[str, StringConstraints(pattern=r"^[^/\\]*[^/\\.][^/\\]*$", max_length=200)]

_MOST_SEEN = 10_000  # runs of one name that are known before another begins
_MOST_NEW = 20  # that may begin meanwhile


@routes.get("/api/status", result="fairmile.status:WorkspaceStatus")
def show_status(request: Request) -> Result:
    """Return unfinished work of every kind with its progress, and recent runs, as `fairmile status`."""
    return visible_status(workspace_of(request))


@routes.get("/api/runs", result="fairmile.runs.record.ledger:RunRows")
def list_runs(
    request: Request,
    name: Word = "",
    group: Word = "",
    state: Annotated[list[RunState], Query(max_length=10)] = [],  # noqa: B006  FastAPI copies it
    tag: Word = "",
    limit: Limit = 50,
    cursor: Cursor = "",
) -> Part:
    """Return runs, newest first, as `fairmile runs ls`."""
    start = position_of(cursor)
    rows = workspace_of(request).ledger.rows(name=name, group=group, states=state, tag=tag, limit=start + limit + 1)
    more = len(rows) > start + limit
    rows[:] = rows[start : start + limit]
    return Part(rows.to_dict(), cursor_at(start + limit) if more else "")


@routes.get("/api/runs/{name}", result="fairmile.runs.results:RunDetails")
def show_run(request: Request, name: Id) -> Result:
    """Return the whole record of a run, as `fairmile runs show`."""
    return workspace_of(request).runs.show(name)


@routes.get("/api/runs/{name}/output", result="fairmile.runs.results:RunOutput")
def show_output(request: Request, name: Id) -> Result:
    """Return what a run printed, as `fairmile runs log`."""
    return workspace_of(request).runs.output(name)


@routes.get("/api/runs/{name}/trace", result="fairmile.traces.analyze:TraceAnalysis")
def analyze_run(request: Request, name: Id, on: Word = "") -> Result:
    """Return where the time of a run went, as `fairmile trace analyze`."""
    workspace = workspace_of(request)
    return workspace.traces.analyze(workspace.ledger.get(name), system=on)


class RunRequest(Where):
    """An asset of the catalog to run, with parameters."""

    what: str = Field(min_length=1, max_length=300)
    params: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,99}$")], ParamValue] = Field({})
    again: bool = False


def _written(value: str | bool | int | float) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@routes.post("/api/runs", right="start", result="fairmile.runs.results:RunDetails", status=202)
def start_run(request: Request, run: RunRequest) -> Result:
    """Run a benchmark or program of the catalog, as `fairmile run`; it goes on when this server ends.

    It runs on this machine, or as a job on the system that `on` names. If a run with exactly the same inputs exists,
    its record is returned, unless `again` is given.
    """
    workspace = workspace_of(request)
    what = program_of(workspace, run.what)
    plan = workspace.runs.plan(what, params=run.params, **run.changes(workspace))  # says at once what is wrong with it
    words = [word for name, value in run.params.items() for word in ("-p", f"{name}={_written(value)}")]
    words += [*(["--again"] if run.again else []), *run.words()]
    before = {row.id for row in workspace.ledger.rows(name=plan.spec.name, limit=_MOST_SEEN)}

    def new_run() -> str:
        rows = workspace.ledger.rows(name=plan.spec.name, limit=_MOST_NEW)
        new = (workspace.ledger.get(row.id) for row in rows if row.id not in before)
        return next((each.id for each in new if dict(each.spec.params) == dict(plan.spec.params)), "")

    started = start(workspace, "run", what, *words, cwd=workspace.home, has_begun=lambda: bool(new_run()))
    known = new_run() or str(json.loads(started.printed or "{}").get("id", ""))
    if not known:
        raise Refused(503, "the run has not begun yet", hint="/api/status shows it when it has")
    return workspace.runs.show(known)


@routes.post("/api/runs/{name}/cancel", right="start", result="fairmile.runs.results:CancelledRuns")
def cancel_run(request: Request, name: Id, dry_run: DryRun = False) -> Result:
    """Cancel a queued or running run, as `fairmile runs cancel`."""
    return workspace_of(request).runs.cancel_runs([name], dry_run=dry_run)


@routes.get("/api/compare", result="fairmile.reports.reports:Evaluation")
def compare_runs(
    request: Request,
    run: Annotated[list[_Reference], Query(min_length=1, max_length=50)],
    metric: Annotated[list[str], Query(max_length=50)] = [],  # noqa: B006
    confidence: Annotated[float, Query(gt=0.5, lt=1)] = 0.95,
) -> Result:
    """Compare runs or groups of repeats with the first, as `fairmile compare`."""
    return workspace_of(request).reports.evaluate(*run, metrics=metric, confidence=confidence)


@routes.get("/api/leaderboards/{metric}", result="fairmile.reports.leaderboard:Leaderboard")
def show_leaderboard(
    request: Request,
    metric: str,
    limit: Limit = 10,
    where: Annotated[list[str], Query(max_length=20)] = [],  # noqa: B006
) -> Result:
    """Return the best runs by a metric, as `fairmile report --top`."""
    return workspace_of(request).reports.leaderboard(metric, n=limit, where=where)
