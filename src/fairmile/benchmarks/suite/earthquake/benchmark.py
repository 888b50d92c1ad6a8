"""The program of the earthquake benchmark: prepare, baselines, training, scores of both leads, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fairmile.base.errors import UsageError
from fairmile.base.files import write_atomic
from fairmile.benchmarks.harness.figures import can_draw
from fairmile.benchmarks.harness.scores import Results, Score
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.harness.trainer import fit
from fairmile.benchmarks.suite.earthquake import figures
from fairmile.benchmarks.suite.earthquake.baselines import BASELINES, climatology, ridge
from fairmile.benchmarks.suite.earthquake.bins import Grid
from fairmile.benchmarks.suite.earthquake.context import CONTEXT, add_context, add_known_part
from fairmile.benchmarks.suite.earthquake.data import Prepared, load, prepare, what
from fairmile.benchmarks.suite.earthquake.features import KNOWN, STATIC
from fairmile.benchmarks.suite.earthquake.models import (
    UNTRAINED,
    Forecaster,
    ForecastTask,
    forecast_all,
    leads,
    place_weights,
    predictions_of,
    scores_of,
)
from fairmile.benchmarks.suite.earthquake.nomenclature import (
    FORTNIGHT_WEEKS,
    OBSERVED,
    PARAMETERS,
    Prediction,
    top_table,
)
from fairmile.benchmarks.suite.earthquake.parameters import HEADER, score_parameters, wanted
from fairmile.benchmarks.suite.earthquake.scoring import CHOICE, by_step, score, skills
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.windows import Windows, split
from fairmile.meter import span

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.session import Session
    from fairmile.benchmarks.suite.earthquake.settings import Lead

Array = np.ndarray[Any, Any]

TARGET = 0.8  # MLCommons Science policy 0.5: 0.8 < NNSE < 0.99
TOP, LOCATIONS, PREDICTED = "top20.csv", "locations.csv", "parameters.csv"
_SOURCE = "Fox et al., GeoHazards 3 (2022) 199"
PUBLISHED = (
    {"name": "best TFT, Next Year Back, 90 epochs", "metric": "nnse_52wk", "value": 0.937, "source": _SOURCE},
    {"name": "best TFT, Next 6 Months Back", "metric": "nnse_26wk", "value": 0.913, "source": _SOURCE},
    {"name": "best TFT, Next 6 Months Back, summed", "metric": "summed_26wk", "value": 0.983, "source": _SOURCE},
    {"name": "best TFT, Next 3 Months Back, summed", "metric": "summed_14wk", "value": 0.974, "source": _SOURCE},
    {"name": "best TFT, Next Year Back, summed", "metric": "summed_52wk", "value": 0.976, "source": _SOURCE},
)
_EXPLAINED = 2048  # windows whose attention is averaged
_MOST_SELECTED = 8


@dataclass(frozen=True)
class _Forecast:
    """What a model says of the validation windows."""

    outputs: Mapping[str, Array]  # `forecast` [N, horizon, 4]; of quantiles `low` and `high`, too
    history: Sequence[Mapping[str, float]] = ()
    model: Forecaster | None = None
    device: torch.device | None = None


def run(session: Session) -> None:
    """Run the benchmark as the settings of the session say."""
    settings = session.settings(Settings)
    _check(settings)
    with span("data"):
        folder = session.prepared(what(settings), lambda made: prepare(session.data, made, settings))
        plain = load(folder)
        data = add_context(plain, _grid(settings), settings.scale) if settings.context else plain
    session.say(f"data: {plain.source}")
    if settings.work == "prepare":
        for note in plain.notes:
            session.say(f"note: {note}")
        session.say(f"prepared in {folder}")
        return
    training, validation = split(data, settings)
    rows = _baselines(session, settings, plain, training, validation)
    forecast = _forecast(session, settings, training, validation)
    if session.ranks.is_first:
        _report(session, settings, training, validation, rows, forecast)


def _check(settings: Settings) -> None:
    if settings.tuning_share >= 1:
        raise UsageError(f"parameter tuning_share: expected a part below 1, found {settings.tuning_share:g}")
    if settings.d_model < 1 or settings.heads < 1 or settings.lstm_layers < 1:
        raise UsageError("parameters d_model, heads and lstm_layers: expected at least 1 each")
    wanted(settings)  # a name that is none is refused before the data is read
    if settings.model in UNTRAINED and settings.work == "inference":
        raise UsageError(f"model={settings.model} needs no weights", hint="leave out work=inference")


def _grid(settings: Settings) -> Grid:
    return Grid(settings.south, settings.north, settings.west, settings.east, settings.pixel_degrees)


def tuning_split(training: Windows, settings: Settings) -> tuple[Windows, Windows]:
    """Return the training windows in two parts that share no location, or no forecast time: to fit, to choose."""
    if settings.split == "location":
        count = len(training.locations)
        held = max(1, round(count * settings.tuning_share))
        if held >= count:
            raise UsageError(f"{count} training locations are too few to keep some apart", hint="set tuning_share=0")
        drawn = np.random.default_rng([settings.split_seed, 1]).permutation(count)
        places = (training.locations[np.sort(drawn[held:])], training.locations[np.sort(drawn[:held])])
        return replace(training, locations=places[0]), replace(training, locations=places[1])
    starts = training.starts
    border = starts[min(len(starts) - 1, round(len(starts) * (1 - settings.tuning_share)))]
    # The horizons of the first part end before those of the second begin.
    parts = starts[starts + training.horizon <= border], starts[starts >= border]
    if not len(parts[0]) or not len(parts[1]):
        raise UsageError("the training period is too short to keep some of it apart", hint="set tuning_share=0")
    return replace(training, starts=parts[0]), replace(training, starts=parts[1])


def _baselines(
    session: Session, settings: Settings, plain: Prepared, training: Windows, validation: Windows
) -> list[Score]:
    """Return the scores of all methods that are not learned by gradient; only the first rank needs them."""
    if not session.ranks.is_first:
        return []
    rows = []
    with span("baselines"):
        bare = replace(training, data=plain), replace(validation, data=plain)
        for name, (kind, baseline) in BASELINES.items():
            forecasts = {lead: baseline(*bare, lead) for lead in leads(validation)}
            rows.append(Score(kind, name, _values(forecasts, validation, settings)))
        if settings.context:
            informed = add_known_part(training.data, settings.scale) if settings.residual else training.data
            same = replace(training, data=informed), replace(validation, data=informed)
            alike = "ridge with context", None, "gets the same inputs as the model; all places count alike"
            weighted = "ridge with context, weighted", place_weights(same[0], balance=True), "places count by variance"
            for name, weights, note in (alike, weighted) if settings.balance else (alike,):
                forecasts = {lead: ridge(*same, lead, weights) for lead in leads(validation)}
                rows.append(Score("classical", name, _values(forecasts, validation, settings), note))
    return rows


def _values(forecasts: Mapping[Lead, Array], windows: Windows, settings: Settings) -> dict[str, float]:
    """Return the scores of both leads and the skill over persistence."""
    values = scores_of(forecasts, windows, settings.lead, published=settings.missing == "published")
    for kind, forecast in forecasts.items():
        ours = skills(windows.truth(kind), forecast, windows.last())
        for each in PARAMETERS:
            if kind == "overlapping":
                values[f"skill_{each.short}"] = ours[f"skill_{each.short}"]
            elif each.fortnights > 1:
                values[f"ahead_skill_{each.short}"] = ours[f"skill_{each.short}"]
                # The same window, an average instead of a sum: NNSE does not change by a constant.
                values[f"avg_{each.short}"] = values[f"ahead_{each.short}"]
    return values


def _metric(settings: Settings, *, is_made_up: bool) -> Metric:
    is_published = not is_made_up and settings.lead == "overlapping" and settings.split == "location"
    return Metric("nnse", "higher", target=TARGET if is_published else None, mllog_key="eval_accuracy")


def _forecast(session: Session, settings: Settings, training: Windows, validation: Windows) -> _Forecast:
    metric = _metric(settings, is_made_up=validation.data.is_made_up)
    if settings.model in UNTRAINED:
        is_last = settings.model == "persistence"
        last = validation.last() if is_last else climatology(training, validation, settings.lead)
        repeated = np.repeat(last.reshape(-1, 1, last.shape[-1]), validation.horizon, axis=1)
        return _Forecast({"forecast": repeated})
    if settings.work == "inference" or not settings.tuning_share:
        task = ForecastTask.of(settings, metric, training, validation)
        done = fit(task, session)
        outputs = done.outputs
    else:
        fitting, choosing = tuning_split(training, settings)
        # What chooses the epoch has no target to meet: only validation tells.
        task = ForecastTask.of(settings, replace(metric, name=CHOICE, target=None), fitting, choosing)
        done = fit(task, session)
        with span("evaluation"):
            outputs = forecast_all(task, done.model, validation, done.device)
    model = done.model if isinstance(done.model, Forecaster) else None
    return _Forecast(outputs, done.history, model, done.device)


def _report(
    session: Session,
    settings: Settings,
    training: Windows,
    validation: Windows,
    rows: list[Score],
    result: _Forecast,
) -> None:
    forecast, data = result.outputs["forecast"], validation.data
    by_lead = {lead: validation.at_lead(forecast, lead) for lead in leads(validation)}
    values = _values(by_lead, validation, settings)
    published = score_parameters(validation, forecast, wanted(settings), settings)
    values |= {
        f"avg_{row.prediction.step * FORTNIGHT_WEEKS}wk": row.average for row in published if row.prediction.is_average
    }
    if "low" in result.outputs:
        truth = validation.every_step().reshape(forecast.shape)
        seen = ~np.isnan(truth)
        inside = (truth >= result.outputs["low"]) & (truth <= result.outputs["high"])
        values["coverage_80"] = float(inside[seen].mean())
    if settings.predictions:
        predictions_of(validation, forecast).write(session.folder)
    own = Score("model", settings.model, values)
    scores = [*rows, own]
    with span("plots"):
        drawn = _figures(session, settings, validation, scores, result)
    lines = [row.line for row in published]
    write_atomic(session.folder / PREDICTED, "\n".join([HEADER, *lines]) + "\n")
    _say_top(session, settings, validation, forecast)
    _write_locations(session, settings, validation, by_lead)
    notes = [*data.notes, *_notes(settings, scores, validation)]
    if not can_draw():
        notes.append("no figures, because matplotlib is not installed; pip install 'fairmile[plots]'")
    session.report(
        Results(
            benchmark="earthquake",
            data=f"{data.source}; {len(training):,} windows at {len(training.locations)} locations to learn from, "
            f"{len(validation):,} at {len(validation.locations)} to validate",
            metric=_metric(settings, is_made_up=data.is_made_up),
            scores=scores,
            seed=session.seed,
            settings=_values_of(settings),
            published=() if data.is_made_up else PUBLISHED,
            notes=notes,
            figures=drawn,
        )
    )


def _values_of(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def _notes(settings: Settings, scores: Sequence[Score], validation: Windows) -> list[str]:
    own, others = scores[-1], scores[:-1]
    ends = "the next fortnight" if settings.lead == "overlapping" else "a whole window ahead, sharing nothing known"
    notes = [
        f"nnse is the mean over the windows of 2, 14, 26 and 52 weeks of the NNSE averaged over the "
        f"{len(validation.locations)} validation locations, windows that end {ends}",
        "nnse_*: windows that end with the next fortnight and so share all but one with what is known; ahead_*: "
        "windows that begin after what is known; avg_*: 2wk+7AVG, 2wk+13AVG, 2wk+26AVG, of a model the average of its "
        "forecasts of single fortnights; skill: 1 - squared error / that of persistence",
    ]
    if settings.missing == "published":
        notes.append(
            "missing observations count as predicted exactly, as published; missing=masked does not score them"
        )
    if settings.model not in UNTRAINED and settings.work == "train":
        held = (
            f"{settings.tuning_share:.0%} of the training data, kept apart," if settings.tuning_share else "validation"
        )
        notes.append(f"{held} chose the epoch, by the mean of all nnse_* and ahead_*")
    names = [f"nnse_{each.short}" for each in PARAMETERS] + [f"ahead_{each.short}" for each in PARAMETERS[1:]]
    names = [name for name in names if name in own.values]
    won = [name for name in names if all(own.values[name] > other.values[name] for other in others)]
    lost = [
        f"{name} ({max(others, key=lambda other, at=name: other.values[at]).name})"  # type: ignore[misc]
        for name in names
        if name not in won
    ]
    verdict = f"{own.name} has the best {', '.join(won)}" if won else f"{own.name} is best in no score"
    notes.append(verdict + (f"; as good or better: {', '.join(lost)}" if lost else ""))
    if settings.split == "location":
        notes.append(
            "validation locations share their times with training, as published: what happened at a time in the region "
            "can be learned from its neighbours; split=time does not allow that"
        )
    return notes


def _say_top(session: Session, settings: Settings, validation: Windows, forecast: Array) -> None:
    """Print and write the parameters that are predicted best."""
    published = settings.missing == "published"
    steps = [Prediction(PARAMETERS[0], step, is_average=True) for step in range(2, validation.horizon + 1)]
    averages = {
        row.prediction.step: (row.average, row.summed)
        for row in score_parameters(validation, forecast, steps, settings)
    }
    scored = by_step(validation.every_step(), validation.shaped(forecast), published=published)
    rows = top_table(*scored, averages=averages)
    session.say("\nprediction parameters, best 20 by average NNSE (known: part of the window that is in the history)")
    for row in rows:
        session.say(
            f"{row.rank:3d}  {row.name:30s} step {row.step:2d}  known {row.shared:4.0%}"
            f"  average {row.average:.4f}  summed {row.summed:.4f}"
        )
    lines = [f'{r.rank},"{r.name}",{r.step},{r.shared:.4f},{r.average:.6f},{r.summed:.6f}' for r in rows]
    write_atomic(session.folder / TOP, "\n".join(["rank,parameter,step,known,average_nnse,summed_nnse", *lines]) + "\n")


def _write_locations(
    session: Session, settings: Settings, validation: Windows, forecasts: Mapping[Lead, Array]
) -> None:
    """Write the NNSE of each validation location, in the last row that of all of them taken as one series."""
    data, columns = validation.data, {}
    for lead, forecast in forecasts.items():
        truth = validation.truth(lead)
        for each in PARAMETERS:
            if lead == "overlapping" or each.fortnights > 1:
                predicted, observed = forecast[..., each.target], truth[..., each.target]
                scored = score(observed, predicted, published=settings.missing == "published")
                name = f"{'nnse' if lead == 'overlapping' else 'ahead'}_{each.short}"
                columns[name] = [*scored.by_location.tolist(), scored.overall]
    places = [f"{data.latitude[at]:.4f},{data.longitude[at]:.4f}" for at in validation.locations]
    rows = zip([*places, "all,all"], zip(*columns.values(), strict=True), strict=True)
    lines = [f"{place},{','.join(f'{value:.6f}' for value in values)}" for place, values in rows]
    write_atomic(session.folder / LOCATIONS, "\n".join([f"latitude,longitude,{','.join(columns)}", *lines]) + "\n")


def _figures(
    session: Session, settings: Settings, validation: Windows, scores: Sequence[Score], result: _Forecast
) -> list[str]:
    if not can_draw():
        return []
    forecast, folder = result.outputs["forecast"], session.folder
    drawn = [figures.draw_scores(folder, scores)]
    for lead in leads(validation):
        drawn.append(figures.draw_series(folder, validation, forecast, lead))
        drawn.append(figures.draw_map(folder, validation, forecast, lead))
    drawn.append(figures.draw_locations(folder, validation, forecast))
    if result.model is not None and settings.model == "tft" and result.device is not None:
        drawn.append(_draw_attention(session, settings, validation, result.model, result.device))
    if result.history:
        drawn.append(figures.draw_losses(folder, result.history))
    return drawn


def _draw_attention(
    session: Session, settings: Settings, validation: Windows, model: Forecaster, device: torch.device
) -> str:
    numbers = np.linspace(0, len(validation) - 1, min(_EXPLAINED, len(validation))).astype(np.int64)
    batch = validation.batch(numbers)
    inputs = [torch.from_numpy(np.array(batch[name])).to(device) for name in ("static", "known", "observed")]
    with torch.no_grad():
        seen = model.explain(*inputs)
    known = [*KNOWN, *(f"known part, {each.short}" for each in PARAMETERS if settings.residual)]
    names = {
        "places": (STATIC, seen.static_weights),
        "history": ([*OBSERVED, *(CONTEXT if settings.context else ()), *known], seen.history_weights),
        "horizon": (known, seen.horizon_weights),
    }
    selected = {}
    for part, (labels, weights) in names.items():
        mean = weights.float().flatten(0, -2).mean(0).cpu().numpy()
        order = np.argsort(-mean)[:_MOST_SELECTED]
        selected[part] = [(labels[place], float(mean[place])) for place in order]
    attention = seen.attention.float().mean(0).cpu().numpy()
    return figures.draw_attention(session.folder, attention, validation.history, selected)
