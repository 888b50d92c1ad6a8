"""DeepCAM from nothing, and with snapshots as published."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from fairmile.base.errors import NotFound, UsageError
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.deepcam import baselines, benchmark
from fairmile.benchmarks.suite.deepcam.climate import make_snapshot
from fairmile.benchmarks.suite.deepcam.files import list_part, read_snapshot, write_snapshots

TINY = {"shrink": 32, "middle": 1, "batch_size": 2}


def session(folder: Path, data: Path | None = None, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    return Session.of("deepcam", environ | ({"FAIRMILE_INPUT_DATA": str(data)} if data else {}), folder)


def results(folder: Path) -> dict:
    content: dict = json.loads((folder / "results.json").read_text())
    return content


@pytest.mark.thorough
def test_it_learns_and_names_its_baselines(tmp_path: Path) -> None:
    small = {"rows": 64, "train_samples": 16, "validation_samples": 4, "epochs": 16, "data_seed": 5}
    wider = TINY | {"shrink": 16, "weight_power": -0.6}
    benchmark.run(session(tmp_path, baseline_pixels=4000, **small, **wider))
    found = results(tmp_path)
    iou = {each["name"]: each["values"]["iou"] for each in found["scores"]}
    assert [each["kind"] for each in found["scores"]] == ["trivial", "classical", "classical", "model"]
    assert iou["all background"] == pytest.approx(0.33, abs=0.01)
    assert iou["thresholds"] > iou["all background"] + 0.15
    assert iou["deeplab"] > iou["all background"] + 0.1
    assert found["metric"]["target"] is None
    assert found["published"] == []
    assert found["figures"] == ["storms.svg"]


def test_published_files_are_read_when_they_are_needed(tmp_path: Path) -> None:
    made = [make_snapshot(number, 32, seed=1) for number in range(5)]
    write_snapshots(tmp_path / "data", {"train": made[:3], "validation": made[3:]})
    benchmark.run(session(tmp_path, tmp_path / "data", preset="small", epochs=1, **TINY))
    found = results(tmp_path)
    assert found["data"] == "data: 3 snapshots to train, 2 to validate"
    assert found["metric"]["target"] == 0.82
    assert found["published"]
    part = list_part(tmp_path / "data", "train", 2)
    batch = part.batch(np.array([1, 0]))
    assert batch["x"].shape == (2, 32, 48, 16)
    assert batch["x"].min() >= 0
    assert batch["x"].max() <= 1
    assert np.array_equal(batch["labels"][0], made[1][1])


def test_what_is_no_snapshot_is_refused_with_file_and_field(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"holds no \.h5 files"):
        list_part(tmp_path, "train", 0)
    file = tmp_path / "data-1.h5"
    with h5py.File(file, "w") as content:
        content["climate/data"] = np.zeros((16, 16, 15), np.float32)
        content["climate/labels_0"] = np.zeros((16, 16), np.int64)
    with pytest.raises(UsageError, match="field 'climate/data': expected floats"):
        read_snapshot(file)
    with h5py.File(file, "w") as content:
        content["climate/data"] = np.zeros((16, 16, 16), np.float32)
        content["climate/labels_0"] = np.full((16, 16), 3)
    with pytest.raises(UsageError, match="expected 0, 1 or 2, found 3"):
        read_snapshot(file)


def test_a_class_that_is_absent_in_both_counts_as_one() -> None:
    labels = np.array([[[0, 0], [1, 1]]])
    counts = baselines.count(np.array([[[0, 0], [1, 0]]]), labels)
    assert counts.tolist() == [[[2, 1, 0], [1, 0, 1], [0, 0, 0]]]
    found = baselines.scores(counts)
    assert found["iou_river"] == 1
    assert found["iou"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)


def test_channels_last_on_a_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="PyTorch crashes in the backward pass"):
        benchmark.run(session(tmp_path, channels_last=True, device="cpu"))
