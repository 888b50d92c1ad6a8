"""Crystals of eight space groups, and what they diffract: kinematic convergent-beam patterns.

Each beam has the strength of its structure factor. Within its disk it falls with the distance from the Bragg condition
and the thickness, as for a thin crystal. Left out: multiple scattering, higher Laue zones, absorption, and the coherent
interference of overlapping disks. So the patterns obey Friedel's law, which real thick crystals break.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_F = ((0, 0, 0), (0, 0.5, 0.5), (0.5, 0, 0.5), (0.5, 0.5, 0))
_T = (0.25, 0.25, 0.25)
_CORNER, _CENTRE = ((0, 0, 0),), ((0.5, 0.5, 0.5),)


def _shifted(by: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple((a + b) % 1 for a, b in zip(each, by, strict=True)) for each in _F)


_HCP = ((1 / 3, 2 / 3, 0.25), (2 / 3, 1 / 3, 0.75))
_WURTZITE = ((1 / 3, 2 / 3, 0.0), (2 / 3, 1 / 3, 0.5))
_RUTILE = tuple(
    (x, y, z) for x, y, z in ((0.305, 0.305, 0), (0.695, 0.695, 0), (0.195, 0.805, 0.5), (0.805, 0.195, 0.5))
)
# By space group its prototypes: the positions of each element in the conventional cell, and the range of c/a.
Prototype = tuple[tuple[tuple[tuple[float, ...], ...], ...], tuple[float, float]]
CUBIC = (1.0, 1.0)
PROTOTYPES: dict[int, tuple[Prototype, ...]] = {
    225: (
        ((_F,), CUBIC),
        ((_F, _shifted((0.5, 0.5, 0.5))), CUBIC),
        ((_F, _shifted(_T) + _shifted((0.75, 0.75, 0.75))), CUBIC),
    ),
    229: (((_CORNER + _CENTRE,), CUBIC),),
    227: (((_F + _shifted(_T),), CUBIC),),
    221: (
        ((_CORNER, _CENTRE), CUBIC),
        ((_CORNER, _CENTRE, ((0.5, 0.5, 0), (0.5, 0, 0.5), (0, 0.5, 0.5))), CUBIC),
    ),
    216: (((_F, _shifted(_T)), CUBIC),),
    194: (((_HCP,), (1.55, 1.7)),),
    186: (((_WURTZITE, tuple((x, y, z + 0.377) for x, y, z in _WURTZITE)), (1.58, 1.66)),),
    136: (((_CORNER + _CENTRE, _RUTILE), (0.6, 0.7)),),
}  # fmt: skip
GROUPS = tuple(PROTOTYPES)
_HEXAGONAL = (194, 186)
_AXES = {True: ((0, 0, 1), (1, 1, 0), (1, 1, 1)), False: ((0, 0, 1), (1, 0, 0), (1, 1, 0))}  # cubic or not
PROJECTIONS = 3

_REACH, _MOST_INDEX = 1.5, 9  # of beams: in 1/Å, and of their indices
_WAVELENGTH = 0.0251  # Å, of electrons of 200 keV
_BOHR, _DEBYE_WALLER = 0.529, 0.5  # Å, Å²
_DISK = 0.1  # radius in 1/Å: 2.5 mrad
PATTERSON_POWERS = (0.5, 0.25)  # of intensities: the square root is the amplitude, less weighs weak beams more
FIELD = 8.0  # Å, side of the window in which the potential is shown


@dataclass(frozen=True)
class Crystal:
    """A space group, the vectors of the conventional cell as rows in Å, and the atoms in it."""

    group: int
    cell: Array
    numbers: Array
    positions: Array


def make_crystal(rng: np.random.Generator, group: int) -> Crystal:
    """Return a crystal of a space group with elements and lattice drawn at random."""
    elements, (low, high) = PROTOTYPES[group][rng.integers(len(PROTOTYPES[group]))]
    numbers = rng.choice(np.arange(5, 83), len(elements), replace=False)
    atoms = sum(map(len, elements))
    a = float((rng.uniform(13, 22) * atoms) ** (1 / 3))  # Å, from the volume of an atom
    ratio = rng.uniform(low, high)
    a /= ratio ** (1 / 3) * ((3**0.5 / 2) ** (1 / 3) if group in _HEXAGONAL else 1)
    cell = np.diag([a, a, a * ratio])
    if group in _HEXAGONAL:
        cell[1] = [-a / 2, a * 3**0.5 / 2, 0]
    return Crystal(
        group,
        cell,
        np.repeat(numbers, [len(each) for each in elements]),
        np.array([x for e in elements for x in e], float),
    )


@dataclass(frozen=True)
class Beams:
    """The beams of one zone axis: places in the pattern in 1/Å, and structure factors."""

    place: Array
    factor: Array


def beams_along(crystal: Crystal, axis: tuple[int, ...]) -> Beams:
    """Return the beams of the zero-order Laue zone."""
    hkl = _INDICES[(_INDICES @ np.array(axis)) == 0]
    reciprocal = np.linalg.inv(crystal.cell).T
    wave = hkl @ reciprocal
    length = np.linalg.norm(wave, axis=1)
    hkl, wave, length = (each[length < _REACH] for each in (hkl, wave, length))
    z = np.array(axis) @ crystal.cell
    z = z / np.linalg.norm(z)
    x = np.cross(z, [0.0, 0.0, 1.0]) if abs(z[2]) < 0.9 else np.cross([0.0, 1.0, 0.0], z)
    x = x / np.linalg.norm(x)
    phases = np.exp(2j * np.pi * hkl @ crystal.positions.T)
    factor = (scattering(crystal.numbers, length) * phases).sum(1) * np.exp(-_DEBYE_WALLER * length**2 / 4)
    return Beams(wave @ np.stack([x, np.cross(z, x)], axis=1), factor / abs(np.linalg.det(crystal.cell)))


def scattering(numbers: Array, length: Array) -> Array:
    """Return the electron scattering of atoms in Å for beams of these lengths: a screened Coulomb potential."""
    screened = 0.885 * _BOHR * np.asarray(numbers, float) ** (-1 / 3)
    return np.asarray(2 * numbers / _BOHR / ((2 * np.pi * length[:, None]) ** 2 + screened**-2))


_INDICES = np.array(list(product(range(-_MOST_INDEX, _MOST_INDEX + 1), repeat=3)))


def axes_of(crystal: Crystal) -> tuple[tuple[int, ...], ...]:
    """Return the three zone axes along which a crystal is seen."""
    return _AXES[crystal.group in (225, 229, 227, 221, 216)]


def pattern(beams: Beams, pixels: int, thickness: float, tilt: Array, angle: float) -> Array:
    """Return a pattern of `pixels` x `pixels`: intensities relative to the beam that is not scattered.

    `tilt` is how far the crystal lies from its zone axis, in 1/Å.
    """
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    place, tilt = beams.place @ turn.T, turn @ tilt
    size = 2 * _REACH / pixels
    reach = int(np.ceil(_DISK / size)) + 1
    offsets = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 2, indexing="ij"), -1).reshape(-1, 2)
    pixel = np.rint(place / size).astype(int)[:, None] + offsets + pixels // 2
    in_disk = (pixel - pixels // 2) * size - place[:, None]  # direction of the incoming beam at this pixel
    inside = (np.linalg.norm(in_disk, axis=2) <= _DISK) & (pixel >= 0).all(2) & (pixel < pixels).all(2)
    # How far a beam is from the Bragg condition, by the direction of the incoming one.
    off = -_WAVELENGTH * ((place[:, None] * (in_disk + tilt)).sum(2) + (place**2).sum(1)[:, None] / 2)
    strength = (_WAVELENGTH * np.abs(beams.factor) * thickness)[:, None] ** 2 * np.sinc(off * thickness) ** 2
    strength[(place**2).sum(1) < 1e-12] = 1.0
    image = np.zeros((pixels, pixels))
    np.add.at(image, tuple(pixel[inside].T), strength[inside])
    return image


def potential(beams: Beams, pixels: int, angle: float) -> Array:
    """Return the potential projected along the axis around the origin of the cell, without its mean.

    It is as sharp as the pixels: beams that they cannot show would only fold back as noise.
    """
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    place = beams.place @ turn.T
    line = _line(pixels)
    square = (place**2).sum(1)
    factor = np.where((square < 1e-12) | (square > (pixels / 2 / FIELD) ** 2), 0, beams.factor)
    waves = [np.exp(-2j * np.pi * np.outer(line, place[:, axis])) for axis in range(2)]
    return np.asarray(((waves[0] * factor) @ waves[1].T).real)


def patterson_waves(pixels: int, shown: int) -> tuple[Array, Array, Array]:
    """Return what makes Patterson maps of `shown` x `shown` pixels: cosines, sines, and the pixels of scattered beams.

    The map of amplitudes A is C A Cᵀ - S A Sᵀ: peaks lie at the vectors between atoms, in the frame of `potential`.
    """
    wave = (np.arange(pixels) - pixels // 2) * (2 * _REACH / pixels)
    phase = 2 * np.pi * np.outer(_line(shown), wave)
    is_scattered = np.hypot(wave[:, None], wave) > _DISK + _REACH / pixels
    return np.cos(phase), np.sin(phase), is_scattered


def _line(pixels: int) -> Array:
    return (np.arange(pixels) + 0.5) / pixels * FIELD - FIELD / 2


def log_scaled(intensity: Array) -> Array:
    """Return intensities as published: 10 (max(-17, ln I) + 17), between 0 and 255."""
    return np.asarray(np.clip(10 * (np.maximum(-17, np.log(np.maximum(intensity, 1e-30))) + 17), 0, 255))
