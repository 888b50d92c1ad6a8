"""What names a hidden asset is hidden with it: jobs, flows, pins and transfers, which state no assets of their own.

Whoever may not hear of an asset sees none of them that contains its name as a word, in whatever they were given, and no
job of a run that they do not see. Runs, sweeps and cards are left out where they are read, by the assets they state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.flows.results import FlowInfo, FlowList
from fairmile.jobs.job_status import JobList
from fairmile.jobs.records import complete_id
from fairmile.status import WorkspaceStatus
from fairmile.store.pins import Pins
from fairmile.store.upkeep import StoredName, StoredNames
from fairmile.workspace import Workspace

_MOST_BYTES = 16 << 20  # a file that is larger is not read, and what it belongs to not shown


def names_hidden(workspace: Workspace, *texts: str) -> bool:
    """Tell whether texts contain the name of an asset that is hidden here."""
    if not workspace.hidden:
        return False
    names = "|".join(sorted(re.escape(asset.rpartition("/")[2]) for asset in workspace.hidden))
    pattern = re.compile(rf"(?<![a-z0-9])(?:{names})(?![a-z0-9])", re.IGNORECASE)
    return any(pattern.search(text) for text in texts)


def visible_flows(workspace: Workspace) -> FlowList:
    """Return the flows that were run, newest first."""
    flows = workspace.flows.ls()
    if workspace.hidden:
        flows[:] = [each for each in flows if not _is_hidden_flow(workspace, each)]
    return flows


def _is_hidden_flow(workspace: Workspace, flow: FlowInfo) -> bool:
    files = [*(workspace.flows.root / flow.id).iterdir(), *([Path(flow.file)] if flow.file else [])]
    return _in_files(workspace, files) or names_hidden(workspace, flow.id, flow.name, flow.folder)


def _in_files(workspace: Workspace, files: Iterable[Path]) -> bool:
    for file in files:
        try:
            if file.is_file() and (file.stat().st_size > _MOST_BYTES or _names_in(workspace, file)):
                return True
        except FileNotFoundError:  # it is being replaced or was removed
            continue
    return False


def _names_in(workspace: Workspace, file: Path) -> bool:
    return names_hidden(workspace, file.read_text("utf-8", "replace"))


def visible_jobs(workspace: Workspace, *, live: bool = False) -> JobList:
    """Return jobs, newest first."""
    jobs = workspace.jobs.ls(live=live)
    if workspace.hidden:
        visible = set(_visible_job_ids(workspace))
        jobs[:] = [each for each in jobs if each.id in visible]
    return jobs


def job_id(workspace: Workspace, name: str) -> str:
    """Return the id of the job that a name means among those that are visible."""
    if not workspace.hidden:
        return name
    return complete_id(workspace.jobs.root, name, list(_visible_job_ids(workspace)))


def _visible_job_ids(workspace: Workspace) -> Iterator[str]:
    runs = {row.id for row in workspace.ledger.rows()}
    for file in sorted(workspace.jobs.root.glob("[!.]*/job.json")):
        try:
            text = file.read_text("utf-8", "replace")
            key = _key_of(json.loads(text))
        except (OSError, ValueError):  # of a damaged record nobody knows what it names
            continue
        if (not key or key.rpartition("-")[0] in runs) and not names_hidden(workspace, text):
            yield file.parent.name


def _key_of(document: Any) -> str:
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        raise ValueError("no job")
    return str(document["spec"].get("key") or "")


def visible_names(workspace: Workspace) -> StoredNames:
    """Return what the store holds, without what belongs to a hidden asset under whatever name."""
    names = workspace.store.ls()
    if workspace.hidden:
        roots: dict[bool, set[str]] = {True: set(), False: set()}
        for each in names:
            if each.kind == "card":
                roots[_asset_of(each) in workspace.hidden].add(each.root)
        unseen = roots[True] - roots[False]
        pins, runs = {each.name for each in visible_pins(workspace)}, {row.id for row in workspace.ledger.rows()}
        names[:] = [
            each
            for each in names
            if each.root not in unseen
            and not (each.kind == "card" and _asset_of(each) in workspace.hidden)
            and not (each.kind == "pin" and each.name not in pins)
            and not (each.kind == "run" and each.name.rpartition(" ")[2] not in runs)
            and not names_hidden(workspace, each.name)
        ]
    return names


def _asset_of(stored: StoredName) -> str:
    return stored.name.partition("@")[0]


def visible_pins(workspace: Workspace) -> Pins:
    """Return what is kept whatever happens."""
    pins = workspace.store.pins()
    pins[:] = [each for each in pins if not names_hidden(workspace, each.name, each.details["of"])]
    return pins


def visible_status(workspace: Workspace) -> WorkspaceStatus:
    """Return what runs, what waits and what ended last."""
    status = workspace.status()
    if not workspace.hidden:
        return status
    shown = {
        "flow": {each.id for each in visible_flows(workspace)},
        "job": set(_visible_job_ids(workspace)),
        "sweep": {each.id for each in workspace.sweeps.ls()},
    }
    shown["study"] = shown["sweep"]
    active = [each for each in status.active if each.kind not in shown or each.id in shown[each.kind]]
    return replace(status, active=tuple(each for each in active if not names_hidden(workspace, each.id)))
