"""The form of a table for QSVR."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

SCHEMA: Schema = {
    "a CSV file with a header": (
        Field("any name", "float64", ("row",), "a feature; as many columns as there are"),
        Field("last column", "float64", ("row",), "the target"),
    )
}
