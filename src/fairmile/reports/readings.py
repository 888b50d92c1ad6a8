"""What a pointer can read in a figure: the points of its lines, each with its place in the SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 4000  # points of one figure
_NAMES = "fairmile_names"


class Series(TypedDict):
    """The points of a line; each is its place in the SVG, its values as text, and a name of its own or nothing."""

    name: str
    x: str
    y: str
    points: list[tuple[float, float, str, str, str]]


def name_points(line: Any, names: Sequence[str]) -> None:
    """Say what each point of a line is called."""
    setattr(line, _NAMES, names)


def series_of(figure: Figure, number: Callable[[float], str]) -> list[Series]:
    """Return the points of all lines that have a name, evenly fewer where there are very many."""
    axes: list[Any] = [axis for axis in figure.axes if axis.get_visible()]
    lines = [(axis, line) for axis in axes for line in axis.lines if _has_name(line)]
    every = max(1, math.ceil(sum(len(line.get_xdata()) for _, line in lines) / _MOST))
    series: list[Series] = []
    for axis, line in lines:
        own = getattr(line, _NAMES, None)
        x_name = axis.get_xlabel() or next((each.get_xlabel() for each in reversed(axes) if each.get_xlabel()), "")
        y_name = axis.get_ylabel() or next((each.get_ylabel() for each in axes if each.get_ylabel()), "")
        points = _points(figure, axis, line, own, number)[::every]
        series.append({"name": "" if own else line.get_label(), "x": x_name, "y": y_name, "points": points})
    return series


def _points(
    figure: Figure, axis: Any, line: Any, names: Sequence[str] | None, number: Callable[[float], str]
) -> list[tuple[float, float, str, str, str]]:
    data = [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    places = axis.transData.transform(data) if data else []
    to_svg, height = 72 / figure.dpi, figure.get_figheight() * 72  # an SVG has 72 dots per inch, from the top
    return [
        (
            round(float(left) * to_svg, 1),
            round(height - float(up) * to_svg, 1),
            _value(axis.xaxis, x, number),
            _value(axis.yaxis, y, number),
            name,
        )
        for (x, y), (left, up), name in zip(data, places, names or [""] * len(data), strict=True)
        if math.isfinite(left) and math.isfinite(up)
    ]


def _has_name(line: Any) -> bool:
    return hasattr(line, _NAMES) or not str(line.get_label()).startswith("_")


def _value(axis: Any, value: float, number: Callable[[float], str]) -> str:
    """Return a value as the axis names it where it has words, else as a number."""
    from matplotlib.ticker import FixedLocator

    words = axis.get_major_formatter()(value) if isinstance(axis.get_major_locator(), FixedLocator) else ""
    return words or number(value)
