"""Links within tables of reports: on a page of the server a run leads to its own page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import quote

from fairmile.reports.blocks import Block, Fold, Table


def with_links(blocks: Iterable[Block]) -> list[Block]:
    """Return blocks in whose tables the cells of a column named `run` lead to the pages of runs."""
    return [_linked(block) for block in blocks]


def run_page(run: str) -> str:
    """Return the address of the page of a run."""
    return f"/runs/{quote(run, safe='')}"


def _linked(block: Block) -> Block:
    if isinstance(block, Fold):
        return replace(block, blocks=tuple(with_links(block.blocks)))
    if not isinstance(block, Table) or "run" not in block.columns:
        return block
    at = block.columns.index("run")
    rows = tuple(
        tuple(
            replace(cell, link=run_page(cell.text)) if place == at and cell.text else cell
            for place, cell in enumerate(row)
        )
        for row in block.rows
    )
    return replace(block, rows=rows)
