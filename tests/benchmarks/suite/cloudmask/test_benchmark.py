"""CloudMask from nothing, and with scenes as published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.cloudmask import baselines, benchmark
from fairmile.benchmarks.suite.cloudmask.files import write_scene
from fairmile.benchmarks.suite.cloudmask.scenes import make_scene


def session(folder: Path, data: Path | None = None, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    return Session.of("cloudmask", environ | ({"FAIRMILE_INPUT_DATA": str(data)} if data else {}), folder)


def results(folder: Path) -> dict:
    content: dict = json.loads((folder / "results.json").read_text())
    return content


@pytest.mark.thorough
def test_it_learns_and_names_its_baselines(tmp_path: Path) -> None:
    small = {"train_scenes": 32, "validation_scenes": 12, "patch": 32, "epochs": 8, "width": 6, "depth": 2}
    benchmark.run(session(tmp_path, baseline_pixels=8000, batch_size=4, learning_rate=0.02, **small))
    found = results(tmp_path)
    accuracy = {each["name"]: each["values"]["accuracy"] for each in found["scores"]}
    assert [each["kind"] for each in found["scores"]] == ["trivial", *["classical"] * 4, "model"]
    assert accuracy["unet-bn"] > accuracy["commonest class"] + 0.1
    assert accuracy["logistic regression"] > accuracy["threshold"]
    assert found["metric"]["target"] is None
    assert found["published"] == []
    assert found["figures"] == ["masks.svg"]
    assert {"day_accuracy", "night_accuracy", "cloud_iou"} <= set(found["scores"][-1]["values"])


def test_published_scenes_are_cut_and_the_publishers_test_is_scored(tmp_path: Path) -> None:
    for number in range(4):
        part = "day" if number % 2 == 0 else "night"
        write_scene(tmp_path / "data" / "training" / part / f"S3A_{number}.hdf", make_scene(number, 48, seed=1))
    write_scene(tmp_path / "data" / "inference" / "day" / "S3A_9.hdf", make_scene(8, 48, seed=1))
    params = {"patch": 16, "margin": 4, "width": 4, "depth": 1, "epochs": 1, "model": "unet", "preset": "small"}
    params |= {"baseline_pixels": 1000}
    benchmark.run(session(tmp_path, tmp_path / "data", **params))
    found = results(tmp_path)
    assert found["data"] == "data: 27 patches to train, 9 to validate, 1 scenes to test"
    assert found["metric"]["target"] == 0.9
    assert found["published"]
    assert 0 <= found["scores"][-1]["values"]["test_accuracy"] <= 1


def test_scores_count_every_pixel_once() -> None:
    mask = np.array([[[1, 1], [0, 0]], [[1, 0], [0, 0]]])
    cloud = np.array([[[1, 0], [1, 0]], [[1, 0], [0, 0]]])
    counts = baselines.count(mask, cloud)
    assert counts.tolist() == [[1, 1, 1, 1], [1, 0, 0, 3]]
    assert baselines.scores(counts, np.array([1, 0])) == {
        "accuracy": 0.75,
        "cloud_iou": 0.5,
        "day_accuracy": 0.5,
        "night_accuracy": 1.0,
    }


def test_each_baseline_finds_what_it_can() -> None:
    """Cold pixels are cloud, and bright ones: one threshold finds the cold ones only, two find all."""
    random = np.random.default_rng(1)
    x = random.normal(size=(4000, 9)).astype(np.float32)
    cloud = (x[:, baselines._S8] < -0.5) | (x[:, baselines._S2] > 1)
    right = {each.name: (each.is_cloud(x) == cloud).mean() for each in baselines.fit(x, cloud, 1)}
    assert right["commonest class"] == max(cloud.mean(), 1 - cloud.mean())
    assert 0.8 < right["threshold"] < 0.92
    assert right["two thresholds"] > 0.97
    assert right["gradient boosting"] > 0.98
    assert right["logistic regression"] > 0.85


def test_a_margin_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="parameter margin: expected less than half of patch"):
        benchmark.run(session(tmp_path, patch=16, margin=8))
