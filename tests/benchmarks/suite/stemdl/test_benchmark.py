"""StemDL from nothing and with published files: the network beside its baselines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.stemdl import baselines, benchmark
from fairmile.benchmarks.suite.stemdl.data import make_data, read_data
from fairmile.benchmarks.suite.stemdl.models import StemModel
from fairmile.benchmarks.suite.stemdl.settings import Settings, choose

SMALL = {"crystals": 48, "test_crystals": 16, "views": 2, "pixels": 32, "batch_size": 16}


def session(folder: Path, data: Path | None = None, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    return Session.of("stemdl", environ | ({"FAIRMILE_INPUT_DATA": str(data)} if data else {}), folder)


def results(folder: Path) -> dict:
    content: dict = json.loads((folder / "results.json").read_text())
    return content


def write(folder: Path, part: str, many: int) -> None:
    (folder / part).mkdir(parents=True)
    rng = np.random.default_rng(1)
    for number in range(many):
        content = {"data": rng.uniform(0, 255, (3, 32, 32)).astype(np.float32), "label": np.array([194 + number % 2])}
        np.savez(folder / part / f"{number}.npz", **content)


def test_it_learns_both_tasks_and_names_its_baselines(tmp_path: Path) -> None:
    benchmark.run(session(tmp_path, **SMALL, epochs=10))
    found = results(tmp_path)
    scores = {each["name"]: each["values"] for each in found["scores"]}
    patterson = "least squares on Patterson maps"
    assert list(scores) == ["most frequent group", "linear", "extra trees", patterson, "cnn"]
    assert scores["most frequent group"]["top1"] == pytest.approx(1 / 8)
    assert scores["extra trees"]["f1_macro"] > 0.4
    assert scores["cnn"]["f1_macro"] > 0.3 > scores["most frequent group"]["f1_macro"]
    restored = {name: each["potential_r2"] for name, each in scores.items() if "potential_r2" in each}
    assert restored["cnn"] > 0.15 > restored["most frequent group"]
    assert restored[patterson] > 0.15
    assert found["metric"]["target"] is None
    assert found["published"] == []
    assert found["figures"] == ["confusion.svg", "patterns.svg"]


def test_published_files_are_learned(tmp_path: Path) -> None:
    write(tmp_path / "ds1a", "train", 8)
    write(tmp_path / "ds1a", "validation", 4)
    given = {"preset": "small", "epochs": 1, "batch_size": 4}
    benchmark.run(session(tmp_path, tmp_path / "ds1a", **given))
    found = results(tmp_path)
    assert found["metric"]["target"] == 0.9
    assert found["published"]
    assert set(found["scores"][-1]["values"]) == {"f1_macro", "top1"}


def test_broken_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, "train", 1)
    with pytest.raises(NotFound, match=r"no \.npz files below a folder val"):
        read_data(tmp_path)
    write(tmp_path, "val", 1)
    file = tmp_path / "val" / "0.npz"
    good = np.zeros((3, 8, 8), np.float32)
    for content, message in (
        ({"data": good}, "no array"),
        ({"data": good[0], "label": [3]}, "expected \\(3, 128, 128\\)"),
        ({"data": good, "label": [231]}, "label is 231, expected a space group"),
    ):
        np.savez(file, **content)
        with pytest.raises(UsageError, match=message):
            read_data(tmp_path)
    file.write_bytes(b"PK\x03\x04 not a sample")
    with pytest.raises(Integrity, match="cannot be read as a sample"):
        read_data(tmp_path)


def test_networks_have_the_published_form() -> None:
    with torch.device("meta"):
        model = StemModel(choose({"preset": "stfc"}, has_data=False))
    # ResNet-50 has 25,557,032 parameters with 1,000 classes; here are 231.
    assert sum(each.numel() for each in model.parameters()) == 25_557_032 - 769 * 2049
    tiny = StemModel(Settings()).eval()
    logits, potential = tiny(torch.rand(2, 3, 32, 32))
    assert (logits.shape, potential.shape) == ((2, 231), (2, 3, 16, 16))
    assert StemModel(Settings(potential_weight=0)).eval()(torch.rand(2, 3, 32, 32))[1].shape == (2, 0)


def test_no_crystal_is_seen_twice() -> None:
    data = make_data(Settings(**SMALL))
    train = {each.tobytes() for each in data.training.batch(np.arange(96))["patterns"]}
    test = {each.tobytes() for each in data.validation.batch(np.arange(32))["patterns"]}
    assert len(train) == 96
    assert not train & test


def test_profiles_do_not_change_when_a_pattern_is_turned() -> None:
    patterns = np.asarray(make_data(Settings(**SMALL)).training.batch(np.arange(4))["patterns"])[:, :, 1:, 1:]
    ring = baselines.profiles(patterns).reshape(4, 3, 16, 5)[..., 0]
    turned = baselines.profiles(np.rot90(patterns, axes=(2, 3)).copy()).reshape(4, 3, 16, 5)[..., 0]
    assert np.abs(ring - turned)[:, :, :12].max() < 0.05 * ring.max()


def test_macro_f1_counts_rare_groups_as_much_as_frequent_ones() -> None:
    groups = np.array([225, 225, 225, 136])
    assert baselines.scores(np.array([225, 225, 225, 225]), groups) == {
        **{"f1_macro": pytest.approx(0.5 * 6 / 7), "top1": 0.75}
    }
    assert baselines.scores(groups, groups)["f1_macro"] == 1
