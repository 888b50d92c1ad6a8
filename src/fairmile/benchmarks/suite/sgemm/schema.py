"""The form of SGEMM's table."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema
from fairmile.benchmarks.suite.sgemm.data import COLUMNS
from fairmile.benchmarks.suite.sgemm.kernels import PARAMETERS, VALUES

SCHEMA: Schema = {
    "sgemm_product.csv, or the archive that holds it": (
        *(
            Field(name, "int64", ("row",), f"parameter of the kernel: {', '.join(map(str, VALUES[name]))}")
            for name in PARAMETERS
        ),
        *(
            Field(name, "float64", ("row",), "run time of a product of 2048 x 2048 matrices", "ms")
            for name in COLUMNS[len(PARAMETERS) :]
        ),
    )
}
