"""A machine compared with what is known of it: component by component, with a verdict on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any, Literal, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.systems.model import FileSystem, Gpu, Partition, SoftwareSet, System
from fairmile.systems.module_lines import module_name, read_line
from fairmile.systems.probe_result import Nodes, ProbeResult, Queue

Verdict = Literal["same", "differs", "missing", "new", "unknown"]

_ORDER: tuple[Verdict, ...] = ("differs", "missing", "new", "unknown", "same")
# What of Python a framework stands on, by the name of its software set.
_STANDS_ON = {
    "ddp": ("torch",),
    "torch": ("torch",),
    "pytorch": ("torch",),
    "deepspeed": ("deepspeed", "torch"),
    "heat": ("heat", "torch", "mpi4py"),
    "horovod": ("horovod",),
    "tensorflow": ("tensorflow",),
    "jax": ("jax",),
    "raytune": ("ray",),
    "raytune-ddp": ("ray", "torch"),
    "ray": ("ray",),
    "asha": ("ray", "torch"),
    "bohb": ("ray", "torch"),
    "pbt": ("ray", "torch"),
}
# Memory that firmware and the kernel keep, and sizes given in thousands, make a node report less than its modules.
_MEMORY_SLACK = 0.12


class SurveyRowDict(TypedDict):
    """One component as JSON."""

    component: str
    registered: str
    found: str
    verdict: Verdict


class SurveyDict(TypedDict):
    """A survey as JSON; `share` is null where no registered component could be seen."""

    system: str
    host: str
    day: str
    rows: list[SurveyRowDict]
    counts: dict[Verdict, int]
    share: float | None


@dataclass(frozen=True)
class SurveyRow:
    """One component: what is registered, what was found, and how they compare."""

    component: str
    registered: str
    found: str
    verdict: Verdict


@dataclass(frozen=True, repr=False)
class Survey(Result):
    """Everything that was compared on one day."""

    system: str
    title: str
    host: str
    day: date
    rows: tuple[SurveyRow, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many rows have each verdict."""
        counted = Counter(row.verdict for row in self.rows)
        return {verdict: counted[verdict] for verdict in _ORDER}

    @property
    def share(self) -> float | None:
        """The share that is as registered, of all that is registered and could be seen; None when nothing could."""
        counts = self.counts
        seen = counts["same"] + counts["differs"] + counts["missing"]
        return counts["same"] / seen if seen else None

    def to_dict(self) -> SurveyDict:
        """Return the survey as `fairmile system probe --on SYSTEM --json` prints it."""
        return {
            "system": self.system,
            "host": self.host,
            "day": str(self.day),
            "rows": [
                {
                    "component": row.component,
                    "registered": row.registered,
                    "found": row.found,
                    "verdict": row.verdict,
                }
                for row in self.rows
            ],
            "counts": self.counts,
            "share": self.share,
        }

    def summary(self) -> str:
        """Return the system, the host and the number of rows with each verdict."""
        counts = ", ".join(f"{number} {verdict}" for verdict, number in self.counts.items() if number)
        return f"{self.system} compared with {self.host}: {counts}"

    def sorted(self) -> list[SurveyRow]:
        """Return the rows with what calls for attention first."""
        return sorted(self.rows, key=lambda row: _ORDER.index(row.verdict))

    def card(self) -> dict[str, Any]:
        """Return the survey as JSON-LD in the words of schema.org, to be kept."""
        return {
            "@context": "https://schema.org/",
            "@type": "Dataset",
            "name": f"Survey of {self.system} on {self.host}, {self.day}",
            "description": f"What {self.host} has, compared with what is registered for {self.title}.",
            "dateCreated": str(self.day),
            "about": {"@type": "Thing", "name": self.title, "identifier": self.system},
            "measurementTechnique": "asked of the machine's own programs",
            "variableMeasured": [
                {
                    "@type": "PropertyValue",
                    "name": row.component,
                    "value": row.found,
                    "description": row.verdict,
                    "valueReference": {"@type": "PropertyValue", "name": "registered", "value": row.registered},
                }
                for row in self.rows
            ],
        }


def compare(result: ProbeResult, system: System) -> Survey:
    """Compare what a probe found with what is registered; what neither knows makes no row."""
    rows = [
        *_basics(result, system),
        *_partitions(result, system),
        *_file_systems(result, system),
        *_modules(result, system),
        *_software(result, system),
        *_components(result, system),
    ]
    return Survey(system.name, system.title, result.host, result.day, tuple(rows))


def _basics(result: ProbeResult, system: System) -> Iterator[SurveyRow]:
    there = result.slurm.architectures if result.slurm else ()
    architectures = there or ((result.architecture,) if result.architecture else ())
    if system.architecture != "any":
        yield _row("architecture", system.architecture, architectures[0] if len(architectures) == 1 else "")
    answers = result.scheduler if result.scheduler != "shell" else "none found"
    dialect = system.scheduler.dialect
    same = result.scheduler == dialect
    yield SurveyRow(
        "scheduler", dialect, answers, "same" if same else "missing" if result.scheduler == "shell" else "differs"
    )
    if system.scheduler.version or (result.slurm and result.slurm.version and dialect == "slurm"):
        yield _row("scheduler version", system.scheduler.version, result.slurm.version if result.slurm else "")
    launcher = system.launch.launcher
    if launcher != "none":
        program = result.programs.get(launcher)
        verdict: Verdict = "missing" if program is None or program.problem else "same"
        yield SurveyRow("launcher", launcher, str(program) if program else "not there", verdict)


# Hardware


def _partitions(result: ProbeResult, system: System) -> Iterator[SurveyRow]:
    queues = {queue.name: queue for queue in result.queues}
    alone = result.scheduler == "shell" and system.scheduler.dialect == "shell" and len(system.partitions) == 1
    for name, partition in system.partitions.items():
        label = f"partition {name}"
        if alone:
            yield from _hardware(label, partition, _as_nodes(result), result.processor.model)
        elif not queues or not partition.named:
            yield SurveyRow(label, "registered", "its scheduler lists no partitions here", "unknown")
        elif name not in queues:
            yield SurveyRow(label, "registered", "not there", "missing")
        else:
            yield from _queue(label, partition, queues[name])
    for name, queue in queues.items():
        if name not in system.partitions:
            yield SurveyRow(f"partition {name}", "", _summary(queue), "new")


def _queue(label: str, partition: Partition, queue: Queue) -> Iterator[SurveyRow]:
    yield from _pair(f"{label} nodes", partition.nodes, queue.nodes or None)
    if queue.kinds:
        yield from _hardware(label, partition, _nearest(partition, queue.kinds), "")
    limit = format_duration(queue.max_time_s) if queue.max_time_s is not None else "no limit"
    if partition.max_time is not None:
        yield _row(f"{label} longest job", format_duration(partition.max_time), limit)
    if partition.max_nodes is not None:
        yield _row(f"{label} most nodes", str(partition.max_nodes), str(queue.max_nodes or "no limit"))
    if not queue.up:
        yield SurveyRow(f"{label} state", "", "not up", "new")


def _nearest(partition: Partition, kinds: Sequence[Nodes]) -> Nodes:
    """Return the kind of nodes that is meant, the most frequent one of those with as much memory."""
    wanted = partition.memory_gib
    return next((kind for kind in kinds if wanted and _close(wanted, kind.memory_gib)), kinds[0])


def _as_nodes(result: ProbeResult) -> Nodes:
    first = result.accelerators[0].model if result.accelerators else ""
    processor = result.processor
    return Nodes(
        count=1,
        sockets=processor.sockets,
        cores=processor.cores,
        threads_per_core=processor.threads_per_core,
        memory_gib=result.memory_gib,
        gpus=len(result.accelerators),
        gpu_model=first,
    )


def _hardware(label: str, partition: Partition, kind: Nodes, processor: str) -> Iterator[SurveyRow]:
    yield from _pair(f"{label} cores", partition.cores, kind.cores)
    if partition.cores is not None and kind.cores is not None:
        yield from _pair(f"{label} threads per core", partition.threads_per_core, kind.threads_per_core)
    yield from _pair(f"{label} sockets", partition.sockets, kind.sockets)
    if processor:
        yield from _named(f"{label} processor", partition.processor, processor)
    if partition.memory_gib is not None or kind.memory_gib is not None:
        yield _memory(f"{label} memory", partition.memory_gib, kind.memory_gib)
    yield from _gpus(label, partition.gpu, kind)


def _memory(label: str, registered: float | None, actual: float | None) -> SurveyRow:
    ours, theirs = (f"{each:g} GiB" if each is not None else "" for each in (registered, actual))
    if registered is not None and _close(registered, actual):
        return SurveyRow(label, ours, theirs, "same")
    return _row(label, ours, theirs)


def _close(registered: float, actual: float | None) -> bool:
    return actual is not None and registered * (1 - _MEMORY_SLACK) <= actual <= registered * (1 + _MEMORY_SLACK)


def _gpus(label: str, registered: Gpu | None, kind: Nodes) -> Iterator[SurveyRow]:
    yield from _pair(f"{label} GPUs", registered.count if registered else None, kind.gpus or None, absent="none")
    if registered is not None and kind.gpus:
        yield from _named(f"{label} GPU model", registered.model, kind.gpu_model)


def _named(label: str, registered: str, actual: str) -> Iterator[SurveyRow]:
    """Compare names that people and programs write differently: one that holds all words of the other is the same."""
    ours, theirs = _words(registered), _words(actual)
    if ours and theirs and (ours <= theirs or theirs <= ours):
        yield SurveyRow(label, registered, actual, "same")
    elif registered or actual:
        yield _row(label, registered, actual)


def _words(text: str) -> set[str]:
    plain = text.casefold().replace("(r)", " ").replace("(tm)", " ").replace("-", " ").replace("_", " ")
    return set(plain.split()) - {"nvidia", "amd", "intel", "tesla", "cpu", "processor", "core"}


def _summary(queue: Queue) -> str:
    kind = queue.kinds[0] if queue.kinds else Nodes(0)
    parts = [
        f"{queue.nodes} nodes",
        f"{kind.cores} cores" if kind.cores else "",
        f"{kind.memory_gib:g} GiB" if kind.memory_gib else "",
        f"{kind.gpus} × {kind.gpu_model or 'GPU'}" if kind.gpus else "",
    ]
    return ", ".join(filter(None, parts))


# Files


def _file_systems(result: ProbeResult, system: System) -> Iterator[SurveyRow]:
    places = {place.name: place for place in result.places}
    known = {each.path for each in system.file_systems.values()}
    for name, each in system.file_systems.items():
        yield _file_system(f"file system {name}", each, places)
    for place in result.places:
        if place.name not in known and not place.problem and place.name not in ("/tmp", "$TMPDIR"):
            yield SurveyRow(f"file system {place.name}", "", f"{place.path} ({place.kind})", "new")


def _file_system(label: str, registered: FileSystem, places: Mapping[str, Any]) -> SurveyRow:
    shown = f"{registered.path} ({registered.kind})" if registered.kind else registered.path
    if "<" in registered.path:
        return SurveyRow(label, shown, "the path has a placeholder that only you can fill in", "unknown")
    place = places.get(registered.path)
    if place is None:
        return SurveyRow(label, shown, "not there", "missing")
    if place.problem:
        return SurveyRow(label, shown, f"{place.path}: {place.problem}", "missing")
    differs = registered.kind and place.kind and registered.kind.casefold() != place.kind.casefold()
    return SurveyRow(label, shown, f"{place.path} ({place.kind})", "differs" if differs else "same")


# Modules and software


def _modules(result: ProbeResult, system: System) -> Iterator[SurveyRow]:
    modules = result.modules
    if modules.kind == "none" and modules.problem:
        yield SurveyRow("module system", system.module_system, f"failed: {modules.problem}", "unknown")
    else:
        verdict: Verdict = "same" if modules.kind == system.module_system else "differs"
        if verdict == "differs" and "none" in (modules.kind, system.module_system):
            verdict = "missing" if modules.kind == "none" else "new"
        yield SurveyRow(
            "module system", system.module_system, " ".join(filter(None, [modules.kind, modules.version])), verdict
        )
    lines = (line for sets in system.software.values() for each in sets for line in each.lines)
    elsewhere = any(read_line(line).effect == "use" for line in lines)  # folders of modules that scripts add first
    for stage in system.stages:
        there = stage in modules.stages
        unseen: Verdict = "unknown" if modules.kind == "none" or elsewhere else "missing"
        yield SurveyRow(f"stage {stage}", stage, stage if there else "not seen", "same" if there else unseen)
    for stage in modules.stages:
        if stage not in system.stages:
            yield SurveyRow(f"stage {stage}", "", stage, "new")


def _software(result: ProbeResult, system: System) -> Iterator[SurveyRow]:
    """Yield a row for each software set, then one for each module that any of them loads."""
    wanted: dict[str, dict[str, None]] = {}
    seen: dict[tuple[str, bool], SurveyRow] = {}
    for name, sets in system.software.items():
        for number, each in enumerate(sets):
            rows = _set_rows(each, result, seen)
            yield _set(f"software {name}" + (f" (variant {number + 1})" if number else ""), rows)
            for row in rows:
                wanted.setdefault(row.registered, {})[name] = None
    listed: set[str] = set()
    for (module, _), row in seen.items():
        if module not in listed:
            yield SurveyRow(row.component, f"for {', '.join(wanted[module])}", row.found, row.verdict)
        listed.add(module)


def _set_rows(each: SoftwareSet, result: ProbeResult, seen: dict[tuple[str, bool], SurveyRow]) -> list[SurveyRow]:
    lines = [read_line(line) for line in each.lines]
    modules = dict.fromkeys(module for line in lines for module in line.loads)
    uses_places = any(line.effect == "use" for line in lines)
    rows = []
    for place, module in enumerate(modules):
        # A folder of modules that the lines add first, and modules that others bring, are out of sight of a list.
        hidden = uses_places or (place > 0 and not result.modules.reachable)
        rows.append(seen.setdefault((module, hidden), _module(module, result, hidden=hidden)))
    return rows


def _set(label: str, rows: Sequence[SurveyRow]) -> SurveyRow:
    if not rows:
        return SurveyRow(label, "no modules", "nothing to look for", "unknown")
    verdicts = [row.verdict for row in rows]
    worst = next(verdict for verdict in ("missing", "differs", "unknown", "same") if verdict in verdicts)
    return SurveyRow(label, _modules_of(len(rows)), f"{verdicts.count('same')} of them there", worst)


def _modules_of(number: int) -> str:
    return "1 module" if number == 1 else f"{number} modules"


def _module(module: str, result: ProbeResult, *, hidden: bool) -> SurveyRow:
    label = f"module {module}"
    offered = {*result.modules.available, *result.modules.reachable}
    if not offered:
        return SurveyRow(label, module, "no list of modules", "unknown")
    versions = sorted(name for name in offered if name == module or module_name(name) == module)
    if versions:
        return SurveyRow(label, module, module if module in offered else ", ".join(versions), "same")
    others = sorted(name for name in offered if "/" in module and module_name(name) == module_name(module))
    if others:
        return SurveyRow(label, module, ", ".join(others), "unknown" if hidden else "differs")
    if hidden:
        return SurveyRow(label, module, "visible only after the lines above it", "unknown")
    return SurveyRow(label, module, "not there", "missing")


def _components(result: ProbeResult, system: System) -> Iterator[SurveyRow]:
    needed: dict[str, list[str]] = {}
    brought: set[str] = set()
    for name, sets in system.software.items():
        for component in _STANDS_ON.get(name, ()):
            needed.setdefault(component, []).append(name)
            if any(each.lines or each.note for each in sets):
                brought.add(component)
    for component, frameworks in needed.items():
        label, wanted = f"component {component}", f"for {', '.join(frameworks)}"
        if component in result.components:
            yield SurveyRow(label, wanted, f"{result.components[component]} in python3 {result.python}", "same")
        elif not result.python:
            yield SurveyRow(label, wanted, "python3 did not answer", "unknown")
        else:
            # Its modules or its container may bring it; only a run with them tells.
            verdict: Verdict = "unknown" if component in brought else "missing"
            yield SurveyRow(label, wanted, f"not in the default python3 {result.python}", verdict)
    for component, version in result.components.items():
        if component not in needed:
            yield SurveyRow(f"component {component}", "", f"{version} in python3 {result.python}", "new")


# Verdicts


def _row(component: str, registered: str, actual: str) -> SurveyRow:
    """Return the row of two texts; an empty one is not known."""
    if not actual:
        return SurveyRow(component, registered, "not known", "unknown")
    return SurveyRow(
        component, registered, actual, "new" if not registered else "same" if registered == actual else "differs"
    )


def _pair(component: str, registered: int | None, actual: int | None, *, absent: str = "") -> Iterator[SurveyRow]:
    """Yield the row of two numbers; `absent` says what it means that none was found."""
    if registered is None and actual is None:
        return
    if actual is None and absent:
        yield SurveyRow(component, str(registered), absent, "missing")
    else:
        yield _row(component, "" if registered is None else str(registered), "" if actual is None else str(actual))
