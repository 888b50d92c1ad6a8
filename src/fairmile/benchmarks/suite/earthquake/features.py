"""The features of the benchmark: what is known of any time, what was observed, what never changes; all in [0, 1]."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import NotFound, UsageError
from fairmile.benchmarks.suite.earthquake.bins import BIG, Fortnights, Grid, backward
from fairmile.benchmarks.suite.earthquake.nomenclature import OBSERVED, TARGET_WEEKS, WEEKS

if TYPE_CHECKING:
    from fairmile.benchmarks.suite.earthquake.settings import Scale

Array = np.ndarray[Any, Any]

PERIODS = (8, 16, 32, 64)  # fortnights
KNOWN = (
    "constant",
    "linear time",
    "Legendre 2",
    "Legendre 3",
    "Legendre 4",
    *(f"{wave} {period} fortnights" for period in PERIODS for wave in ("cosine", "sine")),
)
STATIC = ("fault 0", "fault 1", "fault 2", "fault 3", "linear index")
MIRRORS = ((False, False), (True, False), (False, True), (True, True))  # (left-right, up-down) of the four curves


def quarter_energy(magnitude: Array) -> Array:
    """Return E^0.25 in units of that of magnitude 3.29: 10^(0.375 (m - 3.29))."""
    return np.asarray(10.0 ** (0.375 * (magnitude - BIG)))


def to_unit(values: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return values in [0, 1] with the lowest and the highest along some axes; a constant becomes 0, NaN stays NaN."""
    low, high = np.nanmin(values, axis=axes), np.nanmax(values, axis=axes)
    return (values - low) / np.where(high > low, high - low, 1.0), low, high


def known_features(count: int) -> Array:
    """Return what is known of `count` fortnights, [count, 13]: a constant, Legendre polynomials of time, waves."""
    steps = np.arange(count)
    x = 2.0 * steps / max(count - 1, 1) - 1.0
    polynomials = [x, (3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8]
    lows = [-1.0, -0.5, -1.0, -3 / 7]  # of each polynomial on [-1, 1]; the highest is 1
    columns = [np.full(count, 0.5)]
    columns += [(values - low) / (1 - low) for values, low in zip(polynomials, lows, strict=True)]
    for period in PERIODS:
        phase = 2 * np.pi * steps / period
        columns += [(1 + np.cos(phase)) / 2, (1 + np.sin(phase)) / 2]
    return np.stack(columns, axis=1).astype(np.float32)


def observed_features(series: Fortnights, scale: Scale) -> Array:
    """Return what was observed, [L, T, 9], not yet in [0, 1]: magnitude, depth, two counts, magnitudes of sums back."""
    sums = [_scaled(backward(series.energy, weeks), scale) for weeks in WEEKS[1:]]
    columns = [_scaled(series.magnitude, scale), series.depth_km, series.count, series.big, *sums]
    assert len(columns) == len(OBSERVED)
    return np.stack(columns, axis=2).swapaxes(0, 1)


def target_series(series: Fortnights, scale: Scale) -> Array:
    """Return the four targets, [L, T, 4], not yet in [0, 1]."""
    columns = [_scaled(backward(series.energy, weeks), scale) for weeks in TARGET_WEEKS]
    return np.stack(columns, axis=2).swapaxes(0, 1)


def _scaled(magnitude: Array, scale: Scale) -> Array:
    return quarter_energy(magnitude) if scale == "energy" else magnitude


def static_features(grid: Grid, pixels: Array, faults: Array | None = None) -> Array:
    """Return what never changes, [L, 5]: four numberings of the faults and the linear index of the pixel.

    Labels of faults are names, not numbers. They are numbered four times, in the order in which four mirrored
    space-filling curves meet them, so that faults near each other have numbers near each other in some of the four.
    Without labels each pixel is a fault of its own.
    """
    labels = np.arange(grid.rows * grid.columns) if faults is None else faults.ravel()
    columns = []
    for left_right, up_down in MIRRORS:
        order = curve_order(grid.rows, grid.columns, left_right=left_right, up_down=up_down)
        kinds, first, inverse = np.unique(labels[order], return_index=True, return_inverse=True)
        number = np.empty(len(kinds), np.int64)
        number[np.argsort(first)] = np.arange(len(kinds))
        renumbered = np.empty(len(labels), np.int64)
        renumbered[order] = number[inverse]
        columns.append(renumbered[pixels] / max(len(kinds) - 1, 1))
    columns.append(pixels / max(grid.rows * grid.columns - 1, 1))
    return np.stack(columns, axis=1).astype(np.float32)


def curve_order(rows: int, columns: int, *, left_right: bool = False, up_down: bool = False) -> Array:
    """Return all pixels in the order of a generalised Hilbert curve on a rectangle, mirrored where asked for."""
    path: list[tuple[int, int]] = []
    if columns >= rows:
        _walk(path, (0, 0), (columns, 0), (0, rows))
    else:
        _walk(path, (0, 0), (0, rows), (columns, 0))
    x, y = np.array(path).T
    x, y = (columns - 1 - x if left_right else x), (rows - 1 - y if up_down else y)
    return np.asarray(y * columns + x)


def _walk(path: list[tuple[int, int]], place: tuple[int, int], major: tuple[int, int], minor: tuple[int, int]) -> None:
    """Add the cells of a box that is spanned by two vectors along the axes; it is left at the end of `major`."""
    width, height = abs(major[0] + major[1]), abs(minor[0] + minor[1])
    (mx, my), (nx, ny) = _signs(major), _signs(minor)
    if height == 1 or width == 1:
        step, count = ((mx, my), width) if height == 1 else ((nx, ny), height)
        path.extend((place[0] + step[0] * i, place[1] + step[1] * i) for i in range(count))
        return
    half, side = width // 2, height // 2
    if 2 * width > 3 * height:  # a long box: one half after the other
        half += half % 2 if width > 2 else 0  # an even half ends on the side where the next one begins
        _walk(path, place, (mx * half, my * half), minor)
        rest = width - half
        _walk(path, (place[0] + mx * half, place[1] + my * half), (mx * rest, my * rest), minor)
        return
    side += side % 2 if height > 2 else 0
    _walk(path, place, (nx * side, ny * side), (mx * half, my * half))
    rest = height - side
    _walk(path, (place[0] + nx * side, place[1] + ny * side), major, (nx * rest, ny * rest))
    corner = (
        place[0] + mx * (width - 1) + nx * (side - 1),
        place[1] + my * (width - 1) + ny * (side - 1),
    )
    back = width - half
    _walk(path, corner, (-nx * side, -ny * side), (-mx * back, -my * back))


def _signs(vector: tuple[int, int]) -> tuple[int, int]:
    return (vector[0] > 0) - (vector[0] < 0), (vector[1] > 0) - (vector[1] < 0)


def read_faults(path: Path, grid: Grid) -> Array:
    """Return the labels of faults, [rows, columns], of a CSV with one row of whole numbers per row of pixels."""
    if not path.is_file():
        raise NotFound(f"no such file: {path}")
    rows = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append([int(float(word)) for word in line.split(",")])
        except ValueError as error:
            raise UsageError(f"{path}:{number}: expected whole numbers, found {line[:60]!r}") from error
        if len(rows[-1]) != grid.columns:
            raise UsageError(f"{path}:{number}: expected {grid.columns} labels, found {len(rows[-1])}")
    if len(rows) != grid.rows:
        raise UsageError(f"{path}: expected {grid.rows} rows of labels, found {len(rows)}")
    return np.array(rows)
