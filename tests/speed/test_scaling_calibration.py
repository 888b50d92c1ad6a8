"""Constants of a machine are found again from runs."""

from __future__ import annotations

import random

import pytest
from scaling_accuracy.calibration import TransformerRun, calibrate
from scaling_accuracy.comparison import compare_runs, split_runs, summarise

from fairmile.base.errors import UsageError
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.memory.sharding import Layout
from fairmile.predict.scaling.transformer import Constants, TransformerModel


def _made_up_runs(constants: Constants, scatter: float) -> list[TransformerRun]:
    model, drawn = TransformerModel(constants), random.Random(3)
    runs = []
    for number in range(60):
        hidden = drawn.choice([2048, 4096, 8192])
        shape = Transformer(
            batch=1,
            layers=drawn.choice([24, 48]),
            hidden=hidden,
            heads=32,
            seq=2048,
            vocab=51200,
            attention="math",
            precision="pure_bf16",
        )
        layout = Layout(
            data=drawn.choice([2, 8, 16]),
            tensor=drawn.choice([1, 2, 4, 8]),
            pipeline=drawn.choice([1, 2, 4]),
            micro_batch=drawn.choice([1, 2, 4, 8]),
            micro_batches=drawn.choice([4, 8, 16]),
            recompute="full",
        )
        time_s = model.step(shape, layout).step_time_s * (1 + drawn.uniform(-scatter, scatter))
        runs.append(TransformerRun(shape, layout, time_s, str(number)))
    return runs


def test_twenty_runs_calibrate_a_machine_that_is_far_from_usual() -> None:
    truth = Constants(
        matrix_efficiency=0.6, memory_bytes_per_s=0.8e12, link_bytes_per_s=150e9, node_bytes_per_s=40e9, kernel_s=1e-5
    )
    runs = _made_up_runs(truth, scatter=0.03)
    before = summarise(compare_runs(runs, Constants()))
    after = [summarise(split_runs(runs, 20, seed)).mean for seed in range(3)]
    assert before.mean > 0.25
    assert sum(after) / len(after) < 0.05


def test_calibration_needs_a_run() -> None:
    with pytest.raises(UsageError, match="no run to calibrate"):
        calibrate([])
    with pytest.raises(UsageError, match="3 of 3 runs"):
        split_runs(_made_up_runs(Constants(), 0.0)[:3], 3, 0)
