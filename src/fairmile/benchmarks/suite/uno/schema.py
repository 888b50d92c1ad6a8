"""The form of Uno's pre-staged file."""

from __future__ import annotations

from fairmile.benchmarks.harness.schema import Field, Schema

SCHEMA: Schema = {
    "top_21_auc_1fold.uno.h5: tables of pandas, for each of train, val and test": (
        Field("x_train_0", "float32", ("pair", "genes"), "expression of the cell line, scaled"),
        Field("x_train_1", "float32", ("pair", "descriptors"), "molecular descriptors of the drug, scaled"),
        Field("AUC", "float32", ("pair",), "table y_train: area below the dose-response curve, as a share of the most"),
        Field("Sample", "text", ("pair",), "table y_train: name of the cell line"),
        Field("Drug1", "text", ("pair",), "table y_train: name of the drug"),
    )
}
