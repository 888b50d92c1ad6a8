from __future__ import annotations

import numpy as np
import pytest
import torch

from fairmile.base.errors import UsageError
from fairmile.benchmarks.harness.samples import ArraySamples

COUNT = 12
X = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 6)
Y = np.arange(COUNT, dtype=np.int64)


def test_a_batch_has_the_samples_in_the_order_asked_for() -> None:
    batch = ArraySamples({"x": X, "y": Y}).batch(np.array([7, 3, 3]))
    assert np.array_equal(batch["x"], X[[7, 3, 3]])
    assert batch["y"].tolist() == [7, 3, 3]


def test_samples_move_to_a_device_whatever_their_byte_order() -> None:
    resident = ArraySamples({"x": X.astype(">f4"), "y": torch.from_numpy(Y)}).resident(torch.device("cpu"))
    numbers = torch.tensor([7, 3, 3])
    assert torch.equal(resident.batch(numbers)["x"], torch.from_numpy(X)[numbers])
    assert torch.equal(resident.batch(numbers)["y"], torch.from_numpy(Y)[numbers])


def test_fields_that_differ_in_length_are_refused() -> None:
    with pytest.raises(UsageError, match="differ in length"):
        ArraySamples({"x": X, "y": Y[:-1]})
    with pytest.raises(UsageError, match="need a field"):
        ArraySamples({})
