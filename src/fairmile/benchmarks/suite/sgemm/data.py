"""Kernels and their run times: the published table, or times by a model of the GPU; and what of it is for the test."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.base.words import did_you_mean
from fairmile.benchmarks.suite.sgemm.kernels import PARAMETERS, RUNS, VALUES, all_settings, model_times

Array = np.ndarray[Any, Any]
TEST_SHARE = 0.33
COLUMNS = (*PARAMETERS, *(f"Run{run} (ms)" for run in range(1, RUNS + 1)))
_TABLE = "sgemm_product.csv"


@dataclass(frozen=True)
class Table:
    """Kernels (rows, 14) and their measured times (rows, 4) in milliseconds."""

    settings: Array
    times_ms: Array

    @property
    def mean_ms(self) -> Array:
        """The mean of the four runs, which is what is predicted."""
        return np.asarray(self.times_ms.mean(1))


@dataclass(frozen=True)
class Parts:
    """What is learned from and what is tested with, as raw parameters and the logarithm of the mean time."""

    train: Array
    train_ln: Array
    test: Array
    test_ln: Array
    words: str


def make_table(seed: int, rows: int = 0) -> Table:
    """Return all kernels, or some, with times by the model of the GPU."""
    settings = all_settings()
    if 0 < rows < len(settings):
        settings = settings[np.random.default_rng([seed, 1]).choice(len(settings), rows, replace=False)]
    return Table(settings, model_times(settings, seed))


def read_table(path: Path) -> Table:
    """Read the table of the UCI repository: the archive, a folder, or sgemm_product.csv itself."""
    with _opened(path) as (stream, name):
        header = next(csv.reader([stream.readline()]), [])
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            raise UsageError(f"{name}: no column {missing[0]!r}; found {', '.join(header)[:120] or 'nothing'}")
        try:
            values = np.loadtxt(stream, delimiter=",", usecols=[header.index(each) for each in COLUMNS], ndmin=2)
        except ValueError as error:
            raise Integrity(f"{name} is damaged: {error}", hint="fetch it again") from error
    if not len(values):
        raise UsageError(f"{name} has no rows")
    settings, times = values[:, : len(PARAMETERS)], values[:, len(PARAMETERS) :]
    if not np.isfinite(times).all() or times.min() <= 0:
        raise UsageError(f"{name}: run times must be above 0 ms, found {times.min():g}")
    for column, parameter in zip(settings.T, PARAMETERS, strict=True):
        unknown = np.setdiff1d(column, VALUES[parameter])
        if len(unknown):
            allowed = ", ".join(map(str, VALUES[parameter]))
            raise UsageError(f"{name}: {parameter} is {unknown[0]:g}, expected one of {allowed}")
    return Table(settings.astype(np.int16), times)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[str], str]]:
    """Open the table in an archive or a folder, or the table itself."""
    if path.is_dir():
        files = sorted(path.rglob(_TABLE)) or sorted(path.rglob("*.zip"))
        if not files:
            raise NotFound(f"{path} holds no {_TABLE}", hint="expected the archive of UCI data set 440")
        path = files[0]
    try:
        if not zipfile.is_zipfile(path):
            with open(path, encoding="utf-8", newline="") as stream:
                yield stream, str(path)
            return
        with zipfile.ZipFile(path) as archive:
            member = next((each for each in archive.namelist() if each.rsplit("/", 1)[-1] == _TABLE), None)
            if member is None:
                raise NotFound(f"{path} holds no {_TABLE}", hint="expected the archive of UCI data set 440")
            with archive.open(member) as raw, io.TextIOWrapper(raw, "utf-8", newline="") as stream:
                yield stream, f"{path}: {member}"
    except (zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise Integrity(f"{path} cannot be read as a table: {error}", hint="fetch it again") from error


def split(table: Table, train_share: float, hold_out: str, seed: int) -> Parts:
    """Return a random third to test with and a share to learn from; with `hold_out`, the test has a value of its own.

    Which kernels are in the test does not depend on the share.
    """
    target, order = np.log(table.mean_ms), np.random.default_rng(seed).permutation(len(table.settings))
    tested = np.zeros(len(order), bool)
    if hold_out:
        name, value = held_out(hold_out)
        tested = table.settings[:, PARAMETERS.index(name)] == value
    else:
        tested[order[: round(len(order) * TEST_SHARE)]] = True
    test, rest = np.flatnonzero(tested), order[~tested[order]]
    train = rest[: max(round(len(order) * train_share), 1)]
    if not len(test) or not len(train):
        raise UsageError(f"{len(table.settings):,} kernels are too few to split: {len(train)} to learn from")
    which = f"those with {hold_out}" if hold_out else "a random third"
    words = f"{len(train):,} kernels to learn from, {len(test):,} to test ({which})"
    return Parts(table.settings[train], target[train], table.settings[test], target[test], words)


def held_out(text: str) -> tuple[str, int]:
    """Return the kernel parameter and the value that `hold_out` names, or raise what it may be."""
    name, _, value = text.partition("=")
    if name not in PARAMETERS:
        near = did_you_mean(name, PARAMETERS)
        raise UsageError(f"parameter hold_out: no kernel parameter named {name!r}", hint=near or "write it as KWG=32")
    if value not in map(str, VALUES[name]):
        allowed = ", ".join(map(str, VALUES[name]))
        raise UsageError(f"parameter hold_out: {name} is one of {allowed}, not {value!r}")
    return name, int(value)
