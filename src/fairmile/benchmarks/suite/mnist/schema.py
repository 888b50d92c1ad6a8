"""The form of MNIST's data."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

SCHEMA: Schema = {
    "mnist.npz, or four IDX files of the same arrays": (
        Field("x_train", "uint8", ("train", "side", "side"), "images to learn from, 28 x 28 grey pixels"),
        Field("y_train", "uint8", ("train",), "their digits, 0 to 9"),
        Field("x_test", "uint8", ("test", "side", "side"), "images to test with"),
        Field("y_test", "uint8", ("test",), "their digits"),
    )
}
