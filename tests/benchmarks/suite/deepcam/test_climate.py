"""Snapshots with planted storms whose fields agree with each other."""

from __future__ import annotations

import numpy as np
import pytest

from fairmile.benchmarks.suite.deepcam.climate import CYCLONE, FIELDS, RIVER, Grid, make_snapshot


@pytest.fixture(scope="module")
def snapshots() -> list[tuple[np.ndarray, np.ndarray]]:
    return [make_snapshot(number, 96, seed=2) for number in range(6)]


def field(fields: np.ndarray, name: str) -> np.ndarray:
    return fields[..., FIELDS.index(name)].astype(float)


def test_a_snapshot_is_the_same_each_time() -> None:
    one, other = make_snapshot(3, 32, seed=1), make_snapshot(3, 32, seed=1)
    assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[1], other[1])


def test_each_has_every_class_and_storms_are_rare(snapshots: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for fields, labels in snapshots:
        assert np.isfinite(fields).all()
        shares = np.bincount(labels.ravel(), minlength=3) / labels.size
        assert 0 < shares[CYCLONE] < 0.02
        assert 0 < shares[RIVER] < 0.05
    assert fields.shape == (96, 144, 16)


def test_cyclones_are_low_warm_wet_and_turn_with_the_earth(snapshots: list[tuple[np.ndarray, np.ndarray]]) -> None:
    latitude = Grid(96).latitude
    beyond: dict[str, list[np.ndarray]] = {}
    for fields, labels in snapshots:
        inside = labels == CYCLONE
        for name in ("PSL", "T200", "T500", "TMQ", "PRECT"):
            by_latitude = field(fields, name) - np.median(field(fields, name), axis=1, keepdims=True)
            beyond.setdefault(name, []).append(by_latitude[inside])
        east, north = field(fields, "U850"), field(fields, "V850")
        spin = np.gradient(north, axis=1) - np.gradient(east, axis=0)
        assert (spin * np.sign(latitude))[inside].mean() > 1
    means = {name: np.concatenate(values).mean() for name, values in beyond.items()}
    assert means["PSL"] < -300
    assert means["T200"] > 0.5
    assert means["T500"] > 0.5
    assert means["TMQ"] > 5
    assert means["PRECT"] > 1e-8


def test_rivers_carry_vapour_towards_the_poles(snapshots: list[tuple[np.ndarray, np.ndarray]]) -> None:
    latitude = Grid(96).latitude
    for fields, labels in snapshots:
        inside = labels == RIVER
        assert np.abs(np.broadcast_to(latitude, inside.shape)[inside]).min() > 5
        vapour = field(fields, "TMQ") - np.median(field(fields, "TMQ"), axis=1, keepdims=True)
        assert vapour[inside].mean() > 6
        assert (field(fields, "V850") * np.sign(latitude))[inside].mean() > 2


def test_weather_is_in_balance_with_its_pressure(snapshots: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Away from storms and the equator, the wind to the north follows from the slope of pressure to the east."""
    grid = Grid(96)
    rows = (np.abs(grid.latitude[:, 0]) > 30) & (np.abs(grid.latitude[:, 0]) < 60)
    for fields, labels in snapshots:
        metres = 2 * np.deg2rad(grid.step * 360 / 144 / grid.step) * 6.371e6 * np.cos(np.deg2rad(grid.latitude))
        slope = (np.roll(field(fields, "PSL"), -1, 1) - np.roll(field(fields, "PSL"), 1, 1)) / metres
        wind = slope / (1.15 * grid.turning)
        calm = (labels == 0) & rows[:, None]
        assert np.corrcoef(wind[calm], field(fields, "V850")[calm])[0, 1] > 0.7
