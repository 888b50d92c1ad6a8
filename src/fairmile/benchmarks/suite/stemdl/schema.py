"""The form of StemDL's preprocessed files."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

SCHEMA: Schema = {
    "N.npz, one for each sample, below train… and val…": (
        Field("data", "float32", (3, "side", "side"), "patterns of three projections, 10 (max(-17, ln I) + 17)"),
        Field("label", "int64", (1,), "number of the space group, 1 to 230"),
    )
}
