"""`fairmile system`: what is known of machines, and how their files are looked after."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import click

from fairmile.base.errors import FairmileError, InvalidDocument, Problem
from fairmile.base.units import format_duration
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.main import Entry
from fairmile.cli.out import Out, count, json_option
from fairmile.systems.model import Partition, SoftwareSet, System
from fairmile.systems.registry import Listed, Systems, add_system, check_file, remove_system
from fairmile.workspace import Workspace

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
_FILE = click.Path(path_type=Path)
_GPU_OPTIONS = {
    "gpus-per-node": "GPUs by --gpus-per-node",
    "gres": "GPUs by --gres",
    "both": "GPUs by --gpus-per-node and --gres",
}

ENTRIES = {
    "modules": Entry("fairmile.cli.system_modules", "modules", "Print the module lines of a framework on a system."),
    "eval": Entry("fairmile.cli.system_modules", "eval_", "Bring the module blocks of a script up to date."),
    "script": Entry("fairmile.cli.system_script", "script", "Print the batch script that is right on a system."),
    "probe": Entry("fairmile.cli.system_probe", "probe", "Describe this machine, and compare it with what is known."),
    "certify": Entry("fairmile.cli.system_certify", "certify", "Run a short suite on a system and keep the record."),
}


@click.group(cls=LazyGroup, entries=ENTRIES)
def system() -> None:
    """Know the machines: partitions, modules, limits, scripts.

    NAME is a name or an alias that `fairmile system ls` shows. Your own machines are
    files in your folder of systems; `fairmile system add FILE` puts one there.
    """


@system.command()
@json_option
def ls(out: Out) -> int:
    """List the systems that are known.

    \b
    Example:
      fairmile system ls
    """
    rows = Workspace.open().systems.registry.rows()
    if out.as_json:
        out.data({"systems": [_plain(dataclasses.asdict(row)) for row in rows]})
        return 0
    columns = ["name", "centre", "scheduler", "partitions", "GPUs", "software", "compared", "newest source"]
    out.table(columns, [_listed(row) for row in rows if not row.problem], shrink=["partitions", "GPUs", "software"])
    for row in rows:
        if row.problem:
            out.say(f"{row.name} cannot be used: {row.problem}")
    return 0


def _listed(row: Listed) -> list[str]:
    compared = f"retired {row.retired}" if row.retired else str(row.verified or "")
    lists = (row.partitions, row.gpus, row.software)
    return [row.name, row.centre, row.scheduler, *(", ".join(each) for each in lists), compared, row.newest_source]


def _plain(value: Any) -> Any:
    """Return data with its dates as texts."""
    return {key: str(each) if isinstance(each, date) else each for key, each in value.items()}


@system.command()
@click.argument("name")
@json_option
def show(name: str, out: Out) -> int:
    """Describe a system: partitions, file systems, software, how programs start, what is not verified.

    A value with a question mark is one that none of the file's sources carries.

    \b
    Example:
      fairmile system show jureca
    """
    registry = Workspace.open().systems.registry
    found = registry[name]
    if out.as_json:
        out.data({**found.model_dump(mode="json"), "origin": registry.origin(name)})
        return 0
    out.heading(f"{found.title} ({found.name})")
    if found.description:
        out.paragraph(found.description)
    out.items(list(_facts(found, registry.origin(name))))
    _render_partitions(found, out)
    _render_file_systems(found, out)
    _render_software(found, out)
    _render_trust(found, out)
    return 0


def _facts(found: System, origin: str) -> Iterator[tuple[str, str]]:
    rules, launch = found.scheduler, found.launch
    if found.retired:
        yield "retired", str(found.retired)
    if found.centre:
        yield "centre", ", ".join(filter(None, [found.centre, found.country]))
    if found.aliases:
        yield "also", ", ".join(found.aliases)
    if found.login:
        yield "login", _marked(found, "login", found.login)
    needs = [word for word, needed in (("account", rules.needs_account), ("time", rules.needs_time)) if needed]
    asks = _GPU_OPTIONS.get(rules.gpu_option, "") if rules.dialect == "slurm" else ""
    told = [rules.dialect, rules.version, f"every job names {' and '.join(needs)}" if needs else "", asks]
    yield "scheduler", _marked(found, "scheduler", "; ".join(filter(None, [*told, *rules.options])))
    suffix = f"first node's name + {launch.rendezvous_suffix!r}" if launch.rendezvous_suffix else ""
    words = [launch.launcher, f"--mpi={launch.mpi}" if launch.mpi else "", launch.binding]
    variables = [f"{name}={value}" for name, value in launch.environment.items()]
    yield (
        "launch",
        _marked(found, "launch", "; ".join(filter(None, [" ".join(filter(None, words)), suffix, *variables]))),
    )
    if found.stages:
        yield "stages", ", ".join(found.stages)
    yield "architecture", found.architecture
    yield "from", origin


def _marked(found: System, path: str, text: str) -> str:
    return f"{text} ?" if text and found.is_unverified(path) else text


def _render_partitions(found: System, out: Out) -> None:
    out.line()
    columns = ["partition", "nodes", "cores", "memory", "GPUs", "longest", "most nodes", "network"]
    out.table(columns, [_partition(found, name, each) for name, each in found.partitions.items()], shrink=["network"])
    for name, each in found.partitions.items():
        named = [] if each.named else ["no partition"]
        asked = [*named, *each.options, *([f"qos {each.qos}"] if each.qos else [])]
        if asked:
            out.item(f"  {name}: ", _marked(found, f"partitions.{name}.options", f"jobs name {', '.join(asked)}"))
        if each.note:
            out.item(f"  {name}: ", _marked(found, f"partitions.{name}.note", each.note))


def _partition(found: System, name: str, each: Partition) -> list[str]:
    gpu = each.gpu
    memory = f"{gpu.memory_gib:g} GiB" if gpu and gpu.memory_gib else ""
    if not found.is_unverified(f"partitions.{name}.gpu.model"):
        memory = _marked(found, f"partitions.{name}.gpu.memory_gib", memory)
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
    label = f"{name} *" if name == found.default_partition else name
    return [label, *(_marked(found, f"partitions.{name}.{key}", text) for key, text in cells.items())]


def _render_file_systems(found: System, out: Out) -> None:
    if not found.file_systems:
        return
    out.line()
    columns = ["file system", "path", "purpose", "kind", "purge"]
    rows = [
        [name, *(_marked(found, f"file_systems.{name}.{key}", getattr(each, key)) for key in columns[1:])]
        for name, each in found.file_systems.items()
    ]
    out.table(columns, rows, shrink=["purge"])


def _render_software(found: System, out: Out) -> None:
    for name, sets in found.software.items():
        for number, each in enumerate(sets):
            out.line()
            where = f" on {', '.join(each.partitions)}" if each.partitions else ""
            variant = f" (variant {number + 1})" if number else ""
            out.heading(_marked(found, f"software.{name}", f"{name}{variant}{where}"))
            cut = _cut(each)
            if cut:
                out.line(f"  {cut}")
            for line in each.lines:
                out.line(f"  {line}")
            for text in (*each.disagrees, each.note):
                if text:
                    out.item("  note: ", text)


def _cut(each: SoftwareSet) -> str:
    parts = {
        "partition": each.partition,
        "tasks per node": each.tasks_per_node,
        "CPUs per task": each.cpus_per_task,
        "GPUs per node": each.gpus_per_node,
        "launch": each.launch,
    }
    return ", ".join(f"{label} {value}" for label, value in parts.items() if value not in (None, ""))


def _render_trust(found: System, out: Out) -> None:
    out.line()
    told = found.compared if found.verified else "never"
    out.item("compared    ", told.removeprefix("compared "))
    if found.unverified:
        out.item("unverified  ", ", ".join(found.unverified))
    for source in found.sources:
        out.item("source      ", source)


@system.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@json_option
def check(files: tuple[Path, ...], out: Out) -> int:
    """Check files that describe systems; change nothing.

    Every problem is told with file, line, field, what was expected and what to do.
    What is only doubtful, a file that nobody verified for a year perhaps, is told
    too and leaves the file valid.

    \b
    Example:
      fairmile system check my-cluster.yaml
    """
    verdicts = {str(file): _checked(file) for file in files}
    bad = [file for file, found in verdicts.items() if _errors(found)]
    if out.as_json:
        rows = [{"file": file, "ok": file not in bad, "problems": _told(found)} for file, found in verdicts.items()]
        out.data({"files": rows})
        return 2 if bad else 0
    for file, found in verdicts.items():
        for problem in found:
            _render_problem(problem, out)
        errors = len(_errors(found))
        numbers = [count(many, noun) for many, noun in ((errors, "error"), (len(found) - errors, "warning")) if many]
        out.line(", ".join([f"{file}: {'not valid' if errors else 'valid'}", *numbers]))
    return 2 if bad else 0


def _checked(file: Path) -> list[Problem]:
    """Return what is wrong with a file; one that cannot be read has that problem alone, and hides no other file's."""
    try:
        return check_file(file)
    except InvalidDocument as error:
        return list(error.problems)
    except FairmileError as error:
        return [Problem(str(error), hint=error.hint or "")]


def _errors(found: list[Problem]) -> list[Problem]:
    return [problem for problem in found if problem.severity == "error"]


def _told(found: list[Problem]) -> list[dict[str, Any]]:
    keys = ("severity", "field", "line", "message", "hint")
    return [{key: getattr(problem, key) for key in keys} for problem in found]


def _render_problem(problem: Problem, out: Out) -> None:
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
@click.option("--replace", is_flag=True, help="Put it in the place of your file of the same name.")
@_DRY_RUN
@json_option
def add(file: Path, replace: bool, dry_run: bool, out: Out) -> int:
    """Copy a checked file into your own folder of systems.

    A system of yours takes the place of a built-in one of the same name.

    \b
    Example:
      fairmile system add my-cluster.yaml
    """
    added, target = add_system(file, Workspace.open().home / "systems", replace=replace, dry_run=dry_run)
    hides = added.name in Systems().names()
    if out.as_json:
        facts = {"name": added.name, "file": str(target), "hides_built_in": hides, "dry_run": dry_run}
        out.data({"added": facts})
        return 0
    out.line(f"{'would add' if dry_run else 'added   '} {added.name}: {target}")
    if hides:
        out.say(f"it takes the place of the built-in {added.name}")
    return 0


@system.command()
@click.argument("name")
@_DRY_RUN
@json_option
def rm(name: str, dry_run: bool, out: Out) -> int:
    """Remove one of your own systems, by name or alias; those built in stay.

    \b
    Example:
      fairmile system rm my-cluster
    """
    workspace = Workspace.open()
    gone = remove_system(name, workspace.home / "systems", workspace.systems.registry, dry_run=dry_run)
    if out.as_json:
        out.data({"removed": gone.stem, "file": str(gone), "dry_run": dry_run})
    else:
        out.line(f"{'would remove' if dry_run else 'removed '} {gone.stem}: {gone}")
    return 0
