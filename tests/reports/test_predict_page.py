"""The pages of predictions: one file each that says what was predicted and how sure it is, with or without figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape

import pytest
from cases import for_each

from fairmile.costs.devices import device
from fairmile.costs.operators.signatures import signature, tensor
from fairmile.costs.operators.work import work_of
from fairmile.costs.steps import Op
from fairmile.predict.loading import Loading
from fairmile.predict.memory.account import MemoryAccount, MemoryPoint, Moment, SizeInterval
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.sharding import Layout, RankMemory, rank_memory
from fairmile.predict.power import StepEnergy
from fairmile.predict.results import MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import ScalingPrediction, ScalingRow
from fairmile.predict.scaling.plans import LayoutPlan
from fairmile.predict.scaling.step import StepParts as ScaledStep
from fairmile.predict.step_time import OpLine, StepTime
from fairmile.reports import figures
from fairmile.reports.predict_figures import memory_over_time, rank_memory_bars, roof_points, under_the_roof
from fairmile.reports.predict_page import memory_page, scaling_page, spread_words, time_page

MIB, GIB = 2**20, 2**30
H200 = device("h200")
X, W, Y = tensor((8, 16, 32, 32)), tensor((32, 16, 3, 3)), tensor((8, 32, 16, 16))
CONVOLUTION = Op("aten.convolution.default", "forward", "stem", (X, W), (Y,),
                 ({"tensor": 0}, {"tensor": 1}, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1))  # fmt: skip
PRODUCT = Op("aten.mm.default", "forward", "head", (tensor((256, 512)), tensor((512, 128))), (tensor((256, 128)),),
             ({"tensor": 0}, {"tensor": 1}))  # fmt: skip
SUM = Op("aten.add.Tensor", "forward", "", (Y, Y), (Y,), ({"tensor": 0}, {"tensor": 1}))


@pytest.fixture
def with_figures() -> None:
    pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def only_those_who_ask_draw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "with_figures" not in request.fixturenames:
        monkeypatch.setattr(figures, "can_draw", lambda: False)


def words(page: str) -> str:
    body = page[page.index("</nav>" if "</nav>" in page else "<main>") : page.index("</main>")]
    return " ".join(
        unescape(re.sub(r"<[^>]+>", " ", page[page.index("<header>") : page.index("</header>")] + body)).split()
    )


def drawn(page: str) -> list[str]:
    """Return the titles of the figures, each of which is there for wide screens and for phones."""
    titles = re.findall(r'<div class="wide"[^>]*><svg[^>]*aria-label="([^"]*)"', page)
    assert titles == re.findall(r'<div class="narrow"[^>]*><svg[^>]*aria-label="([^"]*)"', page)
    return titles


def memory(**changes: object) -> MemoryPrediction:
    course = [(0, 0.0, ""), (0, 0.2, "forward"), (0, 0.6, "backward"), (0, 0.9, "optimizer"),
              (1, 0.0, "forward"), (1, 0.6, "backward"), (1, 0.9, "optimizer")]  # fmt: skip
    timeline = [
        MemoryPoint(step, place, phase, (at + 1) * 100 * MIB, 900 * MIB)
        for at, (step, place, phase) in enumerate(course)
    ]
    parts = {"parameters": 100 * MIB, "activations": 500 * MIB, "temporary": 100 * MIB, "slack": 200 * MIB,
             "context": 500 * MIB, "inputs": 0}  # fmt: skip
    account = MemoryAccount(
        peak_allocated_bytes=700 * MIB,
        peak_reserved_bytes=900 * MIB,
        device_used_bytes=1400 * MIB,
        allocated_span=SizeInterval(690 * MIB, 710 * MIB),
        reserved_span=SizeInterval(850 * MIB, 950 * MIB),
        device_span=SizeInterval(1350 * MIB, 1450 * MIB),
        context_bytes=500 * MIB,
        breakdown=parts,
        by_module={f"layers.{at}": (30 - at) * MIB for at in range(25)},
        peak=Moment(1, "backward", "aten.mm.default", "layers.3"),
        timeline=timeline,
        device=H200.name,
        device_bytes=H200.memory_bytes,
        fits=True,
        out_of_memory=None,
        retries=0,
        verified=True,
        notes=("one shape was guessed",),
    )
    return MemoryPrediction("model.py:build", H200, 64, replace(account, **changes))  # type: ignore[arg-type]


def line(op: Op, seconds: float, how: str = "exact", bound: str = "compute", count: int = 2) -> OpLine:
    return OpLine(op.name, "gemm", signature(op), count, seconds, how, bound)


def timed(input: Loading | None = None) -> TimePrediction:
    lines = (
        line(PRODUCT, 6e-3),
        line(CONVOLUTION, 3e-3, "interpolated"),
        line(SUM, 1e-3, "roofline", "memory"),
        OpLine("aten.odd.default", "elementwise", "no signature", 1, 1e-6, "exact", "launch"),
    )
    step = StepTime(
        step_time_s=12e-3, low_s=11e-3, high_s=13e-3, device=H200.name, device_s=10e-3, host_s=2e-3, bound="compute",
        by_phase={"forward": 4e-3, "backward": 5e-3, "optimizer": 1e-3}, by_kind={"gemm": 7e-3, "conv": 3e-3},
        by_module={"head": 6e-3, "": 4e-3}, by_how={"exact": 6e-3, "interpolated": 4e-3}, flops=2.4e12,
        moved_bytes=12 * GIB, least_bytes=3 * GIB, roof_s=5e-3, compute_roof_s=4e-3, top=lines,
        notes=("no operator was measured on it",),
    )  # fmt: skip
    return TimePrediction("model.py:build", 60, step, StepEnergy(6.0, 5.0, 7.0, 500.0), input)


def scaled(mode: str = "strong") -> ScalingPrediction:
    rows = [ScalingRow(1, 1, 64, None, "no plan fits: the smallest of 12 needs 200 GiB")]
    for gpus in (2, 4, 8, 16):
        time = ScaledStep(1.6 / gpus, data_s=0.01 * gpus, bubble_s=0.02, wait_s=0.01)
        held = RankMemory(2 * GIB, 2 * GIB, 4 * GIB / gpus, 30 * GIB / gpus, GIB, 0.0, 64 * MIB, 700 * MIB)
        plan = LayoutPlan(Layout(data=gpus // 2, tensor=2, zero=1), time, held)
        efficiency = 1.65 / (plan.step_time_s * gpus)
        rows.append(
            ScalingRow(gpus, 1 + gpus // 5, 64, plan, "", 0.16, efficiency, 120.0 + gpus, 3600.0, 5e9, 2.5, 42.0)
        )
    return ScalingPrediction("weak" if mode == "weak" else "strong", rows, 4, 0.7, ("device: NVIDIA H200",))


def test_the_memory_page_says_what_is_needed_how_sure_that_is_and_by_what() -> None:
    text = words(memory_page(memory()))
    for said in (
        "Memory of model.py:build fits NVIDIA H200 · batch of 64",
        "allocated at the peak 700.0 MiB 690.0 MiB to 710.0 MiB",
        "reserved 900.0 MiB 850.0 MiB to 950.0 MiB",
        "device 1.4 GiB 1.0 % of 140.4 GiB; 1.3 GiB to 1.4 GiB",
        "largest part activations 500.0 MiB, 36 %",
        "The peak is in step 2, backward, in mm of module layers.3.",
        "One shape was guessed.",
    ):
        assert said in text


def test_modules_beyond_twenty_are_folded_away() -> None:
    page = memory_page(memory())
    shown, _, folded = page.partition("<details><summary>5 more, 40.0 MiB together")
    assert "layers.19" in shown and "layers.20" not in shown
    assert "layers.20" in folded and "layers.24" in folded


def test_what_does_not_fit_says_how_the_run_would_end() -> None:
    said = "out of memory: 2.0 GiB asked for"
    page = memory_page(memory(fits=False, out_of_memory=said))
    assert 'class="badge bad">does not fit' in page
    assert f"The run would end with: {said}." in words(page)
    assert "by returning unused segments to the device 3 times" in words(memory_page(memory(retries=3)))
    assert "or more" in words(memory_page(memory(stopped="its shapes depend on data")))


def test_the_time_line_of_memory_shows_the_limit_only_where_it_is_near(with_figures: None) -> None:
    for size, is_near in ((H200.memory_bytes, False), (2 * GIB, True)):
        found = memory(device_bytes=size).estimate
        assert isinstance(found, MemoryAccount)
        assert (b"device memory left" in memory_over_time(found).svg()) is is_near


def test_a_spread_model_shows_its_fullest_rank_before_the_whole() -> None:
    layout = Layout(data=4, zero=3, micro_batch=2, micro_batches=3, optimizer_on="host")
    rank = RankMemory(5 * MIB, 6 * MIB, 0.0, 70 * MIB, 8 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 12 * MIB, 0.0, 0.25)
    text = words(memory_page(replace(memory(), layout=layout, rank=rank)))
    assert "4 ranks: data 4, ZeRO 3, 3 micro-batches of 2, optimizer on host · 2 of the 24 samples" in text
    assert "allocated at the peak 108.0 MiB" in text and "device 119.0 MiB" in text
    assert "12.0 MiB in the memory of the host; moving it takes 250 ms" in text
    assert text.index("Memory of the fullest rank") < text.index("Memory of one GPU without parallelism")


def test_a_description_has_no_time_line_and_says_that_what_is_reserved_is_an_estimate() -> None:
    found = closed_form(
        {"kind": "transformer", "layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "seq": 32, "batch": 2}
    )
    layout = Layout(data=2, zero=3)
    asked = MemoryPrediction("small.yaml", H200, 2, found)
    page = memory_page(asked)
    assert "an estimate by its kind" in words(page) and "Memory over" not in page
    assert "Slack is an estimate: similar measured steps reserved" in words(page)
    assert "layer.1" in page
    spread = replace(asked, layout=layout, rank=rank_memory(found.footprint, layout))
    text = words(memory_page(spread))
    assert "with the slack that the whole step has" in text and "reserved, not used" in text
    squeezed = replace(spread, wanted_bytes=3 << 30)
    assert "It fits only by returning unused segments to the device" in words(memory_page(squeezed))


def test_the_time_page_says_how_long_what_bounds_it_and_what_it_costs() -> None:
    text = words(time_page(timed()))
    for said in (
        "compute-bound NVIDIA H200 · batch of 60",
        "step 12 ms 11 ms to 13 ms",
        "samples per second 5,000 4,615 to 5,455",
        "bound by compute arithmetic of the device",
        "device busy 83 % 200 Tflop/s",
        "energy of a step 6 J 5 J to 7 J, 500 W",
        "12.0 GiB, 4 times the 3.0 GiB",
        "60 % measured, 40 % from measured calls of other sizes",
        "No operator was measured on it.",
    ):
        assert said in text
    assert "arrive in time" not in text


def test_operators_that_were_measured_here_are_told_apart() -> None:
    found = timed()
    step = replace(found.step, top=(line(PRODUCT, 6e-3, "here"),), by_how={"here": 6e-3, "exact": 4e-3})
    text = words(time_page(replace(found, step=step)))
    assert "60 % measured here, 40 % measured." in text
    assert "compute measured here" in text


def test_operators_stand_under_the_roof_with_the_work_that_their_signatures_tell() -> None:
    lines = [line(op, 1e-3) for op in (PRODUCT, CONVOLUTION, SUM)]
    points = roof_points([*lines, OpLine("odd", "gemm", "no signature", 1, 1e-3, "exact", "compute")])
    assert len(points) == 3
    for op in (PRODUCT, CONVOLUTION, SUM):
        work, point = work_of(op), points[signature(op)]
        assert point.intensity == pytest.approx(work.flops / work.bytes)
        assert point.flops_per_s == pytest.approx(2 * work.flops / 1e-3)
    roof = under_the_roof(lines, H200)
    assert [name for name, _ in roof.peaks] == ["float32", "tf32"]
    assert roof.bytes_per_s == H200.bandwidth_ceiling


def test_of_operators_side_by_side_under_the_roof_only_the_longest_is_named() -> None:
    wider = replace(PRODUCT, inputs=(tensor((256, 512)), tensor((512, 144))))
    points = under_the_roof([line(wider, 2e-3), line(PRODUCT, 1e-3), line(SUM, 9e-5)], H200).points
    assert [each.name for each in points] == ["mm", "", "add.Tensor"]


def test_input_that_cannot_keep_up_is_said_first() -> None:
    fed = Loading(5000.0, 2500.0, "decoding", True, 24e-3, 0.5, "input-bound: use more workers")
    text = words(time_page(timed(fed)))
    assert "input-bound NVIDIA H200" in text and "step 24 ms 12 ms if input arrived in time" in text
    assert "samples per second 2,500 what decoding delivers" in text
    assert text.index("Input-bound: use more workers.") < text.index("Longest operators")
    unknown = Loading(5000.0, float("inf"), "", False, 12e-3, 1.0, "nothing is known of how fast samples arrive")
    assert "arrive not known" in words(time_page(timed(unknown)))


def test_the_scaling_page_has_every_number_of_gpus_and_the_reason_where_nothing_fits() -> None:
    text = words(scaling_page(scaled(), title="gpt on jupiter"))
    for said in (
        "gpt on jupiter worth it up to 4 GPUs Strong scaling",
        "no plan fits: the smallest of 12 needs 200 GiB",
        "data 8, tensor 2, ZeRO 1",
        "fastest on 16 GPUs",
        "On 8 it is 67 %.",
        "Device: NVIDIA H200.",
        "GPU-hours",
        "42.00",
        "5 GJ",
    ):
        assert said in text
    assert "Weak scaling" in words(scaling_page(scaled("weak"), title="x"))


def test_scaling_without_any_plan_says_why_and_draws_nothing() -> None:
    rows = [ScalingRow(gpus, 1, 64, None, f"needs more than {gpus}") for gpus in (1, 2)]
    page = scaling_page(ScalingPrediction("strong", rows, None), title="x")
    assert "No layout fits" in page and "needs more than 2" in page and "<svg" not in page


def test_costs_that_were_not_asked_for_have_no_column() -> None:
    found = scaled()
    rows = [replace(each, gpu_hours=None, wall_s=None, energy_j=None, cost=None) for each in found.rows]
    text = words(scaling_page(replace(found, rows=rows), title="x"))
    assert "energy of a sample" in text and "GPU-hours" not in text and "time in all" not in text


def test_the_limit_of_memory_is_drawn_where_it_is_known(with_figures: None) -> None:
    for size in (96 * GIB, None):
        assert (b"device memory" in rank_memory_bars(scaled(), size).svg()) is (size is not None)


PAGES: dict[str, Callable[[], str]] = {
    "memory": lambda: memory_page(memory()),
    "time": lambda: time_page(timed()),
    "scaling": lambda: scaling_page(replace(scaled(), memory_bytes=96 * GIB), title="x"),
}
DRAWN = {
    "memory": ["Device memory", "Memory over the traced steps"],
    "time": [
        "Device time of a step",
        "Operators under the roofline of NVIDIA H200",
        "Data moved in a step",
    ],
    "scaling": [
        "Time and throughput over GPUs",
        "Efficiency over GPUs",
        "Parts of a step",
        "Memory of the fullest rank",
    ],
}
TOLD = {
    "memory": ["activations", "500.0 MiB", "backward"],
    "time": ["gemm", "forward", "70 %", "convolution"],
    "scaling": ["gradient communication", "pipeline bubble", "activations", "waiting for the slowest"],
}


@pytest.mark.parametrize("name", ["memory", "time", pytest.param("scaling", marks=pytest.mark.thorough)])
def test_each_page_is_one_file_with_its_figures_and_the_same_each_time(name: str, with_figures: None) -> None:
    page = PAGES[name]()
    assert page == PAGES[name]()
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert drawn(page) == DRAWN[name]
    assert page.count("<figcaption><span>") == len(DRAWN[name]), "every figure says what is seen"


@for_each("name", PAGES)
def test_without_matplotlib_tables_say_it_all(name: str) -> None:
    page = PAGES[name]()
    assert "<svg" not in page and "Figures are left out" in page
    for said in TOLD[name]:
        assert said in words(page)


def test_names_cannot_write_into_a_page() -> None:
    bad = "<script>alert(1)</script>"
    found = replace(memory(by_module={bad: MIB}, notes=(bad,)), target=bad)
    assert bad not in memory_page(found) and bad not in scaling_page(scaled(), title=bad)


@for_each(
    "layout, said",
    [
        (Layout(), "one GPU"),
        (Layout(data=1024, tensor=4, pipeline=2, zero=1), "data 1,024, tensor 4, pipeline 2, ZeRO 1"),
        (Layout(micro_batch=8, micro_batches=4, recompute="full"), "4 micro-batches of 8, full recomputation"),
    ],
)
def test_a_layout_is_told_in_words(layout: Layout, said: str) -> None:
    assert spread_words(layout) == said
