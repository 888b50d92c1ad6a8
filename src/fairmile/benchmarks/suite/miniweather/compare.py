"""How a storm with a surrogate differs from the one with Kessler's microphysics: errors over time, water, speed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.miniweather.archive import Film
from fairmile.benchmarks.suite.miniweather.coupled import Microphysics, MoistSimulation

Array = np.ndarray[Any, Any]
FIELDS = {"theta": "theta", "wind": "wwnd", "cloud": "rho_c", "rain": "rho_p"}
_REPEATS = 100


@dataclass(frozen=True)
class Errors:
    """Differences between two storms, as a share of the first one's own root mean square over all times."""

    times_s: Array
    over_time: Mapping[str, Array]  # by field
    values: Mapping[str, float]  # over all times; none where one broke down

    @classmethod
    def of(cls, truth: Film, other: Film) -> Errors:
        """Compare at the times that both have."""
        count = min(len(truth.times_s), len(other.times_s))
        if truth.times_s[:count] != other.times_s[:count] or truth["theta"].shape[1:] != other["theta"].shape[1:]:
            raise UsageError(
                "the two simulations have different times or grids",
                hint="run steps simulate and hybrid with the same parameters",
            )
        over_time, values = {}, {}
        for name, field in FIELDS.items():
            size = float(np.sqrt(np.mean(truth[field] ** 2))) or 1.0
            over_time[name] = np.sqrt(np.mean((other[field][:count] - truth[field][:count]) ** 2, axis=(1, 2))) / size
            values[f"error_{name}"] = float(np.sqrt(np.mean(over_time[name] ** 2)))
        is_whole = count == len(truth.times_s)
        return cls(np.asarray(truth.times_s[:count]), over_time, values if is_whole else {})


def water_drift(film: Film) -> float:
    """Return by how much all water grew, that on the ground included."""
    water = np.asarray(film.attributes["water"], float)
    return float(water[-1] / water[0] - 1)


def speeds(both: Sequence[Microphysics], simulation: MoistSimulation) -> dict[str, float]:
    """Return the best time that each microphysics takes for the cells of a simulation."""
    cells, dt_s = simulation.cells, getattr(both[-1], "dt_s", 1.0)
    best_s: dict[str, float] = {}
    if not all(np.isfinite(each).all() for each in cells):
        return best_s
    for _ in range(_REPEATS):  # in turns, so that what disturbs one disturbs the other
        for name, each in zip(("kessler", "own"), both, strict=True):
            began = time.perf_counter()
            each(cells, dt_s)
            took_s = time.perf_counter() - began
            best_s[name] = min(best_s.get(name, took_s), took_s)
    return best_s


def costs(film: Film) -> dict[str, float]:
    """Return drift of water and, of a surrogate, how many times it is faster than Kessler's microphysics."""
    values = {"water_drift": water_drift(film)}
    if film.attributes.get("microphysics") != "none" and "own_s" in film.attributes:
        values["speedup"] = float(film.attributes["kessler_s"] / film.attributes["own_s"])
    return values


def describe(film: Film) -> str:
    """Return a storm in a line."""
    name, last = film.attributes["microphysics"], {name: film[name][-1] for name in ("wwnd", "rho_c", "rho_p")}
    if "broke_down_s" in film.attributes:
        return f"storm with {name}: {film.attributes['reason']}"
    return (
        f"storm with {name}, {film.times_s[-1]:g} s: wind up to {film['wwnd'].max():.1f} m/s, cloud up to "
        f"{film['rho_c'].max() * 1e3:.2f} g/m³, rain up to {film['rho_p'].max() * 1e3:.2f} g/m³, at its end "
        f"{last['rho_p'].max() * 1e3:.2f} g/m³; water {water_drift(film):+.1e}"
    )


def speed_note(name: str, film: Film) -> str:
    """Return what microphysics costs with and without a surrogate, and what that means for the whole storm."""
    kessler_s, own_s = float(film.attributes["kessler_s"]), float(film.attributes["own_s"])
    elapsed_s, calls = float(film.attributes["elapsed_s"]), int(film.attributes["calls"])
    with_kessler_s = elapsed_s + calls * (kessler_s - own_s)
    cells = len(film.x_m) * len(film.z_m)
    return (
        f"{name} takes {own_s * 1e3:.2f} ms for {cells:,} cells and Kessler's microphysics {kessler_s * 1e3:.2f} ms, "
        f"both in NumPy; the storm takes {elapsed_s:.1f} s with the former, {with_kessler_s:.1f} s with the latter."
    )


def notes(films: Mapping[str, Film]) -> list[str]:
    """Return what a table cannot tell."""
    timed = [name for name, film in films.items() if name != "none" and "own_s" in film.attributes]
    speed = [speed_note(name, films[name]) for name in timed[-1:] if "broke_down_s" not in films[name].attributes]
    return speed + [
        f"With {name} in place of Kessler's microphysics {film.attributes['reason']}."
        for name, film in films.items()
        if "broke_down_s" in film.attributes
    ]
