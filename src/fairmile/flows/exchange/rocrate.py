"""A flow as RO-Crate: a Workflow RO-Crate 1.0, and once every step has run also a Provenance Run Crate 0.5.

The crate holds the file of the flow, the scripts and inputs of its steps and, after a run, what they made. Each step is
a `HowToStep` with the command as its tool; each run of a step is an action with its files, times and the id of its run.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fairmile.base.digest import ni, sha256_file
from fairmile.base.version import __version__
from fairmile.catalog.exchange.common.media_types import media_type
from fairmile.flows.exchange import Bundle, ExportedFlow, ExportedStep

CARD = "ro-crate-metadata.json"
_CRATE = "https://w3id.org/ro/crate/1.1"
_WORKFLOW = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_RUN = "https://w3id.org/ro/wfrun"
_PROFILES = {
    _WORKFLOW: ("Workflow RO-Crate", "1.0"),
    f"{_RUN}/process/0.5": ("Process Run Crate", "0.5"),
    f"{_RUN}/workflow/0.5": ("Workflow Run Crate", "0.5"),
    f"{_RUN}/provenance/0.5": ("Provenance Run Crate", "0.5"),
}
_TERMS = {"sha256": "http://schema.org/sha256"}
_ENGINE, _LANGUAGE, _ENDED = "#fairmile", "#flow-language", "http://schema.org/CompletedActionStatus"
_HOME = "https://pypi.org/project/fairmile"
Node = dict[str, Any]


def export(flow: ExportedFlow) -> Bundle:
    """Return the crate of a flow: its metadata, and the files that belong to it."""
    crate = _Crate(flow)
    text = json.dumps({"@context": [f"{_CRATE}/context", _TERMS], "@graph": crate.graph()}, indent=1) + "\n"
    return Bundle(text, CARD, crate.files)


class _Crate:
    """Builds the graph of one flow; `nodes` has the entities by their ids."""

    def __init__(self, flow: ExportedFlow) -> None:
        self._flow = flow
        self._root = flow.root
        self.files: dict[str, Path] = dict(flow.own_files())
        self._is_over = bool(flow.steps) and all(step.run for step in flow.steps)
        self.nodes: dict[str, Node] = {}
        made = {path for step in flow.steps for path in (*step.made, *step.outputs)}
        taken = list(dict.fromkeys(path for step in flow.steps for path in step.inputs))
        self._inputs = [path for path in taken if path not in made]
        self._results = list(dict.fromkeys(path for step in flow.steps for path in step.made if path not in taken))

    def graph(self) -> list[Node]:
        """Return all entities, the descriptor and the root first."""
        profiles = list(_PROFILES) if self._is_over else [_WORKFLOW]
        for name in self.files:
            self._file(name)
        workflow = self._workflow()
        root: Node = {
            "@id": "./",
            "@type": "Dataset",
            "name": self._flow.name,
            "description": f"The flow {self._flow.name} with {len(self._flow.steps)} steps.",
            "license": "No licence is stated.",
            "datePublished": _time(self._ended() or None)[:10],
            "conformsTo": _refs(profiles),
            "mainEntity": {"@id": workflow},
        }
        if self._is_over:
            root["mentions"] = _refs(self._actions(workflow))
        root["hasPart"] = _refs([*(_id(name) for name in self.files), *self._elsewhere])
        head = {"@id": CARD, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": _refs([_CRATE, _WORKFLOW])}
        for iri in profiles:
            name, version = _PROFILES[iri]
            self._add(iri, "CreativeWork", name=name, version=version)
        return [head, root, *self.nodes.values()]

    @property
    def _elsewhere(self) -> list[str]:
        """Folders, and files that were made and are no longer there, which only their digests name."""
        return [id for id, node in self.nodes.items() if id.startswith("ni:") or node["@type"] == "Dataset"]

    def _ended(self) -> float:
        return max(((step.started or 0.0) + (step.elapsed_s or 0.0) for step in self._flow.steps), default=0.0)

    def _add(self, id: str, kind: str | list[str], **values: Any) -> str:
        given = {key: value for key, value in values.items() if value not in (None, "", [])}
        self.nodes.setdefault(id, {"@id": id, "@type": kind}).update(given)
        return id

    # Files

    def _file(self, name: str) -> str:
        path = self.files[name]
        size = {
            "contentSize": str(path.stat().st_size),
            "encodingFormat": media_type(name),
            "sha256": sha256_file(path),
        }
        return self._add(_id(name), "File", name=name, **size)

    def _data(self, path: str, digest: str = "") -> str:
        """Return the entity of a file or folder of the flow, which becomes part of the crate where it is there."""
        at = Path(self._flow.folder, path)
        name = os.path.relpath(at, self._root)
        if at.is_dir():
            below = {os.path.relpath(each, self._root): each for each in sorted(at.rglob("*")) if each.is_file()}
            self.files |= below
            return self._add(f"{_id(name)}/", "Dataset", name=name, hasPart=_refs(map(self._file, below)))
        if at.is_file():
            self.files.setdefault(name, at)
            return self._file(name)
        return self._add(ni(digest), "File", name=name) if digest else self._add(f"#{_id(name)}", "Thing", name=name)

    # What the flow is

    def _workflow(self) -> str:
        flow = self._flow
        main = os.path.relpath(flow.file, self._root) if flow.file is not None else ""
        self._add(
            _LANGUAGE,
            "ComputerLanguage",
            name=flow.language,
            version=__version__,
            url="https://pypi.org/project/fairmile",
        )
        inputs = [self._parameter(name, value) for name, value in flow.params.items()]
        inputs += [self._formal("input", path) for path in self._inputs]
        outputs = [self._formal("output", path) for path in self._results]
        steps, tools = self._steps()
        self.nodes[_id(main)]["@type"] = ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"]
        return self._add(
            _id(main),
            [],
            programmingLanguage={"@id": _LANGUAGE},
            input=_refs(inputs),
            output=_refs(outputs),
            step=_refs(steps),
            hasPart=_refs(tools),
        )

    def _steps(self) -> tuple[list[str], list[str]]:
        steps, tools = [], []
        for position, step in enumerate(self._flow.steps):
            if (id := _step_id(step)) in self.nodes:
                continue  # the same step with other values
            tool = f"#tool-{quote(step.step, safe='')}"
            name = step.asset or step.argv[0]
            tools.append(self._add(tool, "SoftwareApplication", name=name, description=shlex.join(step.argv)))
            steps.append(self._add(id, "HowToStep", name=step.step, position=position, workExample={"@id": tool}))
        return steps, tools

    def _parameter(self, name: str, value: Any) -> str:
        id = f"#param-{quote(name, safe='')}"
        self._add(id, "FormalParameter", name=name, additionalType="PropertyValue", defaultValue=value)
        if self._is_over:
            example = self._add(f"#value-{quote(name, safe='')}", "PropertyValue", name=name, exampleOfWork={"@id": id})
            self.nodes[example]["value"] = value
            self.nodes[id]["workExample"] = {"@id": example}
        return id

    def _formal(self, kind: str, path: str) -> str:
        at = Path(self._flow.folder, path)
        id = f"#{kind}-{quote(path, safe='')}"
        self._add(id, "FormalParameter", name=path, additionalType="Dataset" if at.is_dir() else "File")
        data = self._data(path, self._digests.get(path, ""))
        self._add(id, "FormalParameter", workExample={"@id": data})
        self._add(data, "File", exampleOfWork={"@id": id})
        return id

    @property
    def _digests(self) -> Mapping[str, str]:
        return {path: digest for step in self._flow.steps for path, digest in step.made.items()}

    # What happened

    def _actions(self, workflow: str) -> list[str]:
        """Add the run of the flow and of each step, and return them."""
        self._add(_ENGINE, "SoftwareApplication", name="Fairmile", version=__version__, url=_HOME)
        values = [f"#value-{quote(name, safe='')}" for name in self._flow.params]
        starts = min(step.started or 0.0 for step in self._flow.steps)
        whole = self._add(
            "#flow-run",
            "CreateAction",
            name=f"Run of {self._flow.name}",
            description=f"Ran {len(self._flow.steps)} steps",
            instrument={"@id": workflow},
            object=_refs([*values, *(self._data(path) for path in self._inputs)]),
            result=_refs(self._data(path, self._digests.get(path, "")) for path in self._results),
            startTime=_time(starts),
            endTime=_time(self._ended()),
            actionStatus=_ENDED,
        )
        runs = [self._step_run(step) for step in self._flow.steps]
        controls = [
            self._add(
                f"#control-{quote(step.name, safe='')}",
                "ControlAction",
                name=f"Step {step.name}",
                instrument={"@id": _step_id(step)},
                object={"@id": run},
            )
            for step, run in zip(self._flow.steps, runs, strict=True)
        ]
        self._add(
            "#organize",
            "OrganizeAction",
            name=f"Fairmile runs {self._flow.name}",
            instrument={"@id": _ENGINE},
            object=_refs(controls),
            result={"@id": whole},
        )
        return [whole, *runs]

    def _step_run(self, step: ExportedStep) -> str:
        return self._add(
            f"#run-{quote(step.run, safe='')}",
            "CreateAction",
            name=step.name,
            description=f"Run {step.run} of step {step.name}",
            identifier=step.run,
            instrument={"@id": f"#tool-{quote(step.step, safe='')}"},
            object=_refs(self._data(path, self._digests.get(path, "")) for path in step.inputs),
            result=_refs(self._data(path, digest) for path, digest in step.made.items()),
            startTime=_time(step.started),
            endTime=_time((step.started or 0.0) + (step.elapsed_s or 0.0)),
            actionStatus=_ENDED,
        )


def _step_id(step: ExportedStep) -> str:
    return f"#step-{quote(step.step, safe='')}"


def _id(path: str) -> str:
    return quote(path)


def _refs(ids: Iterable[str]) -> Mapping[str, str] | Sequence[Mapping[str, str]]:
    refs = [{"@id": id} for id in dict.fromkeys(ids)]
    return refs[0] if len(refs) == 1 else refs


def _time(seconds: float | None) -> str:
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds")
