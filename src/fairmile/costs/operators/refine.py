"""A workspace's own runs correct its device table: a factor for each kind of operator, drawn towards 1 by doubt."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TypedDict

from fairmile.base.errors import Integrity
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result, Results
from fairmile.base.strict_json import load_json

_FORMAT = 1
_PRIOR = 0.15  # how wrong a kind's times are thought to be before any run was seen, in logarithms
_NOISE = 0.05  # of one run's median step
_ROUNDS = 20


@dataclass(frozen=True)
class MeasuredStep:
    """A run's median step time beside what was predicted for it: the device's seconds by kind of operator."""

    measured_s: float
    predicted_s: float
    by_kind: Mapping[str, float]
    run: str = ""


class CorrectionDict(TypedDict):
    """`Correction` as JSON holds it."""

    device: str
    factors: dict[str, float]
    runs: list[str]


@dataclass(frozen=True, repr=False)
class Correction(Result):
    """Factors on the table's times by kind of operator, and the runs that they come from."""

    device: str
    factors: Mapping[str, float] = field(default_factory=dict)
    runs: Sequence[str] = ()

    def to_dict(self) -> CorrectionDict:
        return {"device": self.device, "factors": dict(self.factors), "runs": list(self.runs)}

    def summary(self) -> str:
        factors = ", ".join(f"{kind} {factor:.2f}" for kind, factor in self.factors.items())
        return f"{self.device}: {factors or 'no factors'}, from {len(self.runs):,} run{'s' * (len(self.runs) != 1)}"


class CorrectionsDict(TypedDict):
    """`Corrections` as JSON holds them."""

    corrections: list[CorrectionDict]
    dry_run: bool


class Corrections(Results[Correction]):
    """The corrections of all devices that runs tell of; with `dry_run` nothing was kept."""

    def __init__(self, corrections: Iterable[Correction] = (), *, dry_run: bool = False) -> None:
        super().__init__(corrections)
        self.dry_run = dry_run

    def to_dict(self) -> CorrectionsDict:
        return {"corrections": [each.to_dict() for each in self], "dry_run": self.dry_run}

    def summary(self) -> str:
        return ", ".join(each.device for each in self) or "none"


def refined(before: Correction, runs: Sequence[MeasuredStep]) -> Correction:
    """Return factors that bring predictions near to the runs, no farther from 1 than the runs can prove.

    `runs` are all that count, predicted without any correction. The factors are the most likely ones where each kind's
    logarithm is thought to lie within 15 % of 0 and each run's step within 5 %.
    """
    import numpy as np

    used = [each for each in runs if each.measured_s > 0 and each.predicted_s > 0 and each.by_kind]
    kinds = sorted({kind for each in used for kind in each.by_kind})
    if not used:
        return before
    factors = np.zeros(len(kinds))  # logarithms
    wanted = np.array([math.log(each.measured_s / each.predicted_s) for each in used])
    for _ in range(_ROUNDS):
        rows, now = [], []
        for each in used:
            parts = np.array([each.by_kind.get(kind, 0.0) for kind in kinds]) * np.exp(factors)
            rest = max(each.predicted_s - sum(each.by_kind.values()), 0.0)
            total = parts.sum() + rest
            rows.append(parts / total)
            now.append(math.log(total / each.predicted_s))
        jacobian = np.array(rows)
        residual = wanted - np.array(now) + jacobian @ factors
        left = jacobian.T @ jacobian / _NOISE**2 + np.eye(len(kinds)) / _PRIOR**2
        step = np.linalg.solve(left, jacobian.T @ residual / _NOISE**2)
        if float(np.abs(step - factors).max()) < 1e-9:
            break
        factors = step
    by_kind = {kind: round(float(math.exp(value)), 5) for kind, value in zip(kinds, factors, strict=True)}
    return Correction(before.device, by_kind, tuple(each.run for each in used))


def write_correction(correction: Correction, path: Path) -> None:
    """Write factors as a small JSON document."""
    document = {
        "format": _FORMAT,
        "device": correction.device,
        "factors": dict(correction.factors),
        "runs": list(correction.runs),
    }
    write_atomic(path, json.dumps(document, indent=1) + "\n")


def read_correction(path: Path) -> Correction:
    """Read what `write_correction` wrote; Integrity where it is something else."""
    document = load_json(path.read_text(encoding="utf-8"), file=str(path))
    try:
        if document["format"] != _FORMAT:
            raise ValueError("it was written by another version")
        factors = {str(kind): float(value) for kind, value in document["factors"].items()}
        if any(not 0.01 < value < 100 for value in factors.values()):
            raise ValueError("a factor is not between 0.01 and 100")
        return Correction(str(document["device"]), factors, tuple(map(str, document["runs"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Integrity(f"{path} is not a file of corrections: {error}", hint="remove it") from error
