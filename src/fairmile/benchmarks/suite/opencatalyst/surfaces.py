"""Small surfaces with an adsorbed atom, their energies and forces by effective medium theory (EMT), through ase."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from fairmile.base.errors import MissingExtra
from fairmile.benchmarks.suite.opencatalyst.structures import Structure

METALS = ("Al", "Ni", "Cu", "Pd", "Ag", "Pt", "Au")
ADSORBATES = ("H", "C", "N", "O")
FACETS = ("fcc111", "fcc100")
_SITES = {"fcc111": ("ontop", "bridge", "fcc", "hcp"), "fcc100": ("ontop", "bridge", "hollow")}
_HEIGHTS = {"ontop": (1.5, 2.3), "bridge": (1.2, 2.1)}  # Å over the topmost layer
_HEIGHTS_IN_HOLLOWS = 0.9, 1.9
_SIZE = 2, 2, 3
_VACUUM = 6.0  # Å on each side
_STRAIN = 0.03


def make_structures(first: int, count: int, seed: int) -> Iterator[Structure]:
    """Yield structures by number: number `i` of a seed is always the same."""
    if find_spec("ase") is None:
        raise MissingExtra("OpenCatalyst makes its small structures with ase, which is not installed", "benchmarks")
    for number in range(first, first + count):
        yield _made(np.random.default_rng([seed, number]))


def _made(random: np.random.Generator) -> Structure:
    """Return a strained slab with one atom near a site, all atoms but the lowest layer moved at random."""
    metal, facet = METALS[random.integers(len(METALS))], FACETS[random.integers(len(FACETS))]
    adsorbate = ADSORBATES[random.integers(len(ADSORBATES))]
    site = _SITES[facet][random.integers(len(_SITES[facet]))]
    height = random.uniform(*_HEIGHTS.get(site, _HEIGHTS_IN_HOLLOWS))
    strain = round(random.uniform(-_STRAIN, _STRAIN), 2)
    clean, clean_energy = _clean(metal, facet, strain)
    atoms = clean.copy()
    build = _build()
    build.add_adsorbate(atoms, adsorbate, height, site)
    free = atoms.get_tags() < _SIZE[2]  # layers count from the top; the adsorbate is layer 0
    moved = random.normal(0, random.uniform(0.02, 0.12), (len(atoms), 3))
    atoms.positions += moved * free[:, None]
    atoms.calc = _potential()
    return Structure(
        numbers=atoms.numbers,
        positions=atoms.positions,
        cell=np.asarray(atoms.cell),
        free=free,
        energy=float(atoms.get_potential_energy()) - clean_energy,
        forces=atoms.get_forces(),
        system=f"{metal}-{facet}-{adsorbate}",
    )


@cache
def _clean(metal: str, facet: str, strain: float) -> tuple[Any, float]:
    """Return a clean slab and its energy, the zero of energies, as published data take theirs."""
    build = _build()
    constant = _lattice_constant(metal) * (1 + strain)
    slab = getattr(build, facet)(metal, _SIZE, a=constant, vacuum=_VACUUM)
    slab.pbc = True
    slab.calc = _potential()
    energy = float(slab.get_potential_energy())
    slab.calc = None
    return slab, energy


def _lattice_constant(metal: str) -> float:
    from ase.data import atomic_numbers, reference_states

    states: Any = reference_states
    return float(states[atomic_numbers[metal]]["a"])


def _build() -> Any:
    import ase.build

    return ase.build


def _potential() -> Any:
    from ase.calculators.emt import EMT

    potential: Any = EMT
    return potential()
