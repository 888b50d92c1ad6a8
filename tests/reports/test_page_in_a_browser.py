"""Pages in a real browser: the pointer reads what is drawn under it, columns sort, nothing is wider than the screen."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import browser
import pytest
from run_making import CREATED, make_run, metric_document, training_events

from fairmile.reports.page import Report, report

pytest.importorskip("matplotlib", reason="needs matplotlib")

# The places of the vertices of the first line that is drawn in the first colour.
_VERTICES = """
  const figure = document.querySelector(".wide[data-read]"), svg = figure.querySelector("svg");
  const line = [...svg.querySelectorAll("path")].find(
    (each) => each.style.stroke === "var(--c0)" && each.getAttribute("d").split("L").length > 3);
  const numbers = line.getAttribute("d").match(/-?[0-9.]+/g).map(Number), matrix = svg.getScreenCTM();
  const places = numbers.filter((_, at) => at % 2 === 0).map((x, at) => [x, numbers[2 * at + 1]]);
  const move = (x, y) => svg.dispatchEvent(new PointerEvent("pointermove", {
    clientX: x * matrix.a + matrix.e, clientY: y * matrix.d + matrix.f }));
  const shown = () => { const tip = figure.querySelector("output"); return tip && !tip.hidden ? tip.textContent : ""; };
"""


def trained(folder: Path, epochs: int = 8) -> Report:
    return report([make_run(folder, metrics={"loss": 0.1}, events=training_events(epochs=epochs))])


def swept(folder: Path) -> Report:
    """Return the page of a sweep with long names, three repeats and several metrics."""
    runs = []
    for at in range(24):
        params = {"learning_rate": 10.0 ** -(at % 4), "optimizer": ("stochastic gradient descent", "adam")[at // 4 % 2]}
        metrics = {f"validation_loss_{region}": metric_document(0.1 * at + 0.01, better="lower")
                   for region in ("north", "south", "tropics")}  # fmt: skip
        said = {"group": "s", "created": CREATED + at, "params": params, "metrics": metrics}
        runs.append(make_run(folder, f"s-{at:05d}", name="a-sweep-with-a-long-name", **said))
    return report(runs)


def test_the_pointer_reads_the_values_that_are_drawn_under_it(tmp_path: Path) -> None:
    read = browser.act(
        trained(tmp_path).html(), _VERTICES + "return places.map(([x, y]) => (move(x, y), shown()));", tmp_path
    )
    losses = [0.1 + 2.2 * math.exp(-epoch / 2) for epoch in range(8)]
    assert [text.splitlines()[0] for text in read] == ["loss"] * 8
    assert [text.splitlines()[1] for text in read] == [f"epoch: {epoch}" for epoch in range(8)]
    assert [float(text.rpartition(": ")[2]) for text in read] == pytest.approx(losses, rel=1e-3)


@pytest.mark.thorough
def test_what_was_read_goes_with_the_pointer(tmp_path: Path) -> None:
    far, left = browser.act(
        trained(tmp_path).html(),
        _VERTICES
        + """
        move(...places[0]);
        move(-500, -500);
        const far = shown();
        move(...places[0]);
        svg.dispatchEvent(new PointerEvent("pointerleave"));
        return [far, shown()];
        """,
        tmp_path,
    )
    assert (far, left) == ("", "")


def test_a_column_of_numbers_sorts_by_value(tmp_path: Path) -> None:
    values = browser.act(
        swept(tmp_path).html(),
        """
        const heads = [...document.querySelectorAll("th button")].filter((each) => each.textContent === "learning_rate");
        const head = heads.at(-1).parentElement;
        const column = () => [...head.closest("table").tBodies[0].rows].map((row) => row.cells[head.cellIndex].textContent);
        head.firstElementChild.click();
        const up = column();
        head.firstElementChild.click();
        return [up, column()];
        """,  # noqa: E501
        tmp_path,
    )
    up, down = ([float(each) for each in column] for column in values)
    assert up == sorted(up) and down == sorted(down, reverse=True) and len(set(up)) == 4


@pytest.mark.parametrize("make", [trained, swept], ids=["run", "sweep"])
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_screen_and_letters_of_figures_can_be_read(
    tmp_path: Path, make: Callable[[Path], Report], width: int
) -> None:
    # A frame has the width of a phone; a window of the browser cannot be so narrow.
    (tmp_path / "page.html").write_text(make(tmp_path).html())
    frame = f'<html><body><iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe></body></html>'
    needed, tables, letters = browser.act(
        frame,
        """
        await new Promise((done) => addEventListener("load", done));
        const page = document.querySelector("iframe").contentDocument;
        const wide = [...page.querySelectorAll(".scroll")].filter((each) => each.scrollWidth > each.clientWidth + 1);
        const texts = [...page.querySelectorAll("figure svg text")].filter((each) => each.getClientRects().length);
        const scale = (text) => { const matrix = text.getScreenCTM(); return Math.hypot(matrix.a, matrix.b); };
        const sizes = texts.map((each) => parseFloat(getComputedStyle(each).fontSize) * scale(each));
        return [page.documentElement.scrollWidth, wide.length, Math.min(...sizes)];
        """,
        tmp_path,
        "--allow-file-access-from-files",
        "--window-size=1600,1000",
    )
    assert needed <= width
    assert letters >= 8
    assert tables == 0 or width < 1400, "on a wide screen all columns are seen at once"
