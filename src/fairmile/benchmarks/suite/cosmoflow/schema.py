"""The form of universes and of the cubes that are cut from them, as published."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

_UNIT = "Ω_m, σ_8, n_s, H_0 scaled to -1 … 1: ±30 % around 0.30, 0.80, 0.96, 70"

SCHEMA: Schema = {
    "train/ and validation/, one HDF5 or TFRecord file for each cube": (
        Field("x", "int16", ("n", "n", "n", 4), "particles in each cell, redshifts last; n is 128"),
        Field("y", "float32", (4,), _UNIT),
    ),
    "one HDF5 file for each whole universe": (
        Field("full", "int16", ("n", "n", "n", 4), "particles in each cell, redshifts last; n is 512"),
        Field("unitPar", "float32", (4,), _UNIT),
        Field("physPar", "float32", (4,), "the same as they are"),
        Field("namePar", "text", (4,), "their names"),
        Field("redshifts", "float32", (4,), "3, 1.5, 0.5 and 0, in any order"),
    ),
}
