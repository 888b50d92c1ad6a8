"""What the main operators of a trace achieved: operations and bytes by their inputs, seconds by their kernels.

A trace has to tell the inputs, as the PyTorch profiler does with `record_shapes`. Operators lie within each other: a
convolution, an attention or a recurrent network counts whole, whatever it calls; of products within each other, the
innermost counts, since only it knows the type that is computed with under autocast.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.devices import Device, device
from fairmile.costs.operators.features import compute_dtype
from fairmile.costs.operators.outputs import outputs_of
from fairmile.costs.operators.roofline import bound_of
from fairmile.costs.operators.signatures import tensor
from fairmile.costs.operators.work import Work, work_of
from fairmile.costs.steps import Op, TensorSpec
from fairmile.traces.events import Array, EventKind, EventTable

_NS = 1e-9
_MOST_SHAPES = 200
_LONGEST_VALUE = 4096
_MOST_ELEMENTS = 1 << 56
_SDPA = "_scaled_dot_product"
_COUNTED = frozenset((
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "_scaled_mm", "_int_mm",
    "_addmm_activation", "convolution", "convolution_backward", "lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn",
    "_cudnn_rnn_backward", "miopen_rnn", "miopen_rnn_backward", "scaled_dot_product_attention",
    f"{_SDPA}_attention_math", f"{_SDPA}_flash_attention", f"{_SDPA}_flash_attention_backward",
    f"{_SDPA}_efficient_attention", f"{_SDPA}_efficient_attention_backward", f"{_SDPA}_cudnn_attention",
    f"{_SDPA}_cudnn_attention_backward", f"{_SDPA}_flash_attention_for_cpu",
    f"{_SDPA}_flash_attention_for_cpu_backward",
))  # fmt: skip
_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "int": "int32",
    "longint": "int64", "long": "int64", "shortint": "int16", "short": "int16", "signedchar": "int8", "char": "int8",
    "unsignedchar": "uint8", "bool": "bool", "complexfloat": "complex64", "complexdouble": "complex128",
    "float8e4m3fn": "float8", "float8e5m2": "float8",
}  # fmt: skip
_PLAIN = ("", "Scalar", "ScalarList", "TensorList", "GenericList", "OptionalTensorList")


class OperatorWorkDict(TypedDict):
    """`OperatorWork` as JSON holds it."""

    name: str
    kind: str
    shapes: str
    dtype: str
    calls: int
    flops: float
    bytes: int
    seconds: float
    flops_per_s: float
    intensity: float
    bound: str
    of_roof: float | None


@dataclass(frozen=True)
class OperatorWork:
    """All calls of one operator with the same inputs, over all ranks: what one call does, and what was achieved.

    `seconds` is the time of all calls together: of their kernels where a device ran them, else of the calls
    themselves. `bound` and `of_roof`, the share of what the device could do at best, need a device that is known.
    """

    name: str
    kind: str
    shapes: str
    dtype: str
    calls: int
    flops: float
    bytes: int
    seconds: float
    flops_per_s: float
    intensity: float  # operations per byte
    bound: str = ""  # "compute" | "memory" | "launch"
    of_roof: float | None = None


def is_counted(name: str) -> bool:
    """Tell whether the work of an operator such as "aten::addmm" is counted by its inputs."""
    base = name.removeprefix("aten::")
    return base in _COUNTED or (base.endswith("_") and base[:-1] in _COUNTED)


def device_of_names(names: Iterable[str]) -> Device | None:
    """Return the device that a trace names, None where it names none, several kinds, or one that is not known."""
    kinds = set(names)
    if len(kinds) != 1:
        return None
    try:
        return device(kinds.pop())
    except NotFound:
        return None


def operators(table: EventTable) -> tuple[OperatorWork, ...]:
    """Return the work of the operators whose inputs the trace tells, those first that took longest."""
    attribute = table.attributes.get("inputs")
    if attribute is None:
        return ()
    numbers, texts = _numbered(attribute.values.tolist())
    keys = table.name[attribute.rows].astype(np.int64) * len(texts) + numbers
    unique, group = np.unique(keys, return_inverse=True)
    calls = [_call(table.names[key // len(texts)], texts[key % len(texts)]) for key in unique.tolist()]
    kinds = np.array([-1 if each is None else _KINDS.index(each[1].kind) for each in calls], np.int8)[group]
    kept = np.flatnonzero(kinds >= 0)
    kept = kept[_counting(table, attribute.rows[kept], kinds[kept])]
    rows, group = attribute.rows[kept], group[kept]
    took = _device_ns(table, rows)
    real = took > 0
    times = np.bincount(group[real], took[real], len(unique)) * _NS
    counts = np.bincount(group[real], minlength=len(unique))
    on = device_of_names(each.device for each in table.processes if each.device) if counts.any() else None
    works = [
        _achieved(*call, int(count), float(seconds), on)
        for call, count, seconds in zip(calls, counts.tolist(), times.tolist(), strict=True)
        if call is not None and count
    ]
    return tuple(sorted(works, key=lambda each: -each.seconds)[:_MOST_SHAPES])


_KINDS = ("gemm", "conv", "attention", "rnn")


def _numbered(values: Sequence[str]) -> tuple[Array, list[str]]:
    """Return a number for each text, and the texts."""
    texts = {text: number for number, text in enumerate(dict.fromkeys(values))}
    return np.array([texts[text] for text in values], np.int64), list(texts)


def _counting(table: EventTable, rows: Array, kinds: Array) -> Array:
    """Return the places of the operators that count where some lie within others; they never overlap."""
    lane, start, end = table.lane[rows], table.start_ns[rows], table.end_ns[rows]
    order = np.lexsort((rows, -end, start, lane))
    counts = np.ones(len(rows), bool)
    above: list[tuple[int, int, int, int]] = []  # what holds the present operator: place, lane, end, kind
    for place, line, begin, until, kind in zip(
        order.tolist(), lane[order].tolist(), start[order].tolist(), end[order].tolist(), kinds[order].tolist(),
        strict=True,
    ):  # fmt: skip
        while above and (above[-1][1] != line or above[-1][2] <= begin):
            above.pop()
        if above and above[0][3] != kind:
            counts[place] = False
            continue
        if above:
            counts[above[-1][0]] = False
        above.append((place, line, until, kind))
    return np.flatnonzero(counts)


def _device_ns(table: EventTable, rows: Array) -> Array:
    """Return how long the kernels of each operator ran; of ranks without kernels, how long the operator itself."""
    near = np.flatnonzero(np.isin(table.rank, np.unique(table.rank[rows])))
    kind = table.kind[near]
    kernels = near[(kind == EventKind.KERNEL) | (kind == EventKind.MEMCPY) | (kind == EventKind.MEMSET)]
    with_kernels = np.unique(_process(table, kernels[table.kind[kernels] == EventKind.KERNEL]))
    has_kernels = np.isin(_process(table, rows), with_kernels)
    took = np.where(has_kernels, 0, table.end_ns[rows] - table.start_ns[rows]).astype(np.float64)
    mine = np.flatnonzero(has_kernels)
    launches = near[kind == EventKind.LAUNCH]
    launches, kernels = (each[table.correlation[each] >= 0] for each in (launches, kernels))
    if not len(mine) or not len(launches):
        return took
    inside = _holder(table, rows[mine], launches)
    launches, holder = launches[inside >= 0], mine[inside[inside >= 0]]
    by, of = _process(table, launches), _process(table, kernels)
    for each in with_kernels.tolist():
        ours, theirs = np.flatnonzero(by == each), kernels[of == each]
        if not len(ours):
            continue
        ours = ours[np.argsort(table.correlation[launches[ours]], kind="stable")]
        known = table.correlation[launches[ours]]
        at = np.minimum(np.searchsorted(known, table.correlation[theirs]), len(known) - 1)
        led = known[at] == table.correlation[theirs]
        lengths = (table.end_ns[theirs] - table.start_ns[theirs])[led]
        took += np.bincount(holder[ours[at[led]]], lengths, len(rows))
    return took


def _process(table: EventTable, rows: Array) -> Array:
    """Return a number for component and rank of each row."""
    return table.component[rows].astype(np.int64) << 32 | table.rank[rows]


def _holder(table: EventTable, rows: Array, launches: Array) -> Array:
    """Return for each launch which of the operators, none of which overlap, holds it, -1 where none does."""
    every = np.concatenate((rows, launches))
    is_launch = np.arange(len(every)) >= len(rows)
    order = np.lexsort((is_launch, table.start_ns[every], table.lane[every]))
    last = np.maximum.accumulate(np.where(is_launch[order], -1, np.arange(len(order))))
    holder = np.where(last >= 0, order[last], -1)  # the operator that began last before each place
    holders = np.full(len(every), -1, np.int64)
    holders[order] = holder
    holders = holders[len(rows) :]
    at = rows[holders]
    held = (holders >= 0) & (table.lane[at] == table.lane[launches]) & (table.start_ns[launches] < table.end_ns[at])
    return np.where(held, holders, -1)


def _achieved(op: Op, work: Work, calls: int, seconds: float, on: Device | None) -> OperatorWork:
    dtype = compute_dtype(op)
    rate = work.flops * calls / seconds
    bound, of_roof = "", None
    if on is not None:
        # A trace does not tell whether fp32 may be computed as tf32, but what was faster than fp32 can be was.
        tf32 = dtype == "float32" and rate > on.peak(dtype)
        bound = bound_of(op, work, on, tf32=tf32)
        roof_s = max(work.flops / on.peak(dtype, work.kind, tf32=tf32), work.bytes / on.bandwidth_ceiling)
        of_roof = roof_s * calls / seconds
    shapes = ", ".join("×".join(map(str, each.shape)) for each in op.inputs if each.shape)
    name = op.name.replace("aten.", "aten::", 1)
    intensity = work.flops / work.bytes
    return OperatorWork(
        name, work.kind, shapes, dtype, calls, work.flops, work.bytes, seconds, rate, intensity, bound, of_roof
    )


def _call(name: str, text: str) -> tuple[Op, Work] | None:
    """Return a call and its work, None where the trace does not tell its inputs whole."""
    try:
        dims, types, values = json.loads(text)
        inputs: list[TensorSpec] = []
        usual = next((each for each in types if each not in _PLAIN), "float")
        values = [*values, *[""] * (len(dims) - len(values))]
        arguments = tuple(_argument(*each, usual, inputs) for each in zip(dims, types, values, strict=True))
        op = Op(name.replace("::", ".", 1), "", "", tuple(inputs), (), arguments)
        op = replace(op, outputs=outputs_of(op))
        work = work_of(op)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None  # anything may stand in a trace
    return (op, work) if work.flops > 0 and work.bytes > 0 else None


def _argument(dims: Any, type_name: str, value: Any, usual: str, inputs: list[TensorSpec]) -> Any:
    """Return an argument as an Op holds it and add its tensors to the inputs; ValueError where it is none."""
    if type_name == "TensorList":
        first = len(inputs)
        inputs += [_tensor(each, usual) for each in dims]
        return {"tensors": list(range(first, len(inputs)))}
    if type_name not in _PLAIN:
        inputs.append(_tensor(dims, type_name))
        return {"tensor": len(inputs) - 1}
    return _value(value) if isinstance(value, str) else value


def _value(text: str) -> Any:
    if not text or len(text) > _LONGEST_VALUE:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _tensor(dims: Any, type_name: str) -> TensorSpec:
    if not isinstance(dims, list) or not all(isinstance(each, int) and each >= 0 for each in dims):
        raise ValueError(f"{dims} is not a shape")
    plain = re.sub(r"[^a-z0-9]", "", type_name.lower().replace("c10::", ""))
    spec = tensor(dims, _TYPES.get(plain, plain))
    if spec.elements > _MOST_ELEMENTS:
        raise ValueError(f"{dims} is larger than any tensor")
    return spec
