"""Leaderboards: runs ranked by a metric, repeats together, with what noise allows to say."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from fairmile.base.errors import FairmileError
from fairmile.reports.blocks import Block, Code, Note
from fairmile.reports.page import leaderboard_blocks
from fairmile.web.parameters import Word
from fairmile.web.render import Page
from fairmile.web.routes import Routes, workspace_of

routes = Routes("runs")
_MOST_PLACES = 500
_MOST_METRICS = 100
_MOST_RUNS = 500  # that are ranked


@routes.page("/leaderboards")
def leaderboards_page(
    request: Request,
    metric: Word = "",
    where: Annotated[str, Query(max_length=500)] = "",
    n: Annotated[int, Query(ge=1, le=_MOST_PLACES)] = 20,
) -> Page:
    """Rank runs by a metric."""
    workspace = workspace_of(request)
    names = list(workspace.ledger.metric_counts(_MOST_METRICS))
    chosen = metric or next(iter(names), "")
    blocks: list[Block] = []
    try:
        board = (
            workspace.reports.leaderboard(chosen, n=n, where=where.split(), most_runs=_MOST_RUNS) if chosen else None
        )
        blocks = (
            list(leaderboard_blocks(board))
            if board
            else [Note("No run has a metric yet.", "dim"), Code("fairmile run train.py")]
        )
    except FairmileError as error:
        blocks = [Note(f"{error}. {error.hint or ''}")]
    values = {"metrics": names, "chosen": chosen, "where": where, "n": n}
    return Page("leaderboards.html", f"Leaderboard: {chosen}" if chosen else "Leaderboards", values, blocks)
