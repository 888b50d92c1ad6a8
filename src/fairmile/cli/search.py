"""`fairmile search`: find assets in every catalog."""

from __future__ import annotations

import re

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import format_size
from fairmile.catalog.hubs.results import HubHit, HubHits
from fairmile.catalog.results import FacetValues, SearchResult
from fairmile.cli.out import Out, json_output
from fairmile.workspace import Workspace

_SHOWN_BROADER = 3


class _SearchCommand(click.Command):
    """Takes `-word` and `-field:value` as words of the search, which click would take for options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        with_value = {name for each in options if not (each.is_flag or each.is_eager) for name in each.opts}
        kept: list[str] = []
        words: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                words += rest
            elif arg.startswith("-") and not arg.startswith("--") and len(arg) > 2:
                words.append(arg)
            else:
                kept.append(arg)
                if arg in with_value:
                    kept += [value for value in [next(rest, None)] if value is not None]
        return super().parse_args(ctx, [*kept, "--", *words] if words else kept)


@click.command(cls=_SearchCommand)
@click.argument("words", nargs=-1)
@click.option("--kind", metavar="KIND", help="Search only this kind, such as model or dataset.")
@click.option(
    "--regex", metavar="PATTERN", help="Match names and keywords against this regular expression (RE2 syntax)."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of results.",
)
@click.option("--all-versions", is_flag=True, help="Include older versions.")
@click.option(
    "--hub",
    "hubs",
    multiple=True,
    type=click.Choice(["huggingface", "zenodo", "openml", "all"]),
    help="Search this hub over the network instead of the catalogs; repeatable.",
)
@click.option("--facet", metavar="FIELD", help="List the values of a field, such as domain or task, with card counts.")
@json_output(SearchResult, FacetValues, HubHits)
def search(
    words: tuple[str, ...],
    kind: str | None,
    regex: str | None,
    limit: int,
    all_versions: bool,
    hubs: tuple[str, ...],
    facet: str | None,
    out: Out,
) -> int:
    """Find assets by words, fields and patterns.

    Write WORDS as words, "a phrase", a prefix* or field:value. A leading minus excludes: -word, -field:value. Fields:
    kind, domain, task, framework, format, licence, tag, creator, project, funder, machine, gpu,
    language, access, category, catalog.

    \b
    Examples:
      fairmile search cosmology kind:dataset
      fairmile search "gradient boosting" -domain:biology
      fairmile search --regex '^cosmo(flow|universe)'
      fairmile search --facet domain
      fairmile search --hub zenodo lake temperature
    """
    catalog = Workspace.open(on_progress=out.progress).catalog
    if facet is not None:
        if words or kind or regex or hubs:
            raise UsageError("--facet cannot be combined with a search", hint="remove the words or --facet")
        out.show(catalog.facets(facet), lambda values: _print_facet(values, out))
        return 0
    if regex is not None and not regex:
        raise UsageError("the pattern of --regex is empty", hint="--regex '^cosmo' matches names that start with cosmo")
    text = " ".join(map(_as_typed, words))
    if hubs:
        if regex or all_versions:
            raise UsageError(
                "--hub cannot be combined with --regex or --all-versions", hint="use only words with --hub"
            )
        hits = catalog.search_hubs(text, hubs=hubs, kind=kind, limit=limit)
        out.show(hits, lambda page: _print_hub_hits(page, out))
        return 3 if hits.failed and not hits else 0
    result = catalog.search(text, kind=kind, regex=regex, limit=limit, all_versions=all_versions)
    out.show(result, lambda hits: _print_hits(hits, limit, out))
    if result.outdated:
        out.hint("results may be out of date: the index cannot be written here")
    return 0


def _as_typed(word: str) -> str:
    """Return an argument as it was typed: the shell has taken away the quotes of a phrase."""
    is_phrase = len(word.split()) > 1 and not any(sign in word for sign in ':"') and not word.startswith("/")
    if not is_phrase:
        return word
    return f'-"{word[1:]}"' if word.startswith("-") else f'"{word}"'


def _print_facet(values: FacetValues, out: Out) -> None:
    out.table([values.facet, "cards"], list(values.items()))
    if not values:
        out.say(f"no card has a {values.facet}")


def _print_hits(result: SearchResult, limit: int, out: Out) -> None:
    rows = []
    for hit in result:
        summary = hit.row.summary
        name = f"{hit.row.name}@{hit.row.version}" + (" (removed)" if hit.row.gone else "")
        size = format_size(summary["size_bytes"]) if summary.get("size_bytes") else ""
        also = f"[also in {', '.join(hit.also)}{': differs' if hit.clash else ''}]" if hit.also else ""
        about = " ".join(filter(None, (also, _first_sentence(summary.get("description", "")))))
        rows.append([hit.kind, name, hit.row.catalog, ", ".join(summary.get("domains", [])), size, about])
    out.table(["kind", "name", "catalog", "domain", "size", "about"], rows, shrink=("domain", "about"))
    if not rows:
        _print_no_hits(result, out)
    elif len(rows) == limit:
        out.hint("there may be more results: raise --limit, or narrow the search with field:value")


def _print_hub_hits(hits: HubHits, out: Out) -> None:
    rows = [
        [
            hit.kind,
            hit.handle,
            hit.licence,
            format_size(hit.size_bytes) if hit.size_bytes is not None else "",
            _about(hit),
        ]
        for hit in hits
    ]
    out.table(["kind", "handle", "licence", "size", "about"], rows, shrink=("licence", "about"))
    for hub, reason in hits.failed.items():
        out.say(f"warning: {hub} did not respond: {reason}")
    if rows:
        out.hint("`fairmile show HANDLE` describes one, `fairmile catalog add HANDLE` keeps its card")
    elif not hits.failed:
        out.say("no asset matches")


def _about(hit: HubHit) -> str:
    title = "" if hit.handle.endswith(hit.name) else hit.name
    return ": ".join(filter(None, (title, _first_sentence(hit.description))))


def _print_no_hits(result: SearchResult, out: Out) -> None:
    near = f"; did you mean {', '.join(result.did_you_mean)}?" if result.did_you_mean else ""
    out.say(f"no asset matches{near}")
    for query in result.broader[:_SHOWN_BROADER]:
        out.hint(f"`fairmile search {query}` has results")
    if not (result.did_you_mean or result.broader):
        out.hint("`fairmile search --facet domain` lists the domains; `fairmile catalog source add` adds a catalog")
    if not result.did_you_mean:
        out.hint("`fairmile search --hub all WORDS` asks Hugging Face, Zenodo and OpenML")


def _first_sentence(text: str) -> str:
    """Return the first sentence, or the whole text; the index keeps only the beginning of a long one."""
    sentence = re.match(r".+?[.!?](?=\s|$)", " ".join(text.split()))
    return sentence[0] if sentence else text
