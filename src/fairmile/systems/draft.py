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


def draft(found: ProbeResult, name: str) -> str:
    """Return a system file for the machine that was probed; what was not found out is left out, and said."""
    parts = [
        f"# What `fairmile system probe` found on {found.host} on {found.day}.",
        "# Read it, fill in what the comments ask for, then: fairmile system check FILE; fairmile system add FILE",
        dump({"name": name}).rstrip(),
        "# The name that people know it by, its centre and country.",
        dump({"title": name}).rstrip(),
        *_identity(found),
        dump({"scheduler": _scheduler(found)}).rstrip(),
        *_scheduler_comments(found),
        *_partitions(found),
        *_file_systems(found),
        *_modules(found),
        *_software(found),
        dump({"launch": {"launcher": _launcher(found)}}).rstrip(),
        f"verified: {found.day}",
        "# Where what was filled in by hand comes from; paths of values that no source carries go into `unverified`.",
        "sources: []",
        *_guesses(found),
    ]
    return "\n".join(parts) + "\n"


def _identity(found: ProbeResult) -> Iterator[str]:
    architecture = found.slurm.architectures[0] if found.slurm and found.slurm.architectures else found.architecture
    if architecture:
        yield dump({"architecture": architecture}).rstrip()
    if found.login and _WORD.fullmatch(found.login):
        yield dump({"login": found.login}).rstrip()
    else:
        yield "# login: the host that ssh reaches"


def _scheduler(found: ProbeResult) -> dict[str, Any]:
    rules: dict[str, Any] = {"dialect": found.scheduler}
    if found.slurm is not None:
        rules["version"] = found.slurm.version
        rules["gpu_option"] = found.slurm.gpu_option
        rules["most_array_tasks"] = found.slurm.most_array_tasks
    rules["accounting"] = found.slurm.accounting if found.slurm else False if found.scheduler == "shell" else None
    return {key: value for key, value in rules.items() if value not in (None, "")}


def _scheduler_comments(found: ProbeResult) -> Iterator[str]:
    if found.scheduler == "slurm":
        yield "# needs_account and needs_time, in `scheduler`, where every job must name them."
    elif found.scheduler != "shell":
        yield f"# Queues of {found.scheduler} are not read yet: describe each under `partitions`."
    for name in ("scontrol", "bsub", "qsub", "flux"):
        program = found.programs.get(name)
        if program is not None and program.problem and found.scheduler == "shell":
            yield _comment(f"{name} is there but failed: {program.problem}")


def _partitions(found: ProbeResult) -> Iterator[str]:
    usable = _usable(found)
    if not usable:
        yield "default_partition: here"
        yield dump({"partitions": {"here": _this_machine(found)}}).rstrip()
        return
    default = next((queue.name for queue in usable if queue.default), "")
    if default:
        yield dump({"default_partition": default}).rstrip()
    yield "partitions:"
    for queue in usable:
        yield from _indented(dump({queue.name: _partition(queue)}))
        yield from (f"    {line}" for line in _partition_comments(queue))
    for queue in found.queues:
        if queue not in usable:
            yield _comment(f"left out: {queue.name}, which has no nodes or a name that cannot be used here")
    yield from (_comment(f"the machine that was probed has {each}") for each in _hardware(found))


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
    yield "# processor, interconnect: a look at one of its nodes tells them"
    if queue.kinds[0].gpus:
        yield "# memory_gib of the GPUs, and their full name"
    if not queue.up:
        yield "# it was not up when it was probed"


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
        or "nothing that is known",
    ]
    return " ".join(parts)


def _this_machine(found: ProbeResult) -> dict[str, Any]:
    processor = found.processor
    facts: dict[str, Any] = {
        "nodes": 1 if found.scheduler == "shell" else None,
        "cores": processor.cores,
        "threads_per_core": processor.threads_per_core if processor.threads_per_core > 1 else None,
        "sockets": processor.sockets,
        "processor": _line(processor.model) or None,
        "memory_gib": _plain(found.memory_gib),
        "gpu": _accelerators(found.accelerators),
        "interconnect": _line(" + ".join(_counted([str(each) for each in found.networks]))) or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _accelerators(found: tuple[Accelerator, ...]) -> dict[str, Any] | None:
    if not found:
        return None
    first = found[0]
    same = [each for each in found if each.model == first.model]
    facts = {"count": len(same), "model": _line(first.model), "memory_gib": _plain(first.memory_gib)}
    return {key: value for key, value in facts.items() if value is not None} | {"vendor": first.vendor}


def _hardware(found: ProbeResult) -> Iterator[str]:
    if found.processor.model:
        yield found.processor.model
    yield from _counted([each.model for each in found.accelerators])
    yield from _counted([str(each) for each in found.networks])


def _counted(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]


def _file_systems(found: ProbeResult) -> Iterator[str]:
    places: dict[str, Any] = {}
    for name, place in _places(found):
        size = format_size(place.size_bytes) if place.size_bytes else None
        purpose = _PURPOSES.get(place.name, "scratch")
        facts = {"path": place.name, "purpose": purpose, "kind": place.kind, "capacity": size}
        places[name] = {key: value for key, value in facts.items() if value}
    if places:
        yield "# purge, in words, where files are removed; a purpose is home, project, scratch, archive or node."
        yield dump({"file_systems": places}).rstrip()


def _places(found: ProbeResult) -> list[tuple[str, StoragePlace]]:
    named: dict[str, StoragePlace] = {}
    for place in found.places:
        name = place.name.lstrip("$/").replace("/", "-").lower()
        if not place.problem and NAME.fullmatch(name):
            named.setdefault(name, place)
    return list(named.items())


def _usable(found: ProbeResult) -> list[Queue]:
    return [queue for queue in found.queues if NAME.fullmatch(queue.name) and queue.nodes]


def _guesses(found: ProbeResult) -> Iterator[str]:
    """Yield the list of values that the probe could not see but a system file must have."""
    paths = [f"file_systems.{name}.purpose" for name, place in _places(found) if place.name not in _PURPOSES]
    paths += [f"partitions.{queue.name}.gpu" for queue in _usable(found) if queue.kinds[0].gpus]
    if paths:
        yield dump({"unverified": paths}).rstrip()


def _modules(found: ProbeResult) -> Iterator[str]:
    if found.modules.stages:
        yield dump({"stages": list(found.modules.stages)}).rstrip()
    yield dump({"module_system": found.modules.kind}).rstrip()
    if found.modules.problem:
        yield _comment(f"modules: {found.modules.problem}")


def _software(found: ProbeResult) -> Iterator[str]:
    count = len(set(found.modules.available) | set(found.modules.reachable))
    yield f"# {count} modules were seen. For each framework that works here, the lines that set it up:"
    yield "# software:"
    yield "#   ddp:"
    yield "#     lines: [module purge, module load GCC/13.3.0 CUDA/12.6.0 Python/3.12.3]"
    yield "#     launch: torchrun"
    if found.python:
        there = ", ".join(f"{name} {version}" for name, version in found.components.items())
        yield _comment(f"The default python3, {found.python}, has {there or 'none of the frameworks'}.")


def _launcher(found: ProbeResult) -> str:
    wanted = _LAUNCHERS.get(found.scheduler, ("mpirun",))
    there = [name for name in wanted if name in found.programs and not found.programs[name].problem]
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
