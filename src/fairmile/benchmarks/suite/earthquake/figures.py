"""Figures of the earthquake benchmark: observed and predicted, what is looked at, scores by place, losses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.benchmarks.harness.figures import save_figure
from fairmile.benchmarks.suite.earthquake.nomenclature import PARAMETERS
from fairmile.benchmarks.suite.earthquake.scoring import CHOICE, nnse

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.scores import Score
    from fairmile.benchmarks.suite.earthquake.settings import Lead
    from fairmile.benchmarks.suite.earthquake.windows import Windows

Array = np.ndarray[Any, Any]

_OBSERVED, _PREDICTED = "#333333", "#d1495b"
_SHOWN = 3  # locations
# By what a method is: trivial ones are grey, classical ones blue, the model is red.
_SHADES = {"trivial": "Greys", "classical": "Blues", "model": "Reds"}
_COAST, _FAULT, _SEA = "#5c6b73", "#8c564b", "#eaf1f5"


def draw_series(folder: Path, windows: Windows, forecast: Array, lead: Lead) -> str:
    """Draw observed and predicted magnitudes, summed over the validation locations, for each target."""
    truth = windows.data.restore(windows.truth(lead))
    guess = windows.data.restore(windows.at_lead(forecast, lead))

    def draw(figure: Any) -> None:
        for axis, each in zip(figure.subplots(len(PARAMETERS), 1, sharex=True), PARAMETERS, strict=True):
            steps = each.lead(lead)
            seen = ~np.isnan(truth[..., each.target]).any(axis=0)
            for values, colour, name in ((truth, _OBSERVED, "observed"), (guess, _PREDICTED, "predicted")):
                total = np.where(seen, values[..., each.target].sum(axis=0), np.nan)
                axis.plot(*timeline(windows, total, steps), color=colour, lw=0.8, label=name)
            axis.set_title(f"{each.at(steps)}: sum of magnitudes over {len(truth)} validation locations", fontsize=8)
        figure.axes[0].legend(frameon=False, ncols=2, fontsize=8)

    return save_figure(
        folder / f"series-{lead}.svg", draw, size=(8, 8), title=f"Observed and predicted activity, {lead} windows"
    )


def draw_locations(folder: Path, windows: Windows, forecast: Array, target: int = 0) -> str:
    """Draw one target at some locations: the best, the median and the worst of the validation locations."""
    truth, guess = windows.truth("overlapping")[..., target], windows.at_lead(forecast, "overlapping")[..., target]
    by_location = nnse(truth, guess)
    order = np.argsort(-np.nan_to_num(by_location))
    shown = order[np.linspace(0, len(order) - 1, min(_SHOWN, len(order))).astype(int)]
    data = windows.data

    def draw(figure: Any) -> None:
        for axis, place in zip(np.atleast_1d(figure.subplots(len(shown), 1, sharex=True)), shown, strict=True):
            for values, colour, name in ((truth, _OBSERVED, "observed"), (guess, _PREDICTED, "predicted")):
                low, high = data.low[target], data.high[target]
                series = values[place] * (high - low) + low
                axis.plot(*timeline(windows, series, 1), color=colour, lw=0.6, label=name)
            where = windows.locations[place]
            at = f"{_degrees(data.latitude[where], 'NS')}, {_degrees(data.longitude[where], 'EW')}"
            axis.set_title(f"{PARAMETERS[target].name} at {at}: NNSE {by_location[place]:.3f}", fontsize=8)
        figure.axes[0].legend(frameon=False, ncols=2, fontsize=8)

    return save_figure(
        folder / "locations.svg", draw, size=(8, 2 * len(shown)), title="Best, median and worst locations"
    )


def draw_map(folder: Path, windows: Windows, forecast: Array, lead: Lead) -> str:
    """Draw the NNSE of each validation location, for each target."""
    truth, guess, data = windows.truth(lead), windows.at_lead(forecast, lead), windows.data
    longitude, latitude = data.longitude[windows.locations], data.latitude[windows.locations]

    def draw(figure: Any) -> None:
        axes = figure.subplots(2, 2, sharex=True, sharey=True).ravel()
        for axis, each in zip(axes, PARAMETERS, strict=True):
            values = nnse(truth[..., each.target], guess[..., each.target])
            axis.scatter(data.longitude, data.latitude, c="#d5d5d5", s=6, marker="s", zorder=2, label="other locations")
            dots = axis.scatter(
                longitude,
                latitude,
                c=values,
                s=11,
                marker="s",
                cmap="RdYlBu",
                vmin=0,
                vmax=1,
                zorder=4,
                edgecolors="#888888",
                linewidths=0.3,
            )
            draw_outline(axis, data.longitude, data.latitude, made_up=data.faults if data.is_made_up else None)
            axis.set_title(f"{each.at(each.lead(lead))}: mean NNSE {np.nanmean(values):.3f}", fontsize=8)
        for axis in axes[2:]:
            axis.set_xlabel("longitude (°)")
        for axis in axes[::2]:
            axis.set_ylabel("latitude (°)")
        figure.colorbar(dots, ax=axes, label="NNSE of validation locations (0.5: constant mean)", shrink=0.8)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=8
        )

    return save_figure(folder / f"map-{lead}.svg", draw, size=(8, 6.6), title=f"Skill by location, {lead} windows")


def draw_outline(axis: Any, longitude: Array, latitude: Array, *, made_up: Sequence[Array] | None = None) -> None:
    """Draw coast and faults under a map that shows these places; `made_up` are the faults of a synthetic catalog."""
    outline = json.loads(resources.files(__package__).joinpath("outline.json").read_text("utf-8"))
    west, south = np.min(longitude) - 0.3, np.min(latitude) - 0.3
    east, north = np.max(longitude) + 0.3, np.max(latitude) + 0.3
    coast = np.array(outline["coast"])
    axis.fill([*coast[:, 0], -130, -130], [*coast[:, 1], coast[-1, 1], coast[0, 1]], color=_SEA, zorder=0)
    axis.plot(coast[:, 0], coast[:, 1], color=_COAST, lw=0.9, zorder=1, label="coast")
    if made_up is None:
        traces, name = [np.array(each) for each in outline["faults"].values()], "main faults"
    else:
        traces, name = [each[:, ::-1] for each in made_up], "faults of the synthetic catalog"
    for at, trace in enumerate(traces):
        axis.plot(*trace.T, color=_FAULT, lw=0.9, zorder=3, label="" if at else name)
    axis.set(xlim=(west, east), ylim=(south, north), aspect=1 / np.cos(np.radians((south + north) / 2)))


def draw_scores(folder: Path, scores: Sequence[Score]) -> str:
    """Draw the averaged NNSE of all methods by target, the next fortnight and a whole window ahead."""
    names = [f"nnse_{each.short}" for each in PARAMETERS] + [f"ahead_{each.short}" for each in PARAMETERS[1:]]
    names = [name for name in names if name in scores[-1].values]

    def draw(figure: Any) -> None:
        draw_bars(figure.subplots(), scores, names)
        figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside lower left")

    return save_figure(folder / "scores.svg", draw, size=(8, 4.6), title="Skill of all methods")


def draw_bars(axis: Any, scores: Sequence[Score], names: Sequence[str]) -> None:
    """Draw a group of bars for each score, one for each method, from zero."""
    width = 0.85 / len(scores)
    for place, (score, colour) in enumerate(zip(scores, _colours(scores), strict=True)):
        values = [score.values[name] for name in names]
        axis.bar(np.arange(len(names)) + place * width, values, width, label=score.name, color=colour)
    axis.axhline(0.5, color="black", lw=0.6, ls=":", label="0.5: constant mean")
    axis.set_xticks(np.arange(len(names)) + width * (len(scores) - 1) / 2, names, fontsize=8)
    axis.set_ylabel("NNSE, average over validation locations")
    axis.set_ylim(0, 1)


def draw_attention(
    folder: Path, attention: Array, history: int, selected: Mapping[str, Sequence[tuple[str, float]]]
) -> str:
    """Draw the mean attention [horizon, history + horizon] over time, and the variables that were selected most."""

    def draw(figure: Any) -> None:
        left, *rest = figure.subplots(1, 1 + len(selected), width_ratios=[2.2, *([1] * len(selected))])
        past = np.arange(attention.shape[1]) - history + 1
        for step in sorted({1, max(1, len(attention) // 2), len(attention)}):
            row = np.where(past <= step, attention[step - 1], np.nan)
            left.plot(past, row, lw=1, label=f"step {step}")
        left.axvline(0, color="black", lw=0.6, ls=":")
        left.set_xlabel("fortnights, 0: the last known one")
        left.set_ylabel("mean attention")
        left.legend(frameon=False, fontsize=8)
        for axis, (name, rows) in zip(rest, selected.items(), strict=True):
            axis.barh([row[0] for row in rows][::-1], [row[1] for row in rows][::-1], color=_PREDICTED)
            axis.set_title(f"selected: {name}", fontsize=8)
            axis.tick_params(labelsize=6)

    return save_figure(folder / "attention.svg", draw, size=(11, 3.5), title="Attention and selected variables")


def draw_losses(folder: Path, history: Sequence[Mapping[str, float]]) -> str:
    """Draw the training loss and the score of the windows that choose the epoch."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.plot([row["epoch"] for row in history], [row["train_loss"] for row in history], "o-", ms=3)
        left.set(xlabel="epoch", ylabel="training loss")
        for axis in (left, right):
            axis.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        scored = [row for row in history if CHOICE in row]
        right.plot([row["epoch"] for row in scored], [row[CHOICE] for row in scored], "o-", ms=3, color=_PREDICTED)
        right.set(xlabel="epoch", ylabel="NNSE of the windows that choose the epoch")

    return save_figure(folder / "losses.svg", draw, title="Training loss and score")


def timeline(windows: Windows, values: Array, step: int) -> tuple[Array, Array]:
    """Return dates without holes and a value for each, of one value per window, `step` fortnights after its history.

    Windows are left out where the catalog has a gap: NaN stands there, so that a line breaks instead of crossing it.
    """
    places = windows.starts + windows.history - 1 + step
    filled = np.full(places[-1] - places[0] + 1, np.nan)
    filled[places - places[0]] = values
    return np.asarray(windows.data.dates[places[0] : places[-1] + 1]), filled


def _degrees(value: float, sides: str) -> str:
    return f"{abs(value):.2f}° {sides[0] if value >= 0 else sides[1]}"


def _colours(scores: Sequence[Score]) -> list[Any]:
    """Return a colour for each method: one hue for each kind, lighter and darker within it."""
    from matplotlib import colormaps

    colours = []
    for at, score in enumerate(scores):
        alike = [place for place, each in enumerate(scores) if each.kind == score.kind]
        depth = 0.7 if len(alike) == 1 else 0.3 + 0.45 * alike.index(at) / (len(alike) - 1)
        colours.append(colormaps[_SHADES[score.kind]](depth))
    return colours
