"""OpenCatalyst from nothing, and with files as published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.session import Session
from fairmile.benchmarks.suite.opencatalyst import baselines, benchmark
from fairmile.benchmarks.suite.opencatalyst.files import write_structures
from fairmile.benchmarks.suite.opencatalyst.structures import GraphSamples, Structure, join
from fairmile.benchmarks.suite.opencatalyst.surfaces import make_structures


def session(folder: Path, data: Path | None = None, **params: object) -> Session:
    environ = {"FAIRMILE_PARAMS": json.dumps(params), "FAIRMILE_SEED": "1", "HOME": str(folder)}
    if data is not None:
        environ["FAIRMILE_INPUT_DATA"] = str(data)
    return Session.of("opencatalyst", environ, folder)


def test_it_learns_and_tells_its_baselines(tmp_path: Path) -> None:
    benchmark.run(session(tmp_path, train_samples=32, validation_samples=8, epochs=2, width=16, filters=16))
    results = json.loads((tmp_path / "results.json").read_text())
    scores = {each["kind"]: each["values"]["force_mae"] for each in results["scores"]}
    assert scores["model"] < 1.2 * scores["trivial"]
    assert scores["classical"] < scores["trivial"]
    assert results["metric"]["target"] is None
    assert results["published"] == []
    assert results["figures"] == ["energies.svg"]
    assert "EMT" in results["data"]


def test_published_files_are_learned_with_whole_systems_held_out(tmp_path: Path, structures: list[Structure]) -> None:
    write_structures(tmp_path / "0.extxyz.xz", structures)
    benchmark.run(session(tmp_path, tmp_path, preset="small", epochs=1, batch_size=4, model="dimenet", width=8))
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["metric"]["target"] == 0.036
    assert results["published"]
    trained, held = (int(word) for word in results["data"].split() if word.isdigit())
    assert trained + held == 8
    assert held >= 1


def test_a_structure_is_the_same_each_time() -> None:
    (one,), (other,) = make_structures(5, 1, seed=9), make_structures(5, 1, seed=9)
    assert one.energy == other.energy
    assert np.array_equal(one.positions, other.positions)
    assert not one.free.all()


def test_forces_of_structures_are_the_slope_of_their_energies(structures: list[Structure]) -> None:
    """What is learned is consistent: EMT's own forces sum to zero and balance."""
    for each in structures:
        assert np.abs(each.forces.sum(0)).max() < 1e-8


def test_the_pair_potential_finds_the_forces_of_pairs() -> None:
    """Forces that a sum over pairs explains are found again, and they are the slope of the energy."""
    structures = list(make_structures(0, 24, seed=1))
    samples = GraphSamples(join(structures, 4.5, 0))
    potential = baselines.PairPotential.fit(samples, 4.5, 24)
    batch = samples.batch(np.arange(2))
    _, forces = potential.predict(batch)
    energies = []
    for way in (1e-3, -1e-3):
        moved = batch["positions"].astype(float)
        moved[3, 1] += way
        energies.append(potential.predict({**batch, "positions": moved})[0].sum())
    assert -(energies[0] - energies[1]) / 2e-3 == pytest.approx(forces[3, 1], rel=1e-3)


def test_compiling_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot differentiate them again"):
        benchmark.run(session(tmp_path, compile=True))
