"""A made-up catalog: background events along faults, each with aftershocks that have aftershocks (ETAS).

Magnitudes follow Gutenberg and Richter, the delays of aftershocks Omori and Utsu, their number grows with the
magnitude, their distance falls with a power. Rates are near those of Southern California: about 110 events a year
above magnitude 3.29.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.benchmarks.suite.earthquake.bins import BIG, Grid
from fairmile.benchmarks.suite.earthquake.events import Events

Array = np.ndarray[Any, Any]

START = int(np.datetime64("2000-01-01", "D").astype(np.int64))  # first day of made-up catalogs, since 1970-01-01
_YEAR_DAYS = 365.25
_KM_PER_DEGREE = 111.2
_MOST = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Etas:
    """The parameters of the process."""

    min_magnitude: float = 2.0
    max_magnitude: float = 7.5
    background_per_year: float = 62.0  # events above 3.29 that have no parent
    b: float = 0.9  # Gutenberg-Richter
    alpha: float = 0.8  # children grow as 10^(alpha m)
    branching: float = 0.6  # mean number of direct children of an event
    p: float = 1.1  # Omori-Utsu
    c_days: float = 0.01
    q: float = 1.5  # of the spatial kernel (1 + r^2 / d^2)^-q
    reach_km: float = 0.006  # d = reach 10^(m / 2)
    faults: int = 12
    on_faults: float = 0.8  # part of the background
    scatter_km: float = 2.0  # of the background about its fault
    warm_up_years: float = 3.0  # before the catalog begins
    depth_km: float = 6.0  # median

    def __post_init__(self) -> None:
        if not 0 <= self.branching < 1:
            raise UsageError(f"a branching ratio of {self.branching:g} is too large: it must be below 1")
        if self.p <= 1 or self.q <= 1 or self.b <= 0:
            raise UsageError("p and q must be above 1, b above 0")
        if self.max_magnitude <= self.min_magnitude:
            raise UsageError(f"no magnitude between {self.min_magnitude:g} and {self.max_magnitude:g}")

    @property
    def productivity(self) -> float:
        """Return K of K 10^(alpha (m - min_magnitude)) that gives the branching ratio."""
        span = self.max_magnitude - self.min_magnitude
        beta, rise = self.b * np.log(10), self.alpha * np.log(10)
        difference = rise - beta
        grown = span if abs(difference) < 1e-9 else np.expm1(difference * span) / difference
        return float(self.branching * -np.expm1(-beta * span) / (beta * grown))

    @property
    def background_per_day(self) -> float:
        """Return the rate of events without parent above the smallest magnitude."""
        beta = self.b * np.log(10)
        top = np.exp(-beta * (self.max_magnitude - self.min_magnitude))
        above = (np.exp(-beta * (BIG - self.min_magnitude)) - top) / (1 - top)
        return float(self.background_per_year / above / _YEAR_DAYS)


@dataclass(frozen=True)
class Simulated:
    """A simulated catalog with its family tree; days count from the beginning of the catalog, the warm-up is < 0."""

    day: Array
    lat: Array
    lon: Array
    mag: Array
    parent: Array  # number of the event that caused it; -1: background
    faults: Array  # [faults, 2 ends, (lat, lon)]


class Made(NamedTuple):
    """A synthetic catalog and the ends of the faults of its background: [faults, 2 ends, (lat, lon)]."""

    events: Events
    faults: Array


def make_catalog(years: int, seed: int, *, grid: Grid | None = None, **changes: Any) -> Made:
    """Return a synthetic catalog of so many years from 2000 on; `changes` are fields of `Etas`."""
    grid, etas, rng = grid or Grid(), Etas(**changes), np.random.default_rng(seed)
    days = int(years * _YEAR_DAYS)
    made = simulate(etas, grid, days, rng)
    depth = np.clip(rng.lognormal(np.log(etas.depth_km), 0.5, len(made.day)), 0.0, 30.0)
    kept = (made.day >= 0) & (made.day < days)
    order = np.flatnonzero(kept)[np.argsort(made.day[kept], kind="stable")]
    events = Events(
        time_s=(START + made.day[order]) * 86400.0,
        lat=made.lat[order],
        lon=made.lon[order],
        depth_km=depth[order],
        mag=made.mag[order].round(2),
    )
    return Made(events, made.faults)


def simulate(etas: Etas, grid: Grid, days: int, rng: np.random.Generator) -> Simulated:
    """Return background and all generations of aftershocks until `days`."""
    warm_up = etas.warm_up_years * _YEAR_DAYS
    count = rng.poisson(etas.background_per_day * (days + warm_up))
    low, high = np.array([grid.south, grid.west]), np.array([grid.north, grid.east])
    faults = rng.uniform(low, high, (2, etas.faults, 2)).swapaxes(0, 1)
    lat, lon = _background(etas, faults, low, high, count, rng)
    generation = Simulated(
        rng.uniform(-warm_up, days, count), lat, lon, _magnitudes(etas, count, rng), np.full(count, -1), faults
    )
    generations, total = [generation], count
    while len(generation.day):
        generation = _children(etas, generation, total - len(generation.day), days, rng)
        generations.append(generation)
        total += len(generation.day)
        if total > _MOST:
            raise UsageError(
                f"the synthetic catalog has more than {_MOST:,} events", hint="raise synthetic_min_magnitude"
            )
    names = ("day", "lat", "lon", "mag", "parent")
    every = {name: np.concatenate([getattr(each, name) for each in generations]) for name in names}
    return Simulated(**every, faults=faults)


def _magnitudes(etas: Etas, count: int, rng: np.random.Generator) -> Array:
    beta = etas.b * np.log(10)
    part = -np.expm1(-beta * (etas.max_magnitude - etas.min_magnitude))
    return np.asarray(etas.min_magnitude - np.log1p(-part * rng.uniform(size=count)) / beta)


def _background(
    etas: Etas, faults: Array, low: Array, high: Array, count: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    weights = rng.dirichlet(np.ones(etas.faults))
    fault = rng.choice(etas.faults, count, p=weights)
    along = rng.uniform(size=(count, 1))
    place = faults[fault, 0] * (1 - along) + faults[fault, 1] * along
    place += rng.normal(0, etas.scatter_km / _KM_PER_DEGREE, (count, 2))
    anywhere = rng.uniform(low, high, (count, 2))
    place = np.where(rng.uniform(size=(count, 1)) < etas.on_faults, place, anywhere)
    return place[:, 0], place[:, 1]


def _children(etas: Etas, parents: Simulated, offset: int, days: int, rng: np.random.Generator) -> Simulated:
    """Return the direct children of events that lie before the end; `offset` is the number of the first parent."""
    number = rng.poisson(etas.productivity * 10 ** (etas.alpha * (parents.mag - etas.min_magnitude)))
    parent = np.repeat(np.arange(len(number)), number)
    delay = etas.c_days * ((1 - rng.uniform(size=len(parent))) ** (-1 / (etas.p - 1)) - 1)
    day = parents.day[parent] + delay
    parent, day = parent[day < days], day[day < days]
    reach = etas.reach_km * 10 ** (parents.mag[parent] / 2)
    distance = reach * np.sqrt((1 - rng.uniform(size=len(parent))) ** (-1 / (etas.q - 1)) - 1) / _KM_PER_DEGREE
    angle = rng.uniform(0, 2 * np.pi, len(parent))
    lat = parents.lat[parent] + distance * np.sin(angle)
    lon = parents.lon[parent] + distance * np.cos(angle) / np.cos(np.radians(parents.lat[parent]))
    # The far tail of the kernel leaves the globe; such an event stays where its parent is.
    lost = (np.abs(lat) > 90) | (np.abs(lon) > 180)
    lat, lon = np.where(lost, parents.lat[parent], lat), np.where(lost, parents.lon[parent], lon)
    return Simulated(day, lat, lon, _magnitudes(etas, len(parent), rng), parent + offset, parents.faults)
