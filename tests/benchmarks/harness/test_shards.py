"""Samples in memory-mapped shards are those that were read, and train the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_task import SmallTask, session

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.shards import read_shards, write_shards
from fairmile.benchmarks.harness.trainer import fit


class Files:
    """Samples of two fields, read one by one."""

    def __init__(self, count: int) -> None:
        self.count, self.reads = count, 0

    def __len__(self) -> int:
        return self.count

    def batch(self, numbers: Any) -> dict[str, Any]:
        self.reads += len(numbers)
        numbers = np.asarray(numbers)
        return {"x": np.repeat(numbers[:, None], 3, 1).astype(np.float16), "y": torch.from_numpy(numbers)}


def test_shards_hold_what_was_read(tmp_path: Path) -> None:
    files = Files(70)
    write_shards(files, tmp_path)
    shards = read_shards(tmp_path)
    batch = shards.batch(np.array([69, 0, 33]))
    assert (len(shards), files.reads) == (70, 70)
    assert batch["y"].tolist() == [69, 0, 33]
    assert batch["x"].dtype == np.float16
    assert isinstance(shards.fields["x"], np.memmap)
    write_shards(files, tmp_path, 5)
    assert len(read_shards(tmp_path)) == 5


def test_samples_without_a_value_each_are_refused(tmp_path: Path) -> None:
    class Graphs(Files):
        def batch(self, numbers: Any) -> dict[str, Any]:
            return {"edges": np.zeros((7, 2))}

    with pytest.raises(UsageError, match=r"no shards: 3 samples have \(7, 2\) values of edges"):
        write_shards(Graphs(3), tmp_path)


def test_a_training_reads_its_shards_and_learns_the_same(tmp_path: Path) -> None:
    weights = []
    for shards in (False, True):
        folder = tmp_path / str(shards)
        folder.mkdir()
        trained = fit(SmallTask(epochs=2, shards=shards, resident=False), session(folder))
        weights.append(torch.cat([each.flatten() for each in trained.model.parameters()]))
    assert torch.equal(*weights)
    counts = sorted(len(np.load(file)) for file in tmp_path.rglob("x.npy"))
    assert counts == [len(SmallTask().validation), len(SmallTask().training)]
