"""Flows: the list, and for each its graph, which follows the flow while it runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from fastapi import Request
from markupsafe import Markup

from fairmile.base.units import format_duration
from fairmile.flows.results import StepStatus
from fairmile.reports.blocks import Block, Cell, Heading, Row, Text, Title, Tone, table
from fairmile.web.hiding import visible_flows
from fairmile.web.linking import run_page
from fairmile.web.parameters import Id
from fairmile.web.render import Page
from fairmile.web.routes import Routes, identity_of, workspace_of
from fairmile.web.topics.flows import known_flow

routes = Routes("flows")
_ACTIVE = ("running", "queued")
_BAD = ("failed", "timeout", "interrupted", "cancelled")
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)  # the style sheet of the server has the same rules


@routes.page("/flows")
def flows_page(request: Request) -> Page:
    """List the flows that were run."""
    flows = visible_flows(workspace_of(request))
    rows: list[Row] = [
        [
            Cell(each.id, link=f"/flows/{each.id}"),
            each.name,
            Cell(str(each.file or each.folder), code=True),
            Cell(f"{datetime.fromtimestamp(each.created, UTC):%Y-%m-%d %H:%M}", each.created),
        ]
        for each in flows
    ]
    blocks: list[Block] = [Title("Flows")]
    if rows:
        blocks.append(Heading("Newest first"))
        blocks.append(table(["flow", "name", "file", "first run (UTC)"], rows))
    else:
        blocks.append(Text("No flow has run yet: fairmile flow run FILE starts one."))
    return Page("blocks.html", "Flows", blocks=blocks)


@routes.page("/flows/{name}")
def flow_page(request: Request, name: Id) -> Page:
    """Show the graph of a flow with the states of its steps; each step leads to its run."""
    workspace = workspace_of(request)
    flow = known_flow(workspace, name)
    picture = workspace.flows.picture(flow.id)
    shown = picture.to_dict()
    values: dict[str, Any] = {
        "flow": flow,
        "svg": Markup(_STYLE.sub("", shown["svg"])),
        "shown": shown,
        "counts": ", ".join(f"{number:,} {state}" for state, number in shown["counts"].items()),
        "is_active": bool(shown["holder"]) or any(state in shown["counts"] for state in _ACTIVE),
        "may_start": identity_of(request).may("start"),
        "steps": {each.name: run_page(each.run) for each in picture.status.steps if each.run},
        "boxes": [list(box.steps) for box in picture.drawn.boxes],
    }
    columns = ["step", "state", "where", "time", "run", "reason"]
    blocks = [table(columns, [_row(each) for each in picture.status.steps], numbers=["time"])]
    live = [f"flow:{flow.id}"]
    return Page("flow.html", f"Flow {flow.name}", values, blocks, scripts=["flows.js"], live=live)


def _row(step: StepStatus) -> Row:
    tone: Tone = "bad" if step.state in _BAD else "good" if step.state == "done" else ""
    elapsed = Cell("" if step.elapsed_s is None else format_duration(step.elapsed_s), step.elapsed_s)
    run = Cell(step.run, link=run_page(step.run) if step.run else "")
    return [step.name, Cell(step.state, tone=tone), step.on, elapsed, run, step.reason]
