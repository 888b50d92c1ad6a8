"""What CosmoFlow draws: the universes, their spectra, how the training went and how well parameters are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.suite.cosmoflow.universes import NAMES, REDSHIFTS, spectra, unit_to_physical

Array = NDArray[Any]
_LABELS = (r"$\Omega_m$", r"$\sigma_8$", r"$n_s$", r"$H_0$")
_COLOURS = {"mean": "#888888", "ridge": "#e69f00"}
_MODEL = "#0072b2"
_NOTHING = 1e-9


def draw_all(
    folder: Path,
    shown: tuple[Array, Array],
    unit: Array,
    predicted: Mapping[str, Array],
    history: Sequence[Mapping[str, float]],
) -> list[str]:
    """Draw all figures and return the names of their files; none where nothing can draw.

    `shown` are some cubes and their parameters; `predicted` has what each method tells of the cubes of `unit`.
    """
    cubes, known = shown
    drawn = [
        save_figure(
            folder / "predicted.svg",
            lambda figure: _draw_predicted(figure, unit, predicted),
            size=(10, 3.2),
            title="Predicted and true parameters",
        ),
        save_figure(
            folder / "slices.svg",
            lambda figure: _draw_slices(figure, cubes[0], known[0]),
            size=(10, 2.9),
            title="Matter in slices of a universe",
        ),
        save_figure(
            folder / "spectra.svg",
            lambda figure: _draw_spectra(figure, cubes, known),
            size=(10, 2.9),
            title="Power spectra",
        ),
    ]
    if history:
        drawn.insert(
            1,
            save_figure(folder / "training.svg", lambda figure: _draw_history(figure, history, unit), title="Training"),
        )
    return [name for name in drawn if name]


def _draw_predicted(figure: Any, unit: Array, predicted: Mapping[str, Array]) -> None:
    axes = figure.subplots(1, 4)
    for at, (axis, label) in enumerate(zip(axes, _LABELS, strict=True)):
        truth = unit_to_physical(unit)[:, at]
        axis.plot([truth.min(), truth.max()], [truth.min(), truth.max()], color="#444444", linewidth=0.8)
        for name, values in predicted.items():
            error = float(np.abs(values[:, at] - unit[:, at]).mean())
            axis.scatter(
                truth, unit_to_physical(values)[:, at], s=5, alpha=0.5, linewidths=0, rasterized=True,
                color=_COLOURS.get(name, _MODEL), label=f"{name} {error:.3f}",
            )  # fmt: skip
        axis.set_title(label)
        axis.set_xlabel("true")
        axis.legend(title="MAE, normalised", fontsize=6, title_fontsize=6, markerscale=2, loc="upper left")
    axes[0].set_ylabel("predicted")


def _draw_slices(figure: Any, cube: Array, unit: Array) -> None:
    axes = figure.subplots(1, cube.shape[-1], squeeze=False)[0]
    top = float(np.log1p(cube).max())
    depth = max(cube.shape[0] // 8, 1)  # a slab shows the web better than one layer
    for at, axis in enumerate(axes):
        slab = np.log1p(cube[:depth, ..., at].astype(float)).mean(0)
        axis.imshow(slab, vmin=0, vmax=top / 1.5, cmap="magma", origin="lower")
        axis.set_title(f"z = {REDSHIFTS[at]:g}" if at < len(REDSHIFTS) else f"channel {at}")
        axis.set_axis_off()
    values = ", ".join(f"{name} {value:.3g}" for name, value in zip(NAMES, unit_to_physical(unit), strict=True))
    figure.suptitle(f"ln(counts + 1) of one universe: {values}", fontsize=9)


def _draw_spectra(figure: Any, cubes: Array, unit: Array) -> None:
    axes = figure.subplots(1, cubes.shape[-1], sharey=True, squeeze=False)[0]
    measured = spectra(cubes)
    order = np.argsort(unit[:, 1])
    from matplotlib import colormaps

    for at, axis in enumerate(axes):
        for place, row in enumerate(order):
            colour = colormaps["viridis"](place / max(len(order) - 1, 1))
            power = measured.power[row, at]
            if power.max() > _NOTHING:  # before anything moved into another cell, there is nothing to show
                axis.loglog(measured.k, np.maximum(power, _NOTHING), color=colour, linewidth=0.7)
        axis.set_title(f"z = {REDSHIFTS[at]:g}" if at < len(REDSHIFTS) else f"channel {at}")
        axis.set_xlabel("k in 2 pi per edge")
        axis.set_xscale("log", base=2)
    axes[0].set_ylabel("power of the density contrast")
    figure.suptitle(r"Spectra of universes from low (dark) to high (bright) $\sigma_8$", fontsize=9)


def _draw_history(figure: Any, history: Sequence[Mapping[str, float]], unit: Array) -> None:
    loss, score = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in history]
    loss.plot(epochs, [row["train_loss"] for row in history], "o-", ms=3, color=_MODEL)
    loss.set(xlabel="epoch", ylabel="training loss (MSE)", ylim=(0, None))
    for axis in (loss, score):
        axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    rows = [row for row in history if "mae" in row]
    score.plot([row["epoch"] for row in rows], [row["mae"] for row in rows], "o-", ms=3, color=_MODEL, label="network")
    trivial = float(np.abs(unit - unit.mean(0)).mean())
    score.axhline(trivial, color=_COLOURS["mean"], linestyle="--", label="predicting the mean")
    score.set(xlabel="epoch", ylabel="validation MAE", ylim=(0, None))
    score.legend(fontsize=7)
