"""Sweeps and studies, as `fairmile sweep` and `tune` show and stop them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import Field, StringConstraints

from fairmile.base.errors import NotFound, SystemFailure, UsageError
from fairmile.base.results import Result
from fairmile.web.answers import Part, page_of
from fairmile.web.parameters import Cursor, DryRun, Id, Limit, ParamValue, Word
from fairmile.web.routes import Routes, workspace_of
from fairmile.web.starting import Where, program_of, start

routes = Routes("sweeps")


@routes.get("/api/sweeps", result="fairmile.sweeps.results:SweepList")
def list_sweeps(request: Request, limit: Limit = 50, cursor: Cursor = "") -> Part:
    """Return sweeps and studies, newest first, as `fairmile sweep ls`."""
    sweeps = workspace_of(request).sweeps.ls()
    sweeps[:], following = page_of(sweeps, cursor=cursor, limit=limit)
    return Part(sweeps.to_dict(), following)


@routes.get("/api/sweeps/{name}", result="fairmile.sweeps.results:SweepStatus")
def show_sweep(request: Request, name: Id, best: Word = "") -> Result:
    """Return every point of a sweep and its status, as `fairmile sweep show`."""
    return workspace_of(request).sweeps.status(name, best=best)


class SweepRequest(Where):
    """An asset of the catalog to run over all combinations of values, or the id of a sweep to finish."""

    what: str = Field(min_length=1, max_length=300)
    params: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,99}$")],
        Annotated[list[ParamValue], Field(min_length=1, max_length=1_000)],
    ] = Field({})
    at_once: int | None = Field(None, ge=1, le=1_000, description="points to run concurrently; on a system: jobs")


@routes.post("/api/sweeps", right="start", result="fairmile.sweeps.results:SweepStatus", status=202)
def start_sweep(request: Request, sweep: SweepRequest) -> Result:
    """Run a benchmark or program of the catalog over all combinations of values, as `fairmile sweep`.

    It goes on when this server ends. Points run on this machine, or as jobs on the system that `on` names. Without
    `params`, `what` is the id of a sweep whose missing points run, where it was to run.
    """
    workspace = workspace_of(request)
    sweeps = workspace.sweeps
    if sweep.params:
        what, place = program_of(workspace, sweep.what), sweep.changes(workspace)
        definition, source, changes = sweeps.define(what, params=sweep.params, **place)
        try:
            name = sweeps.create(definition, source, **changes).id
        except SystemFailure as error:  # the system cannot be reached from here
            raise UsageError(str(error), hint=error.hint) from error
    else:
        if sweep.on:
            raise UsageError("an existing sweep runs on the system that it was created for", hint="leave `on` out")
        known = {each.id for each in sweeps.ls()}
        if sweep.what not in known:
            raise NotFound(f"no sweep {sweep.what!r}", hint="/api/sweeps lists them; a new one needs params")
        name = sweep.what
    start(
        workspace,
        *("sweep", "run", name, *_limit(sweeps.get(name).record.system, sweep.at_once)),
        cwd=workspace.home,
        has_begun=lambda: any(each.state != "left" for each in sweeps.status(name)),
    )
    return sweeps.status(name)


def _limit(system: str, at_once: int | None) -> tuple[str, ...]:
    """Return the option that limits a sweep: one point at a time here, and on a system as many jobs as that takes."""
    if system:
        return ("--at-once", str(at_once)) if at_once else ()
    return ("-j", str(at_once or 1))


@routes.post("/api/sweeps/{name}/cancel", right="start", result="fairmile.sweeps.results:ChangedSweep")
def cancel_sweep(request: Request, name: Id, dry_run: DryRun = False) -> Result:
    """Cancel the jobs of a sweep, or the process that executes it here, as `fairmile sweep cancel`."""
    return workspace_of(request).sweeps.cancel(name, dry_run=dry_run)


@routes.get("/api/studies/{name}", result="fairmile.sweeps.tuning.results:StudyStatus")
def show_study(request: Request, name: Id) -> Result:
    """Return the trials of a study and the best of them, as `fairmile tune show`."""
    return workspace_of(request).studies.status(name)


@routes.post("/api/studies/{name}/stop", right="start", result="fairmile.sweeps.tuning.results:ChangedStudy")
def stop_study(request: Request, name: Id, dry_run: DryRun = False) -> Result:
    """Begin no more trials of a study, as `fairmile tune stop`."""
    return workspace_of(request).studies.stop(name, dry_run=dry_run)
