"""An asset: what it is, its files and versions, how FAIR it is, what used it, where it comes from, how to cite it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote, urlencode

from fastapi import Request

from fairmile.base.units import format_duration, format_number, format_size
from fairmile.base.words import place
from fairmile.catalog.card import LINKS, Card
from fairmile.catalog.card_facts import access_text, bibtex, card_facts, cite, use_lines
from fairmile.catalog.catalog import Catalog
from fairmile.catalog.fair import LETTERS, Assessment
from fairmile.catalog.results import ResolvedCard, Versions
from fairmile.catalog.row import target_names
from fairmile.catalog.sources import card_for_others
from fairmile.reports.blocks import (
    Block,
    Cell,
    Code,
    Facts,
    Fold,
    Heading,
    Note,
    Row,
    Text,
    Tile,
    Tiles,
    Title,
    Tone,
    table,
)
from fairmile.reports.one_run import state_tone, when
from fairmile.runs.record.ledger import RunPage, RunRows
from fairmile.runs.record.query import RunQuery
from fairmile.web.lineage import Node, draw_lineage
from fairmile.web.pages.access import access_of
from fairmile.web.render import Page
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("catalog")
_MOST_FILES = 200
_RUNS = 8
_NO_RUNS = RunPage(RunRows(()), 0, 0, {})
_TONES: dict[str, Tone] = {"pass": "good", "partial": "warn", "fail": "bad", "not applicable": "dim"}


@routes.page("/assets/{name:path}", right="browse")
def asset_page(request: Request, name: str) -> Page:
    """Show an asset."""
    workspace, identity = workspace_of(request), identity_of(request)
    has_accounts = identity.has_account or identity.is_visitor
    catalog = workspace.catalog
    card = catalog.show(name)
    versions = catalog.versions(str(card.handle))
    shown = card_for_others(card) if has_accounts else card
    assessment = catalog.fair(shown)
    used = f"used={card.kind}/{card.name}"
    runs = workspace.runs.page(RunQuery(used), limit=_RUNS) if identity.may("read") else _NO_RUNS
    all_runs = f"/runs?{urlencode({'q': used})}"
    blocks = [
        *(() if has_accounts else _access(card)),
        *_files(shown),
        *_fair(assessment),
        *_versions(card, versions),
        *_runs(runs),
        *_citation(card),
        *_card(card),
    ]
    sources, uses = _linked(catalog, card)
    if runs.total:
        uses = [Node("runs that used it", f"{runs.total:,} run{'s' * (runs.total != 1)}", all_runs), *uses]
    values = {
        "card": card,
        "title": Title(card.title, card.kind, below=str(card.handle)),
        "tombstone": card.get("tombstone"),
        "description": card.text("description"),
        "use": use_lines(card),
        "lineage": draw_lineage(Node(card.kind, card.title), sources, uses) if sources or uses else "",
        "tiles": _tiles(card, versions, assessment, runs),
        "all_runs": all_runs if runs.total > _RUNS else "",
        "run_count": runs.total,
        "access": access_of(request, card) if has_accounts else None,
    }
    return Page("asset.html", card.title, values, blocks, status=410 if "tombstone" in card else 200)


def asset_link(handle: str) -> str:
    """Return the address of the page of an asset."""
    return f"/assets/{quote(handle)}"


def _tiles(card: Card, versions: Versions, assessment: Assessment, runs: RunPage) -> list[Tile]:
    size_bytes = sum(file.size_bytes or 0 for file in card.files)
    count = len(card.files)
    tiles = [
        Tile("version", card.version, f"{len(versions):,} in all" if len(versions) > 1 else ""),
        Tile("licence", card.licence or card.text("license") or "–"),
        Tile("files", f"{count:,}", format_size(size_bytes) if size_bytes else ""),
        Tile("FAIR score", f"{assessment.score:.0f} of 100"),
        Tile("runs that used it", f"{runs.total:,}"),
    ]
    return tiles


def _access(card: Card) -> Iterator[Block]:
    yield Heading("Access")
    yield Text(access_text(card))


def _files(card: Card) -> Iterator[Block]:
    if not card.files:
        return
    yield Heading(f"Files ({len(card.files):,})")
    rows: list[Row] = []
    for file in card.files[:_MOST_FILES]:
        size = Cell("") if file.size_bytes is None else Cell(format_size(file.size_bytes), sort=float(file.size_bytes))
        digest = Cell(file.sha256 or "not known", code=bool(file.sha256), tone="" if file.sha256 else "dim")
        rows.append([file.name, size, file.media_type or "", digest])
    yield table(["file", "size", "type", "SHA-256"], rows, numbers=["size"])
    if len(card.files) > _MOST_FILES:
        yield Text(f"The first {_MOST_FILES} of {len(card.files):,}.")
    addresses = [file.url for file in card.files if file.url]
    if addresses:
        yield Fold("Addresses", (Code("\n".join(addresses[:_MOST_FILES])),))


def _fair(assessment: Assessment) -> Iterator[Block]:
    yield Heading(f"FAIR score: {assessment.score:.0f} of 100")
    letters = assessment.letters.items()
    yield Tiles(tuple(Tile(LETTERS[letter], f"{score:.0f}") for letter, score in letters))
    if assessment.advice:
        yield Text("To raise the score, largest gain first; replace words in capitals, which only the owner knows:")
        yield Code("\n".join(assessment.advice))
    rows: list[Row] = [
        [each.id, each.title, Cell(each.outcome, tone=_TONES[each.outcome]), each.evidence]
        for each in assessment.findings
    ]
    yield Fold(f"All {len(rows)} tests", (table(["test", "what is tested", "outcome", "evidence"], rows),))


def _versions(card: Card, versions: Versions) -> Iterator[Block]:
    if len(versions) < 2:
        return
    yield Heading(f"Versions ({len(versions):,})")
    rows: list[Row] = []
    for row in versions:
        is_own = row.handle == str(card.handle)
        state = "removed" if row.gone else "this one" if is_own else ""
        link = "" if is_own else asset_link(row.handle)
        rows.append([Cell(row.version, link=link), row.catalog, Cell(row.digest, code=True), Cell(state, tone="dim")])
    yield table(["version", "catalog", "digest of the card", ""], rows)


def _runs(runs: RunPage) -> Iterator[Block]:
    if not runs.rows:
        return
    yield Heading("Runs that used it")
    rows: list[Row] = []
    for row in runs.rows:
        metrics = ", ".join(
            f"{name} {format_number(value, row.units.get(name, ''))}" for name, value in list(row.metrics.items())[:3]
        )
        took = Cell("" if row.elapsed_s is None else format_duration(row.elapsed_s), sort=row.elapsed_s)
        state = Cell(str(row.state), tone=state_tone(row.state))
        started = Cell(when(row.created)[:16], sort=row.created)
        link = f"/runs/{quote(row.id, safe='')}"
        rows.append([Cell(row.id, link=link), state, started, took, place(row.system), metrics or row.reason])
    yield table(["run", "state", "started (UTC)", "took", "on", "metrics"], rows, numbers=["took"])


def _citation(card: Card) -> Iterator[Block]:
    yield Heading("Citation")
    yield Text(cite(card))
    yield Code(bibtex(card))


def _card(card: ResolvedCard) -> Iterator[Block]:
    yield Heading("Card")
    yield Facts(tuple(card_facts(card)))
    for warning in card.warnings:
        yield Note(f"{warning.get('field', '')}: {warning.get('message', '')}")


def _linked(catalog: Catalog, card: Card) -> tuple[Sequence[Node], Sequence[Node]]:
    """Return what a card names, and the cards that name it."""
    with catalog.open_index() as index:
        naming = index.linking_to(target_names(card))
    sources = []
    for relation, target in card.links:
        known = next(iter(catalog.existing([target])), None)
        link = asset_link(str(known.handle)) if known is not None else ""
        sources.append(Node(relation, known.title if known is not None else target, link))
    uses = {
        row.handle: Node(LINKS.get(relation, relation), row.title, asset_link(row.handle)) for relation, row in naming
    }
    uses.pop(str(card.handle), None)
    return sources, list(uses.values())
