"""`fairmile match`: which data sets a model accepts, and the reverse."""

from __future__ import annotations

import click

from fairmile.base.words import did_you_mean
from fairmile.catalog.catalog import Catalog
from fairmile.cli.out import Out, json_option
from fairmile.workspace import Workspace


@click.command()
@click.option("--model", metavar="NAME", help="Which data sets does this model accept?")
@click.option("--dataset", metavar="NAME", help="Which models can this data set train?")
@click.option("--domain", metavar="NAME", help="Which pairs belong to this science domain?")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="At most so many."
)
@json_option
def match(model: str | None, dataset: str | None, domain: str | None, limit: int, out: Out) -> int:
    """Match science domain, model and data set; every pair with its reasons.

    \b
    Examples:
      fairmile match --model cosmoflow
      fairmile match --dataset mnist
      fairmile match --domain seismology
    """
    catalog = Workspace.open(on_progress=out.progress).catalog
    found = catalog.match(model=model, dataset=dataset, domain=domain, limit=limit)
    if out.as_json:
        out.data({"matches": [each.to_dict() for each in found]})
        return 0
    for each in found:
        out.heading(f"{each.score:.2f}  {each.model}  {out.symbol('×', 'x')}  {each.dataset}")
        for reason in each.reasons:
            out.item(f"      {reason.kind}: ", reason.text)
    if not found:
        out.say("nothing fits")
        out.hint(_advice(catalog, domain))
    return 0


def _advice(catalog: Catalog, domain: str | None) -> str:
    if domain is not None:
        domains = catalog.facets("domain")
        if domain.casefold() not in domains:
            return did_you_mean(domain, domains) or "`fairmile search --facet domain` lists the domains"
    return "a card says what it accepts by trainedOn, acceptsDataset, mlTask, scienceDomain and signature"
