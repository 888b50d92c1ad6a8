"""Sweeps and studies: a list, and for each what its parameters do, as the report shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode

from fastapi import Request

from fairmile.base.errors import FairmileError
from fairmile.reports.blocks import Block, Cell, Heading, Note, Row, Text, Title, table
from fairmile.status import is_unfinished, states_text, sweep_progress
from fairmile.web.linking import with_links
from fairmile.web.parameters import Id, Word
from fairmile.web.render import Page
from fairmile.web.routes import Routes, workspace_of

routes = Routes("sweeps")
_MOST_SWEEPS = 200
_MOST_RUNS = 300  # that a page is drawn from
_MOST_ROWS = 100  # of the table of points: the page stays light, whatever the sweep


@routes.page("/sweeps")
def sweeps_page(request: Request) -> Page:
    """List sweeps and studies."""
    sweeps = workspace_of(request).sweeps.ls(limit=_MOST_SWEEPS)
    rows: list[Row] = [
        [
            Cell(each.id, link=f"/sweeps/{each.id}"),
            "study" if each.is_study else f"{each.count:,} point{'s' if each.count != 1 else ''}",
            states_text(sweeps.counts[each.id]),
            each.system or "here",
            Cell(f"{datetime.fromtimestamp(each.created, UTC):%Y-%m-%d %H:%M}", each.created),
        ]
        for each in sweeps
    ]
    blocks: list[Block] = [Title("Sweeps and studies")]
    if rows:
        blocks.append(Heading("Newest first"))
        blocks.append(table(["sweep", "size", "runs", "where", "created (UTC)"], rows))
    else:
        blocks.append(Text("No sweeps yet: fairmile sweep train.py --lr 0.01,0.1 starts one."))
    return Page("blocks.html", "Sweeps", blocks=blocks)


@routes.page("/sweeps/{name}")
def sweep_page(request: Request, name: Id, metric: Word = "", x: Word = "", y: Word = "") -> Page:
    """Show what the parameters of a sweep do, by a metric, with a heat map over two of them."""
    workspace = workspace_of(request)
    sweep, metrics = workspace.sweeps.get(name), [metric] if metric else None
    over = [x, y] if x and y and x != y else []
    counts = workspace.ledger.counts([sweep.id])[sweep.id]
    live = [f"sweep:{sweep.id}"] if is_unfinished(sweep, counts) else []
    progress = sweep_progress(sweep, counts) if live else ""
    scripts = ["sweeps.js"] if live else []
    try:
        report = workspace.reports.page(
            sweep.id, metrics=metrics, over=over, most_rows=_MOST_ROWS, most_runs=_MOST_RUNS
        )
    except FairmileError as error:  # no run of it has begun, perhaps
        blocks: list[Block] = [Title(sweep.id), Note(f"{error}. {error.hint or ''}")]
        empty = {"axes": [], "metrics": [], "progress": progress}
        return Page("sweep.html", sweep.id, empty, blocks, scripts=scripts, live=live)
    known = report.data.get("sweep", {"axes": {}, "points": [], "metric": ""})
    metrics_known = list(dict.fromkeys(each for point in known["points"] for each in point["metrics"]))
    values = {
        "progress": progress,
        "axes": list(known["axes"]),
        "metrics": metrics_known,
        "chosen": {"metric": metric or known["metric"], "x": x, "y": y},
        "runs": f"/runs?{urlencode({'group': sweep.id})}",
    }
    return Page("sweep.html", sweep.id, values, with_links(report.blocks), scripts=scripts, live=live)
