"""Sweeps and studies, as `fairmile sweep` and `tune` show and stop them."""

from __future__ import annotations

from fastapi import Request

from fairmile.base.results import Result
from fairmile.web.answers import Part, page_of
from fairmile.web.parameters import Cursor, DryRun, Id, Limit, Word
from fairmile.web.routes import Routes, workspace_of

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


@routes.post("/api/sweeps/{name}/cancel", right="start", result="fairmile.sweeps.results:ChangedSweep")
def cancel_sweep(request: Request, name: Id, dry_run: DryRun = False) -> Result:
    """Cancel the jobs of a sweep, as `fairmile sweep cancel`."""
    return workspace_of(request).sweeps.cancel(name, dry_run=dry_run)


@routes.get("/api/studies/{name}", result="fairmile.sweeps.tuning.results:StudyStatus")
def show_study(request: Request, name: Id) -> Result:
    """Return the trials of a study and the best of them, as `fairmile tune show`."""
    return workspace_of(request).studies.status(name)


@routes.post("/api/studies/{name}/stop", right="start", result="fairmile.sweeps.tuning.results:ChangedStudy")
def stop_study(request: Request, name: Id, dry_run: DryRun = False) -> Result:
    """Begin no more trials of a study, as `fairmile tune stop`."""
    return workspace_of(request).studies.stop(name, dry_run=dry_run)
