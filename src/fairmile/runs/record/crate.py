"""The card of a run: ro-crate-metadata.json, an RO-Crate 1.1 that is a Process Run Crate 0.5.

The root data entity is the folder of the run, its main entity the action that took place: what was executed
(`instrument`), what went in (`object`), what came out (`result`), when, by whom, where and at what cost. What lies in
the folder is a file of the crate; what lies elsewhere is named with its digest. Nothing but the standard library and
`base` is needed, so that the card is written wherever the run is.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fairmile.base.digest import ni, sha256_hex
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.meter.lines import number_text
from fairmile.runs.record.layout import CARD, OUTPUT, RECORD, WORK
from fairmile.runs.record.record import (
    CapturedInput,
    CodeFile,
    EnergyUse,
    GitState,
    OutputFile,
    RecordedSpec,
    RunRecord,
    RunResult,
)

# Where the exported crate of a run has its program, what went in, and what it read beside its program.
CODE, INPUTS, READ = "code", "inputs", "read"
_CRATE = "https://w3id.org/ro/crate/1.1"
_PROCESS_RUN = "https://w3id.org/ro/wfrun/process/0.5"
_FX, _HPC, _WFRUN = "https://w3id.org/fairmile/terms#", "https://hpc-fair.github.io/ontology#", "workflow-run#"
# Terms that RO-Crate 1.1 does not define; the addresses are those that the catalog knows them by.
_TERMS = {
    "sha256": "http://schema.org/sha256",
    "environment": f"https://w3id.org/ro/terms/{_WFRUN}environment",
    "resourceUsage": f"https://w3id.org/ro/terms/{_WFRUN}resourceUsage",
    "MLModelEvaluation": "https://w3id.org/fair4ml#MLModelEvaluation",
    "evaluationResults": "https://w3id.org/fair4ml#evaluationResults",
    **{name: _FX + name for name in ("command", "seed", "cpuModel", "memoryPerNode", "acceleratorMemoryBytes")},
    **{name: _HPC + name for name in ("runsOn", "computeNodeCount", "cpuCorePerNode", "gpuModel", "interconnect")},
    "coprocessorCountPerNode": _HPC + "coprocessorCountPerNode",
}
_CONTEXT = [f"{_CRATE}/context", _TERMS]
_HEAD = [
    {"@id": CARD, "@type": "CreativeWork", "about": {"@id": "./"}, "conformsTo": {"@id": _CRATE}},
    {"@id": _PROCESS_RUN, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
]
_STATUS = {"done": "CompletedActionStatus", "running": "ActiveActionStatus", "queued": "PotentialActionStatus"}
_MEDIA = {
    "json": "application/json",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "txt": "text/plain",
    "csv": "text/csv",
    "py": "text/x-python",
    "md": "text/markdown",
    "html": "text/html",
    "svg": "image/svg+xml",
    "png": "image/png",
}
_ABOUT = {
    RECORD: "specification, environment and result",
    "events.jsonl": "spans, metrics and samples, one JSON object per line",
    OUTPUT: "output of the program",
}
_USAGE_UNITS = {
    "cpu_s": "s",
    "max_rss_bytes": "bytes",
    "seen_rss_bytes": "bytes",
    "read_bytes": "bytes",
    "written_bytes": "bytes",
}
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_DIGESTED_BYTES = 1 << 20  # larger logs are named without their digest: reading them would delay the end of a run

Node = dict[str, Any]


class FileFacts(NamedTuple):
    """What is known of a file in the folder of a run."""

    size_bytes: int | None = None
    sha256: str = ""


def card(record: RunRecord, files: Mapping[str, FileFacts] | Path) -> Node:
    """Return the card of a run as JSON-LD.

    `files` are all that belong to the crate, by their path in it; given the folder of the run, they are its own three
    and those outputs that lie in it.
    """
    known = _own_files(files, record) if isinstance(files, Path) else files
    return _Card(record, known).made()


def card_text(record: RunRecord, files: Mapping[str, FileFacts] | Path) -> str:
    """Return the card of a run as the text of its file: one entity a line."""
    made = card(record, files)
    # Python writes indented JSON ten times more slowly; a line for each entity reads as well.
    graph = ",\n".join(map(_JSON.encode, made["@graph"]))
    text = f'{{"@context": {_context_text()},\n"@graph": [\n{graph}\n]}}\n'
    try:
        text.encode()
    except UnicodeEncodeError:  # a name that is no UTF-8
        text = text.encode(errors="replace").decode()
    return text


@lru_cache(maxsize=1)
def _context_text() -> str:
    return _JSON.encode(_CONTEXT)


def iri(id: str) -> str:
    """Return the name by which the card of a run is known everywhere."""
    return f"urn:fairmile:run:{quote(id)}"


def _own_files(folder: Path, record: RunRecord) -> dict[str, FileFacts]:
    files: dict[str, FileFacts] = {}
    root = os.fspath(folder)
    try:
        names = os.listdir(root)
    except FileNotFoundError:
        names = []
    for name in sorted(names):
        if name in _ABOUT or (name.startswith("events.") and name.endswith(".jsonl")):
            files[name] = _facts(f"{root}/{name}", digested=name != RECORD)  # the record may yet be replaced
    if not record.spec.folder and record.result is not None:
        start = _start(record.spec)
        for name, each in record.result.outputs.items():
            if os.path.exists(f"{root}/{start}{name}"):
                files[start + name] = FileFacts(each.size_bytes, each.sha256)
    return files


def _start(spec: RecordedSpec) -> str:
    """Return where the names of outputs begin, in the folder of the run."""
    return f"{WORK}/{spec.subfolder}/" if spec.subfolder else f"{WORK}/"


def _facts(path: str, *, digested: bool) -> FileFacts:
    try:
        size_bytes = os.stat(path).st_size
        if not digested or size_bytes > _DIGESTED_BYTES:
            return FileFacts(size_bytes)
        with open(path, "rb", buffering=0) as stream:
            data = stream.read(_DIGESTED_BYTES + 1)
    except OSError:
        return FileFacts()
    return FileFacts(len(data), sha256_hex(data))


class _Card:
    """Builds the graph of one run; `nodes` collects the entities behind the root and the action."""

    def __init__(self, record: RunRecord, files: Mapping[str, FileFacts]) -> None:
        self.record, self.files = record, files
        self.spec, self.captured = record.spec, record.captured
        # What has not ended has the state of the record, and came to nothing yet.
        self.result = record.result or RunResult(state=record.state)
        attempted = record.attempts[-1].started if record.attempts else 0.0
        self.started = self.result.started or attempted or record.created
        self.id = iri(record.id)
        self._command = shlex.join(self.spec.argv)
        self.nodes: list[Node] = []
        self._known: set[str] = set()

    def made(self) -> Node:
        parts = [self._file(name, facts) for name, facts in self.files.items()]
        parts += self._folders()
        action = self._action()
        root: Node = {
            "@id": "./",
            "@type": "Dataset",
            "name": action["name"],
            "description": f"One recorded execution of {action['description']}",
            "license": "No licence is stated.",
            "datePublished": _time(self.result.ended or self.started)[:10],
            "conformsTo": {"@id": _PROCESS_RUN},
            "mainEntity": {"@id": self.id},
            "mentions": {"@id": self.id},
        }
        if parts:
            root["hasPart"] = _one(parts)
        return {"@context": _CONTEXT, "@graph": [_HEAD[0], root, action, *self.nodes, _HEAD[1]]}

    def _action(self) -> Node:
        spec, result = self.spec, self.result
        state = str(result.state)
        action: Node = {
            "@id": self.id,
            "@type": ["CreateAction", "MLModelEvaluation"],
            "name": self.record.id,
            "description": self._command,
            "instrument": self._instrument(),
            "object": self._object(),
            "startTime": _time(self.started),
            "actionStatus": f"http://schema.org/{_STATUS.get(state, 'FailedActionStatus')}",
        }
        if result.ended:
            action["endTime"] = _time(result.ended)
        if state not in _STATUS:
            action["error"] = self._error(state)
        self._came_out(action)
        self._add_context(action)
        if spec.seed is not None:
            action["seed"] = spec.seed
        if spec.tags:
            action["keywords"] = _one(list(spec.tags))
        return action

    def _error(self, state: str) -> str:
        result = self.result
        if result.reason:
            return result.reason
        if result.signal:
            return f"{state}: killed by {result.signal}"
        if result.exit_code is not None:
            return f"{state}: exit code {result.exit_code}"
        return f"{state}: end not recorded" if state == "interrupted" else state

    def _instrument(self) -> Node:
        """Add what was executed: code that is known by commit or digest, or else just a program."""
        code, environment = self.captured.code, self.captured.environment
        git, files = code.git or GitState(), code.files
        kept = [_local(name) for name in self.files if name.startswith(f"{CODE}/")]
        name = self.spec.asset or (files[0].name if files else os.path.basename("".join(self.spec.argv[:1])))
        node: Node = {
            "@id": "#program",
            "@type": "SoftwareSourceCode" if code.is_known or kept else "SoftwareApplication",
            "name": name or "program",
            "command": self._command,
        }
        if self.spec.asset:
            node["identifier"] = self.spec.asset
        if git.commit:
            node["version"] = git.commit + (f"+{git.diff_sha256[:12]}" if git.dirty else "")
        elif files and files[0].sha256:
            node["version"] = f"sha256-{files[0].sha256[:12]}"
        if git.remote:
            node["codeRepository"] = git.remote
        if environment.python:
            node["runtimePlatform"] = f"Python {environment.python}"
        if environment.lock:
            node["softwareRequirements"] = _one(list(environment.lock))
        outside = [] if kept else [self._elsewhere("code", each.name, each, "SoftwareSourceCode") for each in files]
        if kept or outside:
            node["hasPart"] = _one([{"@id": each} for each in kept] or outside)
        self.nodes.append(node)
        return {"@id": node["@id"]}

    def _object(self) -> Any:
        """Add what went in: inputs by digest, and parameters."""
        nodes = []
        for name, each in self.captured.inputs.items():
            path = f"{INPUTS}/{name}"
            if path in self.files:
                nodes.append({"@id": _local(path)})
            elif any(file.startswith(f"{path}/") for file in self.files):
                nodes.append({"@id": _local(path) + "/"})
            else:
                nodes.append(self._elsewhere("input", name, each, "CreativeWork"))
        for name, value in self.spec.params.items():
            nodes.append(self._value("param", name, value))
        return _one(nodes or [self._value("param", "command", self._command)])

    def _came_out(self, action: Node) -> None:
        """Add outputs, metrics and energy."""
        result = self.result
        nodes = []
        start = _start(self.spec)
        for name, each in result.outputs.items():
            path = start + name
            is_here = path in self.files and not self.spec.folder
            nodes.append({"@id": _local(path)} if is_here else self._elsewhere("output", name, each, "CreativeWork"))
        metrics = [
            self._value("metric", name, number_text(metric.value), metric.unit)
            for name, metric in result.metrics.items()
        ]
        energy = self._energy(result.energy)
        if nodes or metrics or energy:
            action["result"] = _one([*nodes, *metrics, *energy])
        if metrics:
            action["evaluationResults"] = _one(metrics)
        usage = [self._value("usage", name, value, _USAGE_UNITS.get(name, "")) for name, value in result.usage.items()]
        if result.elapsed_s is not None:
            usage.append(self._value("usage", "elapsed_s", result.elapsed_s, "s"))
        if usage or energy:
            action["resourceUsage"] = _one([*usage, *energy])

    def _energy(self, energy: EnergyUse) -> list[Node]:
        """Add the energy; every number names the counter it is from."""
        if energy.total_j is None:
            return []
        how = [
            ", ".join(str(each[key]) for key in ("source", "channel", "scope", "method", "error") if each.get(key))
            for each in energy.parts
        ]
        node: Node = {"@id": "#energy", "@type": "PropertyValue", "name": "energy", "propertyID": "energy"}
        node |= {"value": energy.total_j, "unitText": "J"}
        if how:
            node["measurementTechnique"] = _one(how)
        return [self._once(node)]

    def _add_context(self, action: Node) -> None:
        """Add who ran it, where, and with which variables."""
        agent = self.captured.agent
        if agent:
            self.nodes.append(
                {"@id": agent.get("orcid") or "#agent", "@type": "Person", "name": agent.get("name") or "?"}
            )
            if agent.get("email"):
                self.nodes[-1]["email"] = agent["email"]
            action["agent"] = {"@id": self.nodes[-1]["@id"]}
        variables = self.captured.variables
        if variables:
            action["environment"] = _one([self._value("variable", *each) for each in variables.items()])
        if self.captured.hardware:
            self.nodes.append(self._machine(self.captured.hardware))
            action["runsOn"] = {"@id": self.nodes[-1]["@id"]}
        nodes = self.captured.scheduler.get("nodes")
        if nodes:
            action["computeNodeCount"] = nodes

    def _machine(self, hardware: Mapping[str, Any]) -> Node:
        cpu, gpus = hardware.get("cpu") or {}, hardware.get("gpus") or []
        software = self.captured.software
        node = {
            "name": self.spec.system or hardware.get("host") or "a computer",
            "cpuModel": cpu.get("model"),
            "cpuCorePerNode": cpu.get("cores"),
            "memoryPerNode": hardware.get("memory_bytes"),
            "gpuModel": gpus[0].get("model") if gpus else None,
            "coprocessorCountPerNode": len(gpus) or None,
            "acceleratorMemoryBytes": gpus[0].get("memory_bytes") if gpus else None,
            "interconnect": _one(list(hardware.get("interconnect") or [])),
            "operatingSystem": " ".join(str(software[key]) for key in ("os", "kernel", "machine") if software.get(key)),
        }
        # Not typed as a system of the catalog: what is told here is what one run saw of it.
        return {"@id": "#machine", "@type": "IndividualProduct", **{key: value for key, value in node.items() if value}}

    def _file(self, name: str, facts: FileFacts) -> Node:
        identifier = _local(name)
        is_code = name.startswith(f"{CODE}/")
        node: Node = {"@id": identifier, "@type": ["File", "SoftwareSourceCode"] if is_code else "File", "name": name}
        if name in _ABOUT:
            node["description"] = _ABOUT[name]
        media = _MEDIA.get(name.rpartition(".")[2])
        if media:
            node["encodingFormat"] = media
        if facts.size_bytes is not None:
            node["contentSize"] = str(facts.size_bytes)
        if facts.sha256:
            node["sha256"] = facts.sha256
        self.nodes.append(node)
        return {"@id": identifier}

    def _folders(self) -> list[Node]:
        """Add the inputs that are folders of the crate."""
        nodes = []
        for name, each in self.captured.inputs.items():
            inside = [file for file in self.files if file.startswith(f"{INPUTS}/{name}/")]
            if inside:
                node: Node = {"@id": _local(f"{INPUTS}/{name}") + "/", "@type": "Dataset", "name": name}
                if each.sha256:
                    node["identifier"] = ni(each.sha256)
                node["hasPart"] = _one([{"@id": _local(file)} for file in inside])
                self.nodes.append(node)
                nodes.append({"@id": node["@id"]})
        return nodes

    def _elsewhere(self, role: str, name: str, facts: CodeFile | CapturedInput | OutputFile, kind: str) -> Node:
        """Add something that does not lie in the crate and is known by its digest."""
        node: Node = {"@id": f"#{role}/{_quote(name)}", "@type": kind, "name": name}
        if isinstance(facts, CapturedInput) and facts.asset:
            node["identifier"] = facts.asset
        if facts.sha256:
            node["sha256"] = facts.sha256
        if facts.size_bytes is not None:
            node["contentSize"] = str(facts.size_bytes)
        return self._once(node)

    def _value(self, role: str, name: str, value: Any, unit: str = "") -> Node:
        text = value if isinstance(value, (str, bool, int)) else _plain(value)
        node: Node = {"@id": f"#{role}/{_quote(name)}", "@type": "PropertyValue"}
        node |= {"name": name, "propertyID": name, "value": text}
        if unit:
            node["unitText"] = unit
        return self._once(node)

    def _once(self, node: Node) -> Node:
        """Add an entity, unless there is one of that id, and return the link to it."""
        identifier = node["@id"]
        if identifier not in self._known:
            self._known.add(identifier)
            self.nodes.append(node)
        return {"@id": identifier}


def _one(values: list[Any]) -> Any:
    """Return the only value itself, as a crate has it."""
    return values[0] if len(values) == 1 else values


def _plain(value: Any) -> Any:
    """Return a value as JSON can say it; what it cannot say becomes text."""
    if isinstance(value, float):
        return value if value - value == 0 else json.dumps(value)  # NaN and the infinities are texts
    return json.dumps(value)


def _local(path: str) -> str:
    # A colon in the first part would make the path look like an address.
    return _quote(path) if ":" not in path.partition("/")[0] else f"./{_quote(path)}"


@lru_cache(maxsize=256)  # most runs of a process have the same names
def _quote(text: str) -> str:
    if text.isascii():
        return quote(text)
    try:
        return quote(text.encode(errors="surrogateescape"))  # the very bytes of a file name
    except UnicodeEncodeError:
        return quote(text.encode(errors="surrogatepass"))


def _time(unix_s: float) -> str:
    whole = int(unix_s // 1)
    thousandths = int((unix_s - whole) * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{thousandths:03d}+00:00"
