"""The draft of a system file for a machine that was probed: every value found there, comments on what to fill in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fairmile.base.units import format_size
from fairmile.base.yaml_text import dump
from fairmile.systems.model import NAME
from fairmile.systems.probe_result import Accelerator, Nodes, ProbeResult, Queue, StoragePlace

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:+@-]*")
_PURPOSES = {
    "$HOME": "home",
    "$PROJECT": "project",
    "$DATA": "project",
    "$ARCHIVE": "archive",
    "$TMPDIR": "node",
    "/project": "project",
    "/local": "node",
    "/localscratch": "node",
    "/tmp": "node",
}
_LAUNCHERS = {"slurm": ("srun",), "lsf": ("jsrun", "mpirun"), "pbs": ("mpiexec", "mpirun"), "flux": ("flux",)}


def draft(result: ProbeResult, name: str) -> str:
    """Return a system file for the machine that was probed; what was not found out is left out, and said."""
    parts = [
        f"# What `fairmile system probe` found on {result.host} on {result.day}.",
        "# Read it, fill in what the comments ask for, then: fairmile system check FILE; fairmile system add FILE",
        dump({"name": name}).rstrip(),
        "# The name that people know it by, its centre and country.",
        dump({"title": name}).rstrip(),
        *_identity(result),
        dump({"scheduler": _scheduler(result)}).rstrip(),
        *_scheduler_comments(result),
        *_partitions(result),
        *_file_systems(result),
        *_modules(result),
        *_software(result),
        dump({"launch": {"launcher": _launcher(result)}}).rstrip(),
        f"verified: {result.day}",
        "# Where what was filled in by hand comes from; paths of values that no source carries go into `unverified`.",
        "sources: []",
        *_guesses(result),
    ]
    return "\n".join(parts) + "\n"


def _identity(result: ProbeResult) -> Iterator[str]:
    architecture = result.slurm.architectures[0] if result.slurm and result.slurm.architectures else result.architecture
    if architecture:
        yield dump({"architecture": architecture}).rstrip()
    if result.login and _WORD.fullmatch(result.login):
        yield dump({"login": result.login}).rstrip()
    else:
        yield "# login: the host that ssh reaches"


def _scheduler(result: ProbeResult) -> dict[str, Any]:
    rules: dict[str, Any] = {"dialect": result.scheduler}
    if result.slurm is not None:
        rules["version"] = result.slurm.version
        rules["gpu_option"] = result.slurm.gpu_option
        rules["most_array_tasks"] = result.slurm.most_array_tasks
    rules["accounting"] = result.slurm.accounting if result.slurm else False if result.scheduler == "shell" else None
    return {key: value for key, value in rules.items() if value not in (None, "")}


def _scheduler_comments(result: ProbeResult) -> Iterator[str]:
    if result.scheduler == "slurm":
        yield "# needs_account and needs_time, in `scheduler`, where every job must name them."
    elif result.scheduler != "shell":
        yield f"# Queues of {result.scheduler} are not read yet: describe each under `partitions`."
    for name in ("scontrol", "bsub", "qsub", "flux"):
        program = result.programs.get(name)
        if program is not None and program.problem and result.scheduler == "shell":
            yield _comment(f"{name} is installed but failed: {program.problem}")


def _partitions(result: ProbeResult) -> Iterator[str]:
    usable = _usable(result)
    if not usable:
        yield "default_partition: here"
        yield dump({"partitions": {"here": _this_machine(result)}}).rstrip()
        return
    default = next((queue.name for queue in usable if queue.default), "")
    if default:
        yield dump({"default_partition": default}).rstrip()
    yield "partitions:"
    for queue in usable:
        yield from _indented(dump({queue.name: _partition(queue)}))
        yield from (f"    {line}" for line in _partition_comments(queue))
    for queue in result.queues:
        if queue not in usable:
            yield _comment(f"skipped {queue.name}: it has no nodes, or its name is not usable")
    yield from (_comment(f"the machine that was probed has {each}") for each in _hardware(result))


def _partition(queue: Queue) -> dict[str, Any]:
    kind = queue.kinds[0]
    facts: dict[str, Any] = {
        "nodes": queue.nodes,
        "cores": kind.cores,
        "threads_per_core": kind.threads_per_core if kind.threads_per_core > 1 else None,
        "sockets": kind.sockets,
        "memory_gib": _plain(kind.memory_gib),
        "gpu": _gpus(kind),
        "max_time": _clock(queue.max_time_s),
        "max_nodes": queue.max_nodes if queue.max_nodes and queue.max_nodes <= queue.nodes else None,
        "min_nodes": queue.min_nodes if 1 < queue.min_nodes <= queue.nodes else None,
    }
    known = {key: value for key, value in facts.items() if value is not None}
    if len(queue.kinds) > 1:
        known["note"] = "Other nodes here: " + "; ".join(_described(each) for each in queue.kinds[1:]) + "."
    return known


def _partition_comments(queue: Queue) -> Iterator[str]:
    yield "# processor, interconnect: look them up on one of its nodes"
    if queue.kinds[0].gpus:
        yield "# memory_gib of the GPUs, and their full name"
    if not queue.up:
        yield "# it was down when it was probed"


def _gpus(kind: Nodes) -> dict[str, Any] | None:
    if not kind.gpus:
        return None
    return {"count": kind.gpus, "model": kind.gpu_model or "GPU", "vendor": _vendor(kind.gpu_model)}


def _vendor(model: str) -> str:
    """Return the maker of a GPU that a scheduler names; a name that tells nothing is `other`."""
    folded = model.casefold()
    if re.search(r"nvidia|tesla|geforce|quadro|rtx|gtx|^[abhvptkl]\d{1,3}\w*$|^gh?b?\d{3}|1g\.|mig", folded):
        return "nvidia"
    if re.search(r"amd|radeon|instinct|^mi\d", folded):
        return "amd"
    return "intel" if re.search(r"intel|pvc|max", folded) else "other"


def _described(kind: Nodes) -> str:
    parts = [
        f"{kind.count} with",
        ", ".join(
            filter(
                None,
                [
                    f"{kind.cores} cores" if kind.cores else "",
                    f"{kind.memory_gib:g} GiB" if kind.memory_gib else "",
                    f"{kind.gpus} × {kind.gpu_model or 'GPU'}" if kind.gpus else "",
                ],
            )
        )
        or "nothing known",
    ]
    return " ".join(parts)


def _this_machine(result: ProbeResult) -> dict[str, Any]:
    processor = result.processor
    facts: dict[str, Any] = {
        "nodes": 1 if result.scheduler == "shell" else None,
        "cores": processor.cores,
        "threads_per_core": processor.threads_per_core if processor.threads_per_core > 1 else None,
        "sockets": processor.sockets,
        "processor": _line(processor.model) or None,
        "memory_gib": _plain(result.memory_gib),
        "gpu": _accelerators(result.accelerators),
        "interconnect": _line(" + ".join(_counted([str(each) for each in result.networks]))) or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _accelerators(accelerators: tuple[Accelerator, ...]) -> dict[str, Any] | None:
    if not accelerators:
        return None
    first = accelerators[0]
    same = [each for each in accelerators if each.model == first.model]
    facts = {"count": len(same), "model": _line(first.model), "memory_gib": _plain(first.memory_gib)}
    return {key: value for key, value in facts.items() if value is not None} | {"vendor": first.vendor}


def _hardware(result: ProbeResult) -> Iterator[str]:
    if result.processor.model:
        yield result.processor.model
    yield from _counted([each.model for each in result.accelerators])
    yield from _counted([str(each) for each in result.networks])


def _counted(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]


def _file_systems(result: ProbeResult) -> Iterator[str]:
    places: dict[str, Any] = {}
    for name, place in _places(result):
        size = format_size(place.size_bytes) if place.size_bytes else None
        purpose = _PURPOSES.get(place.name, "scratch")
        facts = {"path": place.name, "purpose": purpose, "kind": place.kind, "capacity": size}
        places[name] = {key: value for key, value in facts.items() if value}
    if places:
        yield "# purge, in words, where files are removed; a purpose is home, project, scratch, archive or node."
        yield dump({"file_systems": places}).rstrip()


def _places(result: ProbeResult) -> list[tuple[str, StoragePlace]]:
    named: dict[str, StoragePlace] = {}
    for place in result.places:
        name = place.name.lstrip("$/").replace("/", "-").lower()
        if not place.problem and NAME.fullmatch(name):
            named.setdefault(name, place)
    return list(named.items())


def _usable(result: ProbeResult) -> list[Queue]:
    return [queue for queue in result.queues if NAME.fullmatch(queue.name) and queue.nodes]


def _guesses(result: ProbeResult) -> Iterator[str]:
    """Yield the list of values that the probe could not see but a system file must have."""
    paths = [f"file_systems.{name}.purpose" for name, place in _places(result) if place.name not in _PURPOSES]
    paths += [f"partitions.{queue.name}.gpu" for queue in _usable(result) if queue.kinds[0].gpus]
    if paths:
        yield dump({"unverified": paths}).rstrip()


def _modules(result: ProbeResult) -> Iterator[str]:
    if result.modules.stages:
        yield dump({"stages": list(result.modules.stages)}).rstrip()
    yield dump({"module_system": result.modules.kind}).rstrip()
    if result.modules.problem:
        yield _comment(f"modules: {result.modules.problem}")


def _software(result: ProbeResult) -> Iterator[str]:
    count = len(set(result.modules.available) | set(result.modules.reachable))
    yield f"# {count} modules were seen. For each framework that works here, the lines that set it up:"
    yield "# software:"
    yield "#   ddp:"
    yield "#     lines: [module purge, module load GCC/13.3.0 CUDA/12.6.0 Python/3.12.3]"
    yield "#     launch: torchrun"
    if result.python:
        there = ", ".join(f"{name} {version}" for name, version in result.components.items())
        yield _comment(f"The default python3, {result.python}, has {there or 'none of the frameworks'}.")


def _launcher(result: ProbeResult) -> str:
    wanted = _LAUNCHERS.get(result.scheduler, ("mpirun",))
    there = [name for name in wanted if name in result.programs and not result.programs[name].problem]
    return there[0] if there else "none"


def _clock(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}" if days else f"{hours}:{minutes:02}:{rest:02}"


def _plain(number: float | None) -> float | int | None:
    return int(number) if number is not None and number == int(number) else number


def _line(text: str) -> str:
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


def _comment(text: str) -> str:
    return f"# {_line(text)}"


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.rstrip().splitlines()]
