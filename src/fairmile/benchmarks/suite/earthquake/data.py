"""From a catalog of events to the prepared arrays of the benchmark, and back from their folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.digest import sha256_file
from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.base.files import write_atomic
from fairmile.benchmarks.suite.earthquake.bins import Cut, DailyBins, Grid, cut_locations, daily_bins, fortnights
from fairmile.benchmarks.suite.earthquake.events import Events, read_events, write_events
from fairmile.benchmarks.suite.earthquake.features import (
    known_features,
    observed_features,
    read_faults,
    static_features,
    target_series,
    to_unit,
)
from fairmile.benchmarks.suite.earthquake.nomenclature import FORTNIGHT_WEEKS, WEEKS
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.synthetic import START, make_catalog

Array = np.ndarray[Any, Any]

FORMAT = 2  # of the prepared folder
PUBLISHED_DAYS = 25567  # of the period for which the published cut of locations was chosen
_META = "meta.json"
_ARRAYS = ("known", "observed", "static", "target", "pixels", "last_day", "low", "high", "latitude", "longitude")
_SKIPPED = max(WEEKS) // FORTNIGHT_WEEKS - 1  # fortnights at the beginning that cannot look back a year


@dataclass(frozen=True)
class Prepared:
    """All series of the benchmark: L locations, T usable fortnights; features lie in [0, 1], missing ones are NaN.

    The range of each feature is taken over all data, validation included, as published. The scores do not change
    with it.
    """

    known: Array  # [T, 13] float32: what is known of any time, features.KNOWN names them
    observed: Array  # [L, T, 9] float32: what was observed, nomenclature.OBSERVED names them
    static: Array  # [L, 5] float32, features.STATIC names them
    target: Array  # [L, T, 4] float32, in the order of nomenclature.PARAMETERS
    pixels: Array  # [L] int64: row * columns + column, row 0 is the north
    last_day: Array  # [T] int64: last day of each fortnight, since 1970-01-01
    low: Array  # [4]: target * (high - low) + low is the magnitude (or E^0.25) again
    high: Array  # [4]
    latitude: Array  # [L]: centre of each pixel
    longitude: Array  # [L]
    events: int  # in the region and the period
    is_made_up: bool
    source: str  # in words
    notes: tuple[str, ...]  # what a reader of the results must know of the data
    faults: tuple[Array, ...] = ()  # of a made-up catalog, each [2, (lat, lon)]

    @property
    def dates(self) -> Array:
        """Return the last day of each fortnight as datetime64."""
        return self.last_day.astype("datetime64[D]")

    def restore(self, target: Array) -> Array:
        """Return targets (last axis: the four) as magnitudes, or as E^0.25 where that was prepared."""
        return np.asarray(target * (self.high - self.low) + self.low)


def what(settings: Settings) -> dict[str, Any]:
    """Return the settings on which the prepared data depends, for `session.prepared`."""
    names = [
        *("south", "north", "west", "east", "pixel_degrees", "start", "end", "min_events", "min_block_events"),
        *("max_locations", "broken", "faults", "scale"),
        *("synthetic_years", "synthetic_min_magnitude", "synthetic_locations", "synthetic_seed"),
    ]
    faults = Path(settings.faults)
    labels = sha256_file(faults) if settings.faults and faults.is_file() else ""
    return {"format": FORMAT, "labels": labels, **{name: getattr(settings, name) for name in names}}


def prepare(source: Path | None, folder: Path, settings: Settings) -> None:
    """Fill `folder` with the arrays of a catalog (a file or a folder), or of a made-up one where `source` is None."""
    folder.mkdir(parents=True, exist_ok=True)
    grid = Grid(settings.south, settings.north, settings.west, settings.east, settings.pixel_degrees)
    if source is None:
        first, days, most = START, _days_of(settings.synthetic_years), settings.synthetic_locations
        share = days / PUBLISHED_DAYS
        made = make_catalog(settings.synthetic_years, settings.synthetic_seed, grid=grid, **_made(settings))
        write_events(folder / "events.csv.gz", made.events)  # in the schema of real data, and read as such
        events, faults = read_events(folder / "events.csv.gz"), made.faults.tolist()
    else:
        events, faults = read_events(source, broken=settings.broken), []
        first, days = _period(settings)
        share, most = 1.0, settings.max_locations
    bins = daily_bins(events, grid, first, days)
    gaps = _checked(events, bins, source)
    cut = cut_locations(bins, settings.min_events * share, settings.min_block_events * share, most)
    arrays = _arrays(bins, cut, gaps, settings)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    meta = {
        "format": FORMAT,
        "events": bins.events,
        "is_made_up": source is None,
        "faults": faults,
        "source": _words(bins, cut, source),
        "notes": [*events.notes, *_gap_notes(bins, gaps)],
        "single": cut.single,
        "block": cut.block,
    }
    write_atomic(folder / _META, json.dumps(meta, indent=1) + "\n")


def load(folder: Path) -> Prepared:
    """Return what `prepare` wrote, as memory maps."""
    if not (folder / _META).is_file():
        raise NotFound(f"{folder} has no prepared earthquake data: it lacks {_META}")
    meta = json.loads((folder / _META).read_text())
    if meta.get("format") != FORMAT:
        raise Integrity(f"{folder / _META}: format {meta.get('format')} is not {FORMAT}", hint="prepare the data again")
    arrays = {}
    for name in _ARRAYS:
        try:
            arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise Integrity(f"{folder / name}.npy cannot be read: {error}", hint="prepare the data again") from error
    facts = {name: meta[name] for name in ("events", "is_made_up", "source")}
    faults = tuple(np.array(each) for each in meta["faults"])
    return Prepared(**arrays, **facts, faults=faults, notes=tuple(meta["notes"]))


def _made(settings: Settings) -> dict[str, Any]:
    return {"min_magnitude": settings.synthetic_min_magnitude}


def _days_of(years: int) -> int:
    if years < 4:
        raise UsageError(f"{years} years are too few: history, horizon and a year of look-back need 4")
    return int(years * 365.25)


def _period(settings: Settings) -> tuple[int, int]:
    """Return the first day, since 1970-01-01, and the number of days."""
    days = []
    for name in ("start", "end"):
        text = getattr(settings, name)
        try:
            days.append(int(np.datetime64(text, "D").astype(np.int64)))
        except ValueError as error:
            raise UsageError(f"parameter {name}: expected a day like 1950-01-01, found {text!r}") from error
    if days[1] - days[0] < 4 * 365:
        raise UsageError(f"the period {settings.start} to {settings.end} is shorter than 4 years")
    return days[0], days[1] - days[0] + 1


def _day(day: int) -> str:
    return str(np.datetime64(day, "D"))


def _checked(events: Events, bins: DailyBins, source: Path | None) -> list[tuple[int, int]]:
    """Return the gaps of the period; a period that is absent as a whole is refused."""
    asked = f"{_day(bins.first_day)} to {_day(bins.first_day + bins.days - 1)}"
    gaps = events.gaps(bins.first_day, bins.days)
    if not bins.events:
        held = f"{_day(int(events.days[0]))} to {_day(int(events.days[-1]))}"
        raise UsageError(
            f"{source}: no event in the region and the period {asked}; the catalog covers {held}",
            hint="set start and end, or the edges of the region",
        )
    return gaps


def _gap_notes(bins: DailyBins, gaps: list[tuple[int, int]]) -> list[str]:
    notes = []
    if bins.unmeasured:
        notes.append(f"{bins.unmeasured} events of the region and period have no magnitude and were skipped")
    for first, last in gaps:
        begin, end = _day(bins.first_day + first), _day(bins.first_day + last)
        notes.append(f"the catalog has no event from {begin} to {end}: these fortnights are missing, not quiet")
    return notes


def _words(bins: DailyBins, cut: Cut, source: Path | None) -> str:
    kind = "a synthetic catalog" if source is None else f"{source.name}"
    begin, end = _day(bins.first_day), _day(bins.first_day + bins.days - 1)
    return f"{kind}: {bins.events:,} events {begin} to {end}, {len(cut.pixels)} locations"


def _arrays(bins: DailyBins, cut: Cut, gaps: list[tuple[int, int]], settings: Settings) -> dict[str, Array]:
    series = fortnights(bins, cut.pixels, gaps)
    observed = observed_features(series, settings.scale)[:, _SKIPPED:]
    target = target_series(series, settings.scale)[:, _SKIPPED:]
    if np.isnan(target).all():
        raise UsageError("the catalog has gaps in every year of the period, so there is no year to look back on")
    observed = to_unit(observed, (0, 1))[0]
    target, low, high = to_unit(target, (0, 1))
    faults = read_faults(Path(settings.faults), bins.grid) if settings.faults else None
    latitude, longitude = bins.grid.centre(cut.pixels)
    return {
        "known": known_features(observed.shape[1]),
        "observed": np.ascontiguousarray(observed, dtype=np.float32),
        "static": static_features(bins.grid, cut.pixels, faults),
        "target": np.ascontiguousarray(target, dtype=np.float32),
        "pixels": cut.pixels,
        "last_day": series.last_day[_SKIPPED:],
        "low": low,
        "high": high,
        "latitude": latitude,
        "longitude": longitude,
    }
