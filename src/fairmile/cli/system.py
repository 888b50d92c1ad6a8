"""`fairmile system`: describe machines, and manage the files that do."""

from __future__ import annotations

from pathlib import Path

import click

from fairmile.base.errors import Problem
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.main import Entry
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.systems.described import (
    FILE_SYSTEM_COLUMNS,
    PARTITION_COLUMNS,
    SYSTEM_COLUMNS,
    facts,
    file_system_rows,
    marked,
    partition_rows,
    resources,
    system_rows,
)
from fairmile.systems.model import System
from fairmile.systems.registry import AddedSystem, FileChecks, RemovedSystem, SystemList
from fairmile.systems.system_details import SystemDetails
from fairmile.workspace import Workspace

_FILE = click.Path(path_type=Path)
ENTRIES = {
    "modules": Entry("fairmile.cli.system_modules", "modules", "Print the module lines of a framework on a system."),
    "eval": Entry("fairmile.cli.system_modules", "eval_", "Update the module blocks of a script."),
    "script": Entry("fairmile.cli.system_script", "script", "Print the batch script of a job on a system."),
    "probe": Entry("fairmile.cli.system_probe", "probe", "Describe this machine, or compare it with a known system."),
    "report": Entry("fairmile.cli.system_probe", "report", "Report what changed on a system, as text for an issue."),
    "usage": Entry("fairmile.cli.system_usage", "usage", "Show what all users' jobs on a system took."),
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
    out.table(SYSTEM_COLUMNS, system_rows(systems), shrink=["partitions", "GPUs", "software"])
    for each in systems:
        if each.problem:
            out.say(f"{each.name} cannot be used: {each.problem}")


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
    out.items(list(facts(system, details.origin)))
    _print_partitions(system, out)
    _print_file_systems(system, out)
    _print_software(system, out)
    _print_sources(system, out)


def _print_partitions(system: System, out: Out) -> None:
    out.line()
    out.table(PARTITION_COLUMNS, partition_rows(system), shrink=["network"])
    for name, each in system.partitions.items():
        named = [] if each.named else ["no partition"]
        options = [*named, *each.options, *([f"qos {each.qos}"] if each.qos else [])]
        if options:
            out.item(f"  {name}: ", marked(system, f"partitions.{name}.options", f"jobs name {', '.join(options)}"))
        if each.note:
            out.item(f"  {name}: ", marked(system, f"partitions.{name}.note", each.note))


def _print_file_systems(system: System, out: Out) -> None:
    if not system.file_systems:
        return
    out.line()
    out.table(FILE_SYSTEM_COLUMNS, file_system_rows(system), shrink=["purge"])


def _print_software(system: System, out: Out) -> None:
    for name, sets in system.software.items():
        for variant, each in system.variants(name).items():
            out.line()
            where = f" on {', '.join(each.partitions)}" if each.partitions else ""
            word = f"{name}:{variant}" if len(sets) > 1 else name
            age = f" ({each.age})" if each.age else ""
            out.heading(marked(system, f"software.{name}", f"{word}{where}") + age)
            if text := resources(each):
                out.line(f"  {text}")
            for line in each.lines:
                out.line(f"  {line}")
            for text in (*each.disagrees, each.note):
                if text:
                    out.item("  note: ", text)


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
