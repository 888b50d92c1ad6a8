"""Structures that the tests of OpenCatalyst share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairmile.benchmarks.suite.opencatalyst.structures import GraphSamples, Structure, join
from fairmile.benchmarks.suite.opencatalyst.surfaces import make_structures


@pytest.fixture(scope="session")
def structures() -> list[Structure]:
    return list(make_structures(0, 8, seed=3))


@pytest.fixture(scope="session")
def batch(structures: list[Structure]) -> dict[str, torch.Tensor]:
    samples = GraphSamples(join(structures[:2], 4.5, 0), has_triplets=True)
    return {name: torch.from_numpy(np.array(value)) for name, value in samples.batch(np.arange(2)).items()}
