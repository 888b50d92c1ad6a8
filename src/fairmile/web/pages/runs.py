"""Runs: the table of all, several compared, one live and after, and the files that it gave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Query, Request
from starlette.responses import FileResponse, Response

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.files import safe_join
from fairmile.base.units import format_duration, format_number, format_value
from fairmile.base.words import place
from fairmile.reports.blocks import Title
from fairmile.reports.measures import results_only, title
from fairmile.reports.one_run import machine_blocks, origin_blocks, rerun_line, state_tone, when
from fairmile.runs.record.index_rows import RunRow
from fairmile.runs.record.layout import OUTPUT
from fairmile.runs.record.ledger import RunPage, RunRows
from fairmile.runs.record.query import NEWEST, RunQuery
from fairmile.runs.record.record import RunState
from fairmile.web.answers import cursor_at, position_of
from fairmile.web.render import Page
from fairmile.web.routes import Routes, identity_of, workspace_of

routes = Routes("runs")
_ROWS = 50
_MOST_COLUMNS = 40
_PARAMETERS, _METRICS = 8, 6  # columns unless others are chosen
_STALE_S = 1.0  # somebody who types a condition does not wait for the folders of all runs at each key
_MOST_COMPARED = 50
_FIRST = (("id", "run"), ("state", "state"))  # then metrics and parameters, then
_LAST = (("created", "started (UTC)"), ("elapsed_s", "took"), ("system", "on"))
# Kinds of files that a browser only shows; everything else is downloaded.
_SHOWN_AS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    **dict.fromkeys((".txt", ".log", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".md"), "text/plain"),
}
_FILE_HEADERS = {"content-security-policy": "sandbox; default-src 'none'", "cache-control": "no-cache"}

Text = Annotated[str, Query(max_length=1000)]
Names = Annotated[list[str], Query(max_length=_MOST_COLUMNS)]


@routes.page("/runs")
def runs_page(
    request: Request,
    q: Text = "",
    state: Annotated[list[RunState], Query(max_length=len(RunState))] = [],  # noqa: B006  FastAPI copies it
    sort: Annotated[str, Query(max_length=200)] = NEWEST,
    column: Names = [],  # noqa: B006
    cursor: Annotated[str, Query(max_length=500)] = "",
) -> Page:
    """List runs."""
    start = position_of(cursor)
    view = _View(q, [str(each) for each in state], sort, column)
    problem = ""
    try:
        query = RunQuery(q, tuple(view.states), sort)
        runs = workspace_of(request).runs.page(query, start=start, limit=_ROWS, stale_s=_STALE_S)
    except UsageError as error:  # a condition that is not finished yet, perhaps
        runs, problem = RunPage(RunRows(), 0, 0, {}), f"{error}. {error.hint or ''}"
    names = _names(runs.rows)
    chosen = [each for each in column if _is_name(each)] or _telling(runs.rows, names)
    values = {
        "q": q,
        "problem": problem,
        "view": view,
        "page_of_runs": runs,
        "states": [(name, runs.states.get(name, 0), view.link(states=_toggled(view.states, name)), name in view.states)
                   for name in map(str, RunState) if name in runs.states or name in view.states],
        "columns": [
            _column(view, key, text) for key, text in (*_FIRST, *((key, _title(key)) for key in chosen), *_LAST)
        ],
        "rows": [_row(row, chosen) for row in runs.rows],
        "names": [(key, _title(key), key in chosen) for key in dict.fromkeys([*names, *chosen])],
        "same": _same(runs.rows, chosen),
        "before": view.link(cursor=cursor_at(max(0, start - _ROWS))) if start else "",
        "next": view.link(cursor=cursor_at(start + _ROWS)) if runs.total > start + _ROWS else "",
        "is_filtered": bool(q or view.states),
    }  # fmt: skip
    return Page("runs.html", "Runs", values, scripts=["runs.js"], live=["runs"])


class _View:
    """What the address of the list keeps: the search, the states, the order and the columns."""

    def __init__(self, q: str, states: Sequence[str], sort: str, columns: Sequence[str]) -> None:
        self.q = q
        self.states = list(states)
        self.sort = sort
        self.columns = list(columns)

    def link(self, **changes: Any) -> str:
        """Return the address of this list with something changed; it begins at the start unless that is given."""
        parts = {"q": self.q, "states": self.states, "sort": self.sort, "columns": self.columns, "cursor": ""} | changes
        pairs = [("q", parts["q"]), *(("state", each) for each in parts["states"])]
        pairs += [("sort", parts["sort"])] if parts["sort"] != NEWEST else []
        pairs += [*(("column", each) for each in parts["columns"]), ("cursor", parts["cursor"])]
        text = urlencode([(name, value) for name, value in pairs if value])
        return f"/runs?{text}" if text else "/runs"


def _toggled(states: Sequence[str], name: str) -> list[str]:
    return [each for each in states if each != name] if name in states else [*states, name]


def _is_name(key: str) -> bool:
    return key.partition(".")[0] in ("param", "metric") or key == "energy_j"


def _names(rows: Sequence[RunRow]) -> list[str]:
    """Return every column that these runs could have."""
    params = dict.fromkeys(f"param.{name}" for row in rows for name in row.params)
    metrics = dict.fromkeys(f"metric.{name}" for row in rows for name in row.metrics)
    return [*params, *metrics, "energy_j"]


def _telling(rows: Sequence[RunRow], names: Sequence[str]) -> list[str]:
    """Return metrics that are results, and the parameters that tell runs apart, as many as fit."""
    varying = [key for key in names if key.startswith("param.") and len(_texts(rows, key)) > 1]
    metrics = results_only(key.removeprefix("metric.") for key in names if key.startswith("metric."))
    return [*(f"metric.{name}" for name in metrics[:_METRICS]), *varying[:_PARAMETERS]]


def _texts(rows: Sequence[RunRow], key: str) -> set[str]:
    name = key.partition(".")[2]
    return {format_value(row.params[name]) for row in rows if name in row.params}


def _same(rows: Sequence[RunRow], chosen: Sequence[str]) -> list[tuple[str, str]]:
    """Return the parameters that all runs of the list share."""
    if len(rows) < 2:
        return []
    shared = [name for name in rows[0].params if f"param.{name}" not in chosen]
    values = ((name, {format_value(row.params.get(name, "")) for row in rows}) for name in shared)
    return [(name, texts.pop()) for name, texts in values if len(texts) == 1]


def _title(key: str) -> str:
    return title(key.partition(".")[2] or key)


def _column(view: _View, key: str, text: str) -> dict[str, Any]:
    down = view.sort == f"-{key}"
    up = view.sort == key
    following = key if down else f"-{key}" if up or key in ("created", "elapsed_s", "energy_j") else key
    return {
        "title": text,
        "address": view.link(sort=following),
        "order": "descending" if down else "ascending" if up else "",
        "is_number": key in ("elapsed_s", "energy_j") or "." in key,
    }


def _row(row: RunRow, chosen: Sequence[str]) -> dict[str, Any]:
    state = str(row.state)
    return {
        "id": row.id,
        "address": f"/runs/{quote(row.id, safe='')}",
        "state": state,
        "tone": state_tone(row.state) if row.state is not RunState.DONE else "",
        "reason": row.reason,
        "started": when(row.created)[:16] if row.created else "",
        "took": format_duration(row.elapsed_s) if row.elapsed_s is not None else "",
        "place": place(row.system),
        "cells": [_text(row, key) for key in chosen],
    }


def _text(row: RunRow, key: str) -> str:
    kind, _, name = key.partition(".")
    if kind == "param":
        return format_value(row.params[name]) if name in row.params else ""
    if kind == "metric":
        return format_number(row.metrics.get(name), row.units.get(name, ""))
    return format_number(row.energy_j, "J")


@routes.page("/runs/compare")
def compare_page(
    request: Request,
    run: Annotated[list[str], Query(max_length=_MOST_COMPARED)] = [],  # noqa: B006
) -> Page:
    """Compare runs, groups or names of runs, as `fairmile compare` does."""
    if not run:
        raise UsageError("choose the runs to compare", hint="tick them in the list of runs")
    report = workspace_of(request).reports.compared(*dict.fromkeys(run))
    return Page("blocks.html", report.title, blocks=report.blocks)


@routes.page("/runs/{name}")
def run_page(request: Request, name: str) -> Page:
    """Show one run: live while it runs, and its report when it has ended."""
    runs = workspace_of(request).runs
    run = runs.get(_plain(name))
    state = runs.state_of(run)
    if state.is_end:
        report = workspace_of(request).reports.page(run.id)
        return Page("run.html", report.title, {"run": run, "is_live": False}, blocks=report.blocks)
    run = run.in_state(state)
    about = Title(
        f"{run.name} · {run.id}", str(state), state_tone(state), f"on {place(run.system)} · {when(run.created)}"
    )
    values = {
        "run": run,
        "is_live": True,
        "title": about,
        "may_cancel": identity_of(request).may("start"),
        "rerun": rerun_line(run),
    }
    blocks = [*machine_blocks(run), *origin_blocks(run)]
    scripts, styles = ["vendor/uPlot.iife.min.js", "run.js"], ["vendor/uPlot.min.css"]
    return Page("run.html", about.text, values, blocks, scripts=scripts, styles=styles, live=[f"run:{run.id}"])


@routes.page("/runs/{name}/output")
def run_output(request: Request, name: str) -> Response:
    """Return everything that a run printed, as text."""
    run = workspace_of(request).runs.get(_plain(name))
    if run.packed or not (run.folder / OUTPUT).is_file():
        raise NotFound(f"the output of {run.id} is not here", hint=f"`fairmile runs log {run.id}` may have it")
    return _file(str(run.folder / OUTPUT), "text/plain", _FILE_HEADERS)


@routes.page("/runs/{name}/files/{file:path}")
def run_file(request: Request, name: str, file: str) -> Response:
    """Return an output of a run: what only can be looked at is shown, everything else downloaded."""
    run = workspace_of(request).runs.get(_plain(name))
    if file not in run.outputs:
        raise NotFound(f"run {run.id} has no output {file!r}", hint="its page lists them")
    try:
        path = safe_join(run.work, file)
    except ValueError:
        raise NotFound(f"{file!r} is no file of run {run.id}") from None
    if run.packed or not path.is_file():
        raise NotFound(f"{file} is no longer on this machine", hint=f"`fairmile rerun {run.id}` makes it again")
    kind = _SHOWN_AS.get(path.suffix.lower())
    given = "inline" if kind else "attachment"
    headers = {**_FILE_HEADERS, "content-disposition": f"{given}; filename*=UTF-8''{quote(path.name, safe='')}"}
    return _file(str(path), kind or "application/octet-stream", headers)


def _file(path: str, media_type: str, headers: Mapping[str, str]) -> Response:
    charset = "; charset=utf-8" if media_type == "text/plain" else ""
    return FileResponse(path, media_type=media_type + charset, headers=dict(headers))


def _plain(name: str) -> str:
    """Return the id of a run; a path, which the command line takes as well, is none."""
    if "/" in name or name in (".", ".."):
        raise NotFound(f"no run named {name!r}", hint="/runs lists them")
    return name
