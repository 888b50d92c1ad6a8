"""WfFormat 1.5, the JSON of wfcommons, in which real workflows were recorded: flows go out, and recordings come in.

What comes in is played back: each task sleeps as long as it took, divided by the parameter `speedup`, and leaves its
files, at most as large as the parameter `bytes` says.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.base.version import __version__
from fairmile.flows.exchange import ExportedFlow, ExportedStep, task_names, unique_name
from fairmile.flows.files import Reader

VERSION = "1.5"
_NOT_OF_IDS = re.compile(r"[^0-9A-Za-z_.-]")


class _WfFormat(Reader):
    """Recorded workflows of wfcommons."""

    def recognises(self, data: Any) -> bool:
        """Tell whether a document is one of wfcommons."""
        workflow = data.get("workflow") if isinstance(data, Mapping) else None
        return isinstance(workflow, Mapping) and isinstance(workflow.get("specification"), Mapping)

    def read(self, data: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
        """Return a flow that plays the recorded one back: the same order and files, and the recorded times."""
        specification, execution = data["workflow"]["specification"], data["workflow"].get("execution") or {}
        tasks = specification.get("tasks")
        if not isinstance(tasks, list) or not all(isinstance(each, Mapping) and each.get("id") for each in tasks):
            place = "workflow.specification.tasks"
            raise InvalidDocument([Problem("expected a list of tasks, each with an id", place, file=str(file))])
        took = {each.get("id"): float(each.get("runtimeInSeconds") or 0.0) for each in execution.get("tasks") or ()}
        sizes = {each["id"]: int(each.get("sizeInBytes") or 0) for each in specification.get("files") or ()}
        made = {name for task in tasks for name in task.get("outputFiles") or ()}
        steps = {str(task["id"]): _played(task, took.get(task["id"], 0.0), sizes, made) for task in tasks}
        return {"params": {"speedup": 1, "bytes": 0}, "steps": steps}


def _played(task: Mapping[str, Any], seconds: float, sizes: Mapping[str, int], made: set[str]) -> dict[str, Any]:
    outputs = [_path(name) for name in task.get("outputFiles") or ()]
    lines = [f"sleep $(awk -v r={seconds:.6f} -v s={{speedup}} 'BEGIN {{print r / s}}')"]
    folders = sorted({str(Path(each).parent) for each in outputs} - {"."})
    lines += [f"mkdir -p {shlex.join(folders)}"] if folders else []
    for name, path in zip(task.get("outputFiles") or (), outputs, strict=True):
        size = sizes.get(name, 0)
        lines.append(f"head -c $(( {size} < {{bytes}} ? {size} : {{bytes}} )) /dev/zero > {shlex.quote(path)}")
    step: dict[str, Any] = {"shell": "\n".join(lines), "outputs": outputs}
    step["inputs"] = [_path(name) for name in task.get("inputFiles") or () if name in made]
    step["after"] = [str(each) for each in task.get("parents") or ()]
    return {key: value for key, value in step.items() if value}


def _path(name: str) -> str:
    """Return the path of a recorded file inside of the folder of the flow."""
    parts = [part for part in str(name).split("/") if part not in ("", ".", "..")]
    return "/".join(["files", *parts])


READER = _WfFormat()


def export(flow: ExportedFlow) -> str:
    """Return a flow, with what was measured of it, as WfFormat."""
    children: dict[str, list[str]] = {step.name: [] for step in flow.steps}
    for step in flow.steps:
        for need in step.needs:
            children[need].append(step.name)
    ids = task_names(flow)
    sizes = {path: size for step in flow.steps for path, size in step.sizes.items()}
    files = _file_ids(path for step in flow.steps for path in (*step.inputs, *(step.made or step.outputs)))
    workflow: dict[str, Any] = {
        "specification": {
            "tasks": [_task(step, children[step.name], ids, files) for step in flow.steps],
            "files": [{"id": id, "sizeInBytes": sizes.get(path, 0)} for path, id in files.items()],
        }
    }
    if ran := [step for step in flow.steps if step.started is not None]:
        workflow["execution"] = _execution(ran, ids)
    system = {"name": "Fairmile", "version": __version__, "url": "https://pypi.org/project/fairmile"}
    document = {"name": flow.name, "schemaVersion": VERSION, "runtimeSystem": system, "workflow": workflow}
    return json.dumps(document, indent=1) + "\n"


def _file_ids(paths: Iterable[str]) -> dict[str, str]:
    """Return an id for each path, in the few letters that the format allows, no two the same."""
    taken: set[str] = set()
    return {path: unique_name(_NOT_OF_IDS.sub("_", path), taken) for path in dict.fromkeys(paths)}


def _execution(steps: Sequence[ExportedStep], ids: Mapping[str, str]) -> dict[str, Any]:
    """Return when and how long steps ran."""
    starts = [step.started or 0.0 for step in steps]
    ends = [(step.started or 0.0) + (step.elapsed_s or 0.0) for step in steps]
    return {
        "makespanInSeconds": max(ends) - min(starts),
        "executedAt": datetime.fromtimestamp(min(starts), UTC).isoformat(),
        "tasks": [
            {
                "id": ids[step.name],
                "runtimeInSeconds": step.elapsed_s or 0.0,
                "executedAt": datetime.fromtimestamp(step.started or 0.0, UTC).isoformat(),
                "command": {"program": step.argv[0], "arguments": [word or "''" for word in step.argv[1:]]},
            }
            for step in steps
        ],
    }


def _task(
    step: ExportedStep, children: Sequence[str], ids: Mapping[str, str], files: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "name": step.name,
        "id": ids[step.name],
        "parents": [ids[each] for each in step.needs],
        "children": [ids[each] for each in children],
        "inputFiles": [files[each] for each in step.inputs],
        "outputFiles": [files[each] for each in step.made or step.outputs],
    }
