"""The form of the snapshots of DeepCAM, as published."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema
from fairmile.benchmarks.suite.deepcam.climate import FIELDS

SCHEMA: Schema = {
    "train/ and validation/, one HDF5 file data-*.h5 for each snapshot": (
        Field("climate/data", "float32", ("rows", "columns", 16), ", ".join(FIELDS)),
        Field(
            "climate/labels_0", "int64", ("rows", "columns"), "0 background, 1 tropical cyclone, 2 atmospheric river"
        ),
    ),
    "stats.h5, beside or above them": (
        Field("climate/minval", "float32", (16,), "least value of each field in the training part"),
        Field("climate/maxval", "float32", (16,), "largest value of each field in the training part"),
    ),
}
