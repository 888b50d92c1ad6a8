"""Figures that the program of a benchmark draws, as files beside its results."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairmile.base.files import write_atomic
from fairmile.base.fonts import without_font_notices

_STYLE: Any = {"svg.hashsalt": "fairmile", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

# A viewer with a dark page shows these colours instead, as the pages of reports do. Others ignore the style sheet.
_ON_DARK = {
    "#ffffff": "#161b22",
    "#000000": "#e6edf3",
    "#333333": "#c9d1d9",  # observed values
    "#d5d5d5": "#4a525c",  # places without a value
    "#cccccc": "#4a525c",
    "#444444": "#c9d1d9",
    "#eaf1f5": "#1b2b3a",  # sea
    "#5c6b73": "#9aa5b1",  # coast
    "#8c564b": "#c79184",  # faults
}


def can_draw() -> bool:
    """Tell whether there is anything to draw with."""
    return find_spec("matplotlib") is not None


def save_figure(
    path: Path, draw: Callable[[Any], None], *, size: tuple[float, float] = (7, 3.5), title: str = ""
) -> str:
    """Let `draw` fill a figure, write it as SVG and return its name; an empty one where nothing can draw.

    Reports show the title above the figure.
    """
    if not can_draw():
        return ""
    with without_font_notices():
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        canvas: Any = FigureCanvasSVG(figure)
        draw(figure)
        stream = io.BytesIO()
        # Saving would draw everything once more, only to find its layout.
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None, **({"Title": title} if title else {})})
    write_atomic(path, _with_dark_colours(stream.getvalue()))
    return path.name


def _with_dark_colours(svg: bytes) -> bytes:
    """Add a style sheet for dark pages to a figure; what has no colour of its own is black ink."""
    rules = f"svg {{fill: {_ON_DARK['#000000']}}}" + "".join(
        f' [style*="{use}: {light}"] {{{use}: {dark} !important}}'
        for light, dark in _ON_DARK.items()
        for use in ("fill", "stroke")
    )
    style = f'<style type="text/css">@media (prefers-color-scheme: dark) {{{rules}}}</style>'
    return svg.replace(b"<defs>", b"<defs>" + style.encode(), 1)
