from __future__ import annotations

import numpy as np
import pytest
from cases import for_each

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.cosmoflow.universes import (
    MIDDLE,
    REDSHIFTS,
    Cosmologies,
    Generator,
    spectra,
    top_hat,
    unit_to_physical,
    wave_numbers,
)

MIDDLE_ROW = MIDDLE[None]


def test_a_universe_depends_on_its_number_and_the_seed_alone():
    alone_x, alone_y = Generator(8, seed=3).make([5])
    many_x, many_y = Generator(8, seed=3).make(range(4, 8))
    assert np.array_equal(many_x[1], alone_x[0])
    assert np.array_equal(many_y[1], alone_y[0])
    other_x, other_y = Generator(8, seed=4).make([5])
    assert not np.array_equal(other_x, alone_x)
    assert not np.array_equal(other_y, alone_y)


def test_counts_are_int16_with_the_redshifts_last_and_no_particle_is_lost():
    counts, unit = Generator(12).make(range(3))
    assert counts.shape == (3, 12, 12, 12, 4)
    assert counts.dtype == np.int16
    assert np.array_equal(counts.sum(axis=(1, 2, 3)), np.full((3, 4), 12**3))  # a mean of exactly 1
    assert counts.min() >= 0
    assert unit.shape == (3, 4)
    assert unit.dtype == np.float32
    assert np.abs(unit).max() < 1


def test_parameters_lie_30_percent_around_the_middle():
    assert np.allclose(unit_to_physical(np.ones(4)), [0.39, 1.04, 1.248, 91])
    assert np.allclose(unit_to_physical(-np.ones(4)), [0.21, 0.56, 0.672, 49])


def test_the_spectrum_has_the_sigma_8_that_was_asked_for():
    physical = unit_to_physical(np.random.default_rng(1).uniform(-1, 1, (5, 4)))
    k = np.logspace(-4, 1.5, 20000)[None]
    spectrum = Cosmologies(physical).spectrum(k)
    variance = np.trapezoid(k**2 * spectrum * top_hat(8 * k) ** 2 / (2 * np.pi**2), k, axis=-1)
    assert np.sqrt(variance) == pytest.approx(physical[:, 1], rel=2e-3)


def test_the_linear_field_has_the_sigma_8_of_the_modes_that_its_box_holds():
    generator = Generator(48, cell=4.0)
    fields = np.concatenate([generator.linear(MIDDLE_ROW, generator.white(n)[None]) for n in range(6)])
    k = wave_numbers(48) / generator.edges(MIDDLE_ROW)[0]
    smooth = np.fft.irfftn(np.fft.rfftn(fields, axes=(1, 2, 3)) * top_hat(8 * k), (48,) * 3, axes=(1, 2, 3))
    measured = np.sqrt((smooth**2).mean())
    weight = np.where((np.arange(25) > 0) & (np.arange(25) < 24), 2.0, 1.0)
    modes = weight * Cosmologies(MIDDLE_ROW).spectrum(k[None])[0] * top_hat(8 * k) ** 2
    expected = np.sqrt(modes.sum() / generator.edges(MIDDLE_ROW)[0] ** 3)
    assert measured == pytest.approx(expected, rel=0.04)
    assert measured == pytest.approx(0.8, rel=0.1)  # what the box leaves out is little


@for_each("omega_m", [0.21, 0.3, 0.39])
def test_growth_agrees_with_the_integral_of_the_growing_mode(omega_m):
    def grown(redshift: float) -> float:
        a = np.linspace(1e-4, 1 / (1 + redshift), 20001)
        rate = np.sqrt(omega_m / a**3 + 1 - omega_m)
        return rate[-1] * np.trapezoid(1 / (a * rate) ** 3, a)

    row = MIDDLE_ROW.copy()
    row[0, 0] = omega_m
    for redshift in REDSHIFTS:
        expected = grown(redshift) / grown(0.0)
        assert Cosmologies(row).growth(redshift)[0] == pytest.approx(expected, rel=1e-2)


def test_large_scales_of_the_counts_grow_as_linear_theory_says():
    generator = Generator(48, cell=4.0)
    white = np.stack([generator.white(n) for n in range(4)])
    physical = np.tile(MIDDLE, (4, 1))
    linear = np.fft.rfftn(generator.linear(physical, white), axes=(1, 2, 3))
    counts = np.fft.rfftn(generator.counts(physical, white), axes=(1, 2, 3))
    large = (wave_numbers(48) > 0) & (wave_numbers(48) < 2 * np.pi * 2.5)
    # Particles on a lattice hide a part of the smallest displacements, which are those of the highest redshift.
    for at, (redshift, within) in enumerate(zip(REDSHIFTS, (0.06, 0.06, 0.06, 0.15), strict=True)):
        followed = (counts[..., at] * linear.conj()).real[:, large].sum() / (np.abs(linear[:, large]) ** 2).sum()
        assert followed == pytest.approx(Cosmologies(MIDDLE_ROW).growth(redshift)[0], rel=within)


def test_spectra_follow_the_tilt_that_was_asked_for():
    rows = np.tile(MIDDLE, (2, 1))
    rows[1, 2] = 1.2
    k = np.logspace(-3, 0, 50)[None]
    ratio = np.log(np.divide(*Cosmologies(rows).spectrum(k)[::-1]))
    assert np.allclose(np.diff(ratio) / np.diff(np.log(k[0])), 1.2 - 0.96)
    generator = Generator(32, cell=8.0)
    white = np.tile(generator.white(0), (2, 1, 1, 1))
    modes = np.abs(np.fft.rfftn(generator.linear(rows, white), axes=(1, 2, 3))) ** 2
    high, low = wave_numbers(32) > 60, (wave_numbers(32) > 0) & (wave_numbers(32) < 20)
    assert modes[1][high].sum() / modes[0][high].sum() > 1.15 * modes[1][low].sum() / modes[0][low].sum()


def test_spectra_find_a_single_wave():
    x = np.arange(16)
    wave = 2 + np.cos(2 * np.pi * 3 * x / 16)
    cube = np.broadcast_to(wave[:, None, None, None], (16, 16, 16, 1))[None]
    found = spectra(cube)
    assert found.k.tolist() == list(range(1, 9))
    assert int(found.power[0, 0].argmax()) == 2
    assert np.allclose(np.delete(found.power[0, 0], 2), 0)


@for_each("size, cell", [(2, 8.0), (15, 8.0), (16, 0.0)])
def test_a_box_that_cannot_be_is_refused(size, cell):
    with pytest.raises(UsageError):
        Generator(size, cell)


def test_the_power_is_that_of_the_modes_of_a_bin_which_the_transform_gives_or_mirrors():
    counts, _ = Generator(8).make(range(3))
    found = spectra(counts).power
    contrast = counts / counts.mean(axis=(1, 2, 3), keepdims=True)
    whole = np.abs(np.fft.fftn(contrast, axes=(1, 2, 3))) ** 2 / 8**6
    at = np.fft.fftfreq(8, 1 / 8)
    length = np.rint(np.sqrt(at[:, None, None] ** 2 + at[:, None] ** 2 + at**2))
    expected = np.stack([whole[:, length == k].mean(1) for k in range(1, 5)], axis=-1)
    assert np.allclose(found, expected, rtol=1e-12, atol=0)
