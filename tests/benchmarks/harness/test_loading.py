"""Ways to feed a training are measured in turns on its own step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_task import SmallTask, session

from fairmile.base.errors import RunFailed
from fairmile.benchmarks.harness import checkpoints, loading
from fairmile.benchmarks.harness.samples import ArraySamples
from fairmile.benchmarks.harness.session import Finished
from fairmile.benchmarks.harness.trainer import fit
from fairmile.benchmarks.loaders import read_choice
from fairmile.workspace import Workspace


def test_all_ways_are_measured_and_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(loading, "_ROUND_S", 0.002)
    task = SmallTask(work="loaders")
    points = task.training
    task.training = ArraySamples({"x": points.x, "y": points.y})  # type: ignore[assignment]
    with pytest.raises(Finished):
        fit(task, session(tmp_path))
    measured = json.loads((tmp_path / loading.FILE).read_text())
    names = ["when needed", "1 thread", "2 threads", "memory-mapped shards, 1 thread", "on the device"]
    assert [row["name"] for row in measured["ways"]] == names
    assert measured["ways"][3]["settings"] == "resident=false workers=1 shards=true"
    assert list((tmp_path / ".cache").rglob("*.npy")) == []
    assert all(row["step_s"] > 0 and row["wait_share"] >= 0 for row in measured["ways"])
    answer = measured["answer"]
    assert len(answer["others"]) == 4
    for each in answer["others"]:
        assert each["low"] <= each["ratio"] <= each["high"]
        assert (each["low"] <= 1) == (each["name"] in answer["cannot_tell"])
    assert "DALI" in measured["left_out"]
    assert all(row["lossless"] for row in measured["compression"]["methods"])
    assert not (tmp_path / checkpoints.FILE).exists()
    assert not (tmp_path / "mllog.txt").exists()


def test_data_that_cannot_live_on_the_device_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_ROUND_S", 0.001)
    with pytest.raises(Finished):
        fit(SmallTask(work="loaders"), session(tmp_path))
    measured = json.loads((tmp_path / loading.FILE).read_text())
    assert "cannot keep it there" in measured["left_out"]["on the device"]


def test_a_byte_shuffle_makes_slowly_changing_numbers_smaller():
    values = np.cumsum(np.random.default_rng(0).normal(size=50_000)).astype(np.float32)
    plain, shuffled = (
        loading._compressed("zlib 1", loading._methods()["zlib 1"], [values], each) for each in (False, True)
    )
    assert shuffled["ratio"] > 1.1 * plain["ratio"] > 1.0
    assert shuffled["name"] == "zlib 1 after a byte shuffle"


def test_a_run_that_measured_nothing_is_named(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "FAIRMILE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    run = Workspace.open(environ=environ, cwd=tmp_path).runs.run(["true"])
    with pytest.raises(RunFailed, match=f"run {run.id} measured no loaders"):
        read_choice(run)
