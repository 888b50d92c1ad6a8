"""Warm rain by Kessler: vapour condenses, cloud water becomes rain, rain falls and evaporates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

LATENT_HEAT, CP, RD, P0 = 2.5e6, 1003.0, 287.0, 1e5


class Cells(NamedTuple):
    """What microphysics sees of cells, any shape: temperature in K and densities in kg/m³."""

    temperature: Array
    dry: Array
    vapour: Array
    cloud: Array
    rain: Array

    @property
    def water(self) -> Array:
        """The density of all water."""
        density: Array = self.vapour + self.cloud + self.rain
        return density


def saturation(temperature: Array, pressure_pa: Array) -> Array:
    """Return the mixing ratio of vapour over water at which air is saturated (Tetens)."""
    ratio: Array = 380.0 / pressure_pa * np.exp(17.27 * (temperature - 273.0) / (temperature - 36.0))
    return ratio


def pressure_of(cells: Cells) -> Array:
    """Return the pressure of the dry air."""
    pressure_pa: Array = RD * cells.dry * cells.temperature
    return pressure_pa


@dataclass(frozen=True)
class Kessler:
    """The conversions inside a cell; falling is apart, see `fall`."""

    name: str = "kessler"

    def __call__(self, cells: Cells, dt_s: float) -> Cells:
        """Return cells as they are after a time step: water is kept, and latent heat goes into temperature."""
        air = cells.dry
        vapour, cloud, rain = cells.vapour / air, cells.cloud / air, cells.rain / air
        made = cloud - (cloud - dt_s * np.maximum(0.001 * (cloud - 0.001), 0)) / (1 + dt_s * 2.2 * rain**0.875)
        cloud, rain = cloud - made, rain + made
        pressure_pa = pressure_of(cells)
        pc, full = 380.0 / pressure_pa, saturation(cells.temperature, pressure_pa)
        excess = (vapour - full) / (1 + full * (4093 * LATENT_HEAT / CP) / (cells.temperature - 36.0) ** 2)
        condensed = np.maximum(excess, -cloud)
        wet = 0.001 * air * rain
        speed = (1.6 + 124.9 * wet**0.2046) * wet**0.525 / (2.55e6 * pc / (3.8 * full) + 5.4e5)
        lost = dt_s * speed * np.maximum(full - vapour, 0) / (0.001 * air * full)
        lost = np.minimum(np.minimum(lost, np.maximum(-excess - cloud, 0)), rain)
        return Cells(
            cells.temperature + LATENT_HEAT / CP * (condensed - lost),
            air,
            np.maximum(vapour - condensed + lost, 0) * air,
            np.maximum(cloud + condensed, 0) * air,
            np.maximum(rain - lost, 0) * air,
        )


def fall_speed(dry: Array, rain: Array) -> Array:
    """Return how fast rain falls, in m/s; the last axis but one is z, its first entry at the ground."""
    wet = 0.001 * np.maximum(rain, 0)  # 0.001 · dry · mixing ratio
    speed: Array = 36.34 * wet**0.1364 * np.sqrt(dry[..., :1, :] / dry)
    return speed


def fall(dry: Array, rain: Array, dz_m: float, dt_s: float) -> tuple[Array, Array]:
    """Return rain after it fell for a while, arrays (z, x), and what reached the ground, (x,) in kg/m².

    Upwind in as many steps as no drop crosses a cell in one.
    """
    rain, ground = rain.copy(), np.zeros(rain.shape[1])
    steps = max(int(np.ceil(float(fall_speed(dry, rain).max()) * dt_s / (0.8 * dz_m))), 1)
    for _ in range(steps):
        down = np.minimum(fall_speed(dry, rain) * rain * (dt_s / steps), rain * dz_m)
        ground += down[0]
        rain -= down / dz_m
        rain[:-1] += down[1:] / dz_m
    return rain, ground
