"""MNIST from nothing: it learns, beside its baselines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.mnist import benchmark
from fairmile.benchmarks.suite.mnist.models import make_model
from fairmile.benchmarks.suite.mnist.settings import Settings


def session(folder: Path, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    return Session.of("mnist", environ, folder)


def test_the_reference_network_has_as_many_parameters_as_its_card_says() -> None:
    model = make_model(Settings(), 28)
    assert sum(each.numel() for each in model.parameters()) == 101_770


def test_every_network_takes_images_of_either_size() -> None:
    for side in (8, 28):
        images = torch.rand(2, side, side)
        for name, shape in {"cnn": (2, 10), "lstm": (2, 10), "autoencoder": (2, side, side)}.items():
            assert make_model(Settings(model=name), side)(images).shape == shape


def test_a_recurrent_network_reads_rows_in_their_order() -> None:
    torch.manual_seed(1)
    model, images = make_model(Settings(model="lstm"), 8).eval(), torch.rand(2, 8, 8)
    assert not torch.allclose(model(images), model(images.flip(1)), atol=1e-3)


@pytest.mark.parametrize(("model", "epochs"), [("lstm", 8), ("autoencoder", 15)])
def test_other_models_beat_what_is_trivial(tmp_path: Path, model: str, epochs: int) -> None:
    benchmark.run(session(tmp_path, model=model, epochs=epochs, learning_rate=5e-3, evaluate_every=100, threads=1))
    found = json.loads((tmp_path / "results.json").read_text())
    metric = found["metric"]["name"]
    scores = {each["kind"]: each["values"][metric] for each in found["scores"]}
    if model == "lstm":
        assert scores["model"] > 0.7 > scores["trivial"]
        assert found["figures"] == ["confusion.svg", "misread.svg"]
    else:
        assert scores["classical"] < 0.5 * scores["trivial"]
        assert scores["model"] < 0.7 * scores["trivial"]
        assert found["figures"] == ["restored.svg"]


def test_it_learns_the_digits_and_tells_its_baselines(tmp_path: Path) -> None:
    benchmark.run(session(tmp_path, epochs=6, learning_rate=5e-3))
    found = json.loads((tmp_path / "results.json").read_text())
    scores = {each["kind"]: each["values"]["accuracy"] for each in found["scores"]}
    assert scores["trivial"] == pytest.approx(0.1, abs=0.02)
    assert scores["classical"] > 0.95
    assert scores["model"] > 0.85
    assert found["metric"]["target"] is None
    assert found["published"] == []
    assert found["figures"] == ["confusion.svg", "misread.svg"]
    assert (tmp_path / "confusion.svg").read_text().startswith("<?xml")


@pytest.mark.thorough
def test_weights_of_one_run_predict_in_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    benchmark.run(session(tmp_path / "a", epochs=1))
    weights = str(tmp_path / "a" / "checkpoint.pt")
    benchmark.run(session(tmp_path / "b", work="inference", checkpoint=weights))
    scores = [json.loads((tmp_path / each / "results.json").read_text())["scores"][-1]["values"] for each in "ab"]
    assert scores[0]["accuracy"] == scores[1]["accuracy"]


def test_preparing_alone_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(session(tmp_path, work="prepare"))
    assert "1,437 to learn from, 360 to test" in capsys.readouterr().out
    assert not (tmp_path / "results.json").exists()
