"""The page of a trace: one file that says what costs time, with or without figures."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from cases import for_each
from trace_making import Training, coupled, steady

from fairmile.reports import figures
from fairmile.reports.trace_figures import roofline
from fairmile.reports.trace_page import measured_roofline, readable, trace_page
from fairmile.traces.achieved import OperatorWork
from fairmile.traces.analyze import TraceAnalysis, analyze
from fairmile.traces.events import EventKind, EventTable, Lane, Process, Rows

ADDMM = OperatorWork(
    "aten::addmm", "gemm", "4096, 8192×4096, 4096×4096", "bfloat16", 20, 2.75e11, 168_000_000, 0.011, 5e14, 1636.0,
    "compute", 0.51,
)  # fmt: skip


class Even:
    """A model by which every call takes half a millisecond."""

    def time_s(self, collective: str, size_bytes: float, ranks: int, /, *, nodes: int = 1) -> float:
        return 0.0005


@pytest.fixture(scope="module")
def analysis() -> TraceAnalysis:
    uneven = Training(device=True, buckets=2, compute_ms=lambda rank, step: 15 if rank == 3 else 10)
    return replace(analyze(uneven.table(), model=Even()), operators=(ADDMM,), devices=("NVIDIA H200",))


@pytest.fixture(scope="module")
def page(analysis: TraceAnalysis) -> str:
    return trace_page(analysis, title="cosmoflow")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures where only words matter."""
    monkeypatch.setattr(figures, "can_draw", lambda: False)


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_the_page_says_what_costs_time_where_and_what_to_try(analysis: TraceAnalysis, page: str) -> None:
    text = words(page)
    first = analysis.findings[0]
    for said in ("cosmoflow", "4 ranks, 5 steps", first.title.replace("'", "&#x27;"), "Wait at NxN", "Critical path"):
        assert said in text
    assert "Rank 3 computes longer than the others" in text


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_groups_of_few_ranks_count_for_these_alone(analysis: TraceAnalysis) -> None:
    one = replace(analysis.waiting.collectives[0], exposed_wait_s=analysis.total_s / 4)
    halves = [replace(one, group=name, ranks=2) for name in ("left", "right")]
    for found in ([one], halves):
        page = trace_page(replace(analysis, waiting=replace(analysis.waiting, collectives=tuple(found))), title="a")
        assert re.search(r"waiting for others 25.% part of the exposed communication", words(page))


@pytest.mark.thorough
def test_the_page_is_one_file_and_the_same_each_time(analysis: TraceAnalysis, page: str) -> None:
    pytest.importorskip("matplotlib")
    assert page == trace_page(analysis, title="cosmoflow")
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    titles = re.findall(r'<svg[^>]*aria-label="([^"]*)"', page)
    for title in (
        "What costs time", "All steps", "Time of each step", "Where the time of a step goes, by rank",
        "How long each rank waited for each other", "Bandwidth of collectives beside the model", "The critical path",
        "Operators under the roofline of NVIDIA H200",
    ):  # fmt: skip
        assert title in titles
    assert page.count("<figcaption><span>") == page.count("<figcaption>"), "every figure says what is seen"


@pytest.mark.usefixtures("undrawn")
def test_without_matplotlib_tables_say_it_all(analysis: TraceAnalysis) -> None:
    page = trace_page(analysis, title="a")
    assert "<svg" not in page
    text = words(page)
    assert "Figures are left out" in text
    for said in ("Where the time goes, by rank", "rank 3", "addmm", "500 Tflop/s", "51 %", "all-reduce", "25 %"):
        assert said in text


def test_the_roof_is_that_of_the_types_that_were_computed_with(analysis: TraceAnalysis) -> None:
    found = measured_roofline(analysis)
    assert found.peaks == (("bfloat16", 9.894e14),)
    assert (found.device, found.points[0].bound) == ("NVIDIA H200", "compute")


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_without_a_known_device_operators_are_shown_with_the_best_rate_among_them(analysis: TraceAnalysis) -> None:
    pytest.importorskip("matplotlib")
    plain = replace(ADDMM, bound="", of_roof=None)
    other = replace(plain, name="aten::mm", intensity=2.0, flops_per_s=1e12)
    unnamed = replace(analysis, operators=(plain, other), devices=())
    text = words(trace_page(unnamed, title="a"))
    assert "1 Tflop/s" in text and "of the roof" not in text and "bound by" not in text
    drawn = roofline(measured_roofline(unnamed))
    assert drawn.title == "Operators and the best rate among them" and b"the fastest here" in drawn.svg()
    unknown = roofline(measured_roofline(replace(unnamed, devices=("Some GPU",))))
    assert unknown.title.endswith("of Some GPU, whose ceilings are not known")


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_a_trace_without_the_inputs_of_operators_has_no_roofline(analysis: TraceAnalysis) -> None:
    assert "Roofline" not in trace_page(replace(analysis, operators=()), title="a")


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_coupled_programs_get_their_own_section() -> None:
    text = words(trace_page(analyze(coupled()), title="coupled"))
    for said in ("Coupling", "The trainer waits for the solver", "solver → trainer", "cost of coupling", "field"):
        assert said in text


@pytest.mark.usefixtures("undrawn")
def test_names_from_a_trace_cannot_write_into_the_page() -> None:
    rows = Rows()
    for step in range(3):
        rows.add(
            EventKind.REGION, "<script>alert(1)</script>\x1b[31m", step * 10, step * 10 + 9, Lane(0, "<b>main</b>")
        )
    page = trace_page(analyze(rows.table([Process(0)])), title="<i>x</i>")
    assert "<script>alert" not in page and "<i>x</i>" not in page and "<b>main" not in page


@pytest.mark.thorough
def test_many_ranks_and_steps_stay_readable() -> None:
    table = Training(ranks=34, steps=16, device=True, compute_ms=lambda rank, step: 10 + rank % 3).table()
    page = trace_page(analyze(table), title="many")
    assert len(page) < 4_000_000
    assert "The first 500 of 544 steps" in page
    if figures.can_draw():
        assert "2 more are not shown." in page


@pytest.mark.parametrize("table", [Training(ranks=1, steps=1).table(), Training(ranks=2, input_ms=steady(0)).table()])
@pytest.mark.thorough
def test_small_traces_make_a_page_too(table: EventTable) -> None:
    assert trace_page(analyze(table), title="small").startswith("<!doctype html>")


@for_each(
    "name, shown",
    [
        ("aten::convolution_backward", "aten::convolution_backward"),
        ("ProfilerStep#3", "ProfilerStep#3"),
        (
            "void at::native::batch_norm_backward_kernel<c10::BFloat16, float, int>(at::Tensor<float, 3ul>, bool)",
            "batch_norm_backward_kernel<BFloat16, float, int>",
        ),
        (
            "void at::native::(anonymous namespace)::cat_kernel<float (*)(int)>(float*, std::array<char*, 3ul>)",
            "cat_kernel<float (*)(int)>",
        ),
        ("x" * 300, "x" * 99 + "…"),
    ],
)
def test_names_of_kernels_can_be_read(name: str, shown: str) -> None:
    assert readable(name) == shown
