"""Workflows of cloudmesh-cc as flows: nodes of five kinds, chains of dependencies, labels with times.

    workflow:
      nodes:
        fetch: {kind: local, exec: 'echo hello', label: '{name} {progress}', shape: box}
        train: {kind: slurm, host: rivanna, script: train.slurm}
      dependencies: ['fetch,train']

A node succeeds where its exit code is 0; what it prints as `# cloudmesh status=… progress=…` is its progress.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fairmile.base.errors import InvalidDocument, Problem
from fairmile.flows.files import Reader

_KINDS = ("local", "ssh", "slurm", "lsf", "wsl")
_HOLE = re.compile(r"(?<![$\\])(\{[A-Za-z_][A-Za-z0-9_.-]*\})")
_LABEL = re.compile(r"\{(\w+)(?:\.([^{}]*))?\}")
_CLOCK = "%H:%M:%S"


class _CloudmeshCC(Reader):
    """The YAML files of cloudmesh-cc, as written and as saved while they ran."""

    def recognises(self, data: Any) -> bool:
        """Tell whether a document is a workflow of cloudmesh-cc."""
        workflow = data.get("workflow") if isinstance(data, Mapping) else None
        return isinstance(workflow, Mapping) and isinstance(workflow.get("nodes"), Mapping)

    def read(self, data: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
        """Return the document of the same flow as our own files have it."""
        workflow = data["workflow"]
        nodes: Mapping[str, Any] = workflow["nodes"]
        problems: list[Problem] = []
        steps: dict[str, dict[str, Any]] = {}
        for name, node in nodes.items():
            try:
                steps[str(name)] = _step(node if isinstance(node, Mapping) else {})
            except ValueError as error:
                problems.append(Problem(str(error), f"workflow.nodes.{name}", file=os.path.relpath(file)))
        for before, after in _edges(workflow.get("dependencies") or ()):
            if after in steps:
                steps[after].setdefault("after", []).append(before)
            elif after not in nodes:
                message = f"{after!r} is no node of the workflow"
                problems.append(Problem(message, "workflow.dependencies", file=os.path.relpath(file)))
        if problems:
            raise InvalidDocument(problems)
        return {"steps": steps}

    def label(self, text: str, facts: Mapping[str, str | float | None]) -> str:
        """Return a label with its placeholders filled; `--` in a format of times stands for `:`."""
        values = {**facts, "now": time.time()}

        def fill(match: re.Match[str]) -> str:
            name, format = match[1], match[2]
            if name in ("os", "cm"):
                return os.environ.get(format or "", "") if name == "os" else match[0]
            value = values.get(name)
            if value is None:
                return "" if name in _TIMES else match[0]
            if isinstance(value, str):
                return value
            pattern = (format or "").replace("--", ":") or _CLOCK
            return time.strftime(pattern, time.gmtime(value) if name in _DURATIONS else time.localtime(value))

        return _LABEL.sub(fill, text.replace("\\n", "\n"))


_DURATIONS = ("dt", "dt0", "dt1")
_TIMES = (*_DURATIONS, "t0", "t1", "tstart", "tend", "created", "modified", "now")


def _step(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node is as a step; ValueError says why it is none."""
    kind = str(node.get("kind") or "local")
    if kind not in _KINDS:
        raise ValueError(f"no kind of node is called {kind!r}: expected {', '.join(_KINDS[:-1])}")
    if kind == "wsl":
        raise ValueError("a node of kind wsl runs on Windows only: use `local` inside of WSL, or `ssh`")
    host = str(node.get("host") or "").rpartition("@")[2]
    if kind != "local" and not host:
        raise ValueError(f"a node of kind {kind} needs a host: the name of a system that `fairmile system ls` lists")
    step: dict[str, Any] = {key: str(node[key]) for key in ("label", "shape", "style") if node.get(key)}
    step |= _program(node)
    return step if kind == "local" else {**step, "on": host}


def _program(node: Mapping[str, Any]) -> dict[str, Any]:
    script, command, venv = (str(node.get(key) or "") for key in ("script", "exec", "venv"))
    if not script and not command:
        raise ValueError("nothing to execute: expected exec or script")
    if script.endswith(".ipynb"):
        return {"notebook": script}
    if not command:
        program = "python" if PurePosixPath(script).suffix == ".py" else "sh"
        command = f"{program} {shlex.quote(script)}"
    code = {"code": script} if script else {}
    start = f". {shlex.quote(f'{venv}/bin/activate')}; " if venv else ""
    return {"shell": _HOLE.sub(r"\\\1", f"{start}{command}"), **code}


def _edges(dependencies: Any) -> Iterator[tuple[str, str]]:
    """Yield which node comes before which, from chains such as `a,b,c` or from a dictionary that was saved."""
    if isinstance(dependencies, Mapping):
        for each in dependencies.values():
            if isinstance(each, Mapping) and "source" in each and "destination" in each:
                yield str(each["source"]), str(each["destination"])
        return
    for chain in [dependencies] if isinstance(dependencies, str) else dependencies:
        names = [name.strip() for name in str(chain).split(",")]
        yield from itertools.pairwise(names)


READER = _CloudmeshCC()
