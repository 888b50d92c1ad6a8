"""`fairmile search`: find assets in every catalog."""

from __future__ import annotations

import click

from fairmile.base.units import format_size
from fairmile.catalog.results import SearchResult
from fairmile.cli.out import Out, json_option
from fairmile.workspace import Workspace


@click.command()
@click.argument("words", nargs=-1)
@click.option("--kind", help="Only this kind: model, dataset, program, benchmark, …")
@click.option("--regex", help="Only names and keywords that match this regular expression (linear time, RE2).")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--all-versions", is_flag=True, help="Also older versions.")
@click.option("--facet", help="List the values of a facet instead: domain, task, framework, format, licence …")
@json_option
def search(
    words: tuple[str, ...],
    kind: str | None,
    regex: str | None,
    limit: int,
    all_versions: bool,
    facet: str | None,
    out: Out,
) -> int:
    """Find assets by words, fields and patterns.

    WORDS may hold field:value (kind, domain, task, framework, format, licence, tag, creator, project,
    machine, gpu …), "a phrase", prefix*, -not and /regex/.
    """
    catalog = Workspace.open(on_progress=out.progress).catalog
    if facet:
        return _facet(catalog.facets(facet), facet, out)
    text = " ".join(f'"{word}"' if " " in word and ":" not in word else word for word in words)
    result = catalog.search(f"{text} /{regex}/" if regex else text, kind=kind, limit=limit, all_versions=all_versions)
    if out.as_json:
        out.data({"results": [hit.to_dict() for hit in result], "did_you_mean": list(result.did_you_mean)})
    else:
        _render(result, limit, out)
    return 0


def _facet(values: dict[str, int], facet: str, out: Out) -> int:
    if out.as_json:
        out.data({"facet": facet, "values": values})
    else:
        out.table([facet, "cards"], list(values.items()))
    return 0


def _render(result: SearchResult, limit: int, out: Out) -> None:
    rows = []
    for hit in result:
        summary = hit.row.summary
        name = f"{hit.row.name}@{hit.row.version}" + (" (removed)" if hit.row.gone else "")
        size = format_size(summary["size_bytes"]) if summary.get("size_bytes") else ""
        also = f" [also in {', '.join(hit.also)}{': differs' if hit.clash else ''}]" if hit.also else ""
        domain = ", ".join(summary.get("domains", []))
        about = " ".join(summary.get("description", "").split())
        rows.append([hit.kind, name, hit.row.catalog, domain, size, about[:80] + also])
    out.table(["kind", "name", "catalog", "domain", "size", "about"], rows)
    if not rows:
        out.say("nothing found" + (f"; did you mean {', '.join(result.did_you_mean)}?" if result.did_you_mean else ""))
    elif len(rows) == limit:
        out.hint(f"the first {limit} are shown; --limit shows more, field:value narrows")
