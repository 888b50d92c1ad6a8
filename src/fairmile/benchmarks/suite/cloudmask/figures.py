"""What CloudMask draws: scenes as the eye and the thermal channel see them, and their masks side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.suite.cloudmask.scenes import Scene

Array = NDArray[Any]
_CLEAR, _CLOUD = (0.16, 0.31, 0.51), (0.96, 0.96, 0.96)
_FALSE, _MISSED = (0.90, 0.45, 0.10), (0.80, 0.15, 0.35)
_MOST = 400  # pixels along an edge that a picture shows


def draw_masks(path: Path, shown: Sequence[tuple[Scene, Array, Array]], baseline: str, model: str) -> str:
    """Draw a row for each scene: its colours by day, its temperature, the reference, and both masks with errors."""
    size = (10, 2.15 * len(shown) + 0.5)
    return save_figure(
        path, lambda figure: _draw(figure, shown, baseline, model), size=size, title="Cloud masks: reference and errors"
    )


def _draw(figure: Any, shown: Sequence[tuple[Scene, Array, Array]], baseline: str, model: str) -> None:
    grid = figure.subplots(len(shown), 5, squeeze=False)
    for row, (scene, by_pixel, by_network) in zip(grid, shown, strict=True):
        thin = slice(None, None, -(-max(by_network.shape) // _MOST))
        cloud = scene.bayes[..., 0] > 0
        kelvin = scene.bts[..., 1]
        pictures = [_colours(scene), None, _mask(cloud, cloud), _mask(by_pixel, cloud), _mask(by_network, cloud)]
        for axes, picture in zip(row, pictures, strict=True):
            if picture is not None:
                axes.imshow(picture[thin, thin], interpolation="nearest")
            axes.set(xticks=[], yticks=[])
        low, high = np.nanpercentile(kelvin, (1, 99))
        heat = row[1].imshow(kelvin[thin, thin], cmap="gray_r", vmin=low, vmax=high, interpolation="nearest")
        figure.colorbar(heat, ax=row[1], shrink=0.75, label="K")
        row[0].set_ylabel("day" if scene.is_day else "night")
        for axes, mask in zip(row[3:], (by_pixel, by_network), strict=True):
            axes.set_xlabel(f"accuracy {(mask == cloud).mean():.3f}")
    for axes, title in zip(grid[0], ("S3, S2, S1", "S8", "reference mask", baseline, model), strict=True):
        axes.set_title(title)
    _legend(figure)


def _colours(scene: Scene) -> Array:
    """Return a picture in false colours; at night there is none."""
    if not scene.is_day:
        return np.zeros((*scene.refs.shape[:2], 3))
    return np.asarray(np.clip(np.nan_to_num(scene.refs[..., [2, 1, 0]]) / 0.8, 0, 1) ** 0.6)


def _mask(mask: Array, cloud: Array) -> Array:
    """Return a mask as a picture, in which errors have colours of their own."""
    picture = np.where(cloud[..., None], _CLOUD, _CLEAR)
    picture[mask & ~cloud] = _FALSE
    picture[~mask & cloud] = _MISSED
    return picture


def _legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    kinds = {"cloud": _CLOUD, "clear": _CLEAR, "false cloud": _FALSE, "missed cloud": _MISSED}
    handles = [Patch(facecolor=colour, edgecolor="#888888", label=name) for name, colour in kinds.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
