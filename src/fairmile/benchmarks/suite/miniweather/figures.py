"""Pictures of a run: the dry case, the storm with and without the surrogate, and how they part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.suite.miniweather.archive import Film
from fairmile.benchmarks.suite.miniweather.compare import Errors

_COLOURS = {"none": "0.6", "linear": "tab:orange"}
_NAMES = {"none": "no microphysics", "linear": "ridge regression"}


def draw(folder: Path, dry: Film, truth: Film, films: Mapping[str, Film], errors: Mapping[str, Errors]) -> list[str]:
    """Draw all figures and return their names."""
    learned = [name for name in films if name not in _NAMES]
    names = [save_figure(folder / "dry.svg", lambda figure: _dry(figure, dry), size=(7, 3.2), title="Dry simulation")]
    if learned:
        name = learned[-1]
        names.append(
            save_figure(
                folder / "storm.svg",
                lambda figure: _storm(figure, truth, films[name], name),
                size=(8, 5),
                title="Storm with the learned microphysics",
            )
        )
    names.append(
        save_figure(
            folder / "error.svg", lambda figure: _errors(figure, errors), size=(8, 4.5), title="Error over time"
        )
    )
    return [name for name in names if name]


def _picture(axes: Any, film: Film, values: Any, **style: Any) -> Any:
    extent = (0, (film.x_m[-1] + film.x_m[0]) / 1e3, 0, (film.z_m[-1] + film.z_m[0]) / 1e3)
    return axes.imshow(values.T, origin="lower", extent=extent, aspect="auto", interpolation="nearest", **style)


def _dry(figure: Any, dry: Film) -> None:
    axes = figure.subplots()
    values = dry["theta"][-1]
    most = float(np.abs(values).max()) or 1.0
    picture = _picture(axes, dry, values, cmap="RdBu_r", vmin=-most, vmax=most)
    axes.set(xlabel="x in km", ylabel="z in km", title=f"{dry.attributes.get('case', '')} after {dry.times_s[-1]:g} s")
    figure.colorbar(picture, ax=axes, label="theta' in K")


def _storm(figure: Any, truth: Film, film: Film, name: str) -> None:
    last = min(len(truth.times_s), len(film.times_s)) - 1
    times = sorted({last // 3, 2 * last // 3, last})
    both = {"Kessler": truth, name: film}
    waters = {key: (each["rho_c"] + each["rho_p"]) * 1e3 for key, each in both.items()}
    most = float(waters["Kessler"].max()) or 1.0
    axes = figure.subplots(2, len(times), sharex=True, sharey=True, squeeze=False)
    picture = None
    for row, (key, each) in enumerate(both.items()):
        for column, at in enumerate(times):
            picture = _picture(axes[row][column], each, waters[key][at], cmap="Blues", vmin=0, vmax=most)
            axes[row][column].set_title(f"{key}, {each.times_s[at]:.0f} s")
        axes[row][0].set_ylabel("z in km")
    for each in axes[-1]:
        each.set_xlabel("x in km")
    figure.colorbar(picture, ax=axes, label="cloud and rain in g/m³")


def _errors(figure: Any, errors: Mapping[str, Errors]) -> None:
    fields = next(iter(errors.values())).over_time
    axes = figure.subplots(2, 2, sharex=True).ravel()
    for place, field in zip(axes, fields, strict=False):
        for name, each in errors.items():
            colour = _COLOURS.get(name, "tab:blue")
            place.plot(each.times_s, each.over_time[field], label=_NAMES.get(name, name), color=colour)
        place.set(title=field, ylabel="error", ylim=(0, None))
    axes[0].legend()
    for place in axes[2:]:
        place.set_xlabel("time in s")
