"""What a conversion is asked for and what it answers, between its program and whoever starts it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, field
from typing import NotRequired, TypedDict

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.models.formats.description import Dim, TensorSpec

TARGETS = {
    "onnx": ".onnx",
    "pytorch": ".pt2",
    "keras": ".keras",
    "savedmodel": ".savedmodel",
    "safetensors": ".safetensors",
    "openvino": ".xml",
    "tf-checkpoint": ".index",
}
_WEIGHTS = ("pytorch-state-dict", "safetensors", "tf-checkpoint", "savedmodel")  # as sources
WEIGHTS_ALONE = ("pytorch", "safetensors", "tf-checkpoint")  # what they become without the model
# ONNX Runtime otherwise reports to its maker, and creates a file of its own, which makes a run look unlike the next.
NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}
_INPUT = re.compile(r"^(?:(?P<name>[\w.\-/:]+)=)?(?P<type>[a-z]+\d*)\[(?P<shape>[\w, ?]*)\]$")


class CaseDict(TypedDict):
    inputs: str
    largest: float | None  # null where shapes differ, or one is not finite where the other is
    typical: float | None
    tolerance: float
    function: float | None  # the difference in float64; null where it was not computed
    source_error: float | None  # beside float64
    result_error: float | None


class FunctionDict(TypedDict):
    """Whether source and result are one function: their difference in float64, where rounding hides nothing."""

    largest: float | None
    tolerance: float
    by: str  # what computes them
    cases: int  # sets of inputs


class RoundingDict(TypedDict):
    """By how much source and result, each in its own precision, are off their function in float64."""

    inputs: str  # on which the result is nearest to its tolerance
    source: float
    result: float | None
    ratio: float | None  # null where the source does not round
    tolerance: float  # of `result`


class ScoreDict(TypedDict):
    source: float
    result: float


class ProofDict(TypedDict):
    holds: bool
    function: FunctionDict | None
    function_missing: NotRequired[str]  # why float64 was not possible
    rounding: RoundingDict | None
    largest: float | None  # of the result beside the source, each in its own precision
    typical: float | None
    tolerance: float  # of rounding; without float64 of `largest`
    tolerance_from: str
    judge: str
    second_opinion: str
    cases: list[CaseDict]
    scores: NotRequired[dict[str, ScoreDict]]  # on the validation data of a run


@dataclass(frozen=True)
class Request:
    """One conversion: from a file, or from code that builds a model and a file of its weights."""

    to: str
    source: str = ""  # the file; with `code` that of the weights
    format: str = ""  # of the source, as recognised
    code: str = ""  # FILE.py:FUNCTION or MODULE:NAME that builds a PyTorch model
    params: dict[str, object] = field(default_factory=dict)  # of that function
    judge: dict[str, object] = field(default_factory=dict)  # what opens the validation data of a run, and its arguments
    takes_settings: bool = False  # it is the step of a benchmark, whose settings lie beside trained weights
    inputs: tuple[str, ...] = ()  # such as x=float32[batch,3]
    map: str = ""  # YAML or JSON file: names and layouts in TensorFlow by names in PyTorch
    data: str = ""  # .npz or .npy with inputs to compare on
    data_set: str = ""  # what the card of the model names, for inputs to compare on as well
    data_set_path: str = ""
    python: tuple[str, ...] = ()  # the command of a Python with TensorFlow, for a SavedModel
    trust_pickle: bool = False
    seed: int = 0

    @property
    def is_of_weights(self) -> bool:
        """Whether the source is weights alone, without what computes with them."""
        return not self.code and self.format in _WEIGHTS

    @property
    def copies_weights(self) -> bool:
        """Whether weights are written again without the model, so that nothing is computed."""
        return self.is_of_weights and self.to in WEIGHTS_ALONE

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Request:
        fields = json.loads(text)
        return cls(**{**fields, "inputs": tuple(fields["inputs"]), "python": tuple(fields.get("python", ()))})


def check_target(to: str) -> None:
    """Refuse a format that nothing converts to."""
    if to not in TARGETS:
        raise UsageError(f"no conversion to {to!r}", hint=did_you_mean(to, TARGETS) or f"known: {', '.join(TARGETS)}")


def parse_input(text: str, number: int) -> TensorSpec:
    """Return the tensor that a text such as `x=float32[batch,3]` describes."""
    match = _INPUT.match(text)
    if match is None:
        raise UsageError(f"{text!r} does not describe an input", hint="write NAME=TYPE[SIZES], as x=float32[batch,3]")
    sizes: list[Dim] = []
    for each in (match["shape"] or "").split(","):
        word = each.strip()
        if word:
            sizes.append(int(word) if word.isdigit() else None if word == "?" else word)
    return TensorSpec(match["name"] or f"input_{number}", match["type"], tuple(sizes))


def function_words(proof: ProofDict) -> str:
    """Return whether source and result are one function, as far as float64 shows it."""
    function = proof["function"]
    if function is None:
        return f"not compared in float64: {proof.get('function_missing', '')}"
    return (
        f"{_number(function['largest'])} apart in float64 (tolerance {function['tolerance']:.0e}), by {function['by']}"
    )


def rounding_words(proof: ProofDict) -> str:
    """Return how a result rounds beside its source; empty where float64 does not show it."""
    rounding = proof["rounding"]
    if rounding is None:
        return ""
    ratio = "" if rounding["ratio"] is None else f", ratio {rounding['ratio']:.2g}"
    return f"{_number(rounding['result'])} in {proof['judge']}, {rounding['source']:.1e} in the source{ratio}"


def _number(value: float | None) -> str:
    return "another shape, or not finite," if value is None else f"{value:.1e}"
