"""Uno from nothing and with the published file: the network beside its baselines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.uno import baselines, benchmark
from fairmile.benchmarks.suite.uno.data import split
from fairmile.benchmarks.suite.uno.models import Uno
from fairmile.benchmarks.suite.uno.screens import Screen
from fairmile.benchmarks.suite.uno.settings import choose
from fairmile.benchmarks.suite.uno.step import build

SMALL = {"cells": 60, "drugs": 40, "genes": 16, "descriptors": 24, "width": 48}


def session(folder: Path, data: Path | None = None, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    return Session.of("uno", environ | ({"FAIRMILE_INPUT_DATA": str(data)} if data else {}), folder)


def results(folder: Path) -> dict:
    content: dict = json.loads((folder / "results.json").read_text())
    return content


def test_it_learns_and_names_its_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(session(tmp_path, **SMALL, tower_layers=1, joint_layers=1, dropout=0, epochs=8, batch_size=32))
    found = results(tmp_path)
    r2 = {each["name"]: each["values"]["r2"] for each in found["scores"]}
    names = ["mean", "cell mean", "drug mean", "drug + cell mean", "ridge", "gradient boosting", "uno"]
    assert list(r2) == names
    assert r2["mean"] == pytest.approx(0, abs=0.02)
    assert r2["drug + cell mean"] > 0.15
    assert r2["uno"] > 0.25
    assert found["metric"]["target"] is None
    assert found["published"] == []
    assert found["figures"] == ["predicted.svg"]
    assert "noise of the wells alone limits R2 to 0." in capsys.readouterr().out


def test_new_drugs_are_harder_than_new_pairs(tmp_path: Path) -> None:
    for how in ("pairs", "drugs"):
        (tmp_path / how).mkdir()
        benchmark.run(
            session(tmp_path / how, **SMALL, split=how, tower_layers=1, joint_layers=1, epochs=1, batch_size=256)
        )
    known, new = (
        {each["name"]: each["values"]["r2"] for each in results(tmp_path / how)["scores"]} for how in ("pairs", "drugs")
    )
    assert new["drug mean"] == pytest.approx(0, abs=0.1), "no drug of the test has a mean"
    assert known["drug mean"] > 0.1
    assert new["ridge"] < known["ridge"]


def test_the_published_rows_choose_the_epoch_and_others_judge(
    tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = np.minimum(np.maximum(np.arange(len(screen.auc)) % 10 - 7, 0), 2).astype(np.int8)
    published = Screen(screen.cells, screen.drugs, screen.cell, screen.drug, screen.auc, part)
    monkeypatch.setattr("fairmile.benchmarks.suite.uno.files.read_screen", lambda _: published)
    (tmp_path / "top_21.h5").write_bytes(b"x")
    benchmark.run(session(tmp_path, tmp_path / "top_21.h5", width=16, epochs=2, batch_size=64))
    found = results(tmp_path)
    assert found["metric"]["target"] == 0.0054
    assert found["published"]
    assert {"mse", "r2", "mae", "corr", "test_mse", "test_r2"} == set(found["scores"][-1]["values"])
    assert found["settings"]["optimizer"] == "adamax"
    assert "rows that chose nothing" in capsys.readouterr().out


def test_the_published_network_has_its_published_size() -> None:
    with torch.device("meta"):
        model = Uno(choose({"preset": "candle"}, has_data=False))
    assert sum(each.numel() for each in model.parameters()) == 16_224_001
    assert build(**SMALL).loss(build(**SMALL).model).shape == ()


def test_a_model_carries_the_scaling_of_what_it_learned_from(screen: Screen) -> None:
    parts = split(screen, "cells", 1)
    settings = choose({"genes": 16, "descriptors": 24, "width": 8}, has_data=False)
    model = Uno(settings, parts)
    seen = screen.cells[np.unique(screen.cell[parts.train])]
    assert model.cell_scaling(torch.as_tensor(seen)).std(0, correction=0).numpy() == pytest.approx(1, abs=1e-3)
    again = Uno(settings)
    again.load_state_dict(model.state_dict())
    pair = torch.as_tensor(screen.cells[:2]), torch.as_tensor(screen.drugs[:2])
    assert torch.equal(again.eval()(*pair), model.eval()(*pair))


def test_scores_are_the_published_ones() -> None:
    auc = np.array([0.2, 0.4, 0.9])
    assert baselines.scores(auc, auc) == {"mse": 0, "mae": 0, "r2": 1, "corr": pytest.approx(1)}
    assert baselines.scores(np.full(3, 0.5), auc)["corr"] == 0
    assert baselines.scores(auc + 0.1, auc)["mae"] == pytest.approx(0.1)


def test_preparing_alone_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(session(tmp_path, **SMALL, work="prepare", split="both"))
    assert "cell lines and drugs never seen in training" in capsys.readouterr().out
    assert not (tmp_path / "results.json").exists()
