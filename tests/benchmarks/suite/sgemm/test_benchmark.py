"""SGEMM from nothing: the network learns what a linear model cannot, beside its baselines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.sgemm import baselines, benchmark
from fairmile.benchmarks.suite.sgemm.data import COLUMNS, make_table, split
from fairmile.benchmarks.suite.sgemm.models import TimeModel
from fairmile.benchmarks.suite.sgemm.settings import Settings
from fairmile.models.formats import recognise


def session(folder: Path, data: Path | None = None, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    return Session.of("sgemm", environ | ({"FAIRMILE_INPUT_DATA": str(data)} if data else {}), folder)


def results(folder: Path) -> dict:
    content: dict = json.loads((folder / "results.json").read_text())
    return content


def test_it_learns_and_names_its_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(session(tmp_path, rows=1200, train_share=0.6, epochs=10, batch_size=64, hidden=32))
    found = results(tmp_path)
    r2 = {each["name"]: each["values"]["r2"] for each in found["scores"]}
    assert list(r2) == ["mean", "linear", "decision tree", "gradient boosting", "extra trees", "mlp"]
    assert [each["kind"] for each in found["scores"]] == ["trivial", *["classical"] * 4, "model"]
    assert r2["mean"] == pytest.approx(0, abs=0.01)
    assert r2["linear"] < 0.7 < 0.85 < r2["mlp"]
    assert found["metric"]["target"] is None
    assert found["published"] == []
    assert found["figures"] == ["predicted.svg"]
    assert "synthetic target, for generated data only: r2 0.997, not met" in capsys.readouterr().out


def test_the_published_target_stands_beside_the_published_table_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = make_table(1, rows=400)
    rows = np.c_[table.settings, table.times_ms.round(2)]
    np.savetxt(tmp_path / "sgemm_product.csv", rows, "%g", ",", header=",".join(COLUMNS), comments="")
    benchmark.run(session(tmp_path, tmp_path / "sgemm_product.csv", work="prepare"))
    assert "sgemm_product.csv: 268 kernels to learn from, 132 to test" in capsys.readouterr().out

    def targets(is_real: bool, hold_out: str = "") -> tuple[float | None, float | None]:
        settings = Settings(train_share=0.1, hold_out=hold_out)
        metric = benchmark.Prediction(settings, split(table, 0.1, hold_out, 1), is_real).metric
        return metric.target, metric.synthetic_target

    assert targets(is_real=True) == (0.99, None)
    assert targets(is_real=False) == (None, 0.997)
    assert targets(is_real=True, hold_out="KWG=32") == (None, None)


def test_preparing_alone_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(session(tmp_path, work="prepare", rows=100))
    assert "10 kernels to learn from, 33 to test (a random third)" in capsys.readouterr().out
    assert not (tmp_path / "results.json").exists()


@pytest.mark.thorough
def test_fitted_trees_can_be_kept_as_skops_files_that_need_no_trust(tmp_path: Path) -> None:
    benchmark.run(session(tmp_path, rows=300, train_share=0.6, epochs=1, save_trees=True))
    for name in ("decision-tree", "gradient-boosting", "extra-trees"):
        described = recognise(tmp_path / f"{name}.skops")
        assert (described.format, described.runs_code) == ("skops", False)
    assert np.load(tmp_path / "rows.npy").shape == (99, 14)


def test_scores_are_on_both_scales() -> None:
    true = np.log([10.0, 20.0, 40.0])
    scores = baselines.scores(np.log([10.0, 9.0, 40.0]), true)
    assert scores["mae_ms"] == pytest.approx(11 / 3)
    assert scores["slowdown_of_choice"] == pytest.approx(2.0)
    assert baselines.scores(true, true)["r2"] == 1


def test_the_scaling_is_part_of_the_model() -> None:
    table = make_table(1, rows=200)
    model = TimeModel(Settings(), table.settings, np.log(table.mean_ms))
    assert sum(each.numel() for each in model.parameters()) == 14 * 128 + 128 + 2 * (128 * 128 + 128) + 128 + 1
    assert model(torch.as_tensor(table.settings, dtype=torch.float32)).mean().item() == pytest.approx(
        np.log(table.mean_ms).mean(), abs=0.5
    )
    again = TimeModel(Settings())
    again.load_state_dict(model.state_dict())
    kernel = torch.as_tensor(table.settings[:1], dtype=torch.float32)
    assert torch.equal(again(kernel), model(kernel))
