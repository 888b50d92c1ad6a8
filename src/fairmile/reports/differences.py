"""What went into runs, as flat facts, and where groups of runs differ in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_size
from fairmile.runs.record.record import CapturedCode, CapturedEnvironment
from fairmile.runs.record.run import Run

_SHORT_DIGEST = 12
_READ = "read "


@dataclass(frozen=True)
class Difference:
    """A fact in which groups differ, or in which the runs of one group do; `values` has those of each group."""

    fact: str
    values: Mapping[str, tuple[str, ...]]

    @property
    def text(self) -> str:
        """The values in one line, group by group."""
        return " → ".join(" | ".join(each) or "–" for each in self.values.values())


def facts(run: Run) -> dict[str, str]:
    """Return what went into a run: command, parameters, code, inputs, environment, machine, variables."""
    asked, captured = run.record.spec, run.captured
    inputs = {"command": shlex.join(asked.argv)}
    inputs |= {f"param {name}": _value(value) for name, value in run.params.items()}
    stated = {"seed": asked.seed, "asset": asked.asset, "dataset": asked.dataset, "system": asked.system}
    inputs |= {name: _value(value) for name, value in stated.items() if value}
    inputs |= _code(captured.code)
    for name, each in captured.inputs.items():
        inputs[f"input {name}"] = _short(each.sha256) or each.asset or each.path
    inputs |= _reads(run)
    inputs |= _environment(captured.environment)
    inputs |= _machine(run.hardware)
    inputs |= {name: str(value) for name, value in captured.software.items()}
    inputs |= {f"scheduler {name}": str(value) for name, value in _lasting(captured.scheduler).items()}
    inputs |= {f"variable {name}": value for name, value in captured.variables.items()}
    return {name: value for name, value in inputs.items() if value}


def differences(groups: Mapping[str, Sequence[Run]]) -> list[Difference]:
    """Return the facts in which groups differ, in the order in which a run states them."""
    known = {name: [facts(run) for run in runs] for name, runs in groups.items()}
    names = dict.fromkeys(fact for each in known.values() for facts_of_run in each for fact in facts_of_run)
    differing = []
    for fact in names:
        values = {name: _distinct(_values(fact, each)) for name, each in known.items()}
        compared = [each for each in values.values() if each or not fact.startswith(_READ)]
        if len(set(map(frozenset, compared))) > 1:
            differing.append(Difference(fact, values))
    return differing


def inner_differences(runs: Sequence[Run]) -> list[str]:
    """Return the names of facts that vary among runs which count as repeats; a seed may."""
    known = [facts(run) for run in runs]
    names = dict.fromkeys(fact for facts_of_run in known for fact in facts_of_run)
    return [fact for fact in names if fact not in ("seed", "param seed") and len(set(_values(fact, known))) > 1]


def _values(fact: str, known: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a fact of each run; of a file, only of those that were seen to read it, since not all runs are watched."""
    values = [facts_of_run.get(fact, "") for facts_of_run in known]
    return [value for value in values if value] if fact.startswith(_READ) else values


def hardware_lines(hardware: Mapping[str, Any]) -> dict[str, str]:
    """Return a machine in a few readable lines."""
    cpu, gpus = hardware.get("cpu") or {}, hardware.get("gpus") or []
    models: dict[str, int] = {}
    for each in gpus:
        size = f" {format_size(each['memory_bytes'])}" if each.get("memory_bytes") else ""
        text = f"{each.get('model') or 'GPU'}{size}"
        models[text] = models.get(text, 0) + 1
    parts = (("sockets", "socket"), ("cores", "core"))
    layout = [f"{cpu[part]} {word}{'s' if cpu[part] != 1 else ''}" for part, word in parts if cpu.get(part)]
    layout += [f"{cpu['numa_nodes']} NUMA nodes"] if (cpu.get("numa_nodes") or 0) > 1 else []
    lines = {
        "host": str(hardware.get("host") or ""),
        "CPU": ", ".join(filter(None, [str(cpu.get("model") or ""), *layout])),
        "memory": format_size(hardware["memory_bytes"]) if hardware.get("memory_bytes") else "",
        "GPUs": ", ".join(f"{count} × {model}" for model, count in models.items()),
        "GPU driver": ", ".join(dict.fromkeys(str(each["driver"]) for each in gpus if each.get("driver"))),
        "interconnect": ", ".join(map(str, hardware.get("interconnect") or ())),
    }
    return {name: text for name, text in lines.items() if text}


def storage_lines(hardware: Mapping[str, Any]) -> list[str]:
    """Return the file systems of the working folders, a line for each."""
    lines = []
    for path, each in (hardware.get("storage") or {}).items():
        sizes = [
            f"{format_size(each[key])} {word}"
            for key, word in (("size_bytes", ""), ("free_bytes", "free"))
            if each.get(key) is not None
        ]
        lines.append(f"{path}: {', '.join(filter(None, [str(each.get('type') or ''), *map(str.strip, sizes)]))}")
    return lines


def _reads(run: Run) -> dict[str, str]:
    """Return the files that a program was seen to read, with what they held."""
    coverage, start = run.captured.coverage, run.record.spec.folder or run.captured.start
    reads = (coverage.reads if coverage is not None else None) or {}
    names = {path: os.path.relpath(path, start) if start and _is_below(path, start) else path for path in reads}
    return {f"{_READ}{names[path]}": _short(read.sha256) for path, read in reads.items()}


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _code(code: CapturedCode) -> dict[str, str]:
    lines = {"code commit": _short(code.commit)}
    if code.git is not None and code.git.dirty:
        lines["code changes"] = f"uncommitted, {_short(code.git.diff_sha256) or 'not kept'}"
    if code.snapshot:
        lines["code snapshot"] = _short(code.snapshot)
    return lines | {f"file {each.name}": _short(each.sha256) for each in code.files}


def _environment(environment: CapturedEnvironment) -> dict[str, str]:
    versions = {"environment": environment.name, "python": environment.python}
    for line in environment.lock:
        name, _, version = line.partition("==")
        versions[f"package {name.strip()}"] = version.strip() or line
    return versions


def _machine(hardware: Mapping[str, Any]) -> dict[str, str]:
    # How much of a disk is free changes from run to run: it is no input.
    kinds = {f"storage {path}": str(each.get("type") or "") for path, each in (hardware.get("storage") or {}).items()}
    return hardware_lines(hardware) | kinds


def _lasting(scheduler: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a scheduler says but for the number of the job, which is new each time."""
    return {name: value for name, value in scheduler.items() if name != "job_id" and value not in ("", None)}


def _distinct(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def _short(digest: str) -> str:
    return digest[:_SHORT_DIGEST]
