"""`fairmile env`: software environments, built once, checked, shared."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fairmile.base.commands import Here
from fairmile.base.units import format_duration, format_size, parse_duration
from fairmile.cli.lazy import LazyGroup
from fairmile.cli.out import Out, count, json_option
from fairmile.envs.envs import EnvPlan
from fairmile.envs.exports import FORMATS
from fairmile.envs.kernel import check_kernel, install_kernel, kernels_folder, kernelspec
from fairmile.envs.records import Environment
from fairmile.workspace import Workspace

_SHORT = 16
_COLOURS = {"ready": "green", "failed": "red", "building": "yellow", "unfinished": "yellow"}
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


@click.group(cls=LazyGroup)
def env() -> None:
    """Build, check and use software environments.

    An environment is a file that says what must be there: Python packages,
    conda packages, modules, source builds, a container, variables, checks.

    \b
    The shortest one:
      python: {packages: [numpy]}

    Each lives in a folder of its own, named by the digest of all that went in,
    so variants live side by side. ENV is the file, the name, or the beginning of
    the digest; where several bear one name, the one built last is meant.
    """


@env.command()
@json_option
def ls(out: Out) -> int:
    """List the environments, ready or not."""
    rows = Workspace.open().envs.ls()
    if out.as_json:
        out.data({"environments": [_summary(each) for each in rows]})
        return 0
    columns = ["name", "digest", "state", "size", "last use", "steps"]
    out.table(columns, [_row(each, out) for each in rows], shrink=["steps"])
    if not rows:
        out.say("no environment was built yet")
        out.hint("`fairmile env build FILE` builds one")
    return 0


def _row(each: Environment, out: Out) -> list[str]:
    size = format_size(each.record["size_bytes"]) if each.ready else ""
    used = datetime.fromtimestamp(each.used, UTC).strftime("%Y-%m-%d")
    steps = ", ".join(step["name"] for step in each.record.get("steps", ()))
    return [each.name, each.digest[:_SHORT], _state(each, out), size, used, steps]


def _state(each: Environment, out: Out) -> str:
    return out.colour(each.state, _COLOURS.get(each.state, "dim"))


def _summary(each: Environment) -> dict[str, Any]:
    return {
        "name": each.name,
        "digest": each.digest,
        "state": each.state,
        "folder": str(each.folder),
        "size_bytes": each.record.get("size_bytes"),
        "used": each.used,
    }


@env.command()
@click.argument("environment", metavar="ENV")
@json_option
def show(environment: str, out: Out) -> int:
    """Describe one environment: what it holds, who built it, what its checks said.

    \b
    Example:
      fairmile env show tides
    """
    found = Workspace.open().envs.show(environment)
    if out.as_json:
        extra = {"spec": found.spec, "record": found.record, "lock": found.lock, "failure": found.failure}
        out.data({**_summary(found), **extra})
        return 0
    out.heading(found.name)
    pairs = [("digest", found.digest), ("state", found.state), ("folder", str(found.folder))]
    record = found.record
    if record:
        pairs.append(("built", f"{record['ended']} by {record['who']} on {record['machine']}, {record['platform']}"))
        pairs.append(("size", format_size(record["size_bytes"])))
        pairs += [(step["name"], f"{step['words']} ({step['duration_s']:.1f} s)") for step in record["steps"]]
        pairs += [(name, value) for name, value in found.spec.get("variables", {}).items()]
    out.items(pairs)
    _render_packages(found, out)
    for check in record.get("checks", ()):
        run = check["run"] if isinstance(check["run"], str) else " ".join(check["run"])
        out.line(f"check {run}")
        for line in check["output"].splitlines():
            out.line(f"    {line}")
    if found.failure:
        out.say(f"the last build failed at {found.failure['at']}:\n{found.failure['message']}")
        out.hint(f"the log is {found.folder / 'log.txt'}")
    return 0


def _render_packages(found: Environment, out: Out) -> None:
    for part in ("python", "conda"):
        packages = found.lock.get(part, {}).get("packages", ())
        if packages:
            rows = [[each["name"], each["version"], each.get("from", each.get("build", ""))] for each in packages]
            out.table([f"{part} package", "version", "from"], rows, shrink=["from"])


@env.command()
@click.argument("environment", metavar="ENV")
@click.option(
    "--wait",
    callback=lambda _context, _parameter, text: parse_duration(text),
    default="1d",
    metavar="DURATION",
    help="Wait so long for another process that builds it (1d).",
)
@_DRY_RUN
@json_option
def build(environment: str, wait: float, dry_run: bool, out: Out) -> int:
    """Build an environment, or what is missing of it, and check it.

    Of many who ask at once one builds, the others wait. What a killed build
    finished is kept. The prefix is read-only once it is ready.

    \b
    Example:
      fairmile env build tides.yaml --dry-run
    """
    envs = Workspace.open().envs
    if dry_run:
        _render_plan(envs.plan(environment), out)
        return 0
    found = envs.build(environment, on_line=_tell(out), wait_s=wait)
    if out.as_json:
        out.data(_summary(found))
        return 0
    out.line(f"ready {found.name} {found.digest[:_SHORT]}  {found.prefix}")
    out.hint(f"`fairmile env shell {found.name}` starts a shell in it")
    return 0


def _tell(out: Out) -> Callable[[str], None]:
    return (lambda _: None) if out.as_json else out.say


def _render_plan(plan: EnvPlan, out: Out) -> None:
    if out.as_json:
        steps = [{"name": each.name, "words": each.words, "done": each.done} for each in plan.steps]
        told = {"name": plan.name, "digest": plan.digest, "folder": str(plan.folder), "state": plan.state}
        told |= {"builder": plan.builder, "trouble": plan.trouble}
        lists = {"steps": steps, "checks": list(plan.checks), "notes": list(plan.notes)}
        out.data({**told, **lists, "dry_run": True})
        return
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
        out.say(f"{plan.builder} builds it at this moment")


@env.command()
@click.argument("environment", metavar="ENV")
@click.option("--force", is_flag=True, help="Remove it though somebody uses it.")
@_DRY_RUN
@json_option
def rm(environment: str, force: bool, dry_run: bool, out: Out) -> int:
    """Remove an environment; refused while it is in use.

    \b
    Example:
      fairmile env rm tides --dry-run
    """
    gone = Workspace.open().envs.rm(environment, force=force, dry_run=dry_run)
    if out.as_json:
        out.data({"removed": _summary(gone), "dry_run": dry_run})
    else:
        out.line(f"{'would remove' if dry_run else 'removed'} {gone.name} {gone.digest[:_SHORT]}  {gone.folder}")
    return 0


@env.command()
@click.option(
    "--older-than",
    callback=lambda _context, _parameter, text: parse_duration(text),
    default="30d",
    metavar="DURATION",
    help="Remove what was not used for so long (30d).",
)
@_DRY_RUN
@json_option
def gc(older_than: float, dry_run: bool, out: Out) -> int:
    """Remove environments that nobody used for long, and builds that never ended.

    \b
    Example:
      fairmile env gc --dry-run
    """
    going = Workspace.open().envs.gc(older_than_s=older_than, dry_run=dry_run)
    if out.as_json:
        rows = [{**_summary(each.environment), "reason": each.reason} for each in going]
        out.data({"removed": rows, "dry_run": dry_run})
        return 0
    for each in going:
        found = each.environment
        out.line(f"{'would remove' if dry_run else 'removed'} {found.name} {found.digest[:_SHORT]}: {each.reason}")
    size = sum(each.environment.record.get("size_bytes", 0) for each in going)
    told = f"{count(len(going), 'environment')}, {format_size(size)}" if going else "nothing to remove"
    out.line(told + ("" if going else f" that was not used for {format_duration(older_than)}"))
    return 0


@env.command()
@click.argument("environment", metavar="ENV")
@click.argument("argv", metavar="[-- PROGRAM...]", nargs=-1, type=click.UNPROCESSED)
@_DRY_RUN
@json_option
def shell(environment: str, argv: tuple[str, ...], dry_run: bool, out: Out) -> int:
    """Start a shell in an environment, or run one program in it.

    With --json or --dry-run the command is printed and nothing is started.

    \b
    Example:
      fairmile env shell tides --dry-run -- python train.py
    """
    envs = Workspace.open().envs
    command = envs.shell(environment, argv)
    if out.as_json:
        out.data({"argv": list(command.argv), "env": dict(command.env)})
    elif dry_run:
        out.line(shlex.join(command.argv))
    else:
        envs.note_use(environment)
        # A shell needs the terminal itself, so it takes this process's place.
        os.execvpe(command.argv[0], command.argv, {**os.environ, **command.env})
    return 0


@env.command()
@click.argument("environment", metavar="ENV")
@click.option("--format", "form", default="yaml", metavar="FORM", help=f"{', '.join(FORMATS)} (yaml).")
@click.option("--to", "folder", metavar="FOLDER", help="Write the files there instead of printing the text.")
@click.option(
    "--base", default="", metavar="IMAGE", help="Image that a dockerfile or apptainer definition starts from."
)
@_DRY_RUN
@json_option
def export(environment: str, form: str, folder: str | None, base: str, dry_run: bool, out: Out) -> int:
    """Print an environment as another tool reads it, every version as it was built.

    The name of a shell gives the lines that a script of that shell needs.

    \b
    Example:
      fairmile env export tides --format bash
    """
    made = Workspace.open().envs.export(environment, form, base=base)
    for note in made.notes:
        out.say(f"note: {note}")
    files = [*made.texts, *made.copies]
    if folder is not None and not dry_run:
        made.write(Path(folder))
    if out.as_json:
        out.data({"files": files, "text": made.texts[made.definition], "notes": list(made.notes), "folder": folder})
    elif folder is not None:
        for name in files:
            out.line(f"{'would write' if dry_run else 'wrote'} {Path(folder) / name}")
    else:
        out.document(made.texts[made.definition])
    return 0


@env.command()
@click.argument("environment", metavar="ENV")
@click.option("--system", default="", metavar="NAME", help="Show this name of a machine beside the environment's.")
@_DRY_RUN
@json_option
def kernel(environment: str, system: str, dry_run: bool, out: Out) -> int:
    """Give Jupyter a kernel that starts in an environment.

    The environment must hold the package ipykernel, which is tried first; a dry
    run does not try it.

    \b
    Example:
      fairmile env kernel tides --dry-run
    """
    workspace = Workspace.open()
    found = workspace.envs.show(environment)
    lines = workspace.envs.preamble(environment)
    made = kernelspec(found.name, lines, system=system, prefix=found.prefix, wrap=found.wrap)
    if not dry_run:
        check_kernel(made, Here())
    folder = kernels_folder(workspace.environ, Path(workspace.environ.get("HOME") or Path.home()))
    target = install_kernel(made, folder, dry_run=dry_run)
    if out.as_json:
        out.data({"kernel": made.name, "folder": str(target), "dry_run": dry_run})
    else:
        out.line(f"{'would install' if dry_run else 'installed'} the kernel {made.name} in {target}")
    return 0
