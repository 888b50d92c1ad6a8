"""The models of the benchmark by name, and the task that trains one of them against the windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.loader import Loader
from fairmile.benchmarks.harness.predictions import Predictions
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.task import Metric
from fairmile.benchmarks.suite.earthquake.hybrid import SpaceTimeForecaster
from fairmile.benchmarks.suite.earthquake.nomenclature import PARAMETERS, lead_steps
from fairmile.benchmarks.suite.earthquake.scoring import CHOICE, scores
from fairmile.benchmarks.suite.earthquake.tft import Shape, TemporalFusionTransformer
from fairmile.benchmarks.suite.earthquake.windows import AROUND

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.task import Batch, Samples
    from fairmile.benchmarks.suite.earthquake.settings import Lead, Scale, Settings
    from fairmile.benchmarks.suite.earthquake.windows import Windows

Array = np.ndarray[Any, Any]

QUANTILES = (0.1, 0.5, 0.9)
TARGETS = len(PARAMETERS)
UNTRAINED = ("persistence", "climatology")
LEADS: tuple[Lead, Lead] = ("overlapping", "non-overlapping")
_MOST_WEIGHT = 5.0  # a place that hardly varies must not decide what is learned
_SAMPLED = 16384  # windows from which means and spreads are taken
_SLACK = 1e-3


class LstmForecaster(nn.Module):
    """An LSTM that reads the history and one that goes on with what is known of the horizon."""

    def __init__(self, shape: Shape, width: int, dropout: float, layers: int) -> None:
        super().__init__()
        self.shape = shape
        between = dropout if layers > 1 else 0.0
        common = shape.static + shape.known
        self.encoder = nn.LSTM(common + shape.observed, width, layers, batch_first=True, dropout=between)
        self.decoder = nn.LSTM(common, width, layers, batch_first=True, dropout=between)
        self.output = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, shape.outputs))

    def forward(self, static: torch.Tensor, known: torch.Tensor, observed: torch.Tensor) -> torch.Tensor:
        """Return [B, horizon, outputs]; arguments as those of the TFT."""
        history = self.shape.history
        steps = torch.cat([known, static[:, None].expand(-1, known.shape[1], -1)], 2)
        _, state = self.encoder(torch.cat([steps[:, :history], observed], 2))
        forecast: torch.Tensor = self.output(self.decoder(steps[:, history:], state)[0])
        return forecast


MODELS: Mapping[str, Callable[[Shape, Settings], nn.Module]] = {
    "tft": lambda shape, s: TemporalFusionTransformer(shape, s.d_model, s.heads, s.dropout, s.lstm_layers),
    "lstm": lambda shape, s: LstmForecaster(shape, s.d_model, s.dropout, s.lstm_layers),
    "hybrid": lambda shape, s: SpaceTimeForecaster(shape, len(AROUND), s.d_model, s.heads, s.dropout, s.lstm_layers),
}
_INPUTS = ("static", "known", "observed", "around", "offset")  # of a model, in this order; the last two of the hybrid


class KnownPart(nn.Module):
    """The part of each target's window that lies in the history: what the truth is never less than.

    At step h a window of w fortnights still holds the last w - h known ones, whose energy is a sum over the history.
    """

    reach: torch.Tensor
    low: torch.Tensor
    width: torch.Tensor

    def __init__(self, history: int, horizon: int, low: Array, high: Array, scale: Scale) -> None:
        super().__init__()
        self.is_magnitude = scale == "magnitude"
        ago = np.arange(history - 1, -1, -1)[:, None, None]  # fortnights before the last known one
        held = np.array([[each.fortnights - step for each in PARAMETERS] for step in range(1, horizon + 1)])
        self.register_buffer("reach", torch.from_numpy((ago < held).reshape(history, -1).astype(np.float32)))
        self.register_buffer("low", torch.from_numpy(np.array(low, np.float32)))
        self.register_buffer("width", torch.from_numpy(np.maximum(np.array(high - low, np.float32), 1e-6)))

    def forward(self, magnitudes: torch.Tensor) -> torch.Tensor:
        """Return [B, horizon, 4] in units of the targets, of the first target over the history, [B, history]."""
        values = magnitudes.float() * self.width[0] + self.low[0]
        energy = 10.0 ** (1.5 * values) if self.is_magnitude else values**4
        sums = (energy @ self.reach).reshape(-1, self.reach.shape[1] // TARGETS, TARGETS)
        known = torch.log10(sums.clamp_min(1.0)) / 1.5 if self.is_magnitude else sums**0.25
        # Nothing known: as little as the target ever was.
        return ((known - self.low) / self.width).clamp_min(0.0)


class Forecaster(nn.Module):
    """A network with what surrounds it: standardised inputs, the known part of the windows, outputs in target units."""

    mean: torch.Tensor
    spread: torch.Tensor
    known_mean: torch.Tensor
    known_spread: torch.Tensor
    middle: torch.Tensor
    error: torch.Tensor
    focus: torch.Tensor
    # Ranges and scales belong to the data of a region: a model that starts from another region's weights has its own.
    own_buffers = (
        "known_part.low",
        "known_part.width",
        "mean",
        "spread",
        "known_mean",
        "known_spread",
        "middle",
        "error",
    )

    def __init__(self, settings: Settings, data_shape: Shape, low: Array, high: Array) -> None:
        super().__init__()
        self.residual = settings.residual
        self.hide_place = settings.hide_place
        self.history, self.horizon = data_shape.history, data_shape.horizon
        self.quantiles = len(QUANTILES) if settings.loss == "quantile" else 1
        added = TARGETS if self.residual else 0
        self.known_part = KnownPart(self.history, self.horizon, low, high, settings.scale)
        shape = Shape(
            data_shape.static, data_shape.known + added, data_shape.observed, self.history, self.horizon,
            TARGETS * self.quantiles,
        )  # fmt: skip
        self.network = MODELS[settings.model](shape, settings)
        focus = torch.ones(self.horizon, TARGETS)
        for each in PARAMETERS:
            for kind in LEADS:
                focus[each.lead(kind) - 1 : each.lead(kind), each.target] = settings.focus
        self.register_buffer("focus", focus, persistent=False)
        for name, size in (
            ("mean", (data_shape.observed,)),
            ("known_mean", (TARGETS,)),
            ("middle", (self.horizon, TARGETS)),
        ):
            self.register_buffer(name, torch.zeros(size))
        for name, size in (
            ("spread", (data_shape.observed,)), ("known_spread", (TARGETS,)), ("error", (self.horizon, TARGETS))
        ):  # fmt: skip
            self.register_buffer(name, torch.ones(size))

    @torch.no_grad()
    def calibrate(self, batch: Mapping[str, torch.Tensor]) -> None:
        """Take from a batch of training windows the means and spreads by which inputs and outputs are scaled."""
        observed = batch["observed"].flatten(0, 1)
        self.mean.copy_(observed.mean(0))
        self.spread.copy_(observed.std(0).clamp_min(_SLACK))
        base = self._base(batch["observed"])
        self.known_mean.copy_(base.flatten(0, 1).mean(0))
        self.known_spread.copy_(base.flatten(0, 1).std(0).clamp_min(_SLACK))
        weight = batch["weight"]
        count = weight.sum(0).clamp_min(1.0)
        rest = batch["target"] - (base if self.residual else 0.0)
        self.middle.copy_((rest * weight).sum(0) / count)
        self.error.copy_((((rest - self.middle) ** 2 * weight).sum(0) / count).sqrt().clamp_min(_SLACK))

    def forward(
        self, static: torch.Tensor, known: torch.Tensor, observed: torch.Tensor, *around: torch.Tensor
    ) -> torch.Tensor:
        """Return [B, horizon, 4, quantiles] in units of the targets; the hybrid gets `around` and `offset`, too."""
        base, inputs = self._inputs(static, known, observed)
        if around:
            columns = list(AROUND)
            seen = (around[0] - self.mean[columns]) / self.spread[columns]
            inputs = (*inputs, seen, *around[1:])
        forecast = self.network(*inputs).float()
        forecast = forecast.view(-1, self.horizon, TARGETS, self.quantiles)
        forecast = forecast * self.error[..., None] + self.middle[..., None]
        whole: torch.Tensor = forecast + base[..., None] if self.residual else forecast
        return whole

    def explain(self, static: torch.Tensor, known: torch.Tensor, observed: torch.Tensor) -> Any:
        """Return what the network looked at; only the TFT knows."""
        return self.network.explain(*self._inputs(static, known, observed)[1])  # type: ignore[operator]

    def _base(self, observed: torch.Tensor) -> torch.Tensor:
        with torch.autocast(observed.device.type, enabled=False):
            base: torch.Tensor = self.known_part(observed[..., 0])
        return base

    def _inputs(
        self, static: torch.Tensor, known: torch.Tensor, observed: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        base = self._base(observed)
        if self.residual:
            # The windows of the history are observed already: only the horizon is told what is known of its own.
            past = torch.zeros_like(base[:, :1]).expand(-1, self.history, -1)
            future = (base - self.known_mean) / self.known_spread
            known = torch.cat([known, torch.cat([past, future], 1)], 2)
        static = static * 2 - 1
        if self.hide_place and (self.training or self.hide_place == 1):
            static = static * (torch.rand(static.shape[0], 1, device=static.device) >= self.hide_place)
        return base, (static, known, (observed - self.mean) / self.spread)


@dataclass(frozen=True)
class Weighted:
    """Windows with a `place_weight` [B, 4] for each sample: how much the errors at its location count."""

    windows: Windows
    weights: Array  # [locations of the windows, 4] float32

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def size_bytes(self) -> int:
        return self.windows.size_bytes

    def batch(self, numbers: Array) -> Batch:
        """Return the windows with these numbers, as arrays."""
        return {**self.windows.batch(numbers), "place_weight": self.weights[numbers // len(self.windows.starts)]}

    def resident(self, device: torch.device) -> Samples:
        """Return the same windows on a device."""
        return _ResidentWeighted(self, device)


class _ResidentWeighted:
    def __init__(self, samples: Weighted, device: torch.device) -> None:
        self._windows: Any = samples.windows.resident(device)
        self._weights = torch.from_numpy(samples.weights).to(device)
        self._starts = len(samples.windows.starts)

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, numbers: Any) -> Batch:
        batch: dict[str, Any] = dict(self._windows.batch(numbers))
        places = torch.div(torch.as_tensor(numbers), self._starts, rounding_mode="floor")
        batch["place_weight"] = self._weights[places.to(self._weights.device)]
        return batch


def place_weights(windows: Windows, *, balance: bool) -> Array:
    """Return [locations, 4]: the mean variance of a target over that of each location, or 1.

    The variance is that of the fortnights which the windows cover: a later validation has no part in it.
    """
    if not balance:
        return np.ones((len(windows.locations), TARGETS), np.float32)
    end = windows.starts[-1] + windows.history + windows.horizon
    with np.errstate(invalid="ignore"):
        covered = windows.data.target[windows.locations, windows.starts[0] : end]
        variance = np.nanvar(np.asarray(covered, np.float64), axis=1)
    mean = np.nanmean(variance, axis=0)
    weights = mean / np.maximum(np.nan_to_num(variance), 1e-9)
    return np.asarray(np.clip(weights, 1 / _MOST_WEIGHT, _MOST_WEIGHT).astype(np.float32))


@dataclass(frozen=True)
class ForecastTask:
    """One of the trained models, its windows and its score."""

    settings: Settings
    metric: Metric
    training: Weighted
    validation: Windows  # that choose the best epoch

    @classmethod
    def of(cls, settings: Settings, metric: Metric, training: Windows, validation: Windows) -> ForecastTask:
        """Return the task of training and validation windows."""
        return cls(settings, metric, Weighted(training, place_weights(training, balance=settings.balance)), validation)

    def model(self) -> Forecaster:
        """Return a fresh model, scaled to a sample of the training windows."""
        data = self.validation.data
        shape = Shape(
            data.static.shape[1], data.known.shape[1], data.observed.shape[2],
            self.validation.history, self.validation.horizon, 0,
        )  # fmt: skip
        model = Forecaster(self.settings, shape, data.low, data.high)
        count = len(self.training)
        numbers = np.arange(count) if count <= _SAMPLED else np.linspace(0, count - 1, _SAMPLED).astype(np.int64)
        batch = self.training.windows.batch(numbers)
        model.calibrate({name: torch.from_numpy(np.array(value)) for name, value in batch.items()})
        return model

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean error of what was observed; each step and target counts by its own spread."""
        forecast = model(*(batch[name] for name in _INPUTS if name in batch))
        plain = _unwrapped(model)
        wrong = (batch["target"][..., None] - forecast) / plain.error[..., None]
        weight = batch["weight"] * batch["place_weight"][:, None] * plain.focus
        if self.settings.loss == "quantile":
            levels = wrong.new_tensor(QUANTILES)
            each = torch.maximum(levels * wrong, (levels - 1) * wrong).sum(-1)
        else:
            each = wrong[..., 0] ** 2 if self.settings.loss == "mse" else wrong[..., 0].abs()
        return (each * weight).sum() / weight.sum().clamp_min(1.0)

    def predict(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the forecast [B, horizon, 4], the median of quantiles, with the outer ones beside it."""
        forecast = model(*(batch[name] for name in _INPUTS if name in batch))
        if forecast.shape[-1] == 1:
            return {"forecast": forecast[..., 0]}
        low, middle, high = forecast.unbind(-1)
        return {"forecast": middle, "low": low, "high": high}

    def predictions(self, outputs: Mapping[str, Array]) -> Predictions:
        """Return the forecasts of the windows that choose the epoch."""
        return predictions_of(self.validation, outputs["forecast"])

    def scores(self, outputs: Mapping[str, Array]) -> Mapping[str, float]:
        """Return the scores of both leads, `nnse` that of the lead that was asked for."""
        windows, published = self.validation, self.settings.missing == "published"
        forecasts = {kind: windows.at_lead(outputs["forecast"], kind) for kind in leads(windows)}
        return scores_of(forecasts, windows, self.settings.lead, published=published)


def predictions_of(windows: Windows, forecast: Array) -> Predictions:
    """Return a forecast [len(windows), horizon, 4] of what begins after the history, in magnitudes; places are groups.

    Each target is taken at the lead at which it shares nothing with what is known, as far as the horizon reaches.
    """
    lead = leads(windows)[-1]
    truth, predicted = (windows.data.restore(each) for each in (windows.truth(lead), windows.at_lead(forecast, lead)))
    names = [each.at(each.lead(lead)) for each in PARAMETERS]
    groups = np.repeat(windows.locations, len(windows.starts))
    return Predictions(
        "regression", predicted.reshape(-1, TARGETS), truth.reshape(-1, TARGETS), names, "magnitude", groups
    )


def leads(windows: Windows) -> tuple[Lead, ...]:
    """Return the leads that the horizon reaches."""
    return tuple(kind for kind in LEADS if max(lead_steps(kind)) <= windows.horizon)


def scores_of(
    forecasts: Mapping[Lead, Array], windows: Windows, lead: Lead, *, published: bool = False
) -> dict[str, float]:
    """Return `nnse` (mean of the four targets, average over locations) at `lead`, then each target at both leads.

    The next fortnight: `nnse_2wk` ..., summed over the region `summed_2wk` ...; a whole window ahead:
    `ahead_14wk` ... and `ahead_summed_14wk` ... (that of 2 weeks is the same). `nnse_all` is the mean of all averages.
    `published`: what is missing counts as a hit, see `scoring.score`.
    """
    values: dict[str, float] = {}
    averages: list[float] = []
    for kind, forecast in forecasts.items():
        these = scores(windows.truth(kind), forecast, published=published)
        if kind == lead:
            values["nnse"] = these["nnse"]
        is_next = kind == "overlapping"
        for each in PARAMETERS:
            if is_next or each.fortnights > 1:
                averages.append(these[f"nnse_{each.short}"])
                values[f"{'nnse' if is_next else 'ahead'}_{each.short}"] = averages[-1]
                values[f"{'' if is_next else 'ahead_'}summed_{each.short}"] = these[f"nnse_summed_{each.short}"]
    if "nnse" not in values:
        raise UsageError(f"lead={lead} needs a horizon of 26 fortnights, it is {windows.horizon}")
    values[CHOICE] = float(np.mean(averages))
    return dict(sorted(values.items(), key=lambda item: ("summed" in item[0], item[0].startswith("ahead"))))


def forecast_all(task: ForecastTask, model: nn.Module, windows: Windows, device: torch.device) -> dict[str, Array]:
    """Return the outputs of a trained model at all windows, in their order."""
    size = task.settings.eval_batch_size or task.settings.batch_size
    batches = Loader(
        windows, batch_size=size, device=device, ranks=Ranks(), seed=0, shuffle=False, resident=task.settings.resident
    )
    kept: dict[str, list[Array]] = {}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(task.settings.precision)
    with torch.no_grad(), torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None):
        for batch in batches.epoch(0):
            for name, values in task.predict(model, batch).items():
                kept.setdefault(name, []).append(values.float().cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def _unwrapped(model: nn.Module) -> Forecaster:
    """Return the forecaster inside of what a strategy or the compiler wrapped around it."""
    for each in model.modules():
        if isinstance(each, Forecaster):
            return each
    raise TypeError("there is no forecaster in the model")
