"""Scenes with known clouds: their radiation and their spectra are those of physics."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.suite.cloudmask.scenes import (
    CLOUD,
    SLOPE,
    albedo,
    brightness,
    field,
    make_scene,
    planck,
    spread,
)


def test_a_scene_is_the_same_each_time() -> None:
    one, other = make_scene(4, 16, seed=2), make_scene(4, 16, seed=2)
    assert np.array_equal(one.refs, other.refs)
    assert np.array_equal(one.bts, other.bts)
    assert not np.array_equal(one.bts, make_scene(6, 16, seed=2).bts)


def test_no_light_is_reflected_at_night() -> None:
    day, night = make_scene(0, 16, seed=2), make_scene(1, 16, seed=2)
    assert (day.is_day, night.is_day) == (True, False)
    assert day.refs.max() > 0.02
    assert night.refs.max() < 0.05
    assert night.refs.mean() < day.refs.mean()


def test_temperatures_and_reflectances_are_those_of_the_earth() -> None:
    scenes = [make_scene(number, 32, seed=1) for number in range(30)]
    bts = np.stack([each.bts for each in scenes])
    assert 180 < bts.min() < 240 < 290 < bts.max() < 345
    assert max(each.refs.max() for each in scenes) < 1.4
    share = np.mean([each.bayes.mean() for each in scenes])
    assert 0.3 < share < 0.7


def test_clouds_are_colder_and_brighter_than_what_lies_below() -> None:
    """Day scenes without snow: a cloud of an optical depth of 0.3 already shows on average."""
    cold, bright = [], []
    for number in range(0, 40, 2):
        scene = make_scene(number, 32, seed=1)
        cloud = scene.bayes[..., 0] > 0
        if 0.1 < cloud.mean() < 0.9:
            cold.append(scene.bts[~cloud, 1].mean() - scene.bts[cloud, 1].mean())
            bright.append(scene.refs[cloud, 1].mean() - scene.refs[~cloud, 1].mean())
    assert np.mean(cold) > 5
    assert np.mean(bright) > 0.05


def test_clouds_have_the_spectrum_of_turbulence() -> None:
    random = np.random.default_rng(1)
    power = np.mean([np.abs(np.fft.rfft2(field(random, 64, SLOPE))) ** 2 for _ in range(20)], 0)
    wave = np.hypot(np.fft.fftfreq(64)[:, None], np.fft.rfftfreq(64)[None])
    inside = (wave > 0.03) & (wave < 0.4)
    slope = np.polyfit(np.log(wave[inside]), np.log(power[inside]), 1)[0]
    assert slope == pytest.approx(SLOPE, abs=0.1)


def test_radiation_and_temperature_are_inverse() -> None:
    kelvin = np.array([200.0, 260.0, 320.0])
    for wavelength in (3.74, 10.85, 12.0):
        assert brightness(planck(kelvin, wavelength), wavelength) == pytest.approx(kelvin)
    assert planck(300.0, 10.85) == pytest.approx(9.78, rel=0.02)  # W / (m² sr µm), of tables of black bodies


def test_thick_clouds_reflect_nearly_all() -> None:
    assert albedo(0.0) == 0
    assert albedo(CLOUD) < 0.05 < 0.5 < albedo(20) < albedo(100) < 1


def test_the_instrument_blurs_but_keeps_the_light() -> None:
    stripes = np.tile([0.0, 1.0], (8, 4))[..., None]
    seen = spread(stripes)
    assert np.ptp(seen[:, 2:-2]) == pytest.approx(0.3)
    assert spread(np.full((4, 4, 1), 2.0)) == pytest.approx(2.0)


def test_a_scene_of_a_few_pixels_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 8 pixels"):
        make_scene(0, 4, seed=1)
