"""`fairmile trust`: let a project file start programs and lead reads and writes elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.trust import TrustedProject
from fairmile.cli.out import Out, json_option
from fairmile.transfer.credentials import shown_address
from fairmile.workspace import PROJECT_FILE, Workspace, find_project, project_file


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listed", is_flag=True, help="List the trusted files.")
@click.option("--remove", is_flag=True, help="Stop trusting the file.")
@click.option("--dry-run", is_flag=True, help="Show what would be allowed; change nothing.")
@json_option
def trust(path: Path | None, listed: bool, remove: bool, dry_run: bool, out: Out) -> int:
    """Trust a project's fairmile.yaml as it is now, and show what its settings may do from then on.

    PATH is the file or its folder; without it, the nearest fairmile.yaml upwards. Read the file first: its settings
    can start programs and choose where data is read and written. Trust ends when the file changes, or a file beside
    it that it names.

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
        return _print_list(records.ls(), out)
    file = _nearest() if path is None else project_file(path)
    if remove:
        records.remove(file, dry_run=dry_run)
        facts = {"file": str(file), "removed": not dry_run}
        out.data(facts) if out.as_json else out.line(f"{'would stop' if dry_run else 'stopped'} trusting {file}")
        return 0
    project = records.add(file, dry_run=dry_run)
    if out.as_json:
        out.data({**project.to_dict(), "trusted": not dry_run})
        return 0
    out.line(f"{'would trust' if dry_run else 'trusted'} {project.file}")
    rows = [(key, _shown(value)) for key, value in project.allows.items()]
    out.items(rows + [("names", str(each)) for each in project.names])
    if "home" in project.allows:
        out.say("note: what lies in `home` counts as yours, now and later: cards, systems, jobs, environments")
    if not project.allows:
        out.say("note: no setting in it needs trust")
    return 0


def _nearest() -> Path:
    found = find_project(Path.cwd())
    if found is None:
        raise NotFound(f"no {PROJECT_FILE} of yours here or in a folder above", hint="give its path")
    return found


def _print_list(projects: list[TrustedProject], out: Out) -> int:
    if out.as_json:
        out.data({"files": [each.to_dict() for each in projects]})
        return 0
    rows = [[str(each.file), "" if each.is_current else "changed, not in force", each.since] for each in projects]
    out.table(["file", "state", "since"], [[file, state or "trusted", since] for file, state, since in rows])
    return 0


def _shown(value: object) -> str:
    return shown_address(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
