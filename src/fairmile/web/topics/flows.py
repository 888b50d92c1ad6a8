"""A flow that a page follows: the boxes and steps that changed."""

from __future__ import annotations

from typing import Any

from fairmile.base.errors import NotFound
from fairmile.flows.results import FlowInfo
from fairmile.runs.record.run import RunState
from fairmile.web.hiding import visible_flows
from fairmile.workspace import Workspace


def known_flow(workspace: Workspace, name: str) -> FlowInfo:
    """Return the flow with an id among those that were run; a path is none."""
    flow = next((each for each in visible_flows(workspace) if each.id == name), None)
    if flow is None:
        raise NotFound(f"no flow named {name!r}", hint="`fairmile flow ls` lists them")
    return flow


class _FlowTopic:
    """The changes of one flow; its key is the id."""

    def stamp(self, workspace: Workspace, key: str) -> object:
        folder = workspace.flows.root / known_flow(workspace, key).id
        files = [file.stat() for file in sorted(folder.iterdir())]
        running = [row.id for row in workspace.runs.ls(states=(RunState.RUNNING,), limit=50)]
        return [(each.st_mtime_ns, each.st_size) for each in files], running

    def changes(self, workspace: Workspace, key: str, cursor: Any) -> tuple[Any, Any]:
        if not isinstance(cursor, str):
            return None, workspace.flows.picture(known_flow(workspace, key).id).cursor
        changes = workspace.flows.changes(known_flow(workspace, key).id, since=cursor)
        return (changes.to_dict() if changes.cursor != cursor else None), changes.cursor


FLOW = _FlowTopic()
