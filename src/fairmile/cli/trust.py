"""`fairmile trust`: let a project file start programs and choose where data is read and written."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.trust import TrustedProject, TrustedProjects, Untrusted
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, json_output
from fairmile.settings import PROJECT_FILE, find_project, project_file
from fairmile.transfer.credentials import shown_address
from fairmile.workspace import Workspace


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listed", is_flag=True, help="List the trusted files.")
@click.option("--remove", is_flag=True, help="Stop trusting the file.")
@DRY_RUN
@json_output(TrustedProject, TrustedProjects, Untrusted)
def trust(path: Path | None, listed: bool, remove: bool, dry_run: bool, out: Out) -> int:
    """Trust a project's fairmile.yaml in its current form, and show what its settings allow.

    PATH is the file or its folder; without it, the nearest fairmile.yaml in this folder or above is used. Read the
    file first: its settings can start programs and choose where data is read and written. Trust ends when the file,
    or a file that it names, changes.

    \b
    Examples:
      fairmile trust project --dry-run
      fairmile trust project
      fairmile trust --list
    """
    records = Workspace.trust()
    if listed:
        if path is not None or remove:
            raise UsageError("--list takes neither PATH nor --remove")
        out.show(records.ls(), lambda projects: _print_list(projects, out))
        return 0
    file = _nearest() if path is None else project_file(path)
    if remove:
        out.show(
            records.remove(file, dry_run=dry_run),
            lambda each: out.line(f"{'would stop' if dry_run else 'stopped'} trusting {each.file}"),
        )
    else:
        out.show(records.add(file, dry_run=dry_run), lambda project: _print_project(project, out))
    return 0


def _print_project(project: TrustedProject, out: Out) -> None:
    out.line(f"{'trusted' if project.trusted else 'would trust'} {project.file}")
    rows = [(key, _setting_text(value)) for key, value in project.allows.items()]
    out.items(rows + [("names", str(each)) for each in project.names])
    if "home" in project.allows:
        out.say("note: everything in `home` counts as yours, now and later: cards, systems, jobs, environments")
    if not project.allows:
        out.say("note: none of its settings needs trust")


def _nearest() -> Path:
    file = find_project(Path.cwd())
    if file is None:
        raise NotFound(f"no {PROJECT_FILE} of yours in this folder or above", hint="pass its path")
    return file


def _print_list(projects: TrustedProjects, out: Out) -> None:
    rows = [[str(each.file), "" if each.is_current else "changed, not in force", each.since] for each in projects]
    out.table(["file", "state", "since"], [[file, state or "trusted", since] for file, state, since in rows])


def _setting_text(value: object) -> str:
    return shown_address(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
