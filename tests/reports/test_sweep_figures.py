"""Figures of sweeps and studies: the same bytes for the same data, readable whatever the parameters are."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cases import for_each
from PIL import Image
from run_making import CREATED, make_run, metric_document

from fairmile.base.errors import NotFound
from fairmile.reports import figures, study_figures, sweep_figures
from fairmile.reports.curves import Curve
from fairmile.reports.figures import SHADES, Picture, short_number
from fairmile.reports.html import inline_svg
from fairmile.reports.page import report
from fairmile.reports.study import TrialCurve, TrialCurves, front, history, importance
from fairmile.reports.sweep import Sweep, heat_map, survey
from fairmile.runs.record.record import TrialReference
from fairmile.runs.record.run import Metric, Run, RunState


def run(tmp_path: Path, at: int, params: dict[str, Any], loss: Any, **said: Any) -> Run:
    metrics = {"loss": metric_document(loss, better="lower")} if loss is not None else {}
    return make_run(tmp_path, f"s-{at}", group="s", created=CREATED + at, params=params, metrics=metrics, **said)


def runs_of(tmp_path: Path) -> list[Run]:
    found = []
    for at in range(24):
        lr, depth, optimizer = 10.0 ** -(at % 4), at % 3, ("sgd", "adam")[at % 2]
        found.append(run(tmp_path, at, {"lr": lr, "depth": depth, "optimizer": optimizer}, 0.1 + lr + depth / 10))
    found.append(run(tmp_path, 99, {"lr": 1.0, "depth": 7, "optimizer": "sgd"}, None, state="failed"))
    return found


def sweep_of(tmp_path: Path) -> Sweep:
    return survey(runs_of(tmp_path), "loss")


def curves_of(tmp_path: Path) -> TrialCurves:
    steps = history(runs_of(tmp_path)[:3], "loss", better="lower")
    curves = [TrialCurve(step, Curve("loss", (1.0, 2.0), (2.0, 1.0 + at), (0.0, 1.0))) for at, step in enumerate(steps)]
    return TrialCurves(tuple(curves), 9)


def importance_of(tmp_path: Path) -> Picture:
    found = importance(sweep_of(tmp_path), use_forest=False)
    assert found is not None
    return study_figures.importance(found)


EVERY: dict[str, Callable[[Path], Picture]] = {
    "heat map": lambda path: sweep_figures.heat_map(heat_map(sweep_of(path), "depth", "lr")),
    "parallel coordinates": lambda path: sweep_figures.parallel_coordinates(sweep_of(path)),
    "effects": lambda path: sweep_figures.effect_panels(sweep_of(path)),
    "history": lambda path: study_figures.history(
        history(runs_of(path), "loss", better="lower"), "loss", "", "lower"
    ),
    "trial curves": lambda path: study_figures.trial_curves(curves_of(path), "loss", "", "lower"),
    "importance": importance_of,
    "slices": lambda path: study_figures.slices(sweep_of(path)),
    "contours": lambda path: study_figures.contours(sweep_of(path), "depth", "lr"),
    "front": lambda path: study_figures.pareto(
        front(sweep_of(path), [("loss", "lower"), ("elapsed_s", "lower")]), ["", "s"]
    ),
}  # fmt: skip


def texts(picture: Picture) -> list[str]:
    root = ElementTree.fromstring(picture.svg())
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("kind", EVERY)
def test_a_figure_is_well_formed_and_the_same_each_time(tmp_path: Path, kind: str) -> None:
    first, second = EVERY[kind](tmp_path / "1"), EVERY[kind](tmp_path / "2")
    assert first.svg() == second.svg()
    assert texts(first)


@pytest.mark.parametrize("kind", EVERY)
def test_nothing_is_cut_off_at_the_width_of_a_column(tmp_path: Path, kind: str) -> None:
    picture = Image.open(io.BytesIO(EVERY[kind](tmp_path).file("png", width_mm=85))).convert("RGB")
    assert picture.width == pytest.approx(85 / 25.4 * 300, abs=1)
    for side in ((0, 0, 1, picture.height), (picture.width - 1, 0, picture.width, picture.height)):
        assert picture.crop(side).getcolors() == [(picture.height, (255, 255, 255))]


@pytest.mark.parametrize("kind", EVERY)
def test_every_colour_follows_the_page(tmp_path: Path, kind: str) -> None:
    svg = inline_svg(EVERY[kind](tmp_path).svg(), "f1", "x")
    assert not set(re.findall(r"(?:fill|stroke): ?(#[0-9a-f]{6})", svg)) - {"#000000"}


def test_a_heat_map_writes_values_counts_and_what_failed(tmp_path: Path) -> None:
    shown = texts(EVERY["heat map"](tmp_path))
    assert "2 runs" in shown
    assert "failed" in shown
    assert {"depth", "lr", "loss"} <= set(shown)
    assert "Hatched cells have no value." in EVERY["heat map"](tmp_path / "2").note


def test_the_best_cell_has_the_first_shade_and_the_worst_the_last(tmp_path: Path) -> None:
    runs = [run(tmp_path, at, {"a": at % 2, "b": at // 2}, loss) for at, loss in enumerate([0.0, 1.0, 2.0, 3.0])]
    svg = sweep_figures.heat_map(heat_map(survey(runs, "loss"), "a", "b")).svg().decode()
    assert svg.count(f"fill: {SHADES[0]}") == 2  # one cell, and the bar that explains it
    assert svg.count(f"fill: {SHADES[-1]}") == 2


def test_no_formula_is_written_beside_a_logarithmic_axis(tmp_path: Path) -> None:
    runs = [run(tmp_path, at, {"lr": 10.0 ** (-at / 4)}, 1.0 + at) for at in range(20)]
    shown = texts(sweep_figures.effect_panels(survey(runs, "loss")))
    assert "1e−3" in shown
    assert not [text for text in shown if "$" in text]


def test_parallel_coordinates_have_an_axis_for_what_is_not_set(tmp_path: Path) -> None:
    runs = [run(tmp_path, 0, {"opt": "sgd", "momentum": 0.9}, 1.0), run(tmp_path, 1, {"opt": "adam"}, 2.0)]
    runs.append(run(tmp_path, 2, {"opt": "sgd", "momentum": 0.5}, 3.0))
    assert "not set" in texts(sweep_figures.parallel_coordinates(survey(runs, "loss")))


def test_of_a_thousand_lines_some_are_drawn_and_that_is_said(tmp_path: Path) -> None:
    template = run(tmp_path, 0, {"x": 0, "y": 0}, 1.0)
    runs = []
    for at in range(1000):
        record = replace(template.record.copy(), id=f"s-{at}")
        record.spec.params = {"x": at, "y": at % 7}
        record.result.metrics = {"loss": Metric.from_dict(metric_document(float(at), better="lower"))}
        runs.append(Run(record, template.folder))
    picture = sweep_figures.parallel_coordinates(survey(runs, "loss"))
    assert "Of 1,000 runs the best 150 and an even choice of the others are drawn." in picture.note
    assert len(picture.svg()) < 300_000


def test_a_value_far_outside_does_not_press_the_others_together(tmp_path: Path) -> None:
    losses = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, -500.0]
    runs = [run(tmp_path, at, {"x": at}, loss) for at, loss in enumerate(losses)]
    higher = history(runs, "loss", better="higher")
    assert "1 far outside is drawn at the edge." in study_figures.history(higher, "loss", "", "higher").note
    lower = history(runs, "loss", better="lower")  # there it is the best, and never cut off
    assert "far outside" not in study_figures.history(lower, "loss", "", "lower").note


def test_trial_curves_mark_the_best_and_say_how_many_are_left_out(tmp_path: Path) -> None:
    picture = EVERY["trial curves"](tmp_path)
    assert "3 of 9 trials" in picture.note
    assert any(text.startswith("best: trial") for text in texts(picture))


def test_the_figures_of_nothing_are_not_there(tmp_path: Path) -> None:
    empty = survey([run(tmp_path, at, {"x": at}, None, state="failed") for at in range(2)])
    for make in (sweep_figures.parallel_coordinates, sweep_figures.effect_panels):
        with pytest.raises(NotFound):
            make(empty)
    with pytest.raises(NotFound):
        study_figures.history([], "loss", "", "lower")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["$\\frac{a}", "<b>&amp;", "_hidden", "\x00\x1b[31m", "日本語", "x" * 300, "a/b ../c"])
def test_any_name_and_value_can_be_drawn(tmp_path: Path, name: str) -> None:
    runs = [run(tmp_path, at, {name: name * (at % 2), "y": at % 3}, float(at)) for at in range(12)]
    for picture in report(runs).pictures:
        ElementTree.fromstring(picture.svg())
        assert "/" not in picture.name


@for_each(
    "value, text", [(1e-5, "1e−5"), (0.25, "0.25"), (1234.5, "1,234"), (2.5e6, "2.5e6"), (-3.0, "−3"), (0.0, "0")]
)
def test_numbers_beside_an_axis_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


def test_without_matplotlib_a_sweep_is_reported_in_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    made = report(runs_of(tmp_path))
    assert made.pictures == []
    assert "★ best" in made.html()


def test_a_parameter_searched_by_ratio_has_a_logarithmic_axis(tmp_path: Path) -> None:
    runs = [run(tmp_path, at, {"width": width}, 0.1) for at, width in enumerate([18, 300, 520, 700, 800, 1003])]
    assert not survey(runs, "loss").axis("width").log
    assert survey(runs, "loss", log=["width"]).axis("width").log


def test_pruned_trials_stand_in_the_figures_with_a_mark_of_their_own(tmp_path: Path) -> None:
    runs = [run(tmp_path, at, {"lr": 10.0**-at}, 0.5 - at / 10) for at in range(3)]
    for each in runs:
        each.record.trial = TrialReference.from_dict({"study": "s", "number": 7, "objectives": {"loss": "lower"}})
    runs[0].result.state, runs[0].result.reason = RunState.CANCELLED, "stopped early: weak"
    assert {"done", "pruned", "best"} <= set(texts(study_figures.slices(survey(runs, "loss"))))


def test_a_pointer_reads_each_trial_where_it_is_drawn(tmp_path: Path) -> None:
    svg, series = study_figures.slices(sweep_of(tmp_path)).readable()
    width, height = map(float, re.findall(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    points = [(each, point) for each in series for point in each["points"]]
    assert len({point[4] for _, point in points if "best" not in point[4]}) == 24
    assert all(0 <= left <= width and 0 <= up <= height for _, (left, up, *_) in points)
    assert {each["x"] for each in series} == {"lr", "depth", "optimizer"}
    assert {point[2] for each, point in points if each["x"] == "optimizer"} == {"sgd", "adam"}
