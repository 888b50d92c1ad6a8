"""What stands in for microphysics: samples in the published schema, scaling, scores, and the rules in a storm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.miniweather import kessler, surrogate
from fairmile.benchmarks.suite.miniweather.kessler import Cells, Kessler, saturation
from fairmile.benchmarks.suite.miniweather.learning import make_model
from fairmile.benchmarks.suite.miniweather.surrogate import CellSamples, Scaling, Surrogate

DT_S = 4.0


def air(seed: int = 0, shape: tuple[int, int] = (20, 40)) -> Cells:
    draw = np.random.default_rng(seed)
    temperature, dry = draw.uniform(250, 300, shape), draw.uniform(0.5, 1.1, shape)
    full = dry * saturation(temperature, kessler.RD * dry * temperature)
    cloud, rain = (draw.uniform(0, 3e-3, shape) * (draw.random(shape) > 0.6) for _ in range(2))
    return Cells(temperature, dry, full * draw.uniform(0.5, 1.02, shape), cloud, rain)


@pytest.fixture
def samples() -> CellSamples:
    found, _ = surrogate.sample([np.stack(air(seed)) for seed in range(4)], DT_S, Kessler(), 2000, 0)
    return found


def a_network(scaling: Scaling, seed: int = 0) -> tuple[torch.nn.Sequential, Surrogate]:
    torch.manual_seed(seed)
    model = make_model(10)
    layers = [(model[at].weight.detach().numpy(), model[at].bias.detach().numpy()) for at in (0, 2)]
    return model, Surrogate("mlp", tuple(layers), scaling, DT_S)


def test_half_of_the_samples_are_active_and_each_comes_with_the_cell_above_it() -> None:
    cells = np.stack(air())

    found, active = surrogate.sample([cells], DT_S, Kessler(), 200, 0)

    changed = (np.abs(found.outputs - found.before)[:, 1:] > 1e-9).any(axis=1)
    assert (len(found), active) == (200, 100)
    assert 95 <= changed.sum() <= 105  # of single precision
    assert found.inputs.shape == (200, 5, 2) and found.outputs.shape == (200, 4)
    flat, above = cells.reshape(5, -1).T, np.concatenate([cells[:, 1:], cells[:, -1:]], axis=1).reshape(5, -1).T
    for row in found.inputs[::20]:
        at = np.abs(flat / row[:, 0].clip(1e-9) - 1)[:, :2].sum(axis=1).argmin()
        np.testing.assert_allclose(row[:, 1], above[at], rtol=1e-6)


def test_the_outputs_are_what_microphysics_makes_of_the_inputs(samples: CellSamples) -> None:
    after = Kessler()(Cells(*samples.own.astype(np.float64).T), DT_S)

    for at, name in enumerate(surrogate.OUTPUTS):
        np.testing.assert_allclose(samples.outputs[:, at], getattr(after, name), rtol=1e-4, atol=2e-7)


def test_air_in_which_nothing_happens_gives_no_samples() -> None:
    cells = air()
    dry = cells._replace(vapour=0.1 * cells.vapour, cloud=0 * cells.cloud, rain=0 * cells.rain)

    with pytest.raises(UsageError, match="no cell of the simulation is active"):
        surrogate.sample([np.stack(dry)], DT_S, Kessler(), 200, 0)


def test_samples_come_back_as_they_were_written(samples: CellSamples, tmp_path: Path) -> None:
    samples.write(tmp_path / "s.h5", dt_s=DT_S)

    found = CellSamples.read(tmp_path / "s.h5")

    np.testing.assert_array_equal(found.inputs, samples.inputs)
    np.testing.assert_array_equal(found.outputs, samples.outputs)
    with h5py.File(tmp_path / "s.h5") as file:
        assert file.attrs["dt_s"] == DT_S


def test_a_split_is_complete_repeatable_and_by_chance(samples: CellSamples) -> None:
    train, test = samples.split(0.2, 1)

    assert (len(train), len(test)) == (len(samples) - len(samples) // 5, len(samples) // 5)
    both = np.concatenate([train.own, test.own])
    np.testing.assert_array_equal(np.sort(both[:, 0]), np.sort(samples.own[:, 0]))
    np.testing.assert_array_equal(samples.split(0.2, 1)[1].inputs, test.inputs)
    with pytest.raises(UsageError, match="test_share"):
        samples.split(1.5, 1)


def _write(file: Path, **arrays: np.ndarray) -> Path:
    with h5py.File(file, "w") as handle:
        for name, values in arrays.items():
            handle[name] = values
    return file


def test_a_file_of_another_schema_is_named_with_what_was_expected(tmp_path: Path) -> None:
    inputs, outputs = np.zeros((20, 5, 2), np.float32), np.zeros((20, 4), np.float32)
    with pytest.raises(UsageError, match=r"a\.h5 has no dataset 'outputs'"):
        CellSamples.read(_write(tmp_path / "a.h5", inputs=inputs))
    with pytest.raises(UsageError, match=r"b\.h5: inputs is \(20, 5\) of float32, expected \(n, 5, 2\)"):
        CellSamples.read(_write(tmp_path / "b.h5", inputs=inputs[:, :, 0], outputs=outputs))
    with pytest.raises(UsageError, match=r"c\.h5: 20 inputs do not fit 19 outputs"):
        CellSamples.read(_write(tmp_path / "c.h5", inputs=inputs, outputs=outputs[1:]))
    with pytest.raises(UsageError, match=r"d\.h5: outputs holds values that are not finite numbers"):
        CellSamples.read(_write(tmp_path / "d.h5", inputs=inputs, outputs=outputs * np.nan))
    (tmp_path / "e.h5").write_text("no HDF5")
    with pytest.raises(Integrity, match=r"e\.h5 cannot be read as HDF5"):
        CellSamples.read(tmp_path / "e.h5")
    with pytest.raises(NotFound, match=r"f\.h5"):
        CellSamples.read(tmp_path / "f.h5")


@pytest.mark.parametrize("target", ["increments", "outputs"])
@pytest.mark.parametrize("features", ["excess", "raw"])
def test_scaled_targets_become_the_outputs_again(
    samples: CellSamples, target: surrogate.Target, features: surrogate.Features
) -> None:
    scaling = Scaling.of(samples, target, features)

    found = surrogate.physical(scaling, scaling.scaled_targets(samples), samples.before)

    np.testing.assert_allclose(found, samples.outputs, rtol=1e-6, atol=1e-9)
    x = scaling.scaled_inputs(Cells(*samples.own.astype(np.float64).T))
    assert x.shape == (5, len(samples)) and x.dtype == np.float32
    most = 5 if features == "excess" else 1  # what stands for saturation may be below zero
    assert -most - 1e-5 <= x.min() and most * 0.9 < x.max() <= most + 1e-5


def test_what_is_saturated_is_zero_to_the_network() -> None:
    cells = Cells(*(each.ravel() for each in air()))
    full = cells.dry * saturation(cells.temperature, kessler.pressure_of(cells))
    own = np.stack(cells._replace(vapour=full), axis=1)
    scaling = Scaling.of(CellSamples(own[:, :, None].repeat(2, 2), own[:, [0, 2, 3, 4]]), "increments", "excess")

    assert np.abs(scaling.scaled_inputs(Cells(*own.T))[2]).max() < 1e-6


def test_scores_are_those_of_their_definitions(samples: CellSamples) -> None:
    scaling = Scaling.of(samples, "increments", "excess")
    truth = samples.outputs.astype(np.float64)

    perfect = surrogate.score(scaling, samples, truth)
    same = surrogate.score(scaling, samples, samples.before.astype(np.float64))
    mean = surrogate.score(scaling, samples, np.tile(truth.mean(axis=0), (len(truth), 1)))

    assert perfect["mse"] == 0 and all(perfect[f"{kind}_cloud"] == 1 for kind in ("r2", "skill"))
    assert all(same[f"skill_{name}"] == pytest.approx(0, abs=1e-9) for name in surrogate.OUTPUTS)
    assert mean["r2_rain"] == pytest.approx(0, abs=1e-9) and mean["skill_rain"] < 0
    expected = np.mean(((samples.before - truth) / scaling.output_span) ** 2)
    assert same["mse"] == pytest.approx(expected)


def test_the_network_has_104_parameters_and_numpy_computes_what_torch_does(samples: CellSamples) -> None:
    scaling = Scaling.of(samples, "increments", "excess")
    model, mine = a_network(scaling)
    x = scaling.scaled_inputs(Cells(*samples.own.astype(np.float64).T)).T

    with torch.no_grad():
        theirs = model(torch.tensor(np.ascontiguousarray(x))).numpy()

    assert sum(each.numel() for each in model.parameters()) == mine.parameters == 104
    expected = surrogate.physical(scaling, theirs, samples.before)
    np.testing.assert_allclose(mine.predict(samples.own), expected, rtol=1e-5, atol=1e-8)


def test_the_linear_map_finds_a_linear_law(samples: CellSamples) -> None:
    draw = np.random.default_rng(0)
    scaling = Scaling.of(samples, "outputs", "raw")
    x = scaling.scaled_inputs(Cells(*samples.own.astype(np.float64).T)).T
    law = CellSamples(samples.inputs, (x @ draw.normal(size=(5, 4)) + 3).astype(np.float32))

    line = surrogate.linear(law, Scaling.of(law, "outputs", "raw"), DT_S, ridge=0)

    assert line.parameters == 24
    assert surrogate.score(line.scaling, law, line.predict(law.own))["r2_vapour"] > 1 - 1e-6


@pytest.mark.parametrize("target", ["increments", "outputs"])
def test_by_the_rules_water_and_energy_are_kept_whatever_the_network_says(
    samples: CellSamples, target: surrogate.Target
) -> None:
    _, wild = a_network(Scaling.of(samples, target, "excess"), seed=5)
    cells = air(7)

    after = wild(cells, DT_S)
    free = replace(wild, rules=False)(cells, DT_S)

    np.testing.assert_allclose(after.water, cells.water, rtol=1e-13)
    warmer = kessler.LATENT_HEAT / kessler.CP * (cells.vapour - after.vapour) / cells.dry
    np.testing.assert_allclose(after.temperature - cells.temperature, warmer, atol=1e-10)
    assert min(each.min() for each in (*after, *free)) >= 0
    assert np.abs(free.water / cells.water - 1).max() > 1e-4
    full = cells.dry * saturation(cells.temperature, kessler.pressure_of(cells))
    quiet = (cells.vapour < full) & (cells.cloud + cells.rain == 0)
    assert 50 < quiet.sum() < cells.dry.size
    for before, then in zip(cells, after, strict=True):
        np.testing.assert_allclose(then[quiet], before[quiet], rtol=1e-14)


def test_it_refuses_another_time_step_than_it_learned(samples: CellSamples) -> None:
    _, network = a_network(Scaling.of(samples, "increments", "excess"))

    with pytest.raises(UsageError, match="learned steps of 4 s, not of 5 s"):
        network(air(), 5.0)


def test_surrogates_come_back_as_they_were_saved(samples: CellSamples, tmp_path: Path) -> None:
    scaling = Scaling.of(samples, "increments", "excess")
    line, (_, network) = surrogate.linear(samples, scaling, DT_S), a_network(scaling)
    scores = {"linear": {"mse": 0.5}, "mlp": {"mse": 0.25}}

    surrogate.save(tmp_path / "s.npz", [line, network], scores)
    found, told = surrogate.load(tmp_path / "s.npz", rules=False)

    assert told == scores and [each.name for each in found] == ["linear", "mlp"]
    np.testing.assert_array_equal(found[1].predict(samples.own), network.predict(samples.own))
    assert not found[0].rules and found[0].dt_s == DT_S
    (tmp_path / "broken.npz").write_bytes((tmp_path / "s.npz").read_bytes()[:300])
    with pytest.raises(Integrity, match=r"broken\.npz cannot be read as a surrogate"):
        surrogate.load(tmp_path / "broken.npz", rules=True)
    with pytest.raises(NotFound, match=r"none\.npz"):
        surrogate.load(tmp_path / "none.npz", rules=True)
