"""Small universes with known parameters: a Gaussian field of cold dark matter, moved by the Zel'dovich approximation.

Lengths are in Mpc/h and wave numbers in h/Mpc. Arrays of many universes have one universe per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmile.base.errors import UsageError

Floats = NDArray[np.float64]

NAMES = ("Omega_m", "sigma_8", "n_s", "H_0")
MIDDLE = np.array([0.30, 0.80, 0.96, 70.0])
SPREAD = 0.3  # parameters lie within so much of the middle
OMEGA_B = 0.045
REDSHIFTS = (0.0, 0.5, 1.5, 3.0)
_AT_ONCE_BYTES = 8 << 20  # about what the caches of a core hold


def unit_to_physical(unit: NDArray[Any]) -> Floats:
    """Return physical parameters of normalised ones in (-1, 1)."""
    return np.asarray(MIDDLE * (1 + SPREAD * np.asarray(unit, np.float64)))


@dataclass(frozen=True)
class Cosmologies:
    """The linear theory of one flat universe per row of `physical`: growth and power spectrum."""

    physical: Floats  # (universes, 4) in the order of NAMES

    @property
    def omega_m(self) -> Floats:
        return self.physical[:, 0]

    @property
    def h(self) -> Floats:
        return self.physical[:, 3] / 100

    def growth(self, redshift: float) -> Floats:
        """Return the linear growth since `redshift` as D(z) / D(0), after Carroll, Press and Turner."""
        return self._growth(redshift) / self._growth(0.0)

    def _growth(self, redshift: float) -> Floats:
        cubed = self.omega_m * (1 + redshift) ** 3
        matter = cubed / (cubed + 1 - self.omega_m)
        energy = 1 - matter
        form = matter ** (4 / 7) - energy + (1 + matter / 2) * (1 + energy / 70)
        return np.asarray(2.5 * matter / form / (1 + redshift))

    def spectrum(self, k: NDArray[Any]) -> Floats:
        """Return P(k) at redshift 0 in (Mpc/h)^3, universes first; k has one row for all or one for each."""
        return self._amplitude.reshape(-1, *(1,) * (np.ndim(k) - 1)) * self._shape(np.asarray(k, np.float64))

    def _shape(self, k: Floats) -> Floats:
        """Return the spectrum of BBKS without its amplitude, zero at k = 0."""
        column = (-1, *(1,) * (k.ndim - 1))
        omega_m, tilt, h = (each.reshape(column) for each in (self.omega_m, self.physical[:, 2], self.h))
        gamma = omega_m * h * np.exp(-OMEGA_B * (1 + np.sqrt(2 * h) / omega_m))
        safe = np.where(k > 0, k, 1.0)
        q = safe / gamma
        x = 2.34 * q
        transfer = np.log1p(x) / x * (1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4) ** -0.25
        return np.asarray(np.where(k > 0, safe**tilt * transfer**2, 0.0))

    @cached_property
    def _amplitude(self) -> Floats:
        log_k = np.linspace(np.log(1e-5), np.log(1e2), 4096)
        k = np.exp(log_k)[None]
        parts = k**3 * self._shape(k) * top_hat(8.0 * k) ** 2 / (2 * np.pi**2)
        variance = (parts[:, 1:] + parts[:, :-1]).sum(axis=1) / 2 * (log_k[1] - log_k[0])
        return np.asarray(self.physical[:, 1] ** 2 / variance)


def top_hat(x: NDArray[Any]) -> Floats:
    """Return the Fourier transform of a sphere of radius R at x = kR."""
    safe = np.where(x > 1e-2, x, 1.0)
    inner = 1 - np.asarray(x, np.float64) ** 2 / 10  # where the difference below would lose all digits
    return np.asarray(np.where(x > 1e-2, 3 * (np.sin(safe) - safe * np.cos(safe)) / safe**3, inner))


@dataclass(frozen=True)
class Generator:
    """Makes universes: number `i` is the same whatever is made before or beside it."""

    size: int  # cells, and particles, along an edge
    cell: float = 8.0  # Mpc/h along the edge of a cell at H_0 = 70; boxes grow with H_0 as in the published simulations
    seed: int = 0
    redshifts: tuple[float, ...] = REDSHIFTS

    def __post_init__(self) -> None:
        if self.size < 4 or self.size % 2:
            raise UsageError(f"a universe has an even number of at least 4 cells along its edge, not {self.size}")
        if not self.cell > 0:
            raise UsageError(f"the cells of a universe have a length above 0, not {self.cell}")

    def make(self, numbers: Sequence[int]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
        """Return particle counts (universes, size, size, size, redshifts) and normalised parameters (universes, 4)."""
        counts = np.empty((len(numbers), *(self.size,) * 3, len(self.redshifts)), np.int16)
        unit = np.empty((len(numbers), 4), np.float32)
        for start, part in self._parts(numbers):
            end = start + len(part)
            unit[start:end], white = self._draw(part)
            counts[start:end] = self.counts(unit_to_physical(unit[start:end]), white)
        return counts, unit

    def white(self, number: int) -> Floats:
        """Return the noise of a universe, one standard normal value per cell."""
        return np.asarray(self._draw([number])[1][0])

    def linear(self, physical: Floats, white: Floats) -> Floats:
        """Return the linear density contrast at redshift 0 (universes, size, size, size)."""
        return np.asarray(np.fft.irfftn(self._modes(physical, white), (self.size,) * 3, axes=(1, 2, 3)))

    def counts(self, physical: Floats, white: Floats) -> NDArray[np.int16]:
        """Return how many particles lie in each cell at each redshift, last axis the redshifts."""
        cosmologies, many, size = Cosmologies(physical), len(physical), self.size
        moves = self._displacements(physical, white)  # in cells
        cells = np.arange(size)
        first = (np.arange(many) * size**3).reshape(-1, 1, 1, 1)
        counts = np.empty((many, *(size,) * 3, len(self.redshifts)), np.int16)
        for at, redshift in enumerate(self.redshifts):
            growth = cosmologies.growth(redshift).reshape(-1, 1, 1, 1)
            place = np.zeros((many, *(size,) * 3), np.int64) + first
            for axis, move in enumerate(moves):
                start = cells.reshape(-1, *(1,) * (2 - axis))
                index = np.rint(growth * move).astype(np.int64) + start
                place += (index % size) * size ** (2 - axis)
            tally = np.bincount(place.ravel(), minlength=many * size**3)
            counts[..., at] = np.minimum(tally, np.iinfo(np.int16).max).reshape(many, *(size,) * 3)
        return counts

    def _parts(self, numbers: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        step = max(_AT_ONCE_BYTES // (self.size**3 * 8 * 8), 1)
        for start in range(0, len(numbers), step):
            yield start, numbers[start : start + step]

    def _draw(self, numbers: Sequence[int]) -> tuple[NDArray[np.float32], Floats]:
        unit = np.empty((len(numbers), 4), np.float32)
        white = np.empty((len(numbers), *(self.size,) * 3))
        for row, number in enumerate(numbers):
            random = np.random.default_rng([self.seed, number])
            unit[row] = random.uniform(-1, 1, 4)
            random.standard_normal(out=white[row])
        return unit, white

    def edges(self, physical: Floats) -> Floats:
        """Return the edges of the boxes in Mpc/h."""
        return np.asarray(self.size * self.cell * physical[:, 3] / MIDDLE[3])

    def _modes(self, physical: Floats, white: Floats) -> NDArray[np.complex128]:
        """Return the Fourier modes of the density contrast in NumPy's convention."""
        edge = self.edges(physical).reshape(-1, 1, 1, 1)
        k = wave_numbers(self.size)[None] / edge
        scale = np.sqrt(Cosmologies(physical).spectrum(k) * (self.size / edge) ** 3)
        return np.asarray(np.fft.rfftn(white, axes=(1, 2, 3)) * scale)

    def _displacements(self, physical: Floats, white: Floats) -> list[Floats]:
        modes = self._modes(physical, white)
        size = self.size
        along = np.fft.fftfreq(size) * size
        along[size // 2] = 0  # the derivative of the highest mode is not real
        axes = (along[:, None, None], along[None, :, None], np.abs(along)[None, None, : size // 2 + 1])
        squared = (wave_numbers(size) / (2 * np.pi)) ** 2
        squared[0, 0, 0] = 1
        # psi = i k / k^2 delta; with k in units of 2 pi / edge, the displacement in cells is size / (2 pi) of it.
        base = 1j * modes * (size / (2 * np.pi)) / squared
        return [np.asarray(np.fft.irfftn(axis * base, (size,) * 3, axes=(1, 2, 3))) for axis in axes]


def wave_numbers(size: int) -> Floats:
    """Return |k| of the modes of `rfftn` in a box with an edge of 1."""
    along = 2 * np.pi * np.fft.fftfreq(size) * size
    last = 2 * np.pi * np.fft.rfftfreq(size) * size
    return np.asarray(np.sqrt(along[:, None, None] ** 2 + along[None, :, None] ** 2 + last[None, None, :] ** 2))


@dataclass(frozen=True)
class Spectra:
    """The binned power of cubes of counts."""

    k: Floats  # of each bin, in units of 2 pi per edge
    power: Floats  # (cubes, redshifts, bins), of the density contrast, over the noise-free volume of the box as 1


def spectra(counts: NDArray[Any]) -> Spectra:
    """Return the power of each cube (cubes, size, size, size, redshifts) in bins as wide as the lowest mode."""
    size = counts.shape[1]
    top = size // 2
    bins = np.minimum(np.rint(wave_numbers(size) / (2 * np.pi)).astype(int), top + 1)
    weight = np.full(bins.shape, 2.0)  # a transform of real numbers leaves out the mirror image of all but two planes
    weight[..., 0] = 1
    weight[..., -1] = 1
    number, weight = bins.ravel(), weight.ravel()
    modes = np.bincount(number, weight)[1 : top + 1]
    power = np.empty((len(counts), counts.shape[-1], top))
    # One cube at a time, which stays in the cache.
    for powers, cube in zip(power, counts, strict=True):
        fields = np.ascontiguousarray(np.moveaxis(cube, -1, 0), dtype=np.float64)
        mean = np.maximum(fields.mean(axis=(1, 2, 3)), 1e-12)
        # Axis by axis takes three quarters of the time of rfftn.
        waves = np.fft.fft(np.fft.fft(np.fft.rfft(fields, axis=3), axis=2), axis=1).reshape(len(fields), -1)
        squared = waves.real**2
        squared += waves.imag**2
        squared *= weight
        for each, values in zip(powers, squared, strict=True):
            each[:] = np.bincount(number, values)[1 : top + 1]
        powers /= modes * mean[:, None] ** 2 * size**6
    return Spectra(np.arange(1, top + 1, dtype=np.float64), power)
