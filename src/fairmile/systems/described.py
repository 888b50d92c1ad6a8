"""Systems in words and rows, the same on every window: a value that no source states has a question mark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairmile.base.units import format_duration
from fairmile.systems.model import Partition, SoftwareSet, System
from fairmile.systems.registry import SystemSummary

SYSTEM_COLUMNS = ["name", "centre", "scheduler", "partitions", "GPUs", "software", "compared", "newest source"]
PARTITION_COLUMNS = ["partition", "nodes", "cores", "memory", "GPUs", "longest", "most nodes", "network"]
FILE_SYSTEM_COLUMNS = ["file system", "path", "purpose", "kind", "purge"]
_GPU_OPTIONS = {
    "gpus-per-node": "GPUs by --gpus-per-node",
    "gres": "GPUs by --gres",
    "both": "GPUs by --gpus-per-node and --gres",
}


def system_rows(systems: Iterable[SystemSummary]) -> list[list[str]]:
    """Return a row for each system whose file can be used."""
    return [_row(each) for each in systems if not each.problem]


def _row(system: SystemSummary) -> list[str]:
    compared = f"retired {system.retired}" if system.retired else str(system.verified or "")
    lists = [", ".join(each) for each in (system.partitions, system.gpus, system.software)]
    return [system.name, system.centre, system.scheduler, *lists, compared, system.newest_source]


def facts(system: System, origin: str) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of a system as a whole."""
    rules, launch = system.scheduler, system.launch
    if system.retired:
        yield "retired", str(system.retired)
    if system.centre:
        yield "centre", ", ".join(filter(None, [system.centre, system.country]))
    if system.aliases:
        yield "also", ", ".join(system.aliases)
    if system.login:
        yield "login", marked(system, "login", system.login)
    needs = [word for word, needed in (("account", rules.needs_account), ("time", rules.needs_time)) if needed]
    asks = _GPU_OPTIONS.get(rules.gpu_option, "") if rules.dialect == "slurm" else ""
    words = [rules.dialect, rules.version, f"every job names {' and '.join(needs)}" if needs else "", asks]
    yield "scheduler", marked(system, "scheduler", "; ".join(filter(None, [*words, *rules.options])))
    suffix = f"first node's name + {launch.rendezvous_suffix!r}" if launch.rendezvous_suffix else ""
    start = [launch.launcher, f"--mpi={launch.mpi}" if launch.mpi else "", launch.binding]
    variables = [f"{name}={value}" for name, value in launch.environment.items()]
    yield (
        "launch",
        marked(system, "launch", "; ".join(filter(None, [" ".join(filter(None, start)), suffix, *variables]))),
    )
    if system.stages:
        yield "stages", ", ".join(system.stages)
    yield "architecture", system.architecture
    yield "from", origin


def marked(system: System, path: str, text: str) -> str:
    """Return a text, with a question mark where no source states the value at a path."""
    return f"{text} ?" if text and system.is_unverified(path) else text


def partition_rows(system: System) -> list[list[str]]:
    """Return a row for each partition; a star marks the default one."""
    return [_partition(system, name, each) for name, each in system.partitions.items()]


def _partition(system: System, name: str, each: Partition) -> list[str]:
    gpu = each.gpu
    memory = f"{gpu.memory_gib:g} GiB" if gpu and gpu.memory_gib else ""
    if not system.is_unverified(f"partitions.{name}.gpu.model"):
        memory = marked(system, f"partitions.{name}.gpu.memory_gib", memory)
    cells = {
        "nodes": f"{each.nodes:,}" if each.nodes else "",
        "cores": f"{each.cores}" + (f" × {each.threads_per_core}" if each.threads_per_core > 1 else "")
        if each.cores
        else "",
        "memory_gib": f"{each.memory_gib:g} GiB" if each.memory_gib else "",
        "gpu.model": " ".join(filter(None, [f"{gpu.count} × {gpu.model}", memory])) if gpu else "",
        "max_time": format_duration(each.max_time) if each.max_time else "",
        "max_nodes": f"{each.max_nodes:,}" if each.max_nodes else "",
        "interconnect": each.interconnect,
    }
    label = f"{name} *" if name == system.default_partition else name
    return [label, *(marked(system, f"partitions.{name}.{key}", text) for key, text in cells.items())]


def file_system_rows(system: System) -> list[list[str]]:
    """Return a row for each file system."""
    return [
        [name, *(marked(system, f"file_systems.{name}.{key}", getattr(each, key)) for key in FILE_SYSTEM_COLUMNS[1:])]
        for name, each in system.file_systems.items()
    ]


def resources(each: SoftwareSet) -> str:
    """Return how a job with this software is cut, in words."""
    parts = {
        "partition": each.partition,
        "tasks per node": each.tasks_per_node,
        "CPUs per task": each.cpus_per_task,
        "GPUs per node": each.gpus_per_node,
        "launch": each.launch,
    }
    return ", ".join(f"{label} {value}" for label, value in parts.items() if value not in (None, ""))
