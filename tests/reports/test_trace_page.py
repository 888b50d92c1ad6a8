"""The page of a trace: one file that says what costs time, with or without figures."""

from __future__ import annotations

import re

import pytest
from trace_making import Training, coupled, steady

from fairmile.perf.traces.analyze import TraceAnalysis, analyze
from fairmile.perf.traces.events import EventTable, Kind, Lane, Process, Rows
from fairmile.reports import figures
from fairmile.reports.trace_figures import Roofline, RooflinePoint
from fairmile.reports.trace_page import trace_page

ROOFLINE = Roofline(
    (
        RooflinePoint("aten::addmm", 300.0, 500e12, "compute", 1.0),
        RooflinePoint("aten::layer_norm", 2.0, 6e12, "memory", 0.3),
    ),
    (("bf16 tensor", 989e12),),
    4.8e12,
    "NVIDIA H200",
)


class Even:
    """A model by which every call takes half a millisecond."""

    def time_s(self, collective: str, size_bytes: float, ranks: int, /, *, nodes: int = 1) -> float:
        return 0.0005


@pytest.fixture(scope="module")
def analysis() -> TraceAnalysis:
    uneven = Training(device=True, buckets=2, compute_ms=lambda rank, step: 15 if rank == 3 else 10)
    return analyze(uneven.table(), model=Even())


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_page_says_what_costs_time_where_and_what_to_try(analysis: TraceAnalysis) -> None:
    text = words(trace_page(analysis, title="cosmoflow"))
    first = analysis.findings[0]
    for said in ("cosmoflow", "4 ranks, 5 steps", first.title.replace("'", "&#x27;"), "Wait at NxN", "Critical path"):
        assert said in text
    assert "Rank 3 computes longer than the others" in text


def test_the_page_is_one_file_and_the_same_each_time(analysis: TraceAnalysis) -> None:
    pytest.importorskip("matplotlib")
    page = trace_page(analysis, title="a", roofline=ROOFLINE)
    assert page == trace_page(analysis, title="a", roofline=ROOFLINE)
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    titles = re.findall(r'<svg[^>]*aria-label="([^"]*)"', page)
    for title in (
        "What costs time", "All steps", "Time of each step", "Where the time of a step goes, by rank",
        "How long each rank waited for each other", "Bandwidth of collectives beside the model", "The critical path",
        "Operators under the roofline of NVIDIA H200",
    ):  # fmt: skip
        assert title in titles


def test_without_matplotlib_tables_say_it_all(analysis: TraceAnalysis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "can_draw", lambda: False)
    page = trace_page(analysis, title="a", roofline=ROOFLINE)
    assert "<svg" not in page
    text = words(page)
    assert "Figures are left out" in text
    for said in ("Where the time goes, by rank", "rank 3", "aten::addmm", "all-reduce", "25 %"):
        assert said in text


def test_coupled_programs_get_their_own_section() -> None:
    text = words(trace_page(analyze(coupled()), title="coupled"))
    for said in ("Coupling", "The trainer waits for the solver", "solver → trainer", "cost of coupling", "field"):
        assert said in text


def test_names_from_a_trace_cannot_write_into_the_page() -> None:
    rows = Rows()
    for step in range(3):
        rows.add(Kind.REGION, "<script>alert(1)</script>\x1b[31m", step * 10, step * 10 + 9, Lane(0, "<b>main</b>"))
    page = trace_page(analyze(rows.table([Process(0)])), title="<i>x</i>")
    assert "<script>alert" not in page and "<i>x</i>" not in page and "<b>main" not in page


def test_many_ranks_and_steps_stay_readable() -> None:
    table = Training(ranks=34, steps=16, device=True, compute_ms=lambda rank, step: 10 + rank % 3).table()
    page = trace_page(analyze(table), title="many")
    assert len(page) < 4_000_000
    assert "The first 500 of 544 steps" in page
    if figures.can_draw():
        assert "2 more are not shown." in page


@pytest.mark.parametrize("table", [Training(ranks=1, steps=1).table(), Training(ranks=2, input_ms=steady(0)).table()])
def test_small_traces_make_a_page_too(table: EventTable) -> None:
    assert trace_page(analyze(table), title="small").startswith("<!doctype html>")
