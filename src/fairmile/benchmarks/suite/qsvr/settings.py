"""What can be set when QSVR runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairmile.benchmarks.harness import settings
from fairmile.benchmarks.harness.settings import option


@dataclass(frozen=True, kw_only=True)
class Settings(settings.Settings):
    """Twenty random splits of each table, ten seeds of the annealer for each split."""

    work: Literal["train", "prepare"] = option("train", "what to do: train, or prepare (data only)")
    model: Literal["qubo-svr"] = option(
        "qubo-svr", "qubo-svr: support vector regression as a quadratic problem in bits"
    )
    table: Literal["both", "diabetes", "curves"] = option(
        "both", "table: diabetes (scikit-learn), curves (learning curves of a study), or both"
    )
    sampler: str = option("annealer", "solver: annealer (NumPy), dwave-samplers or dwave")
    splits: int = option(20, "random splits of each table", least=2)
    seeds: int = option(10, "annealer seeds for each split", least=1)
    rows: int = option(40, "rows to learn from, and rows to test on, in each split", least=4)
    seen_epochs: int = option(6, "curves: number of first epochs to predict from", least=2)
    bits: int = option(2, "bits of each weight; C is 2^bits - 1", least=1, most=8)
    epsilon: float = option(0.1, "half width of the tube without loss, in standard deviations of the target", least=0)
    penalty: float = option(1.0, "weight of the condition that both sums of weights are equal", least=0)
    reads: int = option(20, "states that a call of the solver returns", least=1)
    sweeps: int = option(50, "sweeps of each read", least=1)
    keep: int = option(5, "best reads whose weights are averaged", least=1)
