"""The proof of a conversion: source and result on several inputs, beside a tolerance that the source itself sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.models.convert.request import CaseDict, ProofDict, RoundingDict, ScoreDict
from fairmile.models.formats.description import TensorSpec

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Compute = Callable[[Mapping[str, Array]], list[Array]]

FUNCTION_TOLERANCE = 1e-6  # in float64, which itself rounds a billion times finer; constants may be float32 in a file
_FLOOR = 1e-6  # eight roundings of float32: two correct orders of a short sum differ by as much
_ROOM = 8.0  # times the source's own rounding error: sums in another order round differently
_LARGE = 100.0
_BATCHES = (1, 2, 5)


@dataclass(frozen=True)
class Double:
    """A model in float64, and by the same program in its own precision: what is between them is rounding alone."""

    compute: Compute
    single: Compute


@dataclass(frozen=True)
class FunctionCheck:
    """Source and result in float64, by programs that do not share the code which the conversion depends on."""

    source: Compute
    result: Compute
    by: str
    is_slow: bool = False  # it computes the first inputs only


@dataclass(frozen=True)
class Case:
    """One set of inputs, and by how much outputs differ there, relative to the largest value."""

    inputs: str
    largest: float  # of the result beside the source, both in their own precision
    typical: float
    tolerance: float
    function: float | None = None  # of the result beside the source, both in float64
    source_error: float | None = None  # of the source beside itself in float64
    result_error: float | None = None  # of the result beside the source in float64

    @property
    def excess(self) -> float:
        """Return what decides, as a multiple of its tolerance."""
        rounded = self.largest if self.result_error is None else self.result_error
        rounded = rounded / self.tolerance if self.tolerance else np.inf if rounded else 0.0
        return max(rounded, (self.function or 0.0) / FUNCTION_TOLERANCE)

    def to_dict(self) -> CaseDict:
        return {
            "inputs": self.inputs,
            "largest": _finite(self.largest),
            "typical": _finite(self.typical),
            "tolerance": self.tolerance,
            "function": _finite(self.function),
            "source_error": _finite(self.source_error),
            "result_error": _finite(self.result_error),
        }


@dataclass(frozen=True)
class Proof:
    """Whether a converted model computes the same as its source, and on which inputs that was compared.

    It has two parts where both can be computed in float64: the function is the same, and the result rounds no worse
    than the source does. Elsewhere source and result are compared as they are.
    """

    tolerance_from: str
    judge: str
    cases: tuple[Case, ...]
    function_by: str = ""  # what computed source and result in float64
    function_missing: str = ""  # why nothing did
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
    def decisive(self) -> Case:
        """The inputs on which the result is nearest to its tolerance, or farthest beyond."""
        return max(self.cases, key=lambda each: each.excess)

    @property
    def tolerance(self) -> float:
        return self.decisive.tolerance

    @property
    def function(self) -> float | None:
        """The largest difference of source and result in float64; None where they were not computed so."""
        return max((each.function for each in self.cases if each.function is not None), default=None)

    @property
    def rounding(self) -> RoundingDict | None:
        """The rounding errors of source and result on the inputs that say most; None where they are not known."""
        known = [each for each in self.cases if each.result_error is not None]
        if not known:
            return None
        most = max(known, key=lambda each: (each.result_error or 0.0) / each.tolerance)
        source, result = most.source_error or 0.0, most.result_error or 0.0
        return {
            "inputs": most.inputs,
            "source": source,
            "result": _finite(result),
            "ratio": _finite(result / source) if source else None,
            "tolerance": most.tolerance,
        }

    @property
    def holds(self) -> bool:
        return all(each.excess <= 1 for each in self.cases)

    def metrics(self) -> dict[str, float]:
        """Return the numbers of the proof that a run records."""
        rounding = self.rounding
        numbers: dict[str, float | None] = {
            "largest_difference": self.largest,
            "typical_difference": self.typical,
            "tolerance": self.tolerance,
            "function_difference": self.function,
            "source_rounding": rounding["source"] if rounding else None,
            "result_rounding": rounding["result"] if rounding else None,
            "rounding_ratio": rounding["ratio"] if rounding else None,
        }
        return {name: value for name, value in numbers.items() if value is not None and np.isfinite(value)}

    def to_dict(self) -> ProofDict:
        data: ProofDict = {
            "holds": self.holds,
            "function": None,
            "rounding": self.rounding,
            "largest": _finite(self.largest),
            "typical": _finite(self.typical),
            "tolerance": self.tolerance,
            "tolerance_from": self.tolerance_from,
            "judge": self.judge,
            "second_opinion": self.second_opinion,
            "cases": [each.to_dict() for each in self.cases],
        }
        if self.function is not None:
            compared = sum(each.function is not None for each in self.cases)
            data["function"] = {
                "largest": _finite(self.function),
                "tolerance": FUNCTION_TOLERANCE,
                "by": self.function_by,
                "cases": compared,
            }
        else:
            data["function_missing"] = self.function_missing
        if self.scores:
            scores: dict[str, ScoreDict] = {
                name: {"source": source, "result": result} for name, (source, result) in self.scores.items()
            }
            data["scores"] = scores
        return data


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


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


def rounding_error(exact: Sequence[Array], rounded: Sequence[Array], source: Sequence[Array]) -> float:
    """Return the largest error of outputs beside float64, relative to the largest value.

    Where the source overflows in its own precision, the result must do so too. A label or another whole number is
    wrong if neither float64 nor the source has it: between two values that are level, rounding decides.
    """
    if not len(exact) == len(rounded) == len(source):
        return float("inf")
    worst = 0.0
    for truth, value, own in zip(exact, rounded, source, strict=True):
        if not truth.shape == value.shape == own.shape:
            return float("inf")
        if truth.dtype.kind not in "fc":
            wrong = (value != truth) & (value != own)
            worst = max(worst, float(np.mean(wrong)) if wrong.size else 0.0)
            continue
        finite = np.isfinite(own)
        if not np.array_equal(finite, np.isfinite(value)):
            return float("inf")
        finite &= np.isfinite(truth)
        right = truth[finite]
        scale = float(np.max(np.abs(right), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(np.abs(value[finite] - right), initial=0.0)) / scale)
    return worst


def _attempt(result: Compute, arrays: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a result, or none where its runtime fails: a size that was fixed by mistake does that."""
    try:
        return result(arrays)
    except Exception:  # noqa: BLE001  each runtime has errors of its own
        return []


def _functions(cases: Mapping[str, Arrays], checks: Sequence[FunctionCheck]) -> tuple[dict[str, float], str, str]:
    """Return the differences in float64 by inputs, by what they were computed, and why by nothing else.

    The first check that finds source and result the same decides. An error of the program that computes them cannot
    do that: in float64 two functions do not agree by accident.
    """
    best: dict[str, float] = {}
    by, reasons = "", []
    for check in checks:
        gaps: dict[str, float] = {}
        try:
            for what, arrays in list(cases.items())[: 1 if check.is_slow else None]:
                gaps[what] = difference(check.source(arrays), check.result(arrays))[0]
        except Exception as error:  # noqa: BLE001  each runtime has errors of its own
            reasons.append(
                f"{check.by} fails ({type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]})"
            )
            continue
        if not best or max(gaps.values()) < max(best.values()):
            best, by = gaps, check.by
        if max(best.values()) <= FUNCTION_TOLERANCE:
            break
    return best, by, "; ".join(reasons)


def prove(
    cases: Mapping[str, Arrays],
    source: Compute,
    exact: Double | None,
    result: Compute,
    judge: str,
    *,
    functions: Sequence[FunctionCheck] = (),
    missing: str = "no program computes both in float64",
) -> Proof:
    """Return the proof of a result; `exact` is the source in float64, `functions` compare both there.

    `missing` says why there is no such comparison.
    """
    usable, refusal = {}, ""
    for what, arrays in cases.items():
        try:
            usable[what] = source(arrays)
        except ValueError as error:  # an estimator refuses values that it was not fitted on
            refusal = f"{what}: {str(error).strip().partition(chr(10))[0][:200]}"
    if not usable:
        raise UsageError(f"the model rejects all generated inputs; {refusal}", hint="give inputs with --data FILE")
    gaps, by, reason = _functions({what: cases[what] for what in usable}, functions)
    judged: list[Case] = []
    for what, expected in usable.items():
        actual = _attempt(result, cases[what])
        largest, typical = difference(expected, actual)
        own = beside = None
        if exact is not None:
            truth = exact.compute(cases[what])
            # The source's own program stands beside its float64 only once that is proved to be the same function:
            # otherwise an error of the program in float64 would pass for rounding, and allow as much in the result.
            alike = expected if gaps else exact.single(cases[what])
            own = rounding_error(truth, alike, alike)
            own = own if np.isfinite(own) else 0.0
            beside = rounding_error(truth, actual, expected) if gaps else None
        tolerance = max(_FLOOR, _ROOM * (own or 0.0))
        judged.append(Case(what, largest, typical, tolerance, gaps.get(what), own, beside))
    proof = Proof(_origin(judged), judge, tuple(judged), by, "" if gaps else reason or missing)
    return replace(proof, worst=cases[proof.decisive.inputs])


def _origin(cases: Sequence[Case]) -> str:
    """Return where the tolerance of the decisive inputs comes from."""
    decisive = max(cases, key=lambda each: each.excess)
    own = decisive.source_error
    if own is None:
        return "rounding of float32; the source cannot be computed in float64"
    if decisive.tolerance > _FLOOR:
        return f"{_ROOM:g} times the source's own error of {own:.1e} beside float64"
    return f"eight roundings of float32; the source's own error beside float64 is {own:.1e}"
