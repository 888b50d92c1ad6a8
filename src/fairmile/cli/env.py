"""`fairmile env`: build, check, share and use software environments."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from fairmile.base.errors import Integrity
from fairmile.base.units import format_duration, format_size, parse_time
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.notices import notifies
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output
from fairmile.envs.containers import Packaged
from fairmile.envs.envs import Command, EnvPlan, Removals, RemovedEnvironment
from fairmile.envs.exports import FORMATS
from fairmile.envs.kernel import InstalledKernel
from fairmile.envs.records import Environment, EnvironmentDetails, EnvironmentList
from fairmile.envs.sealing import RepairedEnvironment, VerifiedEnvironment
from fairmile.workspace import Workspace

_SHORT = 16
_COLOURS = {"ready": "green", "failed": "red", "building": "yellow", "unfinished": "yellow"}


@click.group(cls=LazyGroup)
def env() -> None:
    """Build, check and use software environments.

    A YAML file describes an environment: Python packages, conda packages, modules,
    source builds, a container, variables, checks.

    \b
    The shortest one:
      python: {packages: [numpy]}

    Each environment has its own folder, named by the digest of all its inputs, so
    variants coexist. ENV is the file, the name, or the start of the digest. If
    several environments share a name, the one built last is used.
    """


@env.command()
@json_output(EnvironmentList)
def ls(out: Out) -> int:
    """List environments, including unfinished ones."""
    out.show(Workspace.open().envs.ls(), lambda environments: _print_list(out, environments))
    return 0


def _print_list(out: Out, environments: EnvironmentList) -> None:
    columns = ["name", "digest", "state", "size", "last use", "steps"]
    out.table(columns, [_row(each, out) for each in environments], shrink=["steps"])
    if not environments:
        out.say("no environments yet")
        out.hint("`fairmile env build FILE` builds one")


def _row(each: Environment, out: Out) -> list[str]:
    size = format_size(each.record["size_bytes"]) if each.ready else ""
    used = datetime.fromtimestamp(each.used, UTC).strftime("%Y-%m-%d")
    steps = ", ".join(step["name"] for step in each.record.get("steps", ()))
    state = out.colour(each.state, _COLOURS.get(each.state, "dim"))
    return [each.name, each.digest[:_SHORT], state, size, used, steps]


@env.command()
@click.argument("environment", metavar="ENV")
@json_output(EnvironmentDetails)
def show(environment: str, out: Out) -> int:
    """Describe an environment: packages, build, output of its checks.

    \b
    Example:
      fairmile env show tides
    """
    out.show(Workspace.open().envs.show(environment), lambda details: _print_details(out, details))
    return 0


def _print_details(out: Out, environment: EnvironmentDetails) -> None:
    out.heading(environment.name)
    pairs = [("digest", environment.digest), ("state", environment.state), ("folder", str(environment.folder))]
    record = environment.record
    if record:
        pairs.append(("built", f"{record['ended']} by {record['who']} on {record['machine']}, {record['platform']}"))
        pairs.append(("size", format_size(record["size_bytes"])))
        pairs += [(step["name"], f"{step['words']} ({step['duration_s']:.1f} s)") for step in record["steps"]]
        pairs += [(name, value) for name, value in environment.spec.get("variables", {}).items()]
    out.items(pairs)
    _print_packages(environment, out)
    for check in record.get("checks", ()):
        run = check["run"] if isinstance(check["run"], str) else " ".join(check["run"])
        out.line(f"check {run}")
        for line in check["output"].splitlines():
            out.line(f"    {line}")
    if environment.failure:
        out.say(f"the last build failed at {environment.failure['at']}:\n{environment.failure['message']}")
        out.hint(f"the log is {environment.folder / 'log.txt'}")


def _print_packages(environment: Environment, out: Out) -> None:
    for part in ("python", "conda"):
        packages = environment.lock.get(part, {}).get("packages", ())
        if packages:
            rows = [[each["name"], each["version"], each.get("from", each.get("build", ""))] for each in packages]
            out.table([f"{part} package", "version", "from"], rows, shrink=["from"])


@env.command()
@click.argument("environment", metavar="ENV")
@click.option(
    "--wait",
    callback=lambda _context, _parameter, text: parse_time(text),
    default="1d",
    metavar="DURATION",
    help="Maximum time to wait for another process that builds it.  [default: 1d]",
)
@DRY_RUN
@json_output(Environment, EnvPlan)
@notifies
def build(environment: str, wait: float, dry_run: bool, out: Out) -> int:
    """Build an environment, or its missing parts, and check it.

    If several processes request it, one builds and the others wait. Finished steps of
    an interrupted build are kept. A finished environment is read-only.

    \b
    Example:
      fairmile env build tides.yaml --dry-run
    """
    envs = Workspace.open().envs
    if dry_run:
        out.show(envs.plan(environment), lambda plan: _print_plan(out, plan))
        return 0
    out.show(envs.build(environment, on_line=_progress(out), wait_s=wait), lambda built: _print_built(out, built))
    return 0


def _progress(out: Out) -> Callable[[str], None]:
    return (lambda _: None) if out.as_json else out.say


def _print_built(out: Out, environment: Environment) -> None:
    out.line(f"ready {environment.name} {environment.digest[:_SHORT]}  {environment.prefix}")
    out.hint(f"`fairmile env shell {environment.name}` starts a shell in it")


def _print_plan(out: Out, plan: EnvPlan) -> None:
    where = [("digest", plan.digest), ("folder", str(plan.folder)), ("state", plan.state)] if plan.digest else []
    out.items([("name", plan.name), *where])
    for each in plan.steps:
        out.line(f"{'done      ' if each.done else 'would do  '}{each.name}: {each.words}")
    for check in plan.checks:
        out.line(f"then check  {check}")
    for note in plan.notes:
        out.say(f"note: {note}")
    if plan.trouble:
        out.say(plan.trouble)
    if plan.builder:
        out.say(f"{plan.builder} is building it")


@env.command()
@click.argument("environment", metavar="ENV")
@json_output(VerifiedEnvironment)
def verify(environment: str, out: Out) -> int:
    """Compare the installed files with those that were built.

    Lists files that were changed, removed or added since, and then exits with 4. Byte code of
    Python is left out.

    \b
    Example:
      fairmile env verify tides
    """
    verified = Workspace.open().envs.verify(environment)
    out.show(verified, lambda verified: _print_verified(out, verified))
    return 0 if verified.ok else Integrity.exit_code


def _print_verified(out: Out, verified: VerifiedEnvironment) -> None:
    for word, paths in (("changed", verified.changed), ("missing", verified.missing), ("added", verified.added)):
        for path in paths:
            out.line(f"{word:<7}  {path}")
    name, files = verified.environment.name, count(verified.files, "file")
    out.line(f"{name}: {files} as built, tree {verified.tree[:_SHORT]}" if verified.ok else f"{name}: damaged")
    if not verified.ok:
        out.hint(f"`fairmile env repair {name}` builds it again")


@env.command()
@click.argument("environment", metavar="ENV")
@DRY_RUN
@json_output(RepairedEnvironment)
@notifies
def repair(environment: str, dry_run: bool, out: Out) -> int:
    """Build an environment again if its installed files differ from those that were built.

    \b
    Example:
      fairmile env repair tides --dry-run
    """
    repaired = Workspace.open().envs.repair(environment, on_line=_progress(out), dry_run=dry_run)
    out.show(repaired, lambda repaired: _print_repaired(out, repaired))
    return 0


def _print_repaired(out: Out, repaired: RepairedEnvironment) -> None:
    verified = repaired.verified
    if verified.ok:
        out.line(f"{verified.environment.name}: nothing to repair")
        return
    differing = count(len(verified.changed) + len(verified.missing) + len(verified.added), "file")
    verb = "rebuilt" if repaired.rebuilt else "would rebuild"
    out.line(f"{verb} {verified.environment.name}: {differing} differed")


@env.command()
@click.argument("environment", metavar="ENV")
@click.option("--force", is_flag=True, help="Remove it even while it is in use.")
@DRY_RUN
@json_output(RemovedEnvironment)
def rm(environment: str, force: bool, dry_run: bool, out: Out) -> int:
    """Remove an environment, unless it is in use.

    \b
    Example:
      fairmile env rm tides --dry-run
    """
    removed = Workspace.open().envs.rm(environment, force=force, dry_run=dry_run)
    out.show(removed, lambda removed: _print_removed(out, removed))
    return 0


def _print_removed(out: Out, removed: RemovedEnvironment) -> None:
    each, verb = removed.environment, "would remove" if removed.dry_run else "removed"
    out.line(f"{verb} {each.name} {each.digest[:_SHORT]}  {each.folder}")


@env.command()
@click.option(
    "--older-than",
    callback=lambda _context, _parameter, text: parse_time(text),
    default="30d",
    metavar="DURATION",
    help="Remove environments not used for this long.  [default: 30d]",
)
@DRY_RUN
@json_output(Removals)
def gc(older_than: float, dry_run: bool, out: Out) -> int:
    """Remove unused environments and abandoned builds.

    \b
    Example:
      fairmile env gc --dry-run
    """
    removals = Workspace.open().envs.gc(older_than_s=older_than, dry_run=dry_run)
    out.show(removals, lambda removals: _print_removals(out, removals, older_than))
    return 0


def _print_removals(out: Out, removals: Removals, older_than_s: float) -> None:
    verb = "would remove" if removals.dry_run else "removed"
    for each in removals:
        out.line(f"{verb} {each.environment.name} {each.environment.digest[:_SHORT]}: {each.reason}")
    if not removals:
        out.line(f"nothing to remove: no environment was unused for {format_duration(older_than_s)}")
        return
    size = sum(each.environment.record.get("size_bytes", 0) for each in removals)
    out.line(f"{count(len(removals), 'environment')}, {format_size(size)}")


@env.command()
@click.argument("environment", metavar="ENV")
@click.argument("argv", metavar="[-- PROGRAM...]", nargs=-1, type=click.UNPROCESSED)
@DRY_RUN
@json_output(Command)
def shell(environment: str, argv: tuple[str, ...], dry_run: bool, out: Out) -> int:
    """Start a shell in an environment, or run one program in it.

    With --json or --dry-run, print the command and start nothing.

    \b
    Example:
      fairmile env shell tides --dry-run -- python train.py
    """
    envs = Workspace.open().envs
    command = envs.shell(environment, argv)
    if out.as_json or dry_run:
        out.show(command, lambda command: out.line(shlex.join(command.argv)))
        return 0
    envs.note_use(environment)
    # A shell needs the terminal itself, so it takes this process's place.
    os.execvpe(command.argv[0], command.argv, {**os.environ, **command.env})


@env.command()
@click.argument("environment", metavar="ENV")
@click.option(
    "--format", "form", default="yaml", metavar="FORM", help=f"Format: {', '.join(FORMATS)}.  [default: yaml]"
)
@click.option("--to", "folder", metavar="FOLDER", help="Write the files to this folder instead of printing the text.")
@click.option("--base", default="", metavar="IMAGE", help="Base image for the formats dockerfile and apptainer.")
@DRY_RUN
@json_output(Packaged)
def export(environment: str, form: str, folder: str | None, base: str, dry_run: bool, out: Out) -> int:
    """Print an environment in the format of another tool, with every version as built.

    With the name of a shell as --format, prints the lines that activate it in a script.

    \b
    Example:
      fairmile env export tides --format bash
    """
    exported = Workspace.open().envs.export(environment, form, base=base, to=folder, dry_run=dry_run)
    for note in exported.notes:
        out.say(f"note: {note}")
    out.show(exported, lambda exported: _print_export(out, exported, dry_run))
    return 0


def _print_export(out: Out, exported: Packaged, dry_run: bool) -> None:
    if exported.folder is None:
        out.document(exported.texts[exported.definition])
        return
    for name in exported.files:
        out.line(f"{'would write' if dry_run else 'wrote'} {Path(exported.folder) / name}")


@env.command()
@click.argument("environment", metavar="ENV")
@click.option("--system", default="", metavar="NAME", help="Machine name to show beside the environment's name.")
@DRY_RUN
@json_output(InstalledKernel)
def kernel(environment: str, system: str, dry_run: bool, out: Out) -> int:
    """Install a Jupyter kernel that starts in an environment.

    The environment must contain the package ipykernel. Fairmile checks that the
    kernel starts, except with --dry-run.

    \b
    Example:
      fairmile env kernel tides --dry-run
    """
    installed = Workspace.open().envs.kernel(environment, system=system, dry_run=dry_run)
    out.show(installed, lambda installed: _print_kernel(out, installed))
    return 0


def _print_kernel(out: Out, kernel: InstalledKernel) -> None:
    verb = "would install" if kernel.dry_run else "installed"
    out.line(f"{verb} the kernel {kernel.name} in {kernel.folder}")
