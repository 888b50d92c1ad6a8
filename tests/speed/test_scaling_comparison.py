"""Predictions beside published tables: the bars hold, with every row counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scaling_accuracy.comparison import (
    Compared,
    compare_epochs,
    compare_megatron_memory,
    compare_megatron_times,
    split_runs,
    summarise,
)
from scaling_accuracy.epochs import find_pairs
from scaling_accuracy.published import read_megatron, read_mlperf_hpc, read_vtrain

from fairmile.base.errors import UsageError

SHARED = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SCRIPT = Path(__file__).parents[2] / "speed" / "accuracy_scaling.py"


def _table(name: str) -> Path:
    path = SHARED / "perf" / name
    if not path.is_file():
        pytest.skip(f"the published table is not here: {path}")
    return path


def test_errors_are_relative_and_all_rows_count() -> None:
    rows = [Compared(str(number), 1.0 + number / 100, 1.0) for number in range(1, 11)]
    rows[0] = Compared("low", 0.5, 1.0)
    summary = summarise(rows)
    assert (summary.rows, summary.worst) == (10, pytest.approx(0.5))
    assert summary.mean == pytest.approx((0.5 + sum(range(2, 11)) / 100) / 10)
    assert summary.median == pytest.approx(0.065)
    assert rows[0].error == -0.5
    with pytest.raises(UsageError, match="nothing to summarise"):
        summarise([])


def test_twenty_runs_on_many_nodes_predict_the_others_within_eight_percent() -> None:
    runs = read_vtrain(_table("vtrain_ground_truth_multi.csv"), recompute="full")
    splits = [summarise(split_runs(runs, 20, seed)) for seed in range(10)]
    assert all(each.rows == len(runs) - 20 for each in splits)
    assert sum(each.mean for each in splits) / len(splits) <= 0.08
    assert max(each.median for each in splits) <= 0.08


def test_twenty_runs_on_one_node_predict_the_others_within_eight_percent() -> None:
    runs = read_vtrain(_table("vtrain_ground_truth_single.csv"), recompute="none")
    splits = [summarise(split_runs(runs, 20, seed)) for seed in range(3)]
    assert sum(each.mean for each in splits) / len(splits) <= 0.08


def test_megatron_is_met_in_time_and_memory() -> None:
    rows = read_megatron(_table("megatron_korthikanti2022.csv"))
    times = summarise(compare_megatron_times(rows))
    assert times.rows == sum(row.iteration_time_s is not None for row in rows)
    assert times.mean <= 0.035 and times.worst <= 0.10
    memory = summarise(compare_megatron_memory(rows))
    assert memory.mean <= 0.02 and memory.worst <= 0.10


def test_epochs_at_the_larger_scale_are_met_by_nine_tenths_on_average() -> None:
    pairs = find_pairs(read_mlperf_hpc(_table("mlperf_hpc_summary.csv")))
    rows = compare_epochs(pairs)
    assert len(rows) == len(pairs) >= 5
    assert 1 - summarise(rows).mean >= 0.90


def test_a_folder_without_tables_is_told_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "gpu_h200_training.csv" in done.stderr
    assert "Traceback" not in done.stderr
