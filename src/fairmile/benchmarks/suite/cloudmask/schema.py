"""The form of scenes of Sentinel-3 SLSTR as published for the benchmark."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

SCHEMA: Schema = {
    "S3A*.hdf below folders day and night, one HDF5 file for each scene; those below inference are for the test": (
        Field("refs", "float32", ("rows", "columns", 6), "reflectance of S1 to S6; no signal at night", "1"),
        Field("bts", "float32", ("rows", "columns", 3), "brightness temperature of S7, S8 and S9", "K"),
        Field("bayes", "float32", ("rows", "columns", 1), "Bayesian mask: above 0 is cloud"),
    )
}
