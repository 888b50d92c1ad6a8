"""`fairmile fetch`: bring the bytes of assets or addresses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairmile.base.units import format_size
from fairmile.cli.out import Out, count, json_option
from fairmile.cli.progress import TransferLine
from fairmile.transfer.credentials import shown_address
from fairmile.workspace import Workspace

if TYPE_CHECKING:
    from fairmile.catalog.assets import Fetched
    from fairmile.transfer.items import Item
    from fairmile.transfer.plan import Plan


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME|URL…")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="Lay the files out in this folder.")
@click.option("--pool", help="Store into this pool; else the best one with room.")
@click.option("--fresh", is_flag=True, help="Fetch anew even what is there.")
@click.option("--limit", type=int, help="Bring the first n files only.")
@click.option("--sha256", help="Expect this digest; for an address.")
@click.option("--unpack", is_flag=True, help="Replace an archive by its members; for an address.")
@click.option("--replace", is_flag=True, help="Overwrite files in --to that differ.")
@click.option("--access-granted", is_flag=True, help="Confirm that you may have data whose card restricts access.")
@click.option("--dry-run", is_flag=True, help="Show the plan: sizes, pool, sources; bring nothing.")
@json_option
def fetch(
    out: Out,
    names: tuple[str, ...],
    to: Path | None,
    pool: str | None,
    fresh: bool,
    limit: int | None,
    sha256: str | None,
    unpack: bool,
    replace: bool,
    access_granted: bool,
    dry_run: bool,
) -> None:
    """Bring the bytes of assets or addresses into the store, verified, from every source at once.

    What is there already, by source or by content, does not move again. A transfer that was interrupted goes
    on where it stopped. Nothing starts that does not fit.

    \b
    Examples:
      fairmile fetch dataset/mnist --dry-run
      fairmile fetch ./lake.jsonld --to data
    """
    line = TransferLine(out)
    workspace = Workspace.open(on_progress=out.progress, watcher=line)
    try:
        if sha256 is None:
            workspace.ask(names[0])
        assets = workspace.assets
        if dry_run:
            plans = assets.plan(
                names,
                pool=pool,
                fresh=fresh,
                limit=limit,
                sha256=sha256,
                unpack=unpack,
                access_granted=access_granted,
            )
            _show_plans(out, plans)
            return
        fetched = assets.fetch(
            names,
            to=to,
            pool=pool,
            fresh=fresh,
            limit=limit,
            sha256=sha256,
            unpack=unpack,
            replace=replace,
            access_granted=access_granted,
            on_fetched=None if out.as_json else lambda each: _show(out, each, line),
        )
    finally:
        line.clear()
        workspace.close()
    if out.as_json:
        out.data({"fetched": [each.to_dict() for each in fetched]})


def _show(out: Out, each: Fetched, line: TransferLine) -> None:
    line.clear()
    verb = "present" if each.known else "fetched"
    where = str(each.folder) if each.folder is not None else f"pool {each.pool}"
    out.line(f"{verb:<8} {each.name}  {count(each.files, 'file')}  {format_size(each.size_bytes)}  {where}")
    for note in each.notes:
        if note not in line.told:
            out.say(f"note: {note}")


def _show_plans(out: Out, plans: list[Plan]) -> None:
    if out.as_json:
        out.data({"plans": [_plan_data(plan) for plan in plans]})
        return
    for plan in plans:
        out.line(plan.describe())
        rows = [
            (item.path, format_size(item.size_bytes) if item.size_bytes is not None else "unknown", _sources(item))
            for item in plan.items[:20]
        ]
        out.table(("file", "size", "from"), rows, shrink=("from",))
        if len(plan.items) > len(rows):
            out.line(f"… and {len(plan.items) - len(rows):,} more")
        for note in plan.notes:
            out.say(f"note: {note}")


def _sources(item: Item) -> str:
    return ", ".join(shown_address(remote.address) for remote in item.sources)


def _plan_data(plan: Plan) -> dict[str, object]:
    return {
        "name": plan.what,
        "pool": plan.pool.name,
        "download_bytes": plan.download_bytes,
        "unpacked_bytes": plan.unpacked_bytes,
        "estimate": plan.is_estimate,
        "present_files": len(plan.present),
        "notes": list(plan.notes),
        "items": [
            {
                "path": item.path,
                "size_bytes": item.size_bytes,
                "sha256": item.sha256,
                "unpack": item.unpack,
                "sources": [shown_address(remote.address) for remote in item.sources],
            }
            for item in plan.items
        ],
    }
