"""Figures: the same bytes for the same data, well-formed whatever names they show."""

from __future__ import annotations

import logging
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from run_making import make_run, repeats, training_events

from fairmile.base.errors import NotFound, Unsupported
from fairmile.reports import figures
from fairmile.reports.comparison import compare
from fairmile.reports.figures import Picture, short_label
from fairmile.runs.record.run import Run

PREDICTION = {
    "elapsed_s": {"value": 30.0, "low": 25.0, "high": 36.0, "source": "4 earlier runs"},
    "memory_bytes": {"value": 4 << 30},
}


def trained(tmp_path: Path, id: str = "train-1", **said: object) -> Run:
    return make_run(tmp_path, id, events=training_events(), metrics={"loss": 0.1}, prediction=PREDICTION, **said)


def texts(picture: Picture) -> str:
    root = ElementTree.fromstring(picture.svg())
    return " ".join("".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text"))


EVERY: dict[str, Callable[[Path], Picture]] = {
    "learning curve": lambda path: figures.learning_curve(trained(path)),
    "learning curves": lambda path: figures.learning_curve([trained(path, "a"), trained(path, "b")]),
    "phases": lambda path: figures.phases(trained(path)),
    "bands": lambda path: figures.bands({"x": [trained(path, "a"), trained(path, "b")]}, "loss"),
    "histogram": lambda path: figures.histogram([1.0, 2.0, 2.5, 7.0], "elapsed_s", "s"),
    "prediction": lambda path: figures.prediction(trained(path)),
    "bars": lambda path: figures.bars(
        compare({"a": repeats(path, "a", {"loss": [1.0, 1.1]}), "b": repeats(path, "b", {"loss": [2.0, 2.1]})})
    ),
}


@pytest.mark.parametrize("kind", EVERY)
def test_a_figure_is_well_formed_and_the_same_each_time(tmp_path: Path, kind: str) -> None:
    first, second = EVERY[kind](tmp_path / "1"), EVERY[kind](tmp_path / "2")
    assert first.svg() == second.svg()
    ElementTree.fromstring(first.svg())
    assert b"<dc:date>" not in first.svg()


def test_matplotlib_does_not_announce_its_font_cache(caplog: pytest.LogCaptureFixture) -> None:
    def draw(figure: object) -> None:
        for level in (logging.WARNING, logging.ERROR):
            logging.getLogger("matplotlib.font_manager").log(level, "%s about fonts", logging.getLevelName(level))

    Picture("empty", "Empty", draw).svg()
    assert caplog.messages == ["ERROR about fonts"]


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.thorough
def test_a_figure_for_a_paper_is_a_vector_with_its_letters_embedded(tmp_path: Path, kind: str) -> None:
    picture = EVERY[kind](tmp_path)
    pdf = picture.file("pdf", width_mm=85)
    assert pdf == picture.file("pdf", width_mm=85)
    assert b"/FontFile2" in pdf
    assert b"/Subtype /Image" not in pdf
    width = float(re.findall(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[0])
    assert width == pytest.approx(85 / 25.4 * 72, abs=0.1)
    assert b"<text" not in picture.file("svg")  # letters are outlines: no reader needs the font


@pytest.mark.parametrize("kind", EVERY)
def test_every_figure_says_what_is_seen(tmp_path: Path, kind: str) -> None:
    picture = EVERY[kind](tmp_path)
    assert picture.title
    assert picture.note.endswith(".")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", EVERY)
def test_a_figure_is_a_png_seven_inches_wide(tmp_path: Path, kind: str) -> None:
    png = EVERY[kind](tmp_path).png(dots_per_inch=100)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", png[16:20])[0] == 700


def test_runs_without_epochs_get_no_panel_for_their_time(tmp_path: Path) -> None:
    untimed = [each for each in training_events() if "spans" not in each]
    picture = figures.learning_curve([make_run(tmp_path, id, events=untimed) for id in ("a", "b")])
    assert "epoch" not in texts(picture) + picture.title
    assert "step" in texts(picture)


def test_values_found_in_the_output_say_nothing_of_the_time_between_them(tmp_path: Path) -> None:
    untimed = [each for each in training_events() if "spans" not in each]
    loss = {"value": 0.5, "source": "output"}
    run = make_run(tmp_path, events=untimed, metrics={"loss": loss})
    assert figures.learning_curve(run).title == "Learning curve"
    assert not [text for text in texts(figures.learning_curve(run)) if "time" in text]


def test_values_that_a_band_cannot_show_are_counted(tmp_path: Path) -> None:
    events = training_events()
    next(each for each in events if each.get("step") == 3)["log"]["loss"] = "NaN"
    picture = figures.bands({"x": [make_run(tmp_path, "a", events=events)]}, "loss")
    assert "Not shown: 1 that is NaN or infinite." in picture.note


def test_values_over_more_than_two_decades_are_drawn_on_a_log_scale(tmp_path: Path) -> None:
    lines = training_events()[:1]
    lines += [{"log": {"loss": 10.0**-n}, "step": n, "at": n, "p": 4711} for n in range(4)]
    runs = [make_run(tmp_path, name, events=lines) for name in "ab"]
    for picture in (figures.bands({"x": runs}, "loss"), figures.learning_curve(runs)):
        assert {"1", "0.1", "0.01"} <= set(texts(picture).split()), picture.title


def test_loss_and_error_share_an_axis_and_the_time_per_epoch_has_the_other(tmp_path: Path) -> None:
    shown = texts(figures.learning_curve(trained(tmp_path)))
    for word in ("loss and error", "time per epoch (s)", "epoch"):
        assert word in shown
    assert "accuracy" not in shown


def test_without_a_timer_the_time_between_values_is_shown(tmp_path: Path) -> None:
    events = [line for line in training_events() if "spans" not in line]
    shown = texts(figures.learning_curve(make_run(tmp_path, events=events)))
    assert "time per step (s)" in shown


def test_phases_name_their_calls_and_the_device_that_drew_power(tmp_path: Path) -> None:
    shown = texts(figures.phases(trained(tmp_path)))
    for word in ("epoch × 8", "load", "gpu0.power, device 0 (NVIDIA H200)", "power (W)"):
        assert word in shown


def test_bars_carry_units_that_fit(tmp_path: Path) -> None:
    shown = texts(EVERY["bars"](tmp_path))
    for word in ("loss ↓", "elapsed time (s) ↓", "energy (J) ↓", "largest memory (GiB) ↓"):
        assert word in shown


def test_values_that_are_not_finite_are_told(tmp_path: Path) -> None:
    events = [line | ({"log": {"loss": "NaN"}} if line.get("step") == 3 else {}) for line in training_events()]
    assert "loss (1 not finite)" in texts(figures.learning_curve(make_run(tmp_path, events=events), ["loss"]))


@pytest.mark.thorough
def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    names = ["$\\frac{a}", "<b>&amp;", "_hidden", "\x00\x1b[31m", "日本語 🚀", "x" * 500, "\u202eevil"]
    events = [
        {**line, **({"log": dict.fromkeys(names, 1.0 + line["step"])} if "log" in line else {})}
        for line in training_events()
    ]  # fmt: skip
    picture = figures.learning_curve(make_run(tmp_path, events=events), names)
    ElementTree.fromstring(picture.svg())
    assert picture.png(dots_per_inch=50)


@pytest.mark.thorough
def test_a_long_series_stays_small(tmp_path: Path) -> None:
    head = training_events()[0]
    lines = [{"log": {"loss": (n * 7919) % 1000}, "step": n, "at": n, "p": 4711} for n in range(50_000)]
    assert len(figures.learning_curve(make_run(tmp_path, events=[head, *lines])).svg()) < 150_000


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda run: figures.learning_curve(run), "logged no metric more than once"),
        (lambda run: figures.phases(run), "neither spans nor power"),
        (lambda run: figures.prediction(run), "has no prediction"),
        (lambda run: figures.bands({"a": [run]}, "loss"), "none of these runs logged 'loss'"),
        (lambda run: figures.histogram([], "loss"), "no run has a finite value of 'loss'"),
    ],
)
def test_nothing_to_draw_is_said(tmp_path: Path, make: Callable[[Run], Picture], said: str) -> None:
    with pytest.raises(NotFound, match=said):
        make(make_run(tmp_path))


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = figures.prediction(trained(tmp_path))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Unsupported, match="figures need matplotlib") as error:
        picture.svg()
    assert error.value.hint == "pip install 'fairmile[plots]'"


def test_drawing_leaves_the_style_of_matplotlib_alone(tmp_path: Path) -> None:
    import matplotlib

    before = matplotlib.rcParams.copy()
    figures.prediction(trained(tmp_path)).svg()
    assert matplotlib.rcParams.copy() == before


def test_the_global_state_of_pyplot_is_not_even_loaded() -> None:
    program = (
        "import sys; from fairmile.reports import figures; assert 'matplotlib' not in sys.modules; "
        "figures.histogram([1.0, 2.0]).png(); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_notebook_shows_a_figure_light_or_dark_as_it_is() -> None:
    svg = figures.histogram([1.0, 2.0, 3.0])._repr_svg_()
    ElementTree.fromstring(svg)
    light, dark = "--paper: #ffffff;", "--paper: #161b22;"
    assert '[data-jp-theme-light="false"] .fairmile-figure, .vscode-dark' in svg
    assert svg.index(light) < svg.index("prefers-color-scheme: dark") < svg.index(dark)
    assert "var(--ink, #1f2328)" in svg and "fill: #ffffff" not in svg


def test_a_long_label_is_cut_or_goes_on_in_a_second_line() -> None:
    title = "Rank 1 reaches its collectives late: compute before them is slower"
    assert short_label(title) == "Rank 1 reaches its collectives late: compute be…"
    assert short_label(title, 2) == "Rank 1 reaches its collectives late: compute\nbefore them is slower"
