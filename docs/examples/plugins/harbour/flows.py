"""Runs `tasks.json` of Visual Studio Code as a flow, and writes flows as a Makefile."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmile.flows.exchange import ExportedFlow, check_expressible, command_text, task_names
from fairmile.flows.files import Reader


class _Tasks(Reader):
    def recognises(self, data: Any) -> bool:
        """Tell whether a document, which is YAML or JSON, is one of this format."""
        return isinstance(data, Mapping) and data.get("version") == "2.0.0" and isinstance(data.get("tasks"), list)

    def read(self, data: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
        """Return the document as our own files have it."""
        return {"folder": "..", "steps": {task["label"]: _step(task) for task in data["tasks"]}}


def _step(task: Mapping[str, Any]) -> dict[str, Any]:
    step = {"shell": shlex.join([task["command"], *task.get("args", [])])}
    before = task.get("dependsOn", [])
    return {**step, "after": [before] if isinstance(before, str) else before}


TASKS = _Tasks()


def export(flow: ExportedFlow) -> str:
    """Return the Makefile of a flow: a target for each step."""
    check_expressible(flow, "a Makefile", {"done"})
    names = task_names(flow, reserved={"all"})
    lines = [f".PHONY: all {' '.join(names.values())}", f"all: {' '.join(names.values())}"]
    for step in flow.steps:
        lines.append(f"{names[step.name]}: {' '.join(names[need] for need in step.needs)}")
        variables = "".join(f"export {shlex.quote(f'{name}={value}')} && " for name, value in step.env.items())
        lines.append("\t" + f"{variables}{command_text(step)}".replace("$", "$$"))
    return "\n".join(lines) + "\n"
