"""What energy means: kilowatt-hours, money and CO₂, by a table of regions with year and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairmile.base import yaml
from fairmile.base.errors import InvalidDocument, NotFound, Problem, UsageError
from fairmile.base.files import read_text
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.words import did_you_mean

_J_PER_KWH = 3.6e6
_DAY_S, _QUARTER_S = 86400.0, 900.0
_HOURS = lazy_pattern(r"([0-9]{1,2})-([0-9]{1,2})")
Period = tuple[float, float]  # when it began, in seconds since 1970, and how many seconds it took


class FigureDict(TypedDict):
    """One number of the table of regions, as JSON."""

    value: float
    unit: str
    year: int
    source: str
    unverified: bool


class FootprintDict(TypedDict):
    """What an amount of energy means in a region, as JSON."""

    energy_j: float
    pue: float
    kwh: float
    region: str
    co2e_g: float | None
    cost: float | None
    currency: str | None
    carbon: FigureDict | None
    price: FigureDict | None
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the table, of which year and from where; `unverified` where nobody has compared it with that."""

    value: float
    unit: str
    year: int
    source: str
    unverified: bool = False
    hours: tuple[float, ...] = ()  # the value in each hour of the day, where it differs
    zone: str = ""  # whose hours these are, such as Europe/Berlin; empty: this machine's

    def mean(self, began_s: float, elapsed_s: float) -> float:
        """Return the mean value over a period; each hour counts by how much of it the period takes."""
        days, rest_s = divmod(max(elapsed_s, 1.0), _DAY_S)
        total, at_s, end_s = days * _DAY_S * sum(self.hours) / 24, began_s, began_s + rest_s
        while at_s < end_s:
            until_s = min(end_s, (at_s // _QUARTER_S + 1) * _QUARTER_S)  # some zones are half an hour off
            total += self.hours[datetime.fromtimestamp(at_s, _zone(self.zone)).hour] * (until_s - at_s)
            at_s = until_s
        return total / (days * _DAY_S + rest_s)

    def to_dict(self) -> FigureDict:
        """Return the number as data."""
        return {
            "value": self.value,
            "unit": self.unit,
            "year": self.year,
            "source": self.source,
            "unverified": self.unverified,
        }


@dataclass(frozen=True, slots=True)
class Region:
    """What a kilowatt-hour emits and costs somewhere; None where the table does not know."""

    code: str
    name: str
    carbon: Figure | None = None
    price: Figure | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an amount of energy means in a region, with where each factor comes from.

    `pue` is what the building used for each joule of the machine: 1 counts the machine alone.
    """

    energy_j: float
    pue: float
    kwh: float
    region: str
    co2e_g: float | None
    cost: float | None
    currency: str | None
    carbon: Figure | None
    price: Figure | None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> FootprintDict:
        """Return the footprint as data."""
        return {
            "energy_j": self.energy_j,
            "pue": self.pue,
            "kwh": self.kwh,
            "region": self.region,
            "co2e_g": self.co2e_g,
            "cost": self.cost,
            "currency": self.currency,
            "carbon": self.carbon.to_dict() if self.carbon is not None else None,
            "price": self.price.to_dict() if self.price is not None else None,
            "notes": list(self.notes),
        }

    def sentences(self) -> list[tuple[str, str]]:
        """Return labels and sentences to print: energy, CO₂e, cost, notes; factors with year and source."""
        lines = [("energy", f"{self.kwh:.4g} kWh in {self.region}" + (f", PUE {self.pue:g}" if self.pue != 1 else ""))]
        if self.carbon is not None and self.co2e_g is not None:
            factor = f"{self.carbon.value:g} g/kWh, {self.carbon.year}, {self.carbon.source}"
            lines.append(("CO₂e", f"{self.co2e_g:.4g} g ({factor})"))
        if self.price is not None and self.cost is not None:
            factor = f"{self.price.value:g} a kWh, {self.price.year}, {self.price.source}"
            lines.append(("cost", f"{self.cost:.4g} {self.currency} ({factor})"))
        return lines + [("note", note) for note in self.notes]


@dataclass(frozen=True, slots=True)
class Supply:
    """Where energy comes from, as the settings or a person say; without a region nothing is reckoned."""

    region: str = ""
    pue: float = 1.0
    table: Path | None = None

    def footprint(self, energy_j: float | None, period: Period | None = None) -> Footprint | None:
        """Return what an amount of energy means there; None where it or the region is not known, a wrong one raises."""
        if not self.region:
            return None
        known = footprint(energy_j or 0.0, self.region, file=self.table, pue=self.pue, period=period)
        return known if energy_j is not None else None


def pue_of(value: Any) -> float:
    """Return what a building uses for each joule of its machines; UsageError where that is impossible."""
    try:
        pue = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"PUE {value!r} is not a number", hint="use 1 or a little more, such as 1.2") from None
    if not 1 <= pue < float("inf"):
        raise UsageError(f"PUE {pue!r} is impossible: it is at least 1")
    return pue


def regions(file: Path | None = None) -> dict[str, Region]:
    """Return the regions of a table, of ours where none is given."""
    if file is None:
        return dict(_shipped())
    return _parse(read_text(file), str(file))


def footprint(
    energy_j: float, region: str, *, file: Path | None = None, pue: float = 1.0, period: Period | None = None
) -> Footprint:
    """Return what an amount of energy means in a region, given by its code ("DE") or name ("Germany").

    `period` is when it was used, for a price by hour: as if it had been used evenly.
    """
    if not 0 <= energy_j < float("inf"):
        raise UsageError(f"{energy_j!r} J is not an amount of energy")
    pue = pue_of(pue)
    place = _find(regions(file), region)
    kwh = energy_j * pue / _J_PER_KWH
    notes = []
    for what, figure in (("carbon intensity", place.carbon), ("price", place.price)):
        if figure is None:
            notes.append(f"no {what} of {place.name} is known: give one in your own table (footprint.table or --table)")
        elif figure.unverified:
            notes.append(f"the {what} of {place.name} is unverified")
    price = place.price
    if price is not None and price.hours and period is None:
        notes.append(f"the price of {place.name} depends on the hour, which is unknown: its usual price is used")
    elif price is not None and price.hours and period is not None:
        price = replace(price, value=price.mean(*period))
        notes.append("the price is the mean of the hours in which the energy was used, as if it was used evenly")
    return Footprint(
        energy_j,
        pue,
        kwh,
        place.name,
        None if place.carbon is None else kwh * place.carbon.value,
        None if price is None else kwh * price.value,
        None if price is None else price.unit.partition("/")[0],
        place.carbon,
        price,
        tuple(notes),
    )


def _zone(name: str) -> tzinfo | None:
    """Return a time zone by name, that of this machine for none; ValueError or OSError where there is none."""
    if name in ("", "UTC"):
        return UTC if name else None
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # few tables have prices by hour

    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError as error:
        raise ValueError(str(error)) from None


def _find(table: Mapping[str, Region], wanted: str) -> Region:
    for code, region in table.items():
        if wanted.casefold() in (code.casefold(), region.name.casefold()):
            return region
    near = did_you_mean(wanted, [*table, *(region.name for region in table.values())])
    raise NotFound(
        f"no region {wanted!r} in the table" + (f"; {near}" if near else ""),
        hint=f"known: {', '.join(table)}; or pass your own table",
    )


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Region]:
    from importlib import resources  # it takes long to load

    text = resources.files("fairmile.meter").joinpath("data/footprint.yaml").read_text(encoding="utf-8")
    return _parse(text, "footprint.yaml")


def _hourly(entry: Any, otherwise: float) -> tuple[float, ...] | None:
    """Return the value in each hour: `22-6: 0.12` holds from 22 to 6 o'clock, `otherwise` in all others."""
    values = [otherwise] * 24
    pairs: Any = entry.items() if isinstance(entry, dict) else [("", None)]
    for key, value in pairs:
        match = _HOURS.fullmatch(str(key))
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if match is None or not is_number or int(match[1]) > 23 or int(match[2]) > 24:
            return None
        first, last = int(match[1]), int(match[2])
        for number in range(first, last if last > first else last + 24):
            values[number % 24] = float(value)
    return tuple(values)


def _parse(text: str, file: str) -> dict[str, Region]:
    located = yaml.load_located(text, file=file)

    def fail(message: str, *path: str) -> InvalidDocument:
        return InvalidDocument([Problem(message, ".".join(path), file=file, line=located.line(path))])

    def figure(code: str, what: str, entry: Any, unit: str) -> Figure:
        if not isinstance(entry, dict):
            raise fail("must have a value, a year and a source", "regions", code, what)
        value = entry.get("per_kwh" if what == "price" else "g_per_kwh")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise fail("the value must be a number, not less than 0", "regions", code, what)
        if not isinstance(entry.get("year"), int) or not entry.get("source"):
            raise fail("the year and the source are missing", "regions", code, what)
        source = str(sources.get(entry["source"], entry["source"]))
        by_hour = _hourly(entry["hours"], float(value)) if "hours" in entry else ()
        if by_hour is None:
            raise fail("expected hours with their value, such as 22-6: 0.12", "regions", code, what, "hours")
        zone = str(entry.get("zone") or "")
        try:
            _zone(zone)
        except (ValueError, OSError):
            raise fail(f"{zone!r} is not a time zone, such as Europe/Berlin", "regions", code, what, "zone") from None
        is_unverified = bool(entry.get("unverified", False))
        return Figure(float(value), unit, entry["year"], source, is_unverified, by_hour, zone)

    data = located.data
    if not isinstance(data, dict) or not isinstance(data.get("regions"), dict):
        raise fail("expected a field 'regions'")
    sources = data.get("sources") or {}
    table = {}
    for code, entry in data["regions"].items():
        if not isinstance(entry, dict):
            raise fail("expected a name, a carbon intensity or a price", "regions", str(code))
        carbon = figure(code, "carbon", entry["carbon"], "g/kWh") if "carbon" in entry else None
        price = entry.get("price")
        currency = str(price.get("currency", "")) if isinstance(price, dict) else ""
        if price is not None and not currency:
            raise fail("the currency is missing", "regions", code, "price")
        cost = figure(code, "price", price, f"{currency}/kWh") if price is not None else None
        table[str(code)] = Region(str(code), str(entry.get("name", code)), carbon, cost)
    return table
