"""The proof of a conversion: source and result on several inputs, beside a tolerance that the source itself sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.models.convert.request import CaseDict, ProofDict, ScoreDict
from fairmile.models.formats.description import TensorSpec

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Compute = Callable[[Mapping[str, Array]], list[Array]]

_FLOOR = 1e-6  # eight roundings of float32: two correct orders of a short sum differ by as much
_ROOM = 8.0  # times the source's own rounding error
_LARGE = 100.0
_BATCHES = (1, 2, 5)


@dataclass(frozen=True)
class Case:
    """One set of inputs, and by how much the outputs differ, relative to the largest value of the source."""

    inputs: str
    largest: float
    typical: float

    def to_dict(self) -> CaseDict:
        return {"inputs": self.inputs, "largest": _finite(self.largest), "typical": _finite(self.typical)}


@dataclass(frozen=True)
class Proof:
    """Whether a converted model computes the same as its source, and on which inputs that was compared."""

    tolerance: float
    tolerance_from: str
    judge: str
    cases: tuple[Case, ...]
    second_opinion: str = ""
    worst: Mapping[str, Array] = field(default_factory=dict)
    scores: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of source and result, by metric

    @property
    def largest(self) -> float:
        return max((each.largest for each in self.cases), default=0.0)

    @property
    def typical(self) -> float:
        return float(np.median([each.typical for each in self.cases])) if self.cases else 0.0

    @property
    def holds(self) -> bool:
        return self.largest <= self.tolerance

    def to_dict(self) -> ProofDict:
        data: ProofDict = {
            "holds": self.holds,
            "largest": _finite(self.largest),
            "typical": _finite(self.typical),
            "tolerance": self.tolerance,
            "tolerance_from": self.tolerance_from,
            "judge": self.judge,
            "second_opinion": self.second_opinion,
            "cases": [each.to_dict() for each in self.cases],
        }
        if self.scores:
            scores: dict[str, ScoreDict] = {
                name: {"source": source, "result": result} for name, (source, result) in self.scores.items()
            }
            data["scores"] = scores
        return data


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def sample_inputs(
    specs: Sequence[TensorSpec], seed: int, ranges: Mapping[str, tuple[float, float]], data: Mapping[str, Arrays]
) -> dict[str, Arrays]:
    """Return sets of inputs by what they are: several batch sizes, zeros, large values, and given data.

    `ranges` are the values that integers may have, where an example shows them: an index must not lead outside.
    """
    generator = np.random.default_rng(seed)
    cases: dict[str, Arrays] = {}
    given = {what: {each.name: _typed(case[each.name], each) for each in specs} for what, case in data.items()}
    if any(each.type == "string" for each in specs):
        if not given:
            raise UsageError("texts to compare on are missing", hint="give some with --data FILE.npy")
        return given
    varies = any(not isinstance(size, int) for spec in specs for size in spec.shape or ())
    for batch in _BATCHES if varies else (0,):
        what = f"normal, size {batch}" if varies else "normal"
        cases[what] = {each.name: _drawn(each, batch, generator, ranges) for each in specs}
    last = cases[what]
    if not varies:
        cases["normal, again"] = {each.name: _drawn(each, 0, generator, ranges) for each in specs}
    cases["zeros"] = {name: np.zeros_like(array) if array.dtype.kind == "f" else array for name, array in last.items()}
    cases["large values"] = {
        name: (array * _LARGE).astype(array.dtype) if array.dtype.kind == "f" else array for name, array in last.items()
    }
    return cases | given


def _typed(array: Array, spec: TensorSpec) -> Array:
    return np.asarray(array).astype(object if spec.type == "string" else spec.type)


def _drawn(
    spec: TensorSpec, batch: int, generator: np.random.Generator, ranges: Mapping[str, tuple[float, float]]
) -> Array:
    shape = [size if isinstance(size, int) else batch for size in spec.shape or ()]
    kind = np.dtype(spec.type).kind
    if kind == "f":
        return np.asarray(generator.standard_normal(shape)).astype(spec.type)
    low, high = ranges.get(spec.name, (0, 1))
    return np.asarray(generator.integers(int(low), int(high) + 1, shape)).astype(spec.type)


def difference(expected: Sequence[Array], actual: Sequence[Array]) -> tuple[float, float]:
    """Return the largest and the median difference of outputs, relative to the largest value expected."""
    if len(expected) != len(actual):
        return float("inf"), float("inf")
    largest = 0.0
    typical: list[float] = []
    for one, other in zip(expected, actual, strict=True):
        if one.shape != other.shape:
            return float("inf"), float("inf")
        if one.dtype.kind not in "fc":
            share = float(np.mean(one != other)) if one.size else 0.0
            largest, typical = max(largest, share), [*typical, share]
            continue
        wide, wider = one.astype(np.float64), other.astype(np.float64)
        if not np.array_equal(np.isfinite(wide), np.isfinite(wider)):
            return float("inf"), float("inf")
        finite = np.isfinite(wide)
        scale = float(np.max(np.abs(wide[finite]), initial=0.0)) or 1.0
        gaps = np.abs(wide[finite] - wider[finite]) / scale
        largest = max(largest, float(np.max(gaps, initial=0.0)))
        typical.append(float(np.median(gaps)) if gaps.size else 0.0)
    return largest, float(np.median(typical)) if typical else 0.0


def _attempt(result: Compute, arrays: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a result, or none where its runtime fails: a size that was fixed by mistake does that."""
    try:
        return result(arrays)
    except Exception:  # noqa: BLE001  each runtime has errors of its own
        return []


def prove(cases: Mapping[str, Arrays], source: Compute, exact: Compute | None, result: Compute, judge: str) -> Proof:
    """Return the proof of a result; `exact` is the source in float64, which shows the rounding error of the source."""
    spread, judged, worst = 0.0, [], ("", -1.0)
    refusal = ""
    for what, arrays in cases.items():
        try:
            expected = source(arrays)
        except ValueError as error:  # an estimator refuses values that it was not fitted on
            refusal = f"{what}: {str(error).strip().partition(chr(10))[0][:200]}"
            continue
        largest, typical = difference(expected, _attempt(result, arrays))
        judged.append(Case(what, largest, typical))
        worst = max(worst, (what, largest), key=lambda pair: pair[1])
        own = difference(exact(arrays), expected)[0] if exact is not None else 0.0
        spread = max(spread, own if np.isfinite(own) else 0.0)
    if not judged:
        raise UsageError(f"the model rejects all generated inputs; {refusal}", hint="give inputs with --data FILE")
    tolerance = max(_FLOOR, _ROOM * spread)
    origin = (
        f"{_ROOM:g} times the source's own error of {spread:.1e} beside float64"
        if tolerance > _FLOOR
        else f"rounding of float32; the source's own error beside float64 is {spread:.1e}"
        if exact is not None
        else "rounding of float32; the source cannot be computed in float64"
    )
    return Proof(tolerance, origin, judge, tuple(judged), worst=cases[worst[0]])
