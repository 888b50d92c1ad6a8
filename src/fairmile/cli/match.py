"""`fairmile match`: which data sets a model accepts, and the reverse."""

from __future__ import annotations

import click

from fairmile.catalog.match import Matches
from fairmile.cli.out import Out, json_output
from fairmile.workspace import Workspace


@click.command()
@click.option("--model", metavar="NAME", help="List the data sets that this model accepts.")
@click.option("--dataset", metavar="NAME", help="List the models that this data set can train.")
@click.option("--domain", metavar="NAME", help="List the pairs of this science domain.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    metavar="N",
    help="Maximum number of pairs.",
)
@json_output(Matches)
def match(model: str | None, dataset: str | None, domain: str | None, limit: int, out: Out) -> int:
    """Match models and data sets, with the reasons for each pair.

    \b
    Examples:
      fairmile match --model cosmoflow
      fairmile match --dataset mnist
      fairmile match --domain seismology
    """
    catalog = Workspace.open(on_progress=out.progress).catalog
    out.show(
        catalog.match(model=model, dataset=dataset, domain=domain, limit=limit),
        lambda matches: _print_matches(matches, out),
    )
    return 0


def _print_matches(matches: Matches, out: Out) -> None:
    for each in matches:
        out.heading(f"{each.score:.2f}  {each.model}  {out.symbol('×', 'x')}  {each.dataset}")
        for reason in each.reasons:
            out.item(f"      {reason.kind}: ", reason.text)
    if not matches:
        out.say("no match")
        out.hint(matches.hint)
