"""What energy means: kilowatt-hours, money and CO₂, by a table of regions with year and source."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairmile.base import yaml
from fairmile.base.errors import InvalidDocument, NotFound, Problem, SystemFailure, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.words import did_you_mean

_J_PER_KWH = 3.6e6


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

    def footprint(self, energy_j: float | None) -> Footprint | None:
        """Return what an amount of energy means there; None where it or the region is not known, a wrong one raises."""
        if not self.region:
            return None
        known = footprint(energy_j or 0.0, self.region, file=self.table, pue=self.pue)
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
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SystemFailure(f"cannot read {file}: {error}") from error
    return _parse(text, str(file))


def footprint(energy_j: float, region: str, *, file: Path | None = None, pue: float = 1.0) -> Footprint:
    """Return what an amount of energy means in a region, given by its code ("DE") or name ("Germany")."""
    if not 0 <= energy_j < float("inf"):
        raise UsageError(f"{energy_j!r} J is not an amount of energy")
    pue = pue_of(pue)
    place = _find(regions(file), region)
    kwh = energy_j * pue / _J_PER_KWH
    notes = []
    for what, figure in (("carbon intensity", place.carbon), ("price", place.price)):
        if figure is None:
            notes.append(f"the table has no {what} for {place.name}")
        elif figure.unverified:
            notes.append(f"the {what} of {place.name} is unverified")
    return Footprint(
        energy_j,
        pue,
        kwh,
        place.name,
        None if place.carbon is None else kwh * place.carbon.value,
        None if place.price is None else kwh * place.price.value,
        None if place.price is None else place.price.unit.partition("/")[0],
        place.carbon,
        place.price,
        tuple(notes),
    )


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
        return Figure(float(value), unit, entry["year"], source, bool(entry.get("unverified", False)))

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
