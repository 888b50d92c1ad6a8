"""Systems: the list, for each its partitions, file systems, software and sources, and what all users' jobs took."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from fastapi import Request

from fairmile.base.errors import FairmileError
from fairmile.base.units import format_duration
from fairmile.jobs.accounting import COLUMNS, GROUPINGS, SystemUsage, Usage
from fairmile.reports.blocks import (
    Block,
    Cell,
    Code,
    Facts,
    Heading,
    Note,
    Row,
    Text,
    Tile,
    Tiles,
    Title,
    table,
)
from fairmile.systems.described import (
    FILE_SYSTEM_COLUMNS,
    PARTITION_COLUMNS,
    SYSTEM_COLUMNS,
    facts,
    file_system_rows,
    partition_rows,
    resources,
    system_rows,
)
from fairmile.systems.model import System
from fairmile.web.parameters import Id, Word
from fairmile.web.render import Page
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("systems")


@routes.page("/systems")
def systems_page(request: Request) -> Page:
    """List known systems."""
    systems = workspace_of(request).systems.ls()
    rows: list[Row] = [
        [Cell(row[0], link=f"/systems/{quote(row[0], safe='')}"), *row[1:]] for row in system_rows(systems)
    ]
    blocks: list[Block] = [Title("Systems"), Heading("Known systems"), table(SYSTEM_COLUMNS, rows)]
    blocks += [Note(f"{each.name} cannot be used: {each.problem}") for each in systems if each.problem]
    return Page("blocks.html", "Systems", blocks=blocks)


@routes.page("/systems/{name}")
def system_page(request: Request, name: Id) -> Page:
    """Describe a system."""
    details = workspace_of(request).systems.show(name)
    system = quote(details.system.name, safe="")
    # Others than an administrator do not see what everybody's jobs took.
    has_usage = details.system.scheduler.dialect == "slurm" and identity_of(request).may("admin")
    values = {"link": f"/scripts?system={system}", "usage": f"/systems/{system}/usage" if has_usage else ""}
    return Page("system.html", details.system.title, values, list(_blocks(details.system, details.origin)))


@routes.page("/systems/{name}/usage", right="admin")
def usage_page(request: Request, name: Id, since: Word = "30d", by: Word = "project") -> Page:
    """Show what all users' jobs on a system took."""
    systems = workspace_of(request).systems
    title = f"Use of {systems.show(name).system.title}"
    try:
        blocks = list(_usage(systems.usage(name, since=since, by=by)))
    except FairmileError as error:
        blocks = [Note(". ".join(filter(None, (str(error), error.hint))))]
    values = {"name": name, "since": since, "by": by, "groupings": list(GROUPINGS)}
    return Page("system_usage.html", title, values, blocks)


def _usage(report: SystemUsage) -> Iterator[Block]:
    if not report:
        yield Text(f"No job ended in the last {format_duration(report.since_s)}.")
        return
    *shown, failures = zip(COLUMNS, report.total.texts(), strict=True)
    yield Tiles(tuple(Tile(heading, text) for heading, text in shown if text))
    yield Text(f"Not completed: {failures[1]}." if failures[1] else "All jobs completed.")
    yield from (Note(f"{note}.", "dim") for note in report.notes)
    yield Heading(f"By {report.by}")
    yield table([report.by, *COLUMNS], [_usage_row(each) for each in report], numbers=COLUMNS[:-1])


def _usage_row(usage: Usage) -> Row:
    sorts = [*usage.values()[:-1], sum(usage.failures.values())]
    return [usage.name, *(Cell(text, sort) for text, sort in zip(usage.texts(), sorts, strict=True))]


def _blocks(system: System, origin: str) -> Iterator[Block]:
    yield Title(f"{system.title} ({system.name})", below=system.description)
    yield Facts(tuple(facts(system, origin)))
    yield Heading("Partitions")
    yield table(PARTITION_COLUMNS, [[*row] for row in partition_rows(system)], numbers=["nodes", "most nodes"])
    if system.file_systems:
        yield Heading("File systems")
        yield table(FILE_SYSTEM_COLUMNS, [[*row] for row in file_system_rows(system)])
    if system.software:
        yield Heading("Software")
    for name, sets in system.software.items():
        for variant, each in system.variants(name).items():
            where = f" on {', '.join(each.partitions)}" if each.partitions else ""
            word = f"{name}:{variant}" if len(sets) > 1 else name
            age = f" ({each.age})" if each.age else ""
            yield Text(f"{word}{where}{age}" + (f": {text}" if (text := resources(each)) else ""))
            if each.lines:
                yield Code("\n".join(each.lines))
            yield from (Note(text, "dim") for text in (*each.disagrees, each.note) if text)
    yield Heading("Last verified")
    yield Text(f"This description was {system.compared}. A question mark follows a value that no source states.")
    yield Facts(tuple(("source", source) for source in system.sources))
