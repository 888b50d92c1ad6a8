from __future__ import annotations

import dataclasses
import json

import h5py
import numpy as np
import pytest
import torch

from fairmile.base.errors import NotFound, UsageError
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.cosmoflow import benchmark
from fairmile.benchmarks.suite.cosmoflow.benchmark import CosmoFlowTask, baseline_scores, prepare, run, take, turn
from fairmile.benchmarks.suite.cosmoflow.files import Cubes, FileCubes, cube_name, write_cube
from fairmile.benchmarks.suite.cosmoflow.settings import choose
from fairmile.benchmarks.suite.cosmoflow.universes import Generator

SMALL = {"size": 8, "depth": 2, "width": 4, "train_samples": 12, "validation_samples": 6, "epochs": 1, "device": "cpu"}


@pytest.fixture(autouse=True)
def one_thread():
    """Tests run side by side: threads of many would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def session(tmp_path, data=None, **params):
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    return Session("cosmoflow", params, 0, data, folder, tmp_path / "cache", False, Ranks())


def prepared(tmp_path, data=None, **params):
    settings = choose(params, has_data=data is not None, has_gpu=False)
    return settings, prepare(session(tmp_path, data, **params), settings)


def real_data(place, suffix="tfrecord"):
    counts, unit = Generator(8).make(range(9))
    for number, (x, y) in enumerate(zip(counts, unit, strict=True)):
        part = "train" if number < 6 else "validation"
        write_cube(place / part / f"{cube_name('7', 1, number)}.{suffix}", x, y)
    return counts, unit


def results(tmp_path):
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    return found, {score["name"]: score["values"] for score in found["scores"]}


def test_four_redshifts_turn_as_any_other_number_does():
    cubes = torch.from_numpy(Generator(8).make(range(3))[0]).permute(0, 4, 1, 2, 3)
    for way in range(60):
        turned = [torch.manual_seed(way) and turn(part) for part in (cubes, cubes[:, :3])]
        assert torch.equal(turned[0][:, :3], turned[1])
        assert turned[0].is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.thorough
def test_the_small_benchmark_learns_and_the_baselines_stand_beside_it(tmp_path):
    params = {"train_samples": 256, "validation_samples": 64, "epochs": 3, "batch_size": 8, "width": 4, "device": "cpu"}
    run(session(tmp_path, **params))
    found, scores = results(tmp_path)
    assert list(scores) == ["mean", "ridge", "network"]
    assert scores["mean"]["mae"] == pytest.approx(0.5, abs=0.03)
    assert scores["ridge"]["mae"] < 0.36
    assert scores["network"]["mae"] < 0.47
    assert scores["network"]["mae"] < scores["mean"]["mae"] - 0.03
    assert scores["network"]["mae_sigma_8"] < 0.40  # what a network of this size finds first
    assert found["metric"]["target"] is None
    assert any("0.124" in note for note in found["notes"])
    assert found["settings"]["preset"] == "small"
    assert found["figures"] == ["predicted.svg", "training.svg", "slices.svg", "spectra.svg"]
    assert all((tmp_path / "run" / name).stat().st_size > 1000 for name in found["figures"])
    assert ":::MLLOG" in (tmp_path / "run" / "mllog.txt").read_text()


def test_universes_are_made_once_and_do_not_overlap(tmp_path, capsys):
    _, data = prepared(tmp_path, **SMALL)
    assert "making 18 universes" in capsys.readouterr().out
    _, again = prepared(tmp_path, **SMALL, learning_rate=0.1)
    assert "making" not in capsys.readouterr().out
    train, validation = (take(part, np.arange(len(part)))[1] for part in (again.training, again.validation))
    assert (len(train), len(validation)) == (12, 6)
    assert len(np.unique(np.concatenate([train, validation]), axis=0)) == 18
    assert np.array_equal(train, Generator(8, seed=2019).make(range(12))[1])
    assert not data.is_real


@pytest.mark.parametrize("suffix", ["tfrecord", "hdf5"])
@pytest.mark.parametrize("memory_map", [True, False])
def test_real_data_are_read_as_they_are_published(tmp_path, suffix, memory_map):
    counts, unit = real_data(tmp_path / "data", suffix)
    settings, data = prepared(tmp_path, tmp_path / "data", memory_map=memory_map)
    assert isinstance(data.training, Cubes if memory_map else FileCubes)
    assert (data.edge, data.is_real, settings.preset) == (8, True, "mlperf")
    x, y = take(data.validation, np.array([2, 0]))
    assert np.array_equal(x, counts[[8, 6]])
    assert np.array_equal(y, unit[[8, 6]])
    assert CosmoFlowTask(settings, data).metric.target is None
    whole = dataclasses.replace(data, edge=128)
    assert CosmoFlowTask(settings, whole).metric.target == 0.124


@pytest.mark.thorough
def test_a_run_on_real_data_of_another_size_has_no_target(tmp_path):
    real_data(tmp_path / "data")
    params = {"preset": "small", "depth": 2, "width": 4, "epochs": 1, "train_samples": 4, "device": "cpu"}
    run(session(tmp_path, tmp_path / "data", **params))
    found, scores = results(tmp_path)
    assert found["metric"]["target"] is None
    assert any("128^3 only" in note for note in found["notes"])
    assert "4 to train, 3 to validate" in found["data"]
    assert np.isfinite(scores["network"]["mae"])


def test_real_data_that_do_not_fit_together_are_told(tmp_path):
    real_data(tmp_path / "data")
    counts, unit = Generator(4).make([0])
    for file in (tmp_path / "data" / "validation").iterdir():
        write_cube(file, counts[0], unit[0])
    with pytest.raises(UsageError, match="edge of 8 cells, of validation/ 4"):
        prepared(tmp_path, tmp_path / "data")
    with pytest.raises(NotFound, match="train/"):
        prepared(tmp_path, tmp_path)


def test_only_preparing_trains_nothing(tmp_path):
    run(session(tmp_path, **SMALL, work="prepare"))
    assert not (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("layout", ["hdf5", "tfrecord", "universe"])
def test_made_up_universes_are_written_as_published_and_can_be_given_as_data(tmp_path, layout, capsys):
    run(session(tmp_path, **SMALL, work="prepare", write_as=layout))
    place = tmp_path / "run" / "cosmoUniverse"
    assert f"written in {place}" in capsys.readouterr().out
    _, made = prepared(tmp_path, **SMALL)
    _, read = prepared(tmp_path, place)
    for ours, theirs in ((made.training, read.training), (made.validation, read.validation)):
        (x, y), (again, parameters) = (take(part, np.arange(len(part))) for part in (ours, theirs))
        order, other = np.argsort(y[:, 0]), np.argsort(parameters[:, 0])
        assert np.array_equal(x[order], again[other])
        assert np.array_equal(y[order], parameters[other])
    if layout == "universe":
        with h5py.File(min((place / "train").iterdir())) as first:
            assert dict(first.attrs) == {"dataset tag": "made-up", "universe tag": "2019-0", "seed": 0}
    with pytest.raises(UsageError, match="only universes that are made can be written"):
        run(session(tmp_path, place, work="prepare", write_as=layout))


@pytest.mark.thorough
def test_inference_gives_the_scores_of_the_weights(tmp_path):
    run(session(tmp_path, **SMALL))
    trained = results(tmp_path)[1]["network"]
    weights = tmp_path / "run" / "checkpoint.pt"
    other = tmp_path / "other"
    other.mkdir()
    started = dataclasses.replace(session(tmp_path, **SMALL, work="inference", checkpoint=str(weights)), folder=other)
    run(started)
    found = json.loads((other / "results.json").read_text())
    assert found["scores"][-1]["values"] == pytest.approx(trained)
    assert "training.svg" not in found["figures"]


def test_turning_keeps_a_cube_a_cube_in_48_ways():
    torch.manual_seed(0)
    counts = torch.arange(2 * 2 * 27).reshape(2, 2, 3, 3, 3)
    seen = {tuple(turn(counts).flatten().tolist()) for _ in range(600)}
    assert len(seen) == 48
    for each in (turn(counts) for _ in range(20)):
        assert torch.equal(each[1, 1, 1, 1, 1], counts[1, 1, 1, 1, 1])
        assert torch.equal(each.flatten(2).sort().values, counts.flatten(2))


def test_the_loss_is_the_mean_squared_error_and_only_turned_where_asked(tmp_path):
    settings, data = prepared(tmp_path, **SMALL, augment=False)
    task = CosmoFlowTask(settings, data)
    model = task.model()
    batch = data.training.batch(np.arange(4))
    batch = {"x": torch.as_tensor(batch["x"]), "y": torch.as_tensor(batch["y"])}
    expected = (model(batch["x"]) - batch["y"]).square().mean()
    assert torch.allclose(task.loss(model, batch), expected)
    turning = CosmoFlowTask(dataclasses.replace(settings, augment=True), data)
    losses = {round(turning.loss(model, batch).item(), 6) for _ in range(12)}
    assert len(losses) > 3


@pytest.mark.parametrize("name", ["train_samples", "validation_samples"])
def test_no_universes_cannot_be_made(tmp_path, name):
    with pytest.raises(UsageError, match=f"parameter {name}"):
        prepared(tmp_path, **(SMALL | {name: 0}))


def test_an_unknown_model_is_told(tmp_path):
    with pytest.raises(UsageError, match="'resnet' is not one of cosmoflow"):
        prepared(tmp_path, **SMALL, model="resnet")
    assert benchmark.TARGET == 0.124


def test_baselines_look_at_universes_from_all_of_the_data(tmp_path):
    settings, data = prepared(tmp_path, **SMALL, baseline_samples=3)
    predicted = {}
    mean, ridge = baseline_scores(settings, data, predicted)
    assert "3 cubes to train, 3 to validate" in ridge.note
    unit = take(data.training, np.array([0, 4, 8]))[1]
    assert predicted["mean"] == pytest.approx(np.tile(unit.mean(0), (3, 1)))
    told = take(data.validation, np.array([0, 2, 4]))[1]
    assert mean.values["mae"] == pytest.approx(np.abs(unit.mean(0) - told).mean())
