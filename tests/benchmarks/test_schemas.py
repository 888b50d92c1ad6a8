"""Small data that a benchmark makes has the form that it declares."""

from __future__ import annotations

import csv
from pathlib import Path

import h5py
import numpy as np
from cases import for_each

from fairmile.benchmarks import program
from fairmile.benchmarks.harness.schema import Field, differences
from fairmile.benchmarks.suite.cloudmask.scenes import make_scene
from fairmile.benchmarks.suite.cosmoflow.files import Universe, write_cube, write_universe
from fairmile.benchmarks.suite.cosmoflow.universes import Generator
from fairmile.benchmarks.suite.deepcam.climate import make_snapshot
from fairmile.benchmarks.suite.deepcam.files import write_snapshots
from fairmile.benchmarks.suite.earthquake.events import write_events
from fairmile.benchmarks.suite.earthquake.synthetic import make_catalog
from fairmile.benchmarks.suite.miniweather.surrogate import CellSamples
from fairmile.benchmarks.suite.mnist.data import made_digits
from fairmile.benchmarks.suite.opencatalyst.surfaces import make_structures
from fairmile.benchmarks.suite.sgemm.data import COLUMNS, make_table
from fairmile.benchmarks.suite.stemdl.data import make_data
from fairmile.benchmarks.suite.stemdl.settings import Settings as StemSettings
from fairmile.benchmarks.suite.uno.screens import make_screen


def declared(name: str, number: int = 0) -> list[Field]:
    return list(list(program.load(program.folder_of(name), "schema").SCHEMA.values())[number])


def arrays(file: Path) -> dict[str, np.ndarray]:
    with h5py.File(file) as found:
        return {name: each[()] for name, each in found.items()}


def arrays_of_group(file: Path) -> dict[str, np.ndarray]:
    with h5py.File(file) as found:
        return {name: each[()] for name, each in found["climate"].items()}


@for_each("name", program.names())
def test_every_benchmark_declares_the_form_of_its_data(name: str) -> None:
    fields = declared(name)
    assert fields
    assert all(field.meaning for field in fields)


def test_digits_have_the_form_of_mnist() -> None:
    made = made_digits()
    found = {"x_train": made.train_images, "y_train": made.train_labels}
    found |= {"x_test": made.test_images, "y_test": made.test_labels}
    assert differences(declared("mnist"), found) == []


def test_a_made_up_catalog_has_the_form_of_a_real_one(tmp_path: Path) -> None:
    write_events(tmp_path / "events.csv", make_catalog(1, seed=3).events)
    with open(tmp_path / "events.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    read = {name: array if name == "time_utc" else array.astype(float) for name, array in found.items()}
    assert differences(declared("earthquake"), read) == []


def test_made_scenes_have_the_published_form() -> None:
    made = vars(make_scene(0, 8, seed=1))
    assert differences(declared("cloudmask"), made) == []


def test_made_snapshots_have_the_published_form(tmp_path: Path) -> None:
    write_snapshots(tmp_path, {"train": [make_snapshot(0, 32, seed=1)]})
    (file,) = (tmp_path / "train").iterdir()
    found = {f"climate/{name}": each for name, each in arrays_of_group(file).items()}
    assert differences(declared("deepcam"), found) == []
    bounds = {f"climate/{name}": each for name, each in arrays_of_group(tmp_path / "stats.h5").items()}
    assert differences(declared("deepcam", 1), bounds) == []


def test_made_universes_have_the_published_form(tmp_path: Path) -> None:
    generator = Generator(8, 8.0, 1)
    counts, unit = generator.make(np.arange(1))
    full = np.ascontiguousarray(np.moveaxis(counts[0], 0, -1)) if counts.shape[1] == 4 else counts[0]
    write_universe(tmp_path / "universe.h5", Universe(full, unit[0], 1))
    assert differences(declared("cosmoflow", 1), arrays(tmp_path / "universe.h5")) == []
    write_cube(tmp_path / "cube.hdf5", full, unit[0])
    assert differences(declared("cosmoflow", 0), arrays(tmp_path / "cube.hdf5")) == []


def test_made_structures_have_the_form_of_oc20() -> None:
    (made,) = make_structures(0, 1, seed=1)
    names = "numbers positions cell free forces energy"
    arrays_of = {name: np.asarray(getattr(made, name)) for name in names.split()}
    assert differences(declared("opencatalyst"), arrays_of) == []


def test_sampled_cells_have_the_published_form(tmp_path: Path) -> None:
    CellSamples(np.ones((3, 5, 2)), np.ones((3, 4))).write(tmp_path / "samples.h5")
    assert differences(declared("miniweather"), arrays(tmp_path / "samples.h5")) == []


def test_generated_kernels_have_the_form_of_the_published_table() -> None:
    table = make_table(1, rows=5)
    columns = [*table.settings.astype(np.int64).T, *table.times_ms.T]
    assert differences(declared("sgemm"), dict(zip(COLUMNS, columns, strict=True))) == []


def test_generated_patterns_have_the_form_of_published_files() -> None:
    made = make_data(StemSettings(crystals=8, test_crystals=8, views=1, pixels=16)).training.batch([0])
    assert differences(declared("stemdl"), {"data": made["patterns"][0], "label": made["group"]}) == []


def test_a_generated_screen_has_the_form_of_the_published_rows() -> None:
    made = make_screen(1, cells=10, drugs=10, genes=4, descriptors=6)
    found = {"x_train_0": made.cells[made.cell], "x_train_1": made.drugs[made.drug], "AUC": made.auc}
    found |= {"Sample": made.cell.astype("S"), "Drug1": made.drug.astype("S")}
    assert differences(declared("uno"), found) == []


def test_what_is_not_as_declared_is_told() -> None:
    fields = [
        Field("x", "int16", ("n", "n"), "cells"),
        Field("y", "float32", ("n",), "rows"),
        Field("z", "text", (), ""),
    ]
    given = {"x": np.zeros((3, 4), np.int16), "y": np.zeros((3, 1))}
    assert differences(fields, given) == [
        "x: expected int16 (n, n), found (3, 4)",
        "y: expected float32, found float64",
        "y: expected float32 (n,), found (3, 1)",
        "z is missing",
    ]
