"""What a training or inference step does to a device: its operators, and every allocation's life.

The tracer writes it without a GPU, rules and tables read it: memory, time and movement of data come from one trace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from fairmile.base.errors import Integrity
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result

FORMAT = 1
FUSED = "inductor.fused.default"  # a kernel that Inductor makes of several operators


class StepEvent(IntEnum):
    """What happens at one moment of a trace; the two numbers that go with it stand beside each."""

    BEGIN = 0  # operator's index, 0
    END = 1  # operator's index, 0
    ALLOC = 2  # storage's index, 0
    FREE = 3  # storage's index, 0
    STEP = 4  # number of the step that begins here, 0; everything before step 0 builds the model


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor as an operator sees it; `storage` is an index into `Trace.storages`, -1 outside the device."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # "float32", "bfloat16", "int64", …
    storage: int = -1

    @property
    def elements(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(frozen=True, slots=True)
class Op:
    """One call of an operator, below autograd: what a GPU would launch kernels for.

    `arguments` has one entry per argument of the call in order, keyword arguments after them as [name, value] in
    `keywords`: a tensor is {"tensor": index into inputs}, a list of tensors {"tensors": [indices]}, anything else is
    a plain JSON value (a dtype, layout, device or memory format as {"dtype": "float32"} and so on).
    """

    name: str  # "aten.convolution_backward.default"
    phase: str  # "build" | "forward" | "backward" | "optimizer"
    module: str  # "layer1.0.conv1", "" outside any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Storage:
    """A block that the program asked the allocator for: how large, what for, and where it came from."""

    size_bytes: int
    category: str  # "parameter" | "gradient" | "optimizer" | "activation" | "input" | "buffer" | "temporary"
    module: str
    op: int  # index of the operator that made it, -1 while building outside any


@dataclass(frozen=True, repr=False)
class StepTrace(Result):
    """All that was seen; `events` are in order, as (StepEvent, number, number)."""

    ops: Sequence[Op]
    storages: Sequence[Storage]
    events: Sequence[tuple[int, int, int]]
    steps: int
    precision: str  # "fp32" | "tf32" | "bf16" | "fp16"
    training: bool
    parameters: int  # elements
    versions: dict[str, str] = field(default_factory=dict)  # torch, python
    notes: Sequence[str] = ()  # what could not be followed exactly, one sentence each
    stopped: str = ""  # why a step was followed only to a point, where it was
    assumed: bool = False  # whether shapes follow from values that nobody knows, and that were assumed
    samples: int = 0  # in a batch, where the program says so; 0: as the shapes of inputs suggest
    ranks: int = 1  # processes of the program, whose rank 0 was followed
    compiled: str = ""  # the mode of torch.compile where the step was compiled
    compiled_by: str = ""  # "inductor", or "rules" where it could not be run

    def to_dict(self) -> dict[str, Any]:
        """Return what there is in numbers; `ops` has the operators."""
        names = ("steps", "precision", "training", "parameters", "versions", "stopped")
        counts = {"operators": len(self.ops), "notes": list(self.notes)}
        return {name: getattr(self, name) for name in names} | counts

    def summary(self) -> str:
        return f"{len(self.ops):,} operators in {self.steps:,} steps, {self.parameters:,} parameters, {self.precision}"

    def _rows(self) -> list[dict[str, str]]:
        return [{"name": op.name, "phase": op.phase, "module": op.module} for op in self.ops]


def write_trace(trace: StepTrace, path: Path) -> None:
    """Write a trace as one JSON document."""
    document = {"format": FORMAT, **asdict(trace)}
    write_atomic(path, json.dumps(document, separators=(",", ":")).encode())


def read_trace(path: Path) -> StepTrace:
    """Read what `write_trace` wrote; Integrity where it is something else."""
    try:
        document = json.loads(path.read_bytes())
        if document.pop("format") != FORMAT:
            raise ValueError("it was written by another version")
        return StepTrace(
            ops=[_op(each) for each in document.pop("ops")],
            storages=[Storage(**each) for each in document.pop("storages")],
            events=[tuple(each) for each in document.pop("events")],
            **document,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Integrity(f"{path} is not a trace of a step: {error}", hint="predict again") from error


def _op(fields: dict[str, Any]) -> Op:
    tensors = {
        side: tuple(
            TensorSpec(tuple(each["shape"]), tuple(each["strides"]), each["dtype"], each["storage"])
            for each in fields.pop(side)
        )
        for side in ("inputs", "outputs")
    }
    arguments, keywords = tuple(fields.pop("arguments")), tuple((name, value) for name, value in fields.pop("keywords"))
    return Op(
        fields["name"], fields["phase"], fields["module"], tensors["inputs"], tensors["outputs"], arguments, keywords
    )
