"""The validation data of a benchmark: opened by its own program, scored for any function in place of the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmile.benchmarks.harness.validation import Array, open_validation
from fairmile.benchmarks.program import SUITE


def test_a_function_in_place_of_the_model_gets_its_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"HOME": str(tmp_path)}
    params = {"rows": 300, "train_share": 0.5, "hidden": 8}
    validation = open_validation(str(SUITE / "sgemm"), params, "", 0, environ)
    assert {name: each.shape for name, each in validation.inputs.items()} == {"settings": (99, 14)}
    model, (example,) = validation.build()
    assert model(example).shape == (99,)

    def compute(arrays: Mapping[str, Array]) -> list[Array]:
        with torch.no_grad():
            return [model(torch.from_numpy(arrays["settings"])).numpy()]

    def wrong(arrays: Mapping[str, Array]) -> list[Array]:
        return [np.full(len(arrays["settings"]), 9.0, np.float32)]

    assert set(validation.scores(compute)) == {"r2", "rmse_ln", "mae_ms", "slowdown_of_choice"}
    assert validation.scores(wrong)["r2"] < validation.scores(compute)["r2"]
    assert capsys.readouterr().out == ""
