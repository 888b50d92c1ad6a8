"""Flows: start, watch and cancel them, as `fairmile flow` does; the routes of cloudmesh-cc lead here, too.

A flow is named by its id: it has been run here before, by its owner. No route takes a file or a command from outside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from fairmile.base.errors import NotFound
from fairmile.base.results import Result
from fairmile.base.words import did_you_mean
from fairmile.flows.results import FlowInfo
from fairmile.web.hiding import visible_flows
from fairmile.web.parameters import DryRun, Id
from fairmile.web.routes import Routes, workspace_of
from fairmile.web.starting import start

routes = Routes("flows")
_Step = Annotated[str, Query(min_length=1, max_length=200)]


def flow_of(request: Request, name: str) -> FlowInfo:
    """Return the flow with an id, or the newest of a name, among those that were run."""
    flows = visible_flows(workspace_of(request))
    matches = [each for each in flows if each.id == name] or [each for each in flows if each.name == name]
    if not matches:
        near = did_you_mean(name, [each.id for each in flows])
        raise NotFound(f"no flow named {name!r}" + (f"; {near}" if near else ""), hint="/api/flows lists them")
    return matches[0]


@routes.get("/api/flows", result="fairmile.flows.results:FlowList")
def list_flows(request: Request) -> Result:
    """Return the flows that were run, newest first, as `fairmile flow ls`."""
    return visible_flows(workspace_of(request))


@routes.get("/api/flows/{name}", result="fairmile.flows.results:FlowStatus")
def show_flow(request: Request, name: Id) -> Result:
    """Return the status of each step of a flow, as `fairmile flow status`."""
    return workspace_of(request).flows.status(flow_of(request, name).id)


@routes.get("/api/flows/{name}/plan", result="fairmile.flows.plan:FlowPlan")
def plan_flow(request: Request, name: Id) -> Result:
    """Return what each step of a flow would do, and why, as `fairmile flow plan`."""
    return workspace_of(request).flows.plan(flow_of(request, name).id)


@routes.get("/api/flows/{name}/picture", result="fairmile.flows.live:FlowPicture")
def draw_flow(request: Request, name: Id) -> Result:
    """Return the graph of a flow with places and states, and the cursor for `changes`."""
    return workspace_of(request).flows.picture(flow_of(request, name).id)


@routes.get("/api/flows/{name}/changes", result="fairmile.flows.live:FlowChanges")
def follow_flow(request: Request, name: Id, since: Annotated[str, Query(max_length=500)] = "") -> Result:
    """Return the steps of a flow that changed since a cursor."""
    return workspace_of(request).flows.changes(flow_of(request, name).id, since=since)


@routes.get("/api/flows/{name}/graph")
def export_graph(request: Request, name: Id) -> Response:
    """Return the graph of a flow as an SVG image, as `fairmile flow graph`."""
    drawing = workspace_of(request).flows.graph(flow_of(request, name).id, format="svg")
    return Response(drawing.text, media_type="image/svg+xml")


@routes.get("/api/flows/{name}/log", result="fairmile.flows.results:StepLog")
def show_step_log(request: Request, name: Id, step: _Step) -> Result:
    """Return what a step printed, as `fairmile flow log`."""
    return workspace_of(request).flows.log(flow_of(request, name).id, step)


@routes.post("/api/flows/{name}/start", right="start", result="fairmile.flows.results:FlowStatus", status=202)
def start_flow(request: Request, name: Id) -> Result:
    """Run a flow again, or go on where it stopped, as `fairmile flow run`; it goes on when this server ends."""
    workspace, flow = workspace_of(request), flow_of(request, name)
    workspace.flows.plan(flow.id)  # says at once what is wrong with it
    start(workspace, "flow", "run", flow.file, cwd=Path(flow.folder), has_begun=lambda: is_running(request, flow))
    return workspace.flows.status(flow.id)


def is_running(request: Request, flow: FlowInfo) -> bool:
    """Tell whether somebody carries out a flow."""
    return bool(workspace_of(request).flows.status(flow.id).holder)


@routes.post("/api/flows/{name}/cancel", right="start", result="fairmile.flows.results:CancelledFlow")
def cancel_flow(request: Request, name: Id, dry_run: DryRun = False) -> Result:
    """End what runs of a flow, as `fairmile flow cancel`."""
    return workspace_of(request).flows.cancel(flow_of(request, name).id, dry_run=dry_run)


# The routes of cloudmesh-cc. It ran a workflow with GET, which any link could do: here that is POST.


@routes.get("/workflows", result="fairmile.flows.results:FlowList", deprecated=True)
def list_workflows(request: Request) -> Result:
    """Return the flows that were run, as `/api/flows`."""
    return visible_flows(workspace_of(request))


@routes.get("/workflow/{name}", result="fairmile.flows.results:FlowStatus", deprecated=True)
def show_workflow(request: Request, name: Id) -> Result:
    """Return the status of each step of a flow, as `/api/flows/{name}`."""
    return show_flow(request, name)


@routes.get("/workflow/{name}/job/{step}", result="fairmile.flows.results:StepLog", deprecated=True)
def show_workflow_job(request: Request, name: Id, step: str) -> Result:
    """Return what a step printed, as `/api/flows/{name}/log`."""
    return show_step_log(request, name, step)


@routes.post(
    "/workflow/run/{name}", right="start", result="fairmile.flows.results:FlowStatus", status=202, deprecated=True
)
def run_workflow(request: Request, name: Id) -> Result:
    """Run a flow, as `/api/flows/{name}/start`."""
    return start_flow(request, name)
