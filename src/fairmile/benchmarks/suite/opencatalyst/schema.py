"""The form of OC20's files of structures, energies and forces (S2EF)."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

SCHEMA: Schema = {
    "N.extxyz or N.extxyz.xz, one frame for each structure, as published for S2EF": (
        Field("numbers", "int64", ("atoms",), "elements, as symbols in the column species"),
        Field("positions", "float64", ("atoms", 3), "column pos", "Å"),
        Field("cell", "float64", (3, 3), "vectors of the periodic cell, Lattice", "Å"),
        Field("free", "bool", ("atoms",), "column move_mask: atoms that may move; the metric counts their forces"),
        Field("forces", "float64", ("atoms", 3), "column forces", "eV/Å"),
        Field("energy", "float64", (), "energy; N.txt gives the reference that is subtracted", "eV"),
    )
}
