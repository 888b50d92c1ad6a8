"""`fairmile show`: describe an asset, and say how FAIR it is."""

from __future__ import annotations

from collections.abc import Sequence

import click

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.units import format_size
from fairmile.catalog.card import Card, as_list, text_of
from fairmile.catalog.fair import Assessment
from fairmile.catalog.row import CatalogRow
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
_VALUES = 12
_LINKS = 20
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
@click.option("--kind", metavar="KIND", help="Which one, when assets of several kinds have the name.")
@click.option("--fair", is_flag=True, help="How FAIR is it, with evidence, and what to do to raise it.")
@click.option("--view", type=click.Choice(_VIEWS), help="Which view of --fair; the tests unless given.")
@click.option("--raw", is_flag=True, help="Print the document the card was imported from.")
@json_option
def show(name: str, kind: str | None, fair: bool, view: str | None, raw: bool, out: Out) -> int:
    """Describe an asset.

    NAME is a name, model/name, a whole handle such as builtin/model/cosmoflow@1.0, an id, a DOI, a digest,
    or the path of a card or of a folder with a card.

    \b
    Examples:
      fairmile show model/cosmoflow
      fairmile show model/cosmoflow --fair
      fairmile show dataset/mnist --view table1
    """
    if raw and (fair or view):
        raise UsageError("--raw prints the document alone", hint="ask for --raw and --fair one after the other")
    workspace = Workspace.open(on_progress=out.progress)
    catalog, target = workspace.catalog, workspace.resolve(name, for_="show", kind=kind)
    card: Card = catalog.show(target.handle) if target.handle else target.content
    if raw:
        _print_raw(target.origin, catalog.raw_document(card) if target.handle else None, out)
        return 0
    also = [each.handle for each in target.others]
    if fair or view:
        assessment = catalog.fair(card)
        if out.as_json:
            out.data({"handle": target.origin, **assessment.to_dict(), "also": also})
        else:
            _render_fair(target.origin, assessment, view or "tests", out)
    elif out.as_json:
        out.data({"handle": target.origin, "digest": card.digest, "card": card.body, "also": also})
    else:
        _render(target.origin, card, out)
    if target.row is not None:
        _tell_others(target.row, target.others, out)
    return 0


def _print_raw(handle: str, document: bytes | None, out: Out) -> None:
    if document is None:
        raise NotFound(
            f"no source document of {handle} is kept", hint="only cards imported from another format have one"
        )
    if out.as_json:
        out.data({"handle": handle, "document": document.decode("utf-8", "replace")})
    else:
        out.document(document)


def _tell_others(row: CatalogRow, others: Sequence[CatalogRow], out: Out) -> None:
    kinds = sorted({f"{each.kind}/{each.name}" for each in others if each.kind != row.kind})
    if kinds:
        out.hint(f"the name is also that of {', '.join(kinds)}")
    for each in others:
        if each.kind == row.kind:
            same = "the same card" if each.digest == row.digest else f"another card, version {each.version}"
            out.hint(f"the catalog {each.catalog!r} has {same}; {row.catalog!r} takes precedence")


def _render(handle: str, card: Card, out: Out) -> None:
    out.heading(f"{card.title}  ({card.kind}, version {card.version})")
    if grave := card.get("tombstone"):
        out.line(out.colour(f"removed {grave.get('date', '')}: {grave.get('reason') or 'no reason given'}", "red"))
        if grave.get("supersededBy"):
            out.line(f"its place takes {grave['supersededBy']}")
    out.line(handle)
    if card.text("description"):
        out.line()
        out.paragraph(card.text("description"))
    out.line()
    pairs = [(label, text) for label, key in _LINES if (text := _values(card, key))]
    licence = card.licence or card.text("license")
    pairs += [("licence", licence)] if licence else []
    pairs += list(card.links[:_LINKS])
    pairs += [("…", f"{len(card.links) - _LINKS} more links; --json has all")] if len(card.links) > _LINKS else []
    pairs += [("id", card.iri)] + ([("content", card.content)] if card.content else []) + [("card", card.digest)]
    out.items(pairs)
    if card.files:
        out.line()
        _render_files(card, out)
    for warning in card.warnings:
        out.item(out.colour("warning: ", "yellow"), f"{warning.get('field', '')}: {warning.get('message', '')}")


def _values(card: Card, key: str) -> str:
    texts = [text for value in as_list(card.get(key)) if (text := text_of(value))]
    if key == "accessRights":
        texts = [text.rsplit("/", 1)[-1] for text in texts]
    more = [f"and {len(texts) - _VALUES} more"] if len(texts) > _VALUES else []
    return ", ".join([*texts[:_VALUES], *more])


def _render_files(card: Card, out: Out) -> None:
    rows = []
    for file in card.files[:_FILES]:
        size = format_size(file.size_bytes) if file.size_bytes else ""
        rows.append([file.name, size, file.media_type, (file.sha256 or "")[:12], file.url])
    out.table(["file", "size", "type", "sha256", "address"], rows, shrink=("type",))
    if len(card.files) > _FILES:
        out.line(f"and {len(card.files) - _FILES} more files; --json has all")


def _render_fair(handle: str, assessment: Assessment, view: str, out: Out) -> None:
    letters = "  ".join(f"{letter} {score:.0f}" for letter, score in assessment.letters.items())
    out.heading(f"{assessment.score:.0f} of 100  {letters}  {handle}")
    if view != "tests":
        _render_view(assessment, view, out)
        return
    for finding in assessment.findings:
        mark, plain, colour = _MARKS[finding.outcome]
        mark = out.colour(out.symbol(mark, plain), colour)
        out.item(f"{mark} {finding.id:<6} ", f"{finding.title}: {finding.evidence}")
    if assessment.advice:
        out.line()
        out.heading("To raise it, most gain first:")
        for number, advice in enumerate(assessment.advice, 1):
            out.line(f"{number:>2}. {advice}")


def _render_view(assessment: Assessment, view: str, out: Out) -> None:
    facts = assessment.to_dict()
    if view == "table1":
        rows = [[key, _percent(entry["percent"]), entry["title"]] for key, entry in facts["table_one"].items()]
        out.table(["principle", "score", "what it asks"], rows)
    elif view == "indicators":
        out.line(f"{_percent(facts['indicator_score'])} of the indicators are met")
        rows = [[entry["id"], entry["outcome"], entry["evidence"]] for entry in facts["indicators"]]
        out.table(["indicator", "met", "evidence"], rows, shrink=("evidence",))
    else:
        out.line(f"{_percent(facts['richness']['percent'])} of what a rich card of this kind has")
        rows = [["yes" if there else "no", key] for key, there in facts["richness"]["properties"].items()]
        out.table(["there", "property"], rows)


def _percent(value: float | None) -> str:
    return "does not apply" if value is None else f"{value:.0f} %"
