"""`fairmile fetch`: download the bytes of assets or addresses."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairmile.base.progress import TerminalLine, TransferProgress
from fairmile.base.units import format_size
from fairmile.catalog.fetched import Fetched, FetchedAssets
from fairmile.cli.notices import notifies
from fairmile.cli.options import DRY_RUN
from fairmile.cli.out import Out, count, json_output, one_line
from fairmile.transfer.credentials import shown_address
from fairmile.transfer.plan import Plans
from fairmile.workspace import Workspace

if TYPE_CHECKING:
    from fairmile.transfer.items import Item


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME|URL…")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="Write the files to this folder as well.")
@click.option("--pool", metavar="POOL", help="Pool to store into.  [default: the best one with enough space]")
@click.option("--fresh", is_flag=True, help="Download again even if the store has it.")
@click.option("--limit", type=int, metavar="N", help="Fetch only the first N files.")
@click.option("--sha256", metavar="DIGEST", help="Expected sha256 of the file at a URL.")
@click.option("--unpack", is_flag=True, help="Unpack the archive at a URL.")
@click.option("--replace", is_flag=True, help="Overwrite files in --to that differ.")
@click.option("--access-granted", is_flag=True, help="Confirm that you may access data whose card restricts access.")
@DRY_RUN
@json_output(FetchedAssets, Plans)
@notifies
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
    """Download assets or URLs into the store, verified, from all mirrors in parallel.

    Content in the store is not downloaded again. An interrupted transfer resumes where it stopped. A transfer
    starts only if a pool has enough space.

    \b
    Examples:
      fairmile fetch dataset/mnist --dry-run
      fairmile fetch ./lake.jsonld --to data
    """
    line = TerminalLine()
    printed_notes: set[str] = set()

    def print_note(text: str) -> None:
        printed_notes.add(text)
        line.clear()
        out.say(f"note: {one_line(text)}")

    def print_fetched(each: Fetched) -> None:
        line.clear()
        _print_fetched(each, printed_notes, out)

    workspace = Workspace.open(on_progress=out.progress, watcher=TransferProgress(line, print_note))
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
            out.show(plans, lambda each: _print_plans(each, out))
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
            on_fetched=None if out.as_json else print_fetched,
        )
    finally:
        line.clear()
        workspace.close()
    out.show(fetched, lambda _: None)  # each was printed as it came


def _print_fetched(each: Fetched, printed_notes: Collection[str], out: Out) -> None:
    verb = "present" if each.known else "fetched"
    where = str(each.folder) if each.folder is not None else f"pool {each.pool}"
    out.line(f"{verb:<8} {each.name}  {count(each.files, 'file')}  {format_size(each.size_bytes)}  {where}")
    for note in each.notes:
        if note not in printed_notes:
            out.say(f"note: {note}")


def _print_plans(plans: Plans, out: Out) -> None:
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
