"""Checkpoints of TensorFlow written without it: TensorFlow 2.21 read such files, and these tests keep their form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fairmile.base.errors import Unsupported, UsageError
from fairmile.models.formats.tensor_bundle import write_bundle
from fairmile.models.formats.tensorflow import read_values

DATA = Path(__file__).parent / "data"


def test_many_variables_of_every_kind_are_read_as_they_were_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {f"layer{number}/kernel": rng.normal(size=(number % 5, 3)).astype(np.float32) for number in range(300)}
    values |= {f"of/{kind}": np.array(1, kind) for kind in ("float64", "int64", "bool", "complex64", "uint8")}
    index = write_bundle(tmp_path / "many", values)
    again = read_values(index)
    assert again.keys() == values.keys()
    for name, value in values.items():
        assert again[name].dtype == value.dtype
        np.testing.assert_array_equal(again[name], value)


def test_the_index_has_the_entries_that_tensorflow_writes(tmp_path: Path) -> None:
    written = write_bundle(tmp_path / "tides", {"w": np.ones((3, 2), np.float32)}).read_bytes()
    theirs = (DATA / "savedmodel" / "variables" / "variables.index").read_bytes()
    start = theirs.index(b"\x08\x01\x12\x08\x12\x02\x08\x03")  # of w: type, shape, size, checksum
    assert theirs[start : start + 17] in written
    assert written[:9] == theirs[:9]  # the header: one shard, version 1
    assert written[-8:] == theirs[-8:]


def test_a_changed_value_and_a_type_without_a_number_are_refused(tmp_path: Path) -> None:
    index = write_bundle(tmp_path / "tides", {"w": np.ones(3, np.float32)})
    data = tmp_path / "tides.data-00000-of-00001"
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    with pytest.raises(UsageError, match="the checksum of w is wrong"):
        read_values(index)
    with pytest.raises(Unsupported, match="w has the type datetime64"):
        write_bundle(tmp_path / "other", {"w": np.array(["2020-01-01"], "datetime64[D]")})
