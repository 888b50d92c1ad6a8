"""What DeepCAM draws: vapour and wind of snapshots, and the storms that labels, baseline and network mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.suite.deepcam.baselines import Baseline
from fairmile.benchmarks.suite.deepcam.climate import CYCLONE, FIELDS, RIVER

Array = NDArray[Any]
_COLOURS = {CYCLONE: (0.86, 0.12, 0.25), RIVER: (0.10, 0.62, 0.95)}
_MOST = 500  # points along an edge that a picture shows


def draw_storms(path: Path, x: Array, labels: Array, baseline: Baseline, marked: Array) -> str:
    """Draw a row for each snapshot: its fields with what the labels, a baseline and the network mark."""
    panels = {"labels": labels, baseline.name: baseline.mark(x), "deeplab": marked}
    size = (11, 2.5 * len(x) + 0.4)
    return save_figure(path, lambda figure: _draw(figure, x, panels), size=size, title="Storms: labels and predictions")


def _draw(figure: Any, x: Array, panels: dict[str, Array]) -> None:
    from matplotlib.patches import Patch

    grid = figure.subplots(len(x), len(panels), squeeze=False, sharex=True, sharey=True)
    thin = slice(None, None, -(-x.shape[2] // _MOST))
    vapour, psl = (x[..., FIELDS.index(name)] for name in ("TMQ", "PSL"))
    where = {"extent": (0, 360, -90, 90), "origin": "lower", "aspect": "auto", "interpolation": "nearest"}
    for row, moist, pressure, *marks in zip(grid, vapour, psl, *panels.values(), strict=True):
        for axes, mark in zip(row, marks, strict=True):
            axes.imshow(moist[thin, thin], cmap="gray", **where)
            axes.contour(
                pressure[thin, thin],
                levels=8,
                colors="#d9c28a",
                linewidths=0.4,
                extent=(0, 360, -90, 90),
                origin="lower",
            )
            over = np.zeros((*mark.shape, 4))
            for kind, colour in _COLOURS.items():
                over[mark == kind] = (*colour, 0.75)
            axes.imshow(over[thin, thin], **where)
            axes.set(xticks=[0, 90, 180, 270, 360], yticks=[-60, -30, 0, 30, 60])
        row[0].set_ylabel("latitude")
    for axes, title in zip(grid[0], panels, strict=True):
        axes.set_title(title)
    for axes in grid[-1]:
        axes.set_xlabel("longitude")
    names = {CYCLONE: "tropical cyclone", RIVER: "atmospheric river"}
    handles = [Patch(facecolor=_COLOURS[kind], label=name) for kind, name in names.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
