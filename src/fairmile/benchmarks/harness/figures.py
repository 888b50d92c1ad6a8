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


def can_draw() -> bool:
    """Tell whether there is anything to draw with."""
    return find_spec("matplotlib") is not None


def save_figure(path: Path, draw: Callable[[Any], None], *, size: tuple[float, float] = (7, 3.5)) -> str:
    """Let `draw` fill a figure, write it as SVG and return its name; an empty one where nothing can draw."""
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
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None})
    write_atomic(path, stream.getvalue())
    return path.name
