"""Learning curves continued by a regression that an annealer solves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairmile.models.annealing.regression import QuboSVR
from fairmile.sweeps.tuning.curves import SupportVectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


class AnnealedVectors(SupportVectors):
    """Does what SupportVectors do, with weights of two bits, and so the same C of 3."""

    most_curves = 60  # each decision fits seven regressions

    def _fitted(self, rows: Array, wanted: Array) -> Any:
        return QuboSVR(bits=2, epsilon=0.05, reads=10, sweeps=40, keep=3).fit(rows, wanted)
