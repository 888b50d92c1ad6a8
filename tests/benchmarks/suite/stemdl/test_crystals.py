"""Generated patterns obey the rules of diffraction."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.benchmarks.suite.stemdl.crystals import (
    GROUPS,
    Beams,
    Crystal,
    axes_of,
    beams_along,
    log_scaled,
    make_crystal,
    pattern,
    potential,
    scattering,
)

_FCC = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])


def crystal(group: int, positions: np.ndarray, numbers: int = 29) -> Crystal:
    return Crystal(group, np.eye(3) * 4.0, np.full(len(positions), numbers), positions)


def strengths(made: Crystal) -> dict[float, float]:
    """Return by the square of the index the strength of beams along [001]."""
    beams = beams_along(made, (0, 0, 1))
    squares = np.rint((beams.place**2).sum(1) * 16).astype(int)
    return {square: float(np.abs(beams.factor[squares == square]).max()) for square in set(squares.tolist())}


def test_centring_and_screws_extinguish_beams() -> None:
    face = strengths(crystal(225, _FCC))
    assert face[1] == pytest.approx(0, abs=1e-12), "100 is forbidden"
    assert face[2] == pytest.approx(0, abs=1e-12), "110 is forbidden"
    assert face[4] > 0.01, "200 is allowed"
    diamond = strengths(crystal(227, np.concatenate([_FCC, _FCC + 0.25])))
    assert diamond[4] == pytest.approx(0, abs=1e-12), "the diamond glide forbids 200"
    assert diamond[8] > 0.01, "220 is allowed"
    body = strengths(crystal(229, np.array([[0, 0, 0], [0.5, 0.5, 0.5]])))
    assert body[1] == pytest.approx(0, abs=1e-12)
    assert body[2] > 0.01


def test_atoms_scatter_more_the_heavier_they_are_and_less_at_large_angles() -> None:
    length = np.array([0.0, 0.5, 1.0])
    light, heavy = scattering(np.array([6, 79]), length).T
    assert (heavy > light).all()
    assert (np.diff(light) < 0).all()


def test_every_group_has_crystals_with_atoms_apart() -> None:
    rng = np.random.default_rng(1)
    for group in GROUPS:
        made = make_crystal(rng, group)
        shifts = np.array([[a, b, c] for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)])
        apart = (made.positions[:, None, None] - made.positions[None, :, None] + shifts) @ made.cell
        distances = np.linalg.norm(apart, axis=-1)
        assert distances[distances > 1e-9].min() > 1.2, group
        assert len(axes_of(made)) == 3


def test_a_pattern_has_the_symmetry_of_its_zone_axis() -> None:
    beams = beams_along(crystal(225, _FCC), (0, 0, 1))
    image = pattern(beams, 49, 100.0, np.zeros(2), 0.0)
    assert image.max() >= 1
    assert np.allclose(image, image[::-1, ::-1]), "a two-fold axis, by Friedel's law"
    assert np.allclose(image, np.rot90(image), atol=1e-9), "a four-fold axis"
    tilted = pattern(beams, 49, 100.0, np.array([0.2, 0.0]), 0.0)
    assert not np.allclose(tilted, tilted[::-1, ::-1], atol=1e-4)


def test_a_thin_crystal_scatters_with_the_square_of_its_thickness() -> None:
    one = Beams(np.array([[0.25, 0.0]]), np.array([0.01 + 0j]))
    thin, thicker = (pattern(one, 48, thickness, np.zeros(2), 0.0).max() for thickness in (5.0, 10.0))
    assert thicker == pytest.approx(4 * thin, rel=0.01)


def test_the_potential_is_deepest_at_the_atoms() -> None:
    beams = beams_along(crystal(225, _FCC), (0, 0, 1))
    found = potential(beams, 32, 0.0)
    line = (np.arange(32) + 0.5) / 4 - 4
    place = np.unravel_index(found.argmax(), found.shape)
    assert all(abs(line[each] / 2 - round(line[each] / 2)) < 0.1 for each in place), "columns are 2 Å apart"
    assert found.mean() == pytest.approx(0, abs=0.02 * found.max())


def test_intensities_are_scaled_as_published() -> None:
    assert log_scaled(np.array([1.0, 0.0, np.exp(-10)])).tolist() == pytest.approx([170, 0, 70])
