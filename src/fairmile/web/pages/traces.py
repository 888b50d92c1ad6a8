"""Traces: the runs that have one, and for each where its time went."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import Query, Request

from fairmile.base.errors import UsageError
from fairmile.base.units import format_duration
from fairmile.base.words import place
from fairmile.reports.blocks import Block, Cell, Row, table
from fairmile.reports.one_run import state_tone, when
from fairmile.reports.trace_page import trace_blocks
from fairmile.runs.record.index_rows import RunRow
from fairmile.runs.record.ledger import RunPage, RunRows
from fairmile.runs.record.query import RunQuery
from fairmile.traces.analyze import TraceAnalysis
from fairmile.traces.of_runs import traces_of
from fairmile.web.answers import cursor_at, position_of
from fairmile.web.kept import Kept
from fairmile.web.linking import run_page
from fairmile.web.parameters import Cursor, Id, Word
from fairmile.web.render import Page
from fairmile.web.routes import Routes, workspace_of

routes = Routes("runs")
_ROWS = 50
_WITH_TRACE = "has=trace"


@routes.page("/traces")
def traces_page(request: Request, q: Annotated[str, Query(max_length=1000)] = "", cursor: Cursor = "") -> Page:
    """List the runs that have a trace."""
    start, problem = position_of(cursor), ""
    try:
        runs = workspace_of(request).runs.page(RunQuery(f"{_WITH_TRACE} {q}"), start=start, limit=_ROWS, stale_s=1.0)
    except UsageError as error:  # a condition that is not finished yet, perhaps
        runs, problem = RunPage(RunRows(), 0, 0, {}), f"{error}. {error.hint or ''}"
    following = {"q": q, "cursor": cursor_at(start + _ROWS)}
    values = {
        **{"q": q, "problem": problem, "total": runs.total},
        "next": f"/traces?{urlencode(following)}" if runs.total > start + _ROWS else "",
    }
    return Page("traces.html", "Traces", values, list(_rows(runs.rows)))


def _rows(runs: Sequence[RunRow]) -> Iterator[Block]:
    rows: list[Row] = [
        [
            Cell(each.id, link=trace_page(each.id)),
            Cell(str(each.state), tone=state_tone(each.state)),
            Cell(when(each.created)[:16], each.created),
            Cell("" if each.elapsed_s is None else format_duration(each.elapsed_s), each.elapsed_s),
            place(each.system),
        ]
        for each in runs
    ]
    if rows:
        yield table(["run", "state", "started (UTC)", "took", "on"], rows, numbers=["took"])


@routes.page("/traces/{name}")
def run_trace_page(request: Request, name: Id, on: Word = "") -> Page:
    """Show where the time of a run went."""
    workspace, kept = workspace_of(request), request.app.state.kept
    run = workspace.ledger.get(name)
    asked = ("trace", run.id, on, _stamps(traces_of(run)))
    assert isinstance(kept, Kept)
    analysis: TraceAnalysis = kept.get(asked, lambda: workspace.traces.analyze(run, system=on))
    values = {
        "run": run,
        "address": run_page(run.id),
        "on": on,
        "systems": [each.name for each in workspace.systems.ls() if not each.problem],
    }
    return Page("trace.html", f"Trace {run.id}", values, trace_blocks(analysis, title=run.id))


def trace_page(run: str) -> str:
    """Return the address of the page with the trace of a run."""
    return f"/traces/{quote(run, safe='')}"


def _stamps(paths: Sequence[Path]) -> Hashable:
    """Return what changes when a trace does."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in paths)
