"""The form of the samples of microphysics, as published."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

_CELL = "temperature in K, then dry air, vapour, cloud and rain in kg/m³"

SCHEMA: Schema = {
    "HDF5 or NetCDF": (
        Field("inputs", "float32", ("samples", 5, 2), f"{_CELL}, of a cell and of the one above it, before a step"),
        Field("outputs", "float32", ("samples", 4), "temperature, vapour, cloud and rain of the cell after it"),
    )
}
