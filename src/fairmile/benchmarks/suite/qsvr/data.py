"""The tables: diabetes of scikit-learn, learning curves of a study, or a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from fairmile.base.errors import MissingExtra, UsageError
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.benchmarks.harness.classical import can_fit

Array = np.ndarray[Any, Any]
CURVES = Path(__file__).with_name("curves.csv")
_FEWEST = 8


class Table(NamedTuple):
    """Rows of features and a target each."""

    name: str
    features: Array
    target: Array
    about: str


class Split(NamedTuple):
    """Some rows to learn from and others to test on; all scaled as the first ones need it."""

    train: Array
    train_target: Array
    test: Array
    test_target: Array
    scale: float  # of a scaled target, in standard deviations of the whole table


def read_table(path: Path) -> Table:
    """Read a CSV file with a header, whose last column is the target."""
    try:
        with open(path, newline="", encoding="utf-8") as stream:
            header, *lines = csv.reader(stream)
        rows = np.array([[float(each) for each in line] for line in lines if line])
    except (ValueError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: expected a header and rows of numbers, separated by commas ({error})") from error
    if rows.ndim != 2 or rows.shape[1] != len(header) or rows.shape[1] < 2 or len(rows) < _FEWEST:
        raise UsageError(f"{path}: expected at least {_FEWEST} rows of at least 2 columns, found {rows.shape}")
    if not np.isfinite(rows).all():
        raise UsageError(f"{path}: a value is not a finite number")
    return Table(path.stem, rows[:, :-1], rows[:, -1], f"{path.name}, target {header[-1]}")


def diabetes() -> Table:
    """Return the table that comes with scikit-learn."""
    if not can_fit():
        raise MissingExtra("qsvr needs scikit-learn", "benchmarks")
    from sklearn.datasets import load_diabetes

    features, target = load_diabetes(return_X_y=True)
    return Table("diabetes", features, target, "diabetes of scikit-learn (progression after a year)")


def curves(seen_epochs: int) -> Table:
    """Return what the first epochs of a training show, and the accuracy that it ends with."""
    rows = np.loadtxt(CURVES, delimiter=",", skiprows=1)
    most = rows.shape[1] - 1
    if seen_epochs > most:
        raise UsageError(f"parameter seen_epochs: expected at most {most}, found {seen_epochs}")
    return Table("curves", rows[:, :seen_epochs], rows[:, -1], f"final accuracy of {len(rows)} trainings of a study")


def make_split(table: Table, rows: int, seed: int) -> Split:
    """Draw rows to learn from and as many others to test on."""
    if 2 * rows > len(table.target):
        raise UsageError(
            f"parameter rows: expected at most {len(table.target) // 2} for {table.name}, which has "
            f"{len(table.target)} rows, found {rows}"
        )
    chosen = np.random.default_rng(seed).permutation(len(table.target))[: 2 * rows]
    train, test = chosen[:rows], chosen[rows:]
    middle, spread = table.features[train].mean(axis=0), table.features[train].std(axis=0)
    spread[spread == 0] = 1.0
    shift, unit = table.target[train].mean(), table.target[train].std() or 1.0
    return Split(
        (table.features[train] - middle) / spread,
        (table.target[train] - shift) / unit,
        (table.features[test] - middle) / spread,
        (table.target[test] - shift) / unit,
        float(unit / (table.target.std() or 1.0)),
    )
