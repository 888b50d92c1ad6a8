"""The program of the earthquake benchmark, from nothing to a table, on a small made-up catalog."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_once import made_once

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.earthquake.benchmark import LOCATIONS, TOP, run, tuning_split
from fairmile.benchmarks.suite.earthquake.data import load, prepare
from fairmile.benchmarks.suite.earthquake.settings import Settings
from fairmile.benchmarks.suite.earthquake.windows import split

SMALL = {
    "synthetic_years": 6,
    "synthetic_locations": 15,
    "d_model": 8,
    "heads": 2,
    "epochs": 3,
    "batch_size": 64,
    "learning_rate": 1e-2,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return made_once(tmp_path_factory, "earthquake-cache", lambda folder: None)


@pytest.fixture(scope="module")
def trained(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "earthquake", lambda folder: run(session(folder, cache)))


def session(folder: Path, cache: Path, data: Path | None = None, **params: Any) -> Session:
    return Session("earthquake", {**SMALL, **params}, 0, data, folder, cache, False, Ranks())


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def rows(folder: Path) -> dict[str, dict[str, float]]:
    return {row["name"]: row["values"] for row in results(folder)["scores"]}


@pytest.mark.thorough
def test_a_table_holds_all_baselines_and_the_model(trained: Path) -> None:
    kinds = {row["name"]: row["kind"] for row in results(trained)["scores"]}
    assert kinds == {
        "constant mean": "trivial",
        "persistence": "trivial",
        "climatology": "trivial",
        "ridge": "classical",
        "ridge with context": "classical",
        "ridge with context, weighted": "classical",
        "tft": "model",
    }
    for values in rows(trained).values():
        assert {"nnse", "nnse_2wk", "nnse_52wk", "ahead_14wk", "ahead_52wk", "summed_26wk", "skill_14wk"} <= set(values)


@pytest.mark.thorough
def test_a_constant_mean_scores_a_half_and_persistence_has_no_skill(trained: Path) -> None:
    found = rows(trained)
    for name, value in found["constant mean"].items():
        if name.startswith(("nnse", "ahead_1", "ahead_2", "ahead_5", "summed")):
            assert value == pytest.approx(0.5, abs=1e-6), name
    assert {found["persistence"][f"skill_{weeks}wk"] for weeks in (2, 14, 26, 52)} == {0}


@pytest.mark.thorough
def test_the_small_model_is_far_above_the_constant_mean_where_windows_overlap(trained: Path) -> None:
    found = rows(trained)["tft"]
    assert found["nnse"] > 0.65
    assert found["nnse_52wk"] > 0.75


@pytest.mark.thorough
def test_nnse_is_the_mean_of_the_four_targets(trained: Path) -> None:
    for values in rows(trained).values():
        mean = np.mean([values[f"nnse_{weeks}wk"] for weeks in (2, 14, 26, 52)])
        assert values["nnse"] == pytest.approx(mean)


@pytest.mark.thorough
def test_made_up_data_has_neither_target_nor_published_figures(trained: Path) -> None:
    found = results(trained)
    assert found["metric"]["target"] is None
    assert found["published"] == []
    assert "synthetic" in found["data"]


@pytest.mark.thorough
def test_the_notes_tell_what_nnse_is_and_who_wins(trained: Path) -> None:
    notes = " ".join(results(trained)["notes"])
    assert "nnse is the mean over the windows of 2, 14, 26 and 52 weeks" in notes
    assert "tft has the best " in notes or "tft is best in no score; as good or better: " in notes
    assert "chose the epoch" in notes


@pytest.mark.thorough
def test_figures_and_the_top_table_lie_beside_the_results(trained: Path) -> None:
    names = results(trained)["figures"]
    assert {"scores.svg", "attention.svg", "losses.svg", "locations.svg", "map-overlapping.svg"} <= set(names)
    for name in names:
        assert (trained / name).read_text().lstrip().startswith("<?xml")
    lines = (trained / TOP).read_text().splitlines()
    assert lines[0] == "rank,parameter,step,known,average_nnse,summed_nnse"
    assert len(lines) == 21
    averages = [float(line.split(",")[-2]) for line in lines[1:]]
    assert averages == sorted(averages, reverse=True)


@pytest.mark.thorough
def test_the_scores_of_each_place_lie_beside_the_results_and_have_the_average_of_the_table(trained: Path) -> None:
    head, *lines = (line.split(",") for line in (trained / LOCATIONS).read_text().splitlines())
    assert head[:3] == ["latitude", "longitude", "nnse_2wk"]
    assert len(lines) == 3 + 1  # a fifth of 15 locations, and all
    assert lines[-1][:2] == ["all", "all"]
    for place, name in enumerate(head[2:], 2):
        average = np.nanmean([float(line[place]) for line in lines[:-1]])
        assert average == pytest.approx(rows(trained)["tft"][name], abs=1e-5)


@pytest.mark.thorough
def test_inference_with_the_weights_gives_the_same_scores(trained: Path, cache: Path, tmp_path: Path) -> None:
    run(session(tmp_path, cache, work="inference", checkpoint=str(trained / "checkpoint.pt")))
    again, first = rows(tmp_path)["tft"], rows(trained)["tft"]
    assert again == pytest.approx(first, abs=1e-5)


def test_preparing_only_makes_the_data(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(session(tmp_path, cache, work="prepare"))
    said = capsys.readouterr().out
    assert "a synthetic catalog" in said
    assert not (tmp_path / "results.json").exists()
    assert (Path(said.split("prepared in ")[1].strip()) / "target.npy").is_file()


def test_a_model_that_needs_no_training_scores_as_its_baseline_with_the_lead_that_is_asked_for(
    cache: Path, tmp_path: Path
) -> None:
    run(session(tmp_path, cache, model="climatology", context=False, lead="non-overlapping"))
    *_, climatology, _, model = results(tmp_path)["scores"]
    assert (climatology["name"], climatology["kind"], model["kind"]) == ("climatology", "trivial", "model")
    values = model["values"]
    # avg_* of a model is the average of its single fortnights, of a baseline its own forecast of the window.
    shared = {name: value for name, value in values.items() if not name.startswith("avg_")}
    assert shared == pytest.approx({name: climatology["values"][name] for name in shared})
    mean = np.mean([values["nnse_2wk"], values["ahead_14wk"], values["ahead_26wk"], values["ahead_52wk"]])
    assert values["nnse"] == pytest.approx(mean), "the mean over windows that do not overlap"


@pytest.mark.parametrize("kind", ["location", "time"])
def test_what_chooses_the_epoch_shares_nothing_with_what_is_fitted(tmp_path: Path, kind: str) -> None:
    settings = Settings(synthetic_years=10, synthetic_locations=12, split=kind)  # type: ignore[arg-type]
    prepare(None, tmp_path, settings)
    training, validation = split(load(tmp_path), settings)
    fitting, choosing = tuning_split(training, settings)
    if kind == "location":
        assert not set(fitting.locations) & set(choosing.locations)
        assert not set(validation.locations) & (set(fitting.locations) | set(choosing.locations))
        assert len(fitting.locations) + len(choosing.locations) == len(training.locations)
    else:
        last_fitted = fitting.starts.max() + fitting.history + fitting.horizon
        assert last_fitted <= choosing.starts.min() + choosing.history
        assert choosing.starts.max() + choosing.history + choosing.horizon <= validation.starts.min() + 26


def test_bad_settings_are_a_sentence(cache: Path, tmp_path: Path) -> None:
    for params, text in (
        ({"tuning_share": 1.0}, "tuning_share"),
        ({"hide_place": 1.5}, "hide_place: expected at most 1"),
        ({"focus": -1}, "focus: expected at least 0"),
        ({"d_model": 0}, "d_model, heads and lstm_layers"),
        ({"d_model": 9}, "9 cannot be divided among 2 heads"),
        ({"model": "persistence", "work": "inference"}, "needs no weights"),
        ({"model": "gru"}, "'gru' is not one of tft, lstm"),
    ):
        with pytest.raises(UsageError, match=text):
            run(session(tmp_path, cache, **params))


def test_too_few_locations_to_keep_some_apart_is_a_sentence(tmp_path: Path) -> None:
    settings = Settings(synthetic_years=6, synthetic_locations=4)
    prepare(None, tmp_path, settings)
    training, _ = split(load(tmp_path), settings)
    with pytest.raises(UsageError, match="too few to keep some apart"):
        tuning_split(replace(training, locations=training.locations[:1]), settings)
