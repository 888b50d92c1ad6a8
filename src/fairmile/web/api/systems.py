"""Systems, job scripts and jobs, as `fairmile system` and `job` do. A script needs no login and starts nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairmile.base.errors import UsageError
from fairmile.base.results import Result
from fairmile.jobs.launch import Launch
from fairmile.jobs.machines import Machine, Reach
from fairmile.jobs.spec import Array, JobSpec, Resources
from fairmile.web.hiding import job_id, visible_jobs
from fairmile.web.parameters import DryRun, Id, Word
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("systems")
_LONGEST_SCRIPT = 1_000_000


class ScriptRequest(BaseModel):
    """A job whose script is asked for."""

    model_config = ConfigDict(extra="forbid")

    argv: tuple[str, ...] = Field(("python", "train.py"), min_length=1, max_length=1000)
    name: str = Field("job", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    software: tuple[str, ...] = Field((), max_length=20)
    launch: Launch | None = None
    env: dict[str, str] = {}
    resources: Resources = Resources()
    array: Array | None = None


class OldScript(BaseModel):
    """A script whose module blocks are brought up to date, for its own system or another."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(max_length=_LONGEST_SCRIPT)
    to: str = Field("", max_length=200)
    partition: str = Field("", max_length=200)
    add: tuple[str, ...] = Field((), max_length=50)
    remove: tuple[str, ...] = Field((), max_length=50)


class JobRequest(BaseModel):
    """A job, and the system that it is submitted to."""

    model_config = ConfigDict(extra="forbid")

    on: str = Field(max_length=200)
    job: ScriptRequest


@routes.get("/api/systems", result="fairmile.systems.registry:SystemList")
def list_systems(request: Request) -> Result:
    """Return known systems, as `fairmile system ls`."""
    return workspace_of(request).systems.ls()


@routes.get("/api/systems/{name}", result="fairmile.systems.system_details:SystemDetails")
def show_system(request: Request, name: Id) -> Result:
    """Return partitions, limits, software and sources of a system, as `fairmile system show`."""
    return workspace_of(request).systems.show(name)


@routes.get("/api/systems/{name}/modules", result="fairmile.systems.blocks:Block")
def show_modules(
    request: Request, name: Id, software: Annotated[list[str], Query(min_length=1, max_length=20)], partition: Word = ""
) -> Result:
    """Return the module lines of software on a system, as `fairmile system modules`."""
    return workspace_of(request).systems[name].modules(*software, partition=partition)


@routes.get("/api/systems/{name}/usage", right="admin", result="fairmile.jobs.accounting:SystemUsage")
def show_system_usage(request: Request, name: Id, since: Word = "30d", by: Word = "project") -> Result:
    """Return what all users' jobs on a system took, as `fairmile system usage`."""
    return workspace_of(request).systems.usage(name, since=since, by=by)


def machine_of(request: Request, name: str) -> Machine:
    """Return a system; for others than the owner, without the account and partition of the owner's settings."""
    machine, identity = workspace_of(request).systems[name], identity_of(request)
    return replace(machine, reach=Reach()) if identity.has_account or identity.is_visitor else machine


@routes.post("/api/systems/{name}/script", right="read", result="fairmile.jobs.script:Script")
def make_script(request: Request, name: Id, job: ScriptRequest) -> Result:
    """Return the batch script of a job on a system, as `fairmile system script`; nothing is submitted."""
    return machine_of(request, name).script(_spec(job))


@routes.post("/api/scripts/evaluate", right="read", result="fairmile.systems.blocks:Evaluation")
def evaluate_script(request: Request, script: OldScript) -> Result:
    """Return a script with its module blocks brought up to date, as `fairmile system eval`."""
    return workspace_of(request).systems.evaluate(
        script.text, to=script.to, add=script.add, remove=script.remove, partition=script.partition
    )


@routes.get("/api/jobs", result="fairmile.jobs.job_status:JobList")
def list_jobs(request: Request, live: bool = False) -> Result:
    """Return jobs with their states, as `fairmile job ls`."""
    return visible_jobs(workspace_of(request), live=live)


@routes.get("/api/jobs/{name}", result="fairmile.jobs.job_status:JobDetails")
def show_job(request: Request, name: Id) -> Result:
    """Return a job, its script and why it failed, as `fairmile job show`."""
    workspace = workspace_of(request)
    return workspace.jobs.show(job_id(workspace, name))


@routes.get("/api/jobs/{name}/log", result="fairmile.jobs.job_status:JobLog")
def show_job_log(request: Request, name: Id, errors: bool = False) -> Result:
    """Return what a job printed, as `fairmile job log`."""
    workspace = workspace_of(request)
    return workspace.jobs.log(job_id(workspace, name), errors=errors)


@routes.post("/api/jobs", right="start", result="fairmile.jobs.job_status:JobStatus", status=201)
def submit_job(request: Request, what: JobRequest) -> Result:
    """Submit a job to a system, as `fairmile job submit`."""
    return workspace_of(request).jobs.submit(_spec(what.job), system=what.on)


@routes.post("/api/jobs/{name}/cancel", right="start", result="fairmile.jobs.job_status:JobList")
def cancel_job(request: Request, name: Id, dry_run: DryRun = False) -> Result:
    """Cancel a job, as `fairmile job cancel`."""
    workspace = workspace_of(request)
    return workspace.jobs.cancel([job_id(workspace, name)], dry_run=dry_run)


def _spec(job: ScriptRequest) -> JobSpec:
    try:
        return JobSpec.model_validate(job.model_dump())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{place}: {first['msg']}") from error
