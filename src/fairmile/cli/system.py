"""`fairmile system`: describe machines, and manage the files that do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from fairmile.base.errors import Problem
from fairmile.base.units import format_duration
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.main import Entry
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.systems.model import Partition, SoftwareSet, System
from fairmile.systems.registry import AddedSystem, FileChecks, RemovedSystem, SystemList, SystemSummary
from fairmile.systems.system_details import SystemDetails
from fairmile.workspace import Workspace

_FILE = click.Path(path_type=Path)
_GPU_OPTIONS = {
    "gpus-per-node": "GPUs by --gpus-per-node",
    "gres": "GPUs by --gres",
    "both": "GPUs by --gpus-per-node and --gres",
}

ENTRIES = {
    "modules": Entry("fairmile.cli.system_modules", "modules", "Print the module lines of a framework on a system."),
    "eval": Entry("fairmile.cli.system_modules", "eval_", "Update the module blocks of a script."),
    "script": Entry("fairmile.cli.system_script", "script", "Print the batch script of a job on a system."),
    "probe": Entry("fairmile.cli.system_probe", "probe", "Describe this machine, or compare it with a known system."),
    "certify": Entry("fairmile.cli.system_certify", "certify", "Run a short test suite on a system; keep the record."),
}


@click.group(cls=LazyGroup, entries=ENTRIES)
def system() -> None:
    """Describe machines: partitions, modules, limits, job scripts.

    NAME is a name or an alias from `fairmile system ls`. To add your own machine,
    describe it in a file and run `fairmile system add FILE`.
    """


@system.command()
@json_output(SystemList)
def ls(out: Out) -> int:
    """List known systems.

    \b
    Example:
      fairmile system ls
    """
    out.show(Workspace.open().systems.ls(), lambda systems: _print_list(out, systems))
    return 0


def _print_list(out: Out, systems: SystemList) -> None:
    columns = ["name", "centre", "scheduler", "partitions", "GPUs", "software", "compared", "newest source"]
    rows = [_row(each) for each in systems if not each.problem]
    out.table(columns, rows, shrink=["partitions", "GPUs", "software"])
    for each in systems:
        if each.problem:
            out.say(f"{each.name} cannot be used: {each.problem}")


def _row(system: SystemSummary) -> list[str]:
    compared = f"retired {system.retired}" if system.retired else str(system.verified or "")
    lists = [", ".join(each) for each in (system.partitions, system.gpus, system.software)]
    return [system.name, system.centre, system.scheduler, *lists, compared, system.newest_source]


@system.command()
@click.argument("name")
@json_output(SystemDetails)
def show(name: str, out: Out) -> int:
    """Describe a system: partitions, file systems, software, launchers, unverified values.

    A question mark follows a value that none of the file's sources states.

    \b
    Example:
      fairmile system show jureca
    """
    out.show(Workspace.open().systems.show(name), lambda details: _print_details(out, details))
    return 0


def _print_details(out: Out, details: SystemDetails) -> None:
    system = details.system
    out.heading(f"{system.title} ({system.name})")
    if system.description:
        out.paragraph(system.description)
    out.items(list(_facts(system, details.origin)))
    _print_partitions(system, out)
    _print_file_systems(system, out)
    _print_software(system, out)
    _print_sources(system, out)


def _facts(system: System, origin: str) -> Iterator[tuple[str, str]]:
    rules, launch = system.scheduler, system.launch
    if system.retired:
        yield "retired", str(system.retired)
    if system.centre:
        yield "centre", ", ".join(filter(None, [system.centre, system.country]))
    if system.aliases:
        yield "also", ", ".join(system.aliases)
    if system.login:
        yield "login", _marked(system, "login", system.login)
    needs = [word for word, needed in (("account", rules.needs_account), ("time", rules.needs_time)) if needed]
    asks = _GPU_OPTIONS.get(rules.gpu_option, "") if rules.dialect == "slurm" else ""
    words = [rules.dialect, rules.version, f"every job names {' and '.join(needs)}" if needs else "", asks]
    yield "scheduler", _marked(system, "scheduler", "; ".join(filter(None, [*words, *rules.options])))
    suffix = f"first node's name + {launch.rendezvous_suffix!r}" if launch.rendezvous_suffix else ""
    start = [launch.launcher, f"--mpi={launch.mpi}" if launch.mpi else "", launch.binding]
    variables = [f"{name}={value}" for name, value in launch.environment.items()]
    yield (
        "launch",
        _marked(system, "launch", "; ".join(filter(None, [" ".join(filter(None, start)), suffix, *variables]))),
    )
    if system.stages:
        yield "stages", ", ".join(system.stages)
    yield "architecture", system.architecture
    yield "from", origin


def _marked(system: System, path: str, text: str) -> str:
    return f"{text} ?" if text and system.is_unverified(path) else text


def _print_partitions(system: System, out: Out) -> None:
    out.line()
    columns = ["partition", "nodes", "cores", "memory", "GPUs", "longest", "most nodes", "network"]
    out.table(columns, [_partition(system, name, each) for name, each in system.partitions.items()], shrink=["network"])
    for name, each in system.partitions.items():
        named = [] if each.named else ["no partition"]
        options = [*named, *each.options, *([f"qos {each.qos}"] if each.qos else [])]
        if options:
            out.item(f"  {name}: ", _marked(system, f"partitions.{name}.options", f"jobs name {', '.join(options)}"))
        if each.note:
            out.item(f"  {name}: ", _marked(system, f"partitions.{name}.note", each.note))


def _partition(system: System, name: str, each: Partition) -> list[str]:
    gpu = each.gpu
    memory = f"{gpu.memory_gib:g} GiB" if gpu and gpu.memory_gib else ""
    if not system.is_unverified(f"partitions.{name}.gpu.model"):
        memory = _marked(system, f"partitions.{name}.gpu.memory_gib", memory)
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
    return [label, *(_marked(system, f"partitions.{name}.{key}", text) for key, text in cells.items())]


def _print_file_systems(system: System, out: Out) -> None:
    if not system.file_systems:
        return
    out.line()
    columns = ["file system", "path", "purpose", "kind", "purge"]
    rows = [
        [name, *(_marked(system, f"file_systems.{name}.{key}", getattr(each, key)) for key in columns[1:])]
        for name, each in system.file_systems.items()
    ]
    out.table(columns, rows, shrink=["purge"])


def _print_software(system: System, out: Out) -> None:
    for name, sets in system.software.items():
        for number, each in enumerate(sets):
            out.line()
            where = f" on {', '.join(each.partitions)}" if each.partitions else ""
            variant = f" (variant {number + 1})" if number else ""
            out.heading(_marked(system, f"software.{name}", f"{name}{variant}{where}"))
            resources = _resources(each)
            if resources:
                out.line(f"  {resources}")
            for line in each.lines:
                out.line(f"  {line}")
            for text in (*each.disagrees, each.note):
                if text:
                    out.item("  note: ", text)


def _resources(each: SoftwareSet) -> str:
    parts = {
        "partition": each.partition,
        "tasks per node": each.tasks_per_node,
        "CPUs per task": each.cpus_per_task,
        "GPUs per node": each.gpus_per_node,
        "launch": each.launch,
    }
    return ", ".join(f"{label} {value}" for label, value in parts.items() if value not in (None, ""))


def _print_sources(system: System, out: Out) -> None:
    out.line()
    compared = system.compared if system.verified else "never"
    out.item("compared    ", compared.removeprefix("compared "))
    if system.unverified:
        out.item("unverified  ", ", ".join(system.unverified))
    for source in system.sources:
        out.item("source      ", source)


@system.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@json_output(FileChecks)
def check(files: tuple[Path, ...], out: Out) -> int:
    """Check files that describe systems; change nothing.

    Prints each problem with its file, line and field, what was expected and what to
    do. Warnings, such as a file that nobody verified for a year, leave the file valid.
    The exit code is 2 if a file is not valid.

    \b
    Example:
      fairmile system check my-cluster.yaml
    """
    checks = Workspace.open().systems.check(files)
    out.show(checks, lambda checks: _print_checks(out, checks))
    return 0 if checks.ok else 2


def _print_checks(out: Out, checks: FileChecks) -> None:
    for each in checks:
        for problem in each.problems:
            _print_problem(problem, out)
        errors = len(each.errors)
        warnings = len(each.problems) - errors
        numbers = [count(many, noun) for many, noun in ((errors, "error"), (warnings, "warning")) if many]
        out.line(", ".join([f"{each.file}: {'valid' if each.ok else 'not valid'}", *numbers]))


def _print_problem(problem: Problem, out: Out) -> None:
    # What makes a file invalid is the answer; what is only doubtful is talk.
    if problem.severity == "error":
        out.item(f"{out.colour('error', 'red')}: ", str(problem))
        if problem.hint:
            out.item("  hint: ", problem.hint)
        return
    out.say(f"warning: {problem}")
    if problem.hint:
        out.say(f"  hint: {problem.hint}")


@system.command()
@click.argument("file", type=_FILE)
@click.option("--replace", is_flag=True, help="Replace your file of the same name.")
@DRY_RUN
@json_output(AddedSystem)
def add(file: Path, replace: bool, dry_run: bool, out: Out) -> int:
    """Check a file and copy it into your folder of systems.

    Your system replaces a built-in one of the same name.

    \b
    Example:
      fairmile system add my-cluster.yaml
    """
    added = Workspace.open().systems.add(file, replace=replace, dry_run=dry_run)
    out.show(added, lambda added: _print_added(out, added))
    return 0


def _print_added(out: Out, added: AddedSystem) -> None:
    out.line(f"{'would add' if added.dry_run else 'added   '} {added.name}: {added.file}")
    if added.hides_built_in:
        out.say(f"it replaces the built-in {added.name}")


@system.command()
@click.argument("name")
@DRY_RUN
@json_output(RemovedSystem)
def rm(name: str, dry_run: bool, out: Out) -> int:
    """Remove one of your own systems, by name or alias. Built-in systems stay.

    \b
    Example:
      fairmile system rm my-cluster
    """
    removed = Workspace.open().systems.rm(name, dry_run=dry_run)
    out.show(removed, lambda removed: _print_removed(out, removed))
    return 0


def _print_removed(out: Out, removed: RemovedSystem) -> None:
    out.line(f"{'would remove' if removed.dry_run else 'removed '} {removed.name}: {removed.file}")
