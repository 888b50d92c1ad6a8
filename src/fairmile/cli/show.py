"""`fairmile show`: describe an asset, and say how FAIR it is."""

from __future__ import annotations

import click

from fairmile.base.units import format_size
from fairmile.catalog.card import Card, as_list, text_of
from fairmile.catalog.fair import Assessment
from fairmile.catalog.index import Row
from fairmile.cli.out import Out, json_option
from fairmile.workspace import Workspace

_LINES = (
    ("creator", "creator"),
    ("publisher", "publisher"),
    ("date", "datePublished"),
    ("domain", "scienceDomain"),
    ("task", "mlTask"),
    ("framework", "machineLearningFramework"),
    ("keywords", "keywords"),
    ("metrics", "evaluationMetrics"),
    ("access", "accessRights"),
    ("conditions", "conditionsOfAccess"),
    ("cite", "citation"),
    ("address", "url"),
    ("code", "codeRepository"),
)


@click.command()
@click.argument("name")
@click.option("--kind", help="Which one, when a name is that of several kinds of asset.")
@click.option("--fair", is_flag=True, help="How FAIR is it, with evidence, and what to do to raise it.")
@click.option(
    "--view",
    type=click.Choice(["tests", "table1", "indicators", "richness"]),
    default="tests",
    help="With --fair: which view.",
)
@click.option("--raw", is_flag=True, help="Print the document the card was imported from.")
@json_option
def show(name: str, kind: str | None, fair: bool, view: str, raw: bool, out: Out) -> int:
    """Describe the asset that NAME means: a name, handle, id, DOI or digest."""
    catalog = Workspace.open(on_progress=out.progress).catalog
    row, others = catalog.resolve(name, kind=kind)
    card = catalog.show(row.handle)
    if raw:
        document = catalog.raw_document(card)
        out.text(document.decode("utf-8", "replace") if document is not None else "")
        if document is None:
            out.say(f"{row.handle} was not imported from a document that is kept")
        return 0
    if fair:
        assessment = catalog.fair(row.handle)
        if out.as_json:
            out.data({"handle": row.handle, **assessment.to_dict()})
        else:
            _render_fair(row.handle, assessment, view, out)
    elif out.as_json:
        out.data({"handle": row.handle, "digest": card.digest, "card": card.body})
    else:
        _render(row, card, out)
    _tell_others(row, others, out)
    return 0


def _tell_others(row: Row, others: list[Row], out: Out) -> None:
    kinds = sorted({f"{each.kind}/{each.name}" for each in others if each.kind != row.kind})
    if kinds:
        out.hint(f"the name is also that of {', '.join(kinds)}")
    for each in others:
        if each.kind == row.kind:
            same = "the same card" if each.digest == row.digest else f"another card, version {each.version}"
            out.hint(f"the catalog {each.catalog!r} has {same}; {row.catalog!r} takes precedence")


def _render(row: Row, card: Card, out: Out) -> None:
    out.heading(f"{card.title}  ({card.kind}, version {card.version})")
    if row.gone:
        grave = card["tombstone"]
        out.line(out.colour(f"removed {grave.get('date', '')}: {grave.get('reason') or 'no reason given'}", "red"))
    out.line(row.handle)
    if card.text("description"):
        out.line()
        out.paragraph(card.text("description"))
        out.line()
    for label, key in _LINES:
        values = [text for value in as_list(card.get(key)) if (text := text_of(value))]
        if values:
            out.line(f"{label:<11} {', '.join(values[:12])}")
    licence = card.licence or card.text("license")
    if licence:
        out.line(f"{'licence':<11} {licence}")
    for relation, target in card.links[:20]:
        out.line(f"{relation:<11} {target}")
    if card.files:
        out.line()
        out.table(
            ["file", "size", "type", "sha256", "address"],
            [
                [
                    file.name,
                    format_size(file.size_bytes) if file.size_bytes else "",
                    file.media_type,
                    (file.sha256 or "")[:12],
                    file.url,
                ]
                for file in card.files[:50]
            ],
        )
    out.line()
    out.line(f"{'id':<11} {card.iri}")
    if card.content:
        out.line(f"{'content':<11} {card.content}")
    out.line(f"{'card':<11} {card.digest}")
    for warning in card.warnings:
        out.line(out.colour(f"warning     {warning.get('field', '')}: {warning.get('message', '')}", "yellow"))


def _render_fair(handle: str, assessment: Assessment, view: str, out: Out) -> None:
    letters = "  ".join(f"{letter} {score:.0f}" for letter, score in assessment.letters.items())
    out.heading(f"{assessment.score:.0f} of 100  {letters}  {handle}")
    if view == "tests":
        marks = {
            "pass": ("✔", "green"),
            "partial": ("◐", "yellow"),
            "fail": ("✘", "red"),
            "not applicable": ("–", "dim"),
        }
        for finding in assessment.findings:
            mark, colour = marks[finding.outcome]
            out.line(f"{out.colour(mark, colour)} {finding.id:<6} {finding.title}: {finding.evidence}")
        if assessment.advice:
            out.line()
            out.heading("To raise it, most gain first:")
            for number, advice in enumerate(assessment.advice, 1):
                out.line(f"{number:>2}. {advice}")
    else:
        _render_view(assessment, view, out)


def _render_view(assessment: Assessment, view: str, out: Out) -> None:
    facts = assessment.to_dict()
    if view == "table1":
        rows = [[key, f"{entry['percent']:.0f} %", entry["title"]] for key, entry in facts["table_one"].items()]
        out.table(["principle", "score", "what it asks"], rows)
    elif view == "indicators":
        rows = [[entry["id"], entry["outcome"], entry["evidence"]] for entry in facts["indicators"]]
        out.table(["indicator", "met", "evidence"], rows)
    else:
        out.line(f"{facts['richness']['percent']:.0f} % of what a rich card of this kind has")
        out.table(
            ["property", "there"],
            [[key, "yes" if there else "no"] for key, there in facts["richness"]["properties"].items()],
        )
