"""Samples: a window of history and horizon at one location, cut from the series when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.earthquake.data import Prepared
from fairmile.benchmarks.suite.earthquake.nomenclature import lead_steps
from fairmile.benchmarks.suite.earthquake.settings import Lead, Settings

if TYPE_CHECKING:
    import torch

    from fairmile.benchmarks.harness.task import Batch, Samples

Array = np.ndarray[Any, Any]


AROUND = (0, 2, 8)  # of the observed variables: what a model sees of a location's neighbours


@dataclass(frozen=True)
class Nearest:
    """The nearest locations of each location."""

    places: Array  # [L, K] int64, the nearest one first
    offset: Array  # [L, K, 2] float32: north and east, in tenths of a degree of latitude

    @classmethod
    def of(cls, data: Prepared, count: int) -> Nearest:
        """Return the `count` nearest of each location, or all others where there are fewer."""
        if len(data.pixels) < 2:
            raise UsageError("model=hybrid needs at least 2 locations", hint="lower min_events, or use another model")
        scale = 10 * np.cos(np.radians(float(np.mean(data.latitude))))
        north = 10 * (data.latitude[None, :] - data.latitude[:, None])
        east = scale * (data.longitude[None, :] - data.longitude[:, None])
        apart = np.hypot(north, east)
        np.fill_diagonal(apart, np.inf)
        places = np.argsort(apart, axis=1, kind="stable")[:, : min(count, len(apart) - 1)]
        offset = np.stack([np.take_along_axis(each, places, 1) for each in (north, east)], -1)
        return cls(places, offset.astype(np.float32))


@dataclass(frozen=True)
class Windows:
    """Windows at `locations` x `starts`; sample number = place in locations * len(starts) + place in starts.

    A batch holds, float32: `static` [B, 5], `known` [B, history + horizon, 13], `observed` [B, history, 9],
    `target` [B, horizon, 4] and `weight` [B, horizon, 4], 0 where the observation is missing (its target is 0 there).
    Step k of the horizon (from 0) is the fortnight k + 1 after the last one of the history. With `nearest`, a batch
    also holds what was observed at the nearest locations, `around` [B, history, K, 3], and where they lie, `offset`
    [B, K, 2].
    """

    data: Prepared
    locations: Array  # places on the first axis of the series
    starts: Array  # first fortnight of the history
    history: int
    horizon: int
    nearest: Nearest | None = None

    def __len__(self) -> int:
        return len(self.locations) * len(self.starts)

    def batch(self, numbers: Array) -> Batch:
        """Return the windows with these numbers, as arrays."""
        location, start = self._places(numbers)
        length = self.data.target.shape[1]
        past = (location * length + start)[:, None] + np.arange(self.history)
        future = past[:, -1:] + 1 + np.arange(self.horizon)
        target = self.data.target.reshape(-1, self.data.target.shape[2])[future]
        weight = ~np.isnan(target)
        around: dict[str, Array] = {}
        if self.nearest is not None:
            there = self.nearest.places[location] * length + start[:, None]
            series = self.data.observed.reshape(-1, self.data.observed.shape[2])
            steps = there[:, None] + np.arange(self.history)[:, None]
            around = {"around": series[steps[..., None], AROUND], "offset": self.nearest.offset[location]}
        return {
            "static": self.data.static[location],
            "known": self.data.known[start[:, None] + np.arange(self.history + self.horizon)],
            "observed": self.data.observed.reshape(-1, self.data.observed.shape[2])[past],
            "target": np.where(weight, target, np.float32(0)),
            "weight": weight.astype(np.float32),
            **around,
        }

    @property
    def size_bytes(self) -> int:
        """Return the size of the series that the windows are cut from, as they lie on a device."""
        data = self.data
        return data.observed.nbytes + 2 * data.target.nbytes + data.known.nbytes + data.static.nbytes

    def resident(self, device: torch.device) -> Samples:
        """Return the same windows, cut on a device."""
        import torch

        return _Resident(self, torch, device)

    def truth(self, lead: Lead) -> Array:
        """Return what was observed, [L, S, 4], each target at its lead; NaN where missing."""
        steps = self._steps(lead)
        end = self.starts + self.history - 1
        return np.stack([self.data.target[self.locations[:, None], end + step, i] for i, step in enumerate(steps)], -1)

    def last(self) -> Array:
        """Return the targets at the last fortnight of each history, [L, S, 4]: what persistence predicts."""
        return np.asarray(self.data.target[self.locations[:, None], self.starts + self.history - 1])

    def at_lead(self, outputs: Array, lead: Lead) -> Array:
        """Return of outputs [len(self), horizon, 4] each target at its lead, [L, S, 4]."""
        steps = self._steps(lead)
        shaped = self.shaped(outputs)
        return np.stack([shaped[:, :, step - 1, i] for i, step in enumerate(steps)], -1)

    def shaped(self, outputs: Array) -> Array:
        """Return outputs [len(self), ...] as [L, S, ...]."""
        return outputs.reshape(len(self.locations), len(self.starts), *outputs.shape[1:])

    def every_step(self) -> Array:
        """Return what was observed at all steps of the horizon, [L, S, horizon, 4]; NaN where missing."""
        when = (self.starts + self.history)[:, None] + np.arange(self.horizon)
        return np.asarray(self.data.target[self.locations[:, None, None], when])

    def _places(self, numbers: Array) -> tuple[Array, Array]:
        place, which = np.divmod(np.asarray(numbers, dtype=np.int64), len(self.starts))
        return self.locations[place], self.starts[which]

    def _steps(self, lead: Lead) -> tuple[int, ...]:
        steps = lead_steps(lead)
        if max(steps) > self.horizon:
            raise UsageError(f"{lead} targets need a horizon of {max(steps)} fortnights, it is {self.horizon}")
        return steps


class _Resident:
    """Windows whose series lie on a device: a batch is a few index operations there."""

    def __init__(self, windows: Windows, torch: Any, device: Any) -> None:
        self._torch, self._windows, self._device = torch, windows, device
        data = windows.data
        target = np.asarray(data.target)
        missing = np.isnan(target)
        self._target = self._there(np.where(missing, np.float32(0), target)).flatten(0, 1)
        self._weight = self._there((~missing).astype(np.float32)).flatten(0, 1)
        self._observed = self._there(np.nan_to_num(data.observed)).flatten(0, 1)
        self._known, self._static = self._there(data.known), self._there(data.static)
        self._locations, self._starts = self._there(windows.locations), self._there(windows.starts)
        self._past = torch.arange(windows.history, device=device)
        self._future = torch.arange(windows.history, windows.history + windows.horizon, device=device)
        self._all = torch.arange(windows.history + windows.horizon, device=device)
        if windows.nearest is not None:
            self._nearest, self._offset = self._there(windows.nearest.places), self._there(windows.nearest.offset)
            self._around = self._observed[:, list(AROUND)].contiguous()

    def _there(self, values: Array) -> Any:
        return self._torch.from_numpy(np.array(values)).to(self._device)

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, numbers: Any) -> Mapping[str, Any]:
        """Return the windows with these numbers, as tensors on the device."""
        torch, windows = self._torch, self._windows
        number = torch.as_tensor(numbers, dtype=torch.int64).to(self._device, non_blocking=True)
        place = torch.div(number, len(windows.starts), rounding_mode="floor")
        start = self._starts[number - place * len(windows.starts)]
        location = self._locations[place]
        length = windows.data.target.shape[1]
        first = (location * length + start)[:, None]
        around: dict[str, Any] = {}
        if windows.nearest is not None:
            there = (self._nearest[location] * length + start[:, None])[:, None]
            around = {"around": self._around[there + self._past[:, None]], "offset": self._offset[location]}
        return {
            "static": self._static[location],
            "known": self._known[start[:, None] + self._all],
            "observed": self._observed[first + self._past],
            "target": self._target[first + self._future],
            "weight": self._weight[first + self._future],
            **around,
        }


def split(data: Prepared, settings: Settings) -> tuple[Windows, Windows]:
    """Return training and validation windows, by location (a seeded draw, as published) or by time.

    By time, no fortnight that validation forecasts is seen in training; the histories of validation may reach back.
    Windows whose history has a missing observation are left out.
    """
    history, horizon, share = settings.history, settings.horizon, settings.validation_share
    if history < 1 or horizon < 1:
        raise UsageError(f"history {history} and horizon {horizon} must be at least 1 fortnight each")
    if not 0 < share < 1:
        raise UsageError(f"parameter validation_share: expected a part between 0 and 1, found {share:g}")
    number, length = data.target.shape[:2]
    starts = np.arange(length - history - horizon + 1)
    broken = np.concatenate(([0], np.cumsum(np.isnan(data.observed).any(axis=(0, 2)))))
    starts = starts[broken[starts + history] == broken[starts]]
    everywhere = np.arange(number)
    if settings.split == "location":
        held = max(1, round(number * share))
        drawn = np.random.default_rng(settings.split_seed).permutation(number)
        where = np.sort(drawn[held:]), np.sort(drawn[:held])
        when = starts, starts
    else:
        border = round(length * (1 - share))
        where = everywhere, everywhere
        when = starts[starts + history + horizon <= border], starts[starts + history >= border]
    nearest = Nearest.of(data, settings.neighbours) if settings.model == "hybrid" else None
    parts = [Windows(data, place, time, history, horizon, nearest) for place, time in zip(where, when, strict=True)]
    for name, part in zip(("training", "validation"), parts, strict=True):
        if not len(part):
            raise UsageError(
                f"no window of {history} + {horizon} fortnights is left for {name}: there are {length} fortnights "
                f"at {number} locations",
                hint="take a longer period, or a shorter history or horizon",
            )
    return parts[0], parts[1]
