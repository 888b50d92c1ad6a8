"""MiniWeather as a whole, small: every step, its files, what is reported, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from fairmile.base.errors import NotFound, RunFailed, UsageError
from fairmile.benchmarks.harness import figures as harness_figures
from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.miniweather import benchmark
from fairmile.benchmarks.suite.miniweather.settings import STEPS, Settings

SMALL = {"nx": 40, "nz": 20, "duration_s": 100.0, "storm_s": 700.0, "output_s": 70.0, "physics_steps": 3}
SMALL |= {"samples": 24_000, "epochs": 30, "batch_size": 512, "evaluate_every": 10, "save_every": 0, "device": "cpu"}


def a_session(folder: Path, data: Path | None = None, **params: Any) -> Session:
    return Session("miniweather", {**SMALL, **params}, 0, data, folder, folder / "cache", False, Ranks())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one whole run."""
    folder = tmp_path_factory.mktemp("whole")
    benchmark.run(a_session(folder))
    return folder


def scores_in(folder: Path) -> dict[str, dict[str, float]]:
    found = json.loads((folder / "results.json").read_text())
    return {each["kind"]: each["values"] for each in found["scores"]}


@pytest.mark.thorough
def test_the_network_beats_no_change_and_the_linear_map_outside_and_inside_the_storm(done: Path) -> None:
    scores = scores_in(done)

    assert scores["model"]["mse"] < 0.5 * scores["classical"]["mse"] < 0.5 * scores["trivial"]["mse"]
    for name in ("temperature", "vapour", "cloud", "rain"):
        assert scores["model"][f"skill_{name}"] > 0.7
    for name in ("theta", "wind", "cloud", "rain"):
        assert scores["model"][f"error_{name}"] < 0.5 * scores["trivial"][f"error_{name}"]
        assert scores["model"][f"error_{name}"] < 0.7 * scores["classical"][f"error_{name}"]
    assert abs(scores["model"]["water_drift"]) < 1e-13


def test_what_is_reported_claims_no_published_figure(done: Path) -> None:
    found = json.loads((done / "results.json").read_text())

    assert found["metric"]["target"] is None and found["published"] == []
    assert any("no published figure applies" in note for note in found["notes"])
    assert set(found["figures"]) == {"dry.svg", "storm.svg", "error.svg"}
    assert all((done / name).read_text().startswith("<?xml") for name in found["figures"])


def test_every_step_left_what_it_hands_on(done: Path) -> None:
    for step in STEPS.values():
        assert all((done / name).is_file() for name in step.gives)
    with h5py.File(done / "dry.h5") as file:
        assert file["dens"].shape[1:] == (40, 20)
        assert {"dens", "uwnd", "wwnd", "theta"} < set(file)
        assert file.attrs["case"] == "thermal" and abs(file.attrs["mass_change"]) < 1e-13
        assert {"nx", "nz", "courant", "kernel", "seed", "duration_s"} < set(file.attrs)
    with h5py.File(done / "samples.h5") as file:
        assert file["inputs"].shape[1:] == (5, 2) and file["outputs"].dtype == np.float32


def test_a_step_alone_takes_files_of_those_before_it_as_inputs(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dry.h5", "storm.h5", "surrogate.npz", "hybrid.h5"):
        monkeypatch.setenv(f"FAIRMILE_INPUT_{name.replace('.', '_').upper()}", str(done / name))
    monkeypatch.setattr(harness_figures, "can_draw", lambda: False)

    benchmark.run(a_session(tmp_path, step="compare"))

    assert scores_in(tmp_path) == scores_in(done)
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["figures"] == [] and "No figures, because matplotlib is not installed." in found["notes"]


def test_a_step_without_its_files_says_which_step_makes_them(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"step sample needs members\.h5, which step simulate makes"):
        benchmark.run(a_session(tmp_path, step="sample"))


def test_given_samples_are_only_learned_from(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.run(a_session(tmp_path, data=done / "samples.h5", epochs=1))

    found = json.loads((tmp_path / "results.json").read_text())
    assert found["metric"]["target"] == 1.6e-7 and found["published"]
    assert "samples of samples.h5" in capsys.readouterr().out
    assert not (tmp_path / "storm.h5").exists()


@pytest.mark.thorough
def test_a_surrogate_that_breaks_the_storm_is_a_result_with_a_note(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with np.load(done / "surrogate.npz") as archive:
        parts = dict(archive)
    parts["mlp.weight1"] = parts["mlp.weight1"] * np.float32("nan")
    np.savez(tmp_path / "surrogate.npz", **parts)
    monkeypatch.setenv("FAIRMILE_INPUT_DRY_H5", str(done / "dry.h5"))
    monkeypatch.setenv("FAIRMILE_INPUT_STORM_H5", str(done / "storm.h5"))
    monkeypatch.setattr(harness_figures, "can_draw", lambda: False)

    for step in ("hybrid", "compare"):
        benchmark.run(a_session(tmp_path, step=step))

    found = json.loads((tmp_path / "results.json").read_text())
    assert any(
        "With mlp in place of Kessler's microphysics the moist simulation broke down" in n for n in found["notes"]
    )
    assert "error_cloud" not in scores_in(tmp_path)["model"]


def test_a_time_step_that_is_too_long_fails_with_time_and_field(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"broke down by [\d.]+ s: density"):
        benchmark.run(a_session(tmp_path, step="simulate", courant=8.0, duration_s=1000.0))
    assert not (tmp_path / "dry.h5").exists()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"case": "termal"}, "parameter case: 'termal' is not one of thermal"),
        ({"step": "smaple"}, "parameter step: 'smaple' is not one of"),
        ({"physics_steps": 0}, "parameter physics_steps: expected at least 1, found 0"),
        ({"courant": -1.0}, "parameter courant: expected more than 0"),
        ({"nx": 2}, "parameter nx: expected at least 4, found 2"),
        ({"duration_s": -1.0}, "parameter duration_s: expected at least 0, found -1"),
        ({"storm_s": 10.0}, "parameter storm_s: in 10 s microphysics is called 2 times, expected at least 4"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        benchmark.run(a_session(tmp_path, **params))


def test_steps_name_parameters_that_there_are() -> None:
    known = set(Settings.__dataclass_fields__)

    assert all(set(step.params or ()) <= known for step in STEPS.values())
