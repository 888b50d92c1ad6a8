"""What a model file is: format, framework, inputs and outputs, parameters, operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import NotRequired, TypedDict

from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_size

Dim = int | str | None  # a length, the name of one that varies, or None where it varies without a name


class TensorDict(TypedDict):
    name: str
    type: str
    shape: list[int | str | None] | None


class ModelDescriptionDict(TypedDict):
    path: str
    format: str
    title: str
    framework: str
    producer: str
    inputs: list[TensorDict]
    outputs: list[TensorDict]
    parameters: int | None
    weights: list[TensorDict]
    operators: dict[str, int]
    opset: dict[str, int]
    size_bytes: int
    digest: str
    runs_code: bool
    imports: list[str]
    details: dict[str, str]
    warnings: list[str]
    card: NotRequired[str]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor by name, type and shape; `shape` is None where the file does not state it."""

    name: str
    type: str = ""  # as numpy calls it, such as float32
    shape: tuple[Dim, ...] | None = None

    def to_dict(self) -> TensorDict:
        return {"name": self.name, "type": self.type, "shape": None if self.shape is None else list(self.shape)}

    def shape_text(self) -> str:
        """Return the shape as it is printed, such as `[batch, 3, ?]`; empty where it is unknown."""
        return "" if self.shape is None else f"[{', '.join('?' if each is None else str(each) for each in self.shape)}]"

    def __str__(self) -> str:
        return f"{self.name} {self.type}{self.shape_text()}".strip()


def count_values(tensors: Iterable[TensorSpec]) -> int:
    """Return the number of values in all tensors; one whose shape is not fixed counts as none."""
    total = 0
    for each in tensors:
        lengths = [length for length in each.shape or () if isinstance(length, int)]
        total += math.prod(lengths) if each.shape is not None and len(lengths) == len(each.shape) else 0
    return total


@dataclass(frozen=True, repr=False)
class ModelDescription(Result):
    """What a model file declares, read without its framework and without executing anything of it."""

    path: str
    format: str  # a name of `FORMATS`
    framework: str
    size_bytes: int = 0  # of the file, or of all files of a folder
    producer: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    parameters: int | None = None  # number of values in all weights
    weights: tuple[TensorSpec, ...] = ()
    operators: Mapping[str, int] = field(default_factory=dict)  # how often each occurs
    opset: Mapping[str, int] = field(default_factory=dict)
    runs_code: bool = False  # loading it can execute code that the file names
    imports: tuple[str, ...] = ()  # what loading it would import
    details: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    digest: str = ""  # sha256 of the file, of a folder that of its tree
    card: str = ""  # handle of the card that names the file
    title: str = ""  # the format in words

    def to_dict(self) -> ModelDescriptionDict:
        data: ModelDescriptionDict = {
            "path": self.path,
            "format": self.format,
            "title": self.title,
            "framework": self.framework,
            "producer": self.producer,
            "inputs": [each.to_dict() for each in self.inputs],
            "outputs": [each.to_dict() for each in self.outputs],
            "parameters": self.parameters,
            "weights": [each.to_dict() for each in self.weights],
            "operators": dict(self.operators),
            "opset": dict(self.opset),
            "size_bytes": self.size_bytes,
            "digest": self.digest,
            "runs_code": self.runs_code,
            "imports": list(self.imports),
            "details": dict(self.details),
            "warnings": list(self.warnings),
        }
        if self.card:
            data["card"] = self.card
        return data

    def summary(self) -> str:
        count = "" if self.parameters is None else f", {self.parameters:,} parameters"
        return f"{self.path}, {self.title or self.format}{count}, {format_size(self.size_bytes)}"
