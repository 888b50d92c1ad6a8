"""`fairmile match`: which data sets a model accepts, and the reverse."""

from __future__ import annotations

import click

from fairmile.cli.out import Out, json_option
from fairmile.workspace import Workspace


@click.command()
@click.option("--model", help="Which data sets does this model accept?")
@click.option("--dataset", help="Which models can this data set train?")
@click.option("--domain", help="Which pairs belong to this science domain?")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@json_option
def match(model: str | None, dataset: str | None, domain: str | None, limit: int, out: Out) -> int:
    """Match science domain, model and data set; every pair with its reasons."""
    found = Workspace.open(on_progress=out.progress).catalog.match(
        model=model, dataset=dataset, domain=domain, limit=limit
    )
    if out.as_json:
        out.data({"matches": [each.to_dict() for each in found]})
        return 0
    for each in found:
        out.heading(f"{each.score:.2f}  {each.model}  ×  {each.dataset}")
        for reason in each.reasons:
            out.line(f"      {reason.kind}: {reason.text}")
    if not found:
        out.say("nothing fits")
        out.hint("a card says what it accepts by trainedOn, acceptsDataset, mlTask, scienceDomain and signature")
    return 0
