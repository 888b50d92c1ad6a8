"""Small climate snapshots with planted storms: sixteen fields of CAM5 on a grid of latitudes and longitudes.

Storms are as many grid points wide as in the published data on its finer grid, so on coarse grids they are larger than
real ones. Winds and pressure balance: both follow from one stream function away from the equator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FIELDS = (
    *("TMQ", "U850", "V850", "UBOT", "VBOT", "QREFHT", "PS", "PSL"),
    *("T200", "T500", "PRECT", "TS", "TREFHT", "Z1000", "Z200", "ZBOT"),
)
CYCLONE, RIVER = 1, 2  # 0 is background
_EARTH_KM, _SPIN, _AIR = 6371.0, 7.292e-5, 1.15  # radius, 1/s, kg/m³
_LONGEST_KM = 9000.0


def columns_of(rows: int) -> int:
    """Return the longitudes of a grid with this number of latitudes, as in the published data."""
    return rows * 3 // 2


@dataclass(frozen=True)
class Grid:
    """Latitudes and longitudes of the points in degrees, as arrays that broadcast."""

    rows: int

    @property
    def latitude(self) -> Array:
        return np.asarray(((np.arange(self.rows) + 0.5) / self.rows * 180 - 90)[:, None])

    @property
    def longitude(self) -> Array:
        columns = columns_of(self.rows)
        return np.asarray((np.arange(columns) / columns * 360)[None])

    @property
    def step(self) -> float:
        return 180 / self.rows

    @property
    def turning(self) -> Array:
        """Return the Coriolis parameter, kept from 0 at the equator."""
        value = 2 * _SPIN * np.sin(np.deg2rad(self.latitude))
        return np.asarray(np.sign(value) * np.maximum(np.abs(value), 1.2e-5))

    def wrapped(self, longitude: float) -> Array:
        """Return the degrees east of a longitude, the shorter way round."""
        return np.asarray((self.longitude - longitude + 180) % 360 - 180)


def make_snapshot(number: int, rows: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return fields (rows, columns, 16) and labels (rows, columns); every number is another one, the same each time.

    Each snapshot has one to three cyclones and one to three atmospheric rivers, so that no class is absent.
    """
    random = np.random.default_rng([seed, number])
    grid = Grid(rows)
    fields = _background(random, grid)
    labels = np.zeros((rows, columns_of(rows)), np.uint8)
    for _ in range(random.integers(1, 4)):
        labels[_add_river(random, grid, fields)] = RIVER
    for _ in range(random.integers(1, 4)):
        labels[_add_cyclone(random, grid, fields)] = CYCLONE
    _finish(grid, fields)
    stacked = np.stack([np.broadcast_to(fields[name], labels.shape) for name in FIELDS], -1)
    return stacked.astype(np.float32), labels


def noise(random: np.random.Generator, rows: int, slope: float) -> Array:
    """Return a field of mean 0 and deviation 1 whose power falls with the wave number, periodic in longitude."""
    shape = 2 * rows, columns_of(rows)  # twice as high, so that the poles do not meet
    wave = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None])
    wave[0, 0] = np.inf
    wave = np.maximum(wave, 1.5 / rows)
    values = np.fft.irfft2(np.fft.rfft2(random.standard_normal(shape)) * wave ** (slope / 2), shape)[:rows]
    return np.asarray((values - values.mean()) / values.std())


def _background(random: np.random.Generator, grid: Grid) -> dict[str, Array]:
    """Return means by latitude and weather that is in balance with its pressure."""
    rows, latitude = grid.rows, grid.latitude
    warm = np.maximum(np.cos(np.deg2rad(latitude - random.uniform(-8, 8))), 0)
    storms = np.exp(-(((np.abs(latitude) - 48) / 18) ** 2))
    stream = noise(random, rows, -5.0) * (1.5e6 + 6e6 * storms)  # m²/s
    east, north = _gradient(stream, grid)
    jet = 12 * np.exp(-(((np.abs(latitude) - 45) / 13) ** 2)) - 6 * np.exp(-((latitude / 16) ** 2))
    psl = (
        101_300
        - 900 * np.cos(np.deg2rad(3 * latitude)) * warm
        + _AIR * np.abs(grid.turning) * np.sign(grid.turning) * stream
    )
    surface = 243 + 58 * warm**1.3 + 2.5 * noise(random, rows, -3.5)
    moist = np.clip(0.62 + 0.17 * noise(random, rows, -3.0), 0.15, 1.0)
    return {
        "stream": stream, "U850": jet - north, "V850": east, "PSL": psl, "TS": surface,
        "moist": moist, "warmer200": np.zeros_like(stream), "warmer500": np.zeros_like(stream),
        "rain": np.zeros_like(stream), "vapour": np.zeros_like(stream), "bumps": noise(random, rows, -2.2),
    }  # fmt: skip


def _gradient(field: Array, grid: Grid) -> tuple[Array, Array]:
    """Return the slopes of a field to the east and to the north, per metre."""
    metres = np.deg2rad(grid.step) * _EARTH_KM * 1000
    narrow = np.maximum(np.cos(np.deg2rad(grid.latitude)), 0.2)
    columns = 360 / columns_of(grid.rows) / grid.step
    east = (np.roll(field, -1, 1) - np.roll(field, 1, 1)) / (2 * metres * columns * narrow)
    return np.asarray(east), np.asarray(np.gradient(field, metres, axis=0))


def _add_river(random: np.random.Generator, grid: Grid, fields: dict[str, Array]) -> NDArray[np.bool_]:
    """Add a band of vapour that a low-level jet carries towards a pole, and return its points."""
    pole = random.choice([-1.0, 1.0])
    start, end = random.uniform(18, 28), random.uniform(42, 58)
    across = random.uniform(35, 75)  # degrees of longitude from end to end
    first, bend = random.uniform(0, 360), random.uniform(-9, 9)
    along = (grid.wrapped(first) % 360) / across
    middle = pole * (start + (end - start) * along + bend * np.sin(np.pi * along))
    half = max(2.2, 1.3 * grid.step) * random.uniform(0.8, 1.3)
    slope = np.hypot(1, (end - start) / across)
    off = (grid.latitude - middle) / (half * slope)
    inside = (along >= 0) & (along <= 1)
    fade = np.where(inside, np.minimum(1, 6 * np.minimum(along, 1 - along)), 0) ** 0.5
    shape = np.exp(-0.5 * off**2) * fade
    fields["vapour"] += random.uniform(16, 28) * shape
    speed = random.uniform(10, 20)
    fields["U850"] += speed * shape * 0.85
    fields["V850"] += pole * speed * shape * 0.55
    fields["rain"] += random.uniform(1.5, 5) * shape**2
    return np.asarray(shape > 0.45)


def _add_cyclone(random: np.random.Generator, grid: Grid, fields: dict[str, Array]) -> NDArray[np.bool_]:
    """Add a vortex after Holland with a warm core and rain, and return the points within its strong winds."""
    at, first = random.choice([-1.0, 1.0]) * random.uniform(9, 30), random.uniform(0, 360)
    east = grid.wrapped(first) * np.cos(np.deg2rad(at))
    north = grid.latitude - at
    core = 1.35 * grid.step * random.uniform(0.85, 1.25)  # degrees, of the strongest wind
    far = np.maximum(np.hypot(east, north), 0.3 * grid.step) / core
    sharp = random.uniform(1.2, 1.8)
    deep = random.uniform(1800, 6500)  # Pa
    inner = np.exp(-(far**-sharp))
    fields["PSL"] -= deep * (1 - inner) * np.exp(-((far / 6) ** 2))
    speed = np.sqrt(np.maximum(deep * sharp / _AIR * far**-sharp * inner, 0)) * np.exp(-((far / 5) ** 2))
    spin = np.sign(at) / np.maximum(far * core, 1e-6)
    fields["U850"] -= speed * north * spin
    fields["V850"] += speed * east * spin
    warm = np.exp(-0.5 * (far / 1.2) ** 2)
    fields["warmer200"] += deep / 6500 * 5 * warm
    fields["warmer500"] += deep / 6500 * 4 * warm
    fields["vapour"] += random.uniform(10, 18) * np.exp(-0.5 * (far / 1.6) ** 2)
    arms = 1 + 0.4 * np.cos(2 * np.arctan2(north, east) - 1.5 * np.log(far) * np.sign(at))
    fields["rain"] += deep / 6500 * 14 * np.exp(-0.5 * (far / 1.5) ** 2) * arms
    return np.asarray(far < 2.1)


def _finish(grid: Grid, fields: dict[str, Array]) -> None:
    """Derive the fields that follow from temperature, pressure, vapour and wind."""
    latitude, surface = grid.latitude, fields["TS"]
    high_km = np.maximum(fields["bumps"] - 1.2, 0) * 0.9  # hills
    near = surface - 1.0 - 5.5 * high_km
    fields["TREFHT"] = near
    boiling = 6.11 * np.exp(17.27 * (near - 273.15) / (near - 35.86))  # vapour pressure at saturation, hPa
    full = 1.75 * boiling  # kg/m² of a column that is saturated
    fields["TMQ"] = np.maximum(full * fields["moist"] * 0.85 + fields["vapour"], 0.5)
    fields["QREFHT"] = np.minimum(0.00062 * boiling * (0.7 + 0.35 * fields["moist"]) + 6e-5 * fields["vapour"], 0.03)
    fields["UBOT"], fields["VBOT"] = 0.72 * fields["U850"], 0.72 * fields["V850"]
    fields["PS"] = fields["PSL"] * np.exp(-high_km / 8.2)
    fields["T500"] = surface - 33 + fields["warmer500"] - 4 * np.cos(np.deg2rad(latitude))
    fields["T200"] = 217 + 4 * np.abs(latitude) / 90 + fields["warmer200"] + 0.03 * (surface - 280)
    fields["Z1000"] = (fields["PSL"] - 100_000) / (_AIR * 9.81)
    fields["ZBOT"] = 60 + 0.2 * (near - 280)
    fields["Z200"] = fields["Z1000"] + 29.3 * (0.5 * (surface - 6) + 0.5 * fields["T200"]) * np.log(5.0)
    wet = np.maximum(fields["TMQ"] - 0.72 * full, 0) / 12
    fields["PRECT"] = 1e-8 * (wet**1.5 + fields["rain"]) * (1 + 0.3 * np.tanh(fields["bumps"]))
