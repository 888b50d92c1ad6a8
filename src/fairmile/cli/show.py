"""`fairmile show`: describe an asset, and say how FAIR it is."""

from __future__ import annotations

import click

from fairmile.base.errors import UsageError
from fairmile.base.units import format_size
from fairmile.catalog.card import Card
from fairmile.catalog.card_facts import card_facts
from fairmile.catalog.fair import Assessment
from fairmile.catalog.results import ResolvedCard, SourceDocument
from fairmile.cli.out import Out, json_output
from fairmile.workspace import Workspace

_FILES = 50
_MARKS = {
    "pass": ("✔", "yes ", "green"),
    "partial": ("◐", "half", "yellow"),
    "fail": ("✘", "no  ", "red"),
    "not applicable": ("–", "-   ", "dim"),
}
_VIEWS = ("tests", "table1", "indicators", "richness")


@click.command()
@click.argument("name")
@click.option("--kind", metavar="KIND", help="Kind of the asset, when several kinds share the name.")
@click.option("--fair", is_flag=True, help="Show the FAIR score with evidence, and what would raise it.")
@click.option("--view", type=click.Choice(_VIEWS), help="View of the FAIR score.  [default: tests]")
@click.option("--raw", is_flag=True, help="Print the document that the card was imported from.")
@json_output(ResolvedCard, Assessment, SourceDocument)
def show(name: str, kind: str | None, fair: bool, view: str | None, raw: bool, out: Out) -> int:
    """Describe an asset.

    NAME is a name, model/name, a full handle such as builtin/model/cosmoflow@1.0, an id, a DOI, a digest,
    or the path of a card or of a folder with a card.

    \b
    Examples:
      fairmile show model/cosmoflow
      fairmile show model/cosmoflow --fair
      fairmile show dataset/mnist --view table1
    """
    if raw and (fair or view):
        raise UsageError("--raw cannot be combined with --fair or --view", hint="run the command once for each")
    workspace = Workspace.open(on_progress=out.progress)
    card = workspace.show(name, kind=kind)
    if raw:
        out.show(workspace.catalog.source_document(card), lambda source: out.document(source.data))
    elif fair or view:
        out.show(workspace.catalog.fair(card), lambda each: _print_assessment(each, view or "tests", out))
    else:
        out.show(card, lambda each: _print_card(each, out))
    if not raw and card.catalog:
        _print_others(card, out)
    return 0


def _print_others(card: ResolvedCard, out: Out) -> None:
    same_name = sorted({f"{each.kind}/{each.name}" for each in card.others if each.kind != card.kind})
    if same_name:
        out.hint(f"{', '.join(same_name)} {'has' if len(same_name) == 1 else 'have'} the same name")
    for each in card.others:
        if each.kind == card.kind:
            same = "the same card" if each.digest == card.digest else f"another card, version {each.version}"
            out.hint(f"the catalog {each.catalog!r} has {same}; {card.catalog!r} takes precedence")


def _print_card(card: ResolvedCard, out: Out) -> None:
    out.heading(f"{card.title}  ({card.kind}, version {card.version})")
    tombstone = card.get("tombstone")
    if tombstone is not None:
        reason = tombstone.get("reason") or "no reason given"
        out.line(out.colour(f"removed {tombstone.get('date', '')}: {reason}", "red"))
        if tombstone.get("supersededBy"):
            out.line(f"superseded by {tombstone['supersededBy']}")
    out.line(card.origin)
    if card.text("description"):
        out.line()
        out.paragraph(card.text("description"))
    out.line()
    out.items(card_facts(card))
    if card.files:
        out.line()
        _print_files(card, out)
    for warning in card.warnings:
        out.item(out.colour("warning: ", "yellow"), f"{warning.get('field', '')}: {warning.get('message', '')}")


def _print_files(card: Card, out: Out) -> None:
    rows = []
    for file in card.files[:_FILES]:
        size = format_size(file.size_bytes) if file.size_bytes else ""
        rows.append([file.name, size, file.media_type, (file.sha256 or "")[:12], file.url])
    out.table(["file", "size", "type", "sha256", "address"], rows, shrink=("type",))
    if len(card.files) > _FILES:
        out.line(f"and {len(card.files) - _FILES} more files; use --json to list all")


def _print_assessment(assessment: Assessment, view: str, out: Out) -> None:
    letters = "  ".join(f"{letter} {score:.0f}" for letter, score in assessment.letters.items())
    out.heading(f"{assessment.score:.0f} of 100  {letters}  {assessment.handle}")
    if view != "tests":
        _print_view(assessment, view, out)
        return
    for finding in assessment.findings:
        mark, plain, colour = _MARKS[finding.outcome]
        mark = out.colour(out.symbol(mark, plain), colour)
        out.item(f"{mark} {finding.id:<6} ", f"{finding.title}: {finding.evidence}")
    if assessment.advice:
        out.line()
        out.heading("To raise the score, largest gain first; replace words in capitals, which only the owner knows:")
        for number, advice in enumerate(assessment.advice, 1):
            out.line(f"{number:>2}. {advice}")


def _print_view(assessment: Assessment, view: str, out: Out) -> None:
    facts = assessment.to_dict()
    if view == "table1":
        rows = [[key, _percent(entry["percent"]), entry["title"]] for key, entry in facts["table_one"].items()]
        out.table(["principle", "score", "requirement"], rows)
    elif view == "indicators":
        out.line(f"{_percent(facts['indicator_score'])} of the indicators are met")
        rows = [[entry["id"], entry["outcome"], entry["evidence"]] for entry in facts["indicators"]]
        out.table(["indicator", "met", "evidence"], rows, shrink=("evidence",))
    else:
        out.line(f"{_percent(facts['richness']['percent'])} of the properties of a rich card of this kind")
        rows = [["yes" if present else "no", key] for key, present in facts["richness"]["properties"].items()]
        out.table(["present", "property"], rows)


def _percent(value: float | None) -> str:
    return "not applicable" if value is None else f"{value:.0f} %"
