"""From events to bins: days and pixels, then fortnights, then sums over weeks, by the three published equations.

magnitude     m = log10(sum_i 10^(1.5 m_i)) / 1.5
depth         d = sum_i 10^(1.5 m_i) d_i / sum_i 10^(1.5 m_i)
multiplicity  n = number of events, and of those above magnitude 3.29

A day without events has m = 0 in the published data, which is an energy of 1, not of 0. A fortnight without events
therefore has m = log10(14) / 1.5 = 0.764: the floor of all fortnights. It is kept here, in depth as well as in
magnitude, so that figures can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmile.base.errors import UsageError

if TYPE_CHECKING:
    from fairmile.benchmarks.suite.earthquake.events import Events

Array = np.ndarray[Any, Any]

DAYS = 14
BIG = 3.29  # magnitude above which events are counted apart


@dataclass(frozen=True)
class Grid:
    """Pixels of a region; row 0 is the north, the column runs fastest."""

    south: float = 32.0
    north: float = 36.0
    west: float = -120.0
    east: float = -114.0
    pixel_degrees: float = 0.1

    def __post_init__(self) -> None:
        if self.north <= self.south or self.east <= self.west or self.pixel_degrees <= 0:
            raise UsageError(
                f"a region from {self.south:g} to {self.north:g} and {self.west:g} to {self.east:g} degrees is empty"
            )

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return round((self.north - self.south) / self.pixel_degrees)

    @property
    def columns(self) -> int:
        """Return the number of columns."""
        return round((self.east - self.west) / self.pixel_degrees)

    def pixel(self, lat: Array, lon: Array) -> Array:
        """Return the pixel of each place, -1 outside of the region."""
        # Coordinates are decimal: 33.9 lies on an edge and must not fall to either side by rounding.
        up = np.floor(np.round((lat - self.south) / self.pixel_degrees, 6)).astype(np.int64)
        column = np.floor(np.round((lon - self.west) / self.pixel_degrees, 6)).astype(np.int64)
        inside = (up >= 0) & (up < self.rows) & (column >= 0) & (column < self.columns)
        return np.where(inside, (self.rows - 1 - up) * self.columns + column, -1)

    def centre(self, pixels: Array) -> tuple[Array, Array]:
        """Return latitude and longitude of the middle of pixels."""
        row, column = np.divmod(pixels, self.columns)
        return self.north - (row + 0.5) * self.pixel_degrees, self.west + (column + 0.5) * self.pixel_degrees


@dataclass(frozen=True)
class DailyBins:
    """The days and pixels that hold events, one row each, in the order of (day, pixel)."""

    grid: Grid
    first_day: int  # since 1970-01-01
    days: int
    day: Array  # of the period, from 0
    pixel: Array
    energy: Array  # sum of 10^(1.5 m)
    depth_km: Array  # weighted by energy; 0 where no depth is known
    count: Array
    big: Array  # events above 3.29
    events: int  # that were binned
    unmeasured: int  # in region and period, left out for want of a magnitude

    @property
    def magnitude(self) -> Array:
        """Return the magnitude of the energy of each row."""
        return np.log10(self.energy) / 1.5


def daily_bins(events: Events, grid: Grid, first_day: int, days: int) -> DailyBins:
    """Return the bins of the events of a period; events without magnitude are left out and counted."""
    pixel = grid.pixel(events.lat, events.lon)
    day = events.days - first_day
    inside = (pixel >= 0) & (day >= 0) & (day < days)
    measured = inside & ~np.isnan(events.mag)
    mag, depth = events.mag[measured], events.depth_km[measured]
    size = grid.rows * grid.columns
    keys, row = np.unique(day[measured] * size + pixel[measured], return_inverse=True)
    energy = 10.0 ** (1.5 * mag)
    total = np.bincount(row, energy, len(keys))
    has_depth = ~np.isnan(depth)
    weight = np.bincount(row[has_depth], energy[has_depth], len(keys))
    moment = np.bincount(row[has_depth], energy[has_depth] * depth[has_depth], len(keys))
    return DailyBins(
        grid=grid,
        first_day=first_day,
        days=days,
        day=keys // size,
        pixel=keys % size,
        energy=total,
        depth_km=np.divide(moment, weight, out=np.zeros(len(keys)), where=weight > 0),
        count=np.bincount(row, minlength=len(keys)),
        big=np.bincount(row[mag > BIG], minlength=len(keys)),
        events=int(measured.sum()),
        unmeasured=int(inside.sum() - measured.sum()),
    )


@dataclass(frozen=True)
class Fortnights:
    """Series of 14-day bins at some pixels; the days that fill no fortnight are skipped at the beginning."""

    pixels: Array  # [L]
    last_day: Array  # [T], since 1970-01-01
    energy: Array  # [T, L] sum of 10^(1.5 m) with 1 for each day without events; NaN where not observed
    depth_km: Array  # [T, L]
    count: Array
    big: Array

    @property
    def magnitude(self) -> Array:
        """Return the magnitude of each fortnight, 0.764 where nothing happened."""
        return np.log10(self.energy) / 1.5


def fortnights(bins: DailyBins, pixels: Array, gaps: list[tuple[int, int]] | None = None) -> Fortnights:
    """Return the fortnights of daily bins at pixels; one that touches a gap (first, last day) is missing: NaN."""
    number, skipped = bins.days // DAYS, bins.days % DAYS
    place = np.full(bins.grid.rows * bins.grid.columns, -1)
    place[pixels] = np.arange(len(pixels))
    where, when = place[bins.pixel], (bins.day - skipped) // DAYS
    used = (where >= 0) & (when >= 0)
    key, size = (when * len(pixels) + where)[used], number * len(pixels)

    def summed(values: Array) -> Array:
        return np.bincount(key, values[used].astype(float), size).reshape(number, len(pixels))

    energy = summed(bins.energy) + (DAYS - summed(np.ones(len(bins.day))))
    depth = summed(bins.energy * bins.depth_km) / energy
    series = [energy, depth, summed(bins.count), summed(bins.big)]
    for first, last in gaps or []:
        begin, end = max(0, (first - skipped) // DAYS), (last - skipped) // DAYS + 1
        for each in series:
            each[begin : max(begin, end)] = np.nan
    last_day = bins.first_day + skipped + DAYS * np.arange(1, number + 1) - 1
    return Fortnights(pixels, last_day, *series)


def backward(energy: Array, weeks: int) -> Array:
    """Return the magnitude of the energy of the last `weeks`, this fortnight included; NaN where not all is known."""
    steps = weeks * 7 // DAYS
    total = np.full(energy.shape, np.nan)
    if len(energy) >= steps:
        total[steps - 1 :] = sum(energy[i : len(energy) - steps + 1 + i] for i in range(steps))
    return np.asarray(np.log10(total) / 1.5)


def forward(energy: Array, weeks: int, delay_weeks: int = 0) -> Array:
    """Return the magnitude of the energy of the `weeks` after this fortnight, or after `delay_weeks` more."""
    steps = (weeks + delay_weeks) * 7 // DAYS
    ahead = np.full(energy.shape, np.nan)
    if len(energy) > steps:
        ahead[:-steps] = backward(energy, weeks)[steps:]
    return ahead


@dataclass(frozen=True)
class Cut:
    """The pixels that are active enough to be learned from."""

    pixels: Array
    single: int  # that pass by their own events
    block: int  # that pass by the 3 x 3 pixels around them


def cut_locations(bins: DailyBins, min_events: float, min_block_events: float, most: int = 0) -> Cut:
    """Return the pixels with so many events above 3.29, or so many in their 3 x 3 block; at `most` the most active."""
    grid = bins.grid
    own = np.bincount(bins.pixel, bins.big, grid.rows * grid.columns).reshape(grid.rows, grid.columns)
    padded = np.pad(own, 1)
    block = sum(padded[y : y + grid.rows, x : x + grid.columns] for y in range(3) for x in range(3))
    alone, in_block = (own >= min_events).ravel(), (np.asarray(block) >= min_block_events).ravel()
    pixels = np.flatnonzero(alone | in_block)
    if not len(pixels):
        raise UsageError(
            f"no pixel has {min_events:g} events above magnitude {BIG}, the most active one has {own.max():g}",
            hint="is the period long enough? lower min_events and min_block_events otherwise",
        )
    if most and len(pixels) > most:
        pixels = np.sort(pixels[np.argsort(-own.ravel()[pixels], kind="stable")[:most]])
    return Cut(pixels, int(alone.sum()), int(in_block.sum()))
