"""Small satellite scenes with known clouds: surfaces, two cloud layers and radiation in the nine channels of SLSTR.

Temperatures are in kelvin, wavelengths in micrometres, heights in kilometres, radiances in W / (m² sr µm).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import UsageError

Array = NDArray[np.float64]
WAVELENGTHS = 0.555, 0.659, 0.865, 1.375, 1.61, 2.25, 3.74, 10.85, 12.0  # S1 … S9
_SOLAR, _THERMAL = 6, 3
CLOUD = 0.3  # a pixel counts as cloud from this optical depth on
SLOPE = -8 / 3  # of the power of a plane cut through clouds, whose rows then have the slope -5/3
_PLANCK_1, _PLANCK_2 = 1.191042e8, 14387.77
_LAPSE = 6.5  # K/km
_SUN_37 = 10.6  # solar irradiance at 3.74 µm, W / (m² µm)
# Reflectances of surfaces and what a drop or crystal leaves of light in S1 … S6.
_SEA = np.array([0.040, 0.022, 0.010, 0.003, 0.004, 0.003])
_PLANTS = np.array([0.075, 0.050, 0.340, 0.003, 0.200, 0.100])
_DESERT = np.array([0.200, 0.300, 0.380, 0.005, 0.430, 0.380])
_SNOW = np.array([0.850, 0.830, 0.780, 0.006, 0.120, 0.080])
_WATER_CLOUD = np.array([1.0, 1.0, 1.0, 0.04, 0.90, 0.75])
_ICE_CLOUD = np.array([1.0, 1.0, 1.0, 0.85, 0.50, 0.40])
# Optical depth beside that at 0.55 µm in S7, S8, S9; and what thick clouds reflect at 3.74 µm, from large drops or
# crystals to small ones.
_WATER_DEPTH, _ICE_DEPTH = np.array([0.60, 0.45, 0.55]), np.array([0.48, 0.45, 0.58])
_WATER_37, _ICE_37 = (0.04, 0.25), (0.01, 0.08)
_VAPOUR = np.array([0.0028, 0.0035, 0.0062])  # absorption per kg/m² in S7, S8, S9
_BESIDE = 0.175  # share of the light from either side: a contrast of 0.3 is left of stripes of one pixel
_NOISE_REFS, _NOISE_BTS = 0.006, np.array([0.2, 0.1, 0.1])


@dataclass(frozen=True)
class Scene:
    """What a file of the data set holds, rows and columns first."""

    refs: NDArray[np.float32]
    bts: NDArray[np.float32]
    bayes: NDArray[np.float32]
    is_day: bool


@dataclass(frozen=True)
class Surface:
    """What lies below the clouds: temperature, reflectance in S1 … S6, emissivity in S7 … S9."""

    kelvin: Array
    reflectance: Array
    emissivity: Array
    air_kelvin: float  # at sea level


@dataclass(frozen=True)
class Clouds:
    """Optical depths at 0.55 µm and temperatures of a layer of drops below one of ice crystals."""

    water: Array
    ice: Array
    water_kelvin: Array
    ice_kelvin: Array
    water_km: float
    water_37: float  # reflectance at 3.74 µm
    ice_37: float


def make_scene(number: int, edge: int, seed: int) -> Scene:
    """Return a scene; every number is another one, the same each time. Even numbers are day, odd ones night."""
    if edge < 8:
        raise UsageError(f"parameter patch: a scene has at least 8 pixels along its edge, not {edge}")
    random = np.random.default_rng([seed, number])
    is_day = number % 2 == 0
    surface = _surface(random, edge, is_day=is_day)
    clouds = _clouds(random, edge, surface.air_kelvin)
    sun = float(random.uniform(0.25, 1.0))  # cosine of the angle to the zenith
    refs = _reflect(surface, clouds, sun) if is_day else np.zeros((edge, edge, _SOLAR))
    if is_day:
        refs += random.normal(size=refs.shape) * (_NOISE_REFS + 0.01 * refs) / sun
    bts = _emit(surface, clouds, sun if is_day else 0.0)
    bts += random.normal(size=bts.shape) * _NOISE_BTS * (270 / bts) ** np.array([6.0, 1.5, 1.5])
    depth = clouds.water + clouds.ice
    return Scene(
        np.maximum(refs, 0).astype(np.float32), bts.astype(np.float32),
        (depth >= CLOUD).astype(np.float32)[..., None], is_day,
    )  # fmt: skip


def field(random: np.random.Generator, edge: int, slope: float) -> Array:
    """Return a random field of mean 0 and deviation 1 whose power falls with the wave number as `slope` says."""
    wave = np.hypot(np.fft.fftfreq(edge)[:, None], np.fft.rfftfreq(edge)[None])
    wave[0, 0] = np.inf
    values = np.fft.irfft2(np.fft.rfft2(random.standard_normal((edge, edge))) * wave ** (slope / 2), (edge, edge))
    return np.asarray(values / values.std())


def spread(image: Array) -> Array:
    """Return an image as an instrument sees it, which gathers light from beside each pixel, too."""
    for axis in (0, 1):
        first, last = np.take(image, [0], axis), np.take(image, [-1], axis)
        wide = np.concatenate([first, image, last], axis)
        many = image.shape[axis]
        before, after = np.take(wide, range(many), axis), np.take(wide, range(2, many + 2), axis)
        image = (1 - 2 * _BESIDE) * image + _BESIDE * (before + after)
    return image


def planck(kelvin: Any, wavelength: Any) -> Array:
    """Return the radiance of a black body."""
    return np.asarray(_PLANCK_1 / (wavelength**5 * np.expm1(_PLANCK_2 / (wavelength * kelvin))))


def brightness(radiance: Any, wavelength: Any) -> Array:
    """Return the temperature of the black body with a radiance."""
    return np.asarray(_PLANCK_2 / (wavelength * np.log1p(_PLANCK_1 / (wavelength**5 * radiance))))


def albedo(depth: Any) -> Array:
    """Return what a cloud of an optical depth reflects, by two streams that lose nothing."""
    return np.asarray(0.75 * depth / (6.7 + 0.75 * depth))


def _surface(random: np.random.Generator, edge: int, *, is_day: bool) -> Surface:
    air = float(random.uniform(262, 303))
    sea = np.maximum(air + random.uniform(0, 1.5) * field(random, edge, -3.0), 271.3)
    height = field(random, edge, -3.3)
    share = float(random.choice([0.0, random.uniform(0.1, 0.9), 1.0], p=[0.4, 0.4, 0.2]))
    is_land = height > np.quantile(height, 1 - share) if 0 < share < 1 else np.full(height.shape, share == 1)
    above_km = np.maximum(height - height.min(), 0) * random.uniform(0, 0.4)
    warmer = random.uniform(0, 16) if is_day else -random.uniform(0, 14)
    land = air + warmer - _LAPSE * above_km + 2 * field(random, edge, -2.5)
    dry = np.clip(random.uniform(-0.5, 1.5) + 0.4 * field(random, edge, -2.5), 0, 1)[..., None]
    ground = (1 - dry) * _PLANTS + dry * _DESERT
    snow = np.clip((274 - (land - warmer)) / 4, 0, 1) * (random.random() < 0.8)
    ground = (1 - snow[..., None]) * ground + snow[..., None] * _SNOW
    ice = np.clip((sea - air) / 6, 0, 1) * (field(random, edge, -2.5) > random.uniform(-2, 2))
    water = (1 - ice[..., None]) * _SEA + ice[..., None] * _SNOW * 0.8
    kelvin = np.where(is_land, np.where(snow > 0.5, np.minimum(land, 274), land), np.where(ice > 0, air, sea))
    if random.random() < 0.4:
        across = np.linspace(-1, 1, edge) - random.uniform(-1, 1)
        water = water + random.uniform(0.05, 0.4) * np.exp(-((across / random.uniform(0.15, 0.5)) ** 2))[:, None]
    rough = is_land[..., None] * np.clip(dry + 0.3 * field(random, edge, -2.0)[..., None], 0, 1)
    bare = np.array([0.97, 0.99, 0.985]) - rough * np.array([random.uniform(0.05, 0.25), 0.04, 0.02])
    return Surface(kelvin, np.where(is_land[..., None], ground, water), bare, air)


def _clouds(random: np.random.Generator, edge: int, air: float) -> Clouds:
    def layer(share: float, median: float) -> Array:
        """Return optical depths with smooth, thin edges; beyond `share` of the scene there is none."""
        shape = field(random, edge, SLOPE)
        above = shape - np.quantile(shape, 1 - share) if share > 0 else np.full(shape.shape, -1.0)
        return np.where(above > 0, median * np.expm1(1.5 * np.maximum(above, 0)), 0.0)

    has_water, has_ice = random.random(2) < (0.75, 0.55)
    water = layer(random.beta(0.7, 0.7) * has_water, random.uniform(2, 12))
    ice = layer(random.beta(0.6, 0.9) * has_ice, random.uniform(0.3, 3))
    low, high = random.uniform(0.2, 3.5), random.uniform(7, 12)
    water_kelvin = air - _LAPSE * (low + 0.15 * field(random, edge, SLOPE))
    ice_kelvin = np.maximum(air - _LAPSE * (high + 0.3 * field(random, edge, SLOPE)), 200)
    return Clouds(water, ice, water_kelvin, ice_kelvin, low, random.uniform(*_WATER_37), random.uniform(*_ICE_37))


def _reflect(surface: Surface, clouds: Clouds, sun: float) -> Array:
    """Return reflectances: each layer reflects, and passes twice what comes back from below."""
    reflected = surface.reflectance
    for depth, kept in ((clouds.water, _WATER_CLOUD), (clouds.ice, _ICE_CLOUD)):
        back = albedo(depth)[..., None] * kept
        passed = (1 - albedo(depth))[..., None] * np.sqrt(kept)
        reflected = back + passed**2 * reflected / (1 - back * reflected)
    return spread(reflected) + np.array([0.045, 0.022, 0.007, 0, 0, 0]) / (0.4 + sun)  # the air above


def _emit(surface: Surface, clouds: Clouds, sun: float) -> Array:
    """Return brightness temperatures of what surface, vapour and both layers emit, and of sunlight at 3.74 µm."""
    waves = np.array(WAVELENGTHS[-_THERMAL:])
    vapour = 45 * np.exp((surface.air_kelvin - 300) / 14)  # kg/m²

    def through(radiance: Array, share: float, kelvin: float) -> Array:
        passed = np.exp(-_VAPOUR * vapour * share)
        return np.asarray(radiance * passed + planck(kelvin, waves) * (1 - passed))

    light = np.array([1.0, 0, 0]) * sun * _SUN_37 / np.pi
    radiance = surface.emissivity * planck(surface.kelvin[..., None], waves) + (1 - surface.emissivity) * light
    above = float(np.exp(-clouds.water_km / 2))  # share of the vapour above the layer of drops
    radiance = through(radiance, 1 - above, surface.air_kelvin - 4)
    layers = (
        (clouds.water, clouds.water_kelvin, _WATER_DEPTH, clouds.water_37),
        (clouds.ice, clouds.ice_kelvin, _ICE_DEPTH, clouds.ice_37),
    )
    for number, (depth, kelvin, relative, mirror) in enumerate(layers):
        covered = -np.expm1(-depth[..., None] * relative)
        black = np.array([1 - 1.2 * mirror, 0.99, 0.99])
        radiance = (1 - covered) * radiance + covered * (black * planck(kelvin[..., None], waves) + mirror * light)
        if number == 0:
            radiance = through(radiance, above, surface.air_kelvin - 20)
    return brightness(spread(radiance), waves)
