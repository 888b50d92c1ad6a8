"""Control flow, sequences of tensors and optional values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fairmile.models.onnx_torch.operators import Node, Value, ints, operator


@operator("If")
def branch(node: Node, condition: Tensor, *, scope: Mapping[str, Value]) -> tuple[Value, ...]:
    chosen = "then_branch" if bool(condition) else "else_branch"
    return tuple(node.get(chosen)(scope))


@operator("Loop")
def loop(
    node: Node, trips: Tensor | None, condition: Tensor | None, *carried: Value, scope: Mapping[str, Value]
) -> tuple[Value, ...]:
    limit = int(trips) if trips is not None else None
    goes_on = bool(condition) if condition is not None else True
    values: list[Value] = list(carried)
    kept: list[list[Tensor]] = [[] for _ in range(node.outputs - len(values))]
    trip = 0
    while goes_on and (limit is None or trip < limit):
        again, *results = node.get("body")(scope, torch.tensor(trip), torch.tensor(goes_on), *values)
        values = results[: len(values)]
        for collected, value in zip(kept, results[len(values) :], strict=True):
            collected.append(value)
        goes_on, trip = bool(again), trip + 1
    return (*values, *(torch.stack(each) if each else torch.zeros(0) for each in kept))


@operator("Scan")
def scan(node: Node, *inputs: Value, scope: Mapping[str, Value]) -> tuple[Value, ...]:
    if node.opset < 9:
        return _scan_batches(node, inputs[1:], scope)
    return _scan(node, list(inputs), scope)


def _scan_batches(node: Node, inputs: tuple[Value, ...], scope: Mapping[str, Value]) -> tuple[Value, ...]:
    """Scan as before opset 9, where each member of a batch is scanned by itself."""
    results = [_scan(node, [each[member] for each in inputs], scope) for member in range(inputs[0].shape[0])]
    return tuple(torch.stack(each) for each in zip(*results, strict=True))


def _scan(node: Node, inputs: list[Value], scope: Mapping[str, Value]) -> tuple[Value, ...]:
    count = node.get("num_scan_inputs")
    states, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    axes = node.get("scan_input_axes") or [0] * count
    backward = node.get("scan_input_directions") or node.get("directions") or [0] * count
    number = node.outputs - len(states)
    out_axes = node.get("scan_output_axes") or [0] * number
    out_backward = node.get("scan_output_directions") or [0] * number
    kept: list[list[Tensor]] = [[] for _ in range(number)]
    length = scanned[0].shape[axes[0]]
    for step in range(length):
        parts = [
            each.select(axis, length - 1 - step if is_backward else step)
            for each, axis, is_backward in zip(scanned, axes, backward, strict=True)
        ]
        results = node.get("body")(scope, *states, *parts)
        states = results[: len(states)]
        for collected, value in zip(kept, results[len(states) :], strict=True):
            collected.append(value)
    outputs = [
        torch.stack(each[::-1] if is_backward else each, axis)
        for each, axis, is_backward in zip(kept, out_axes, out_backward, strict=True)
    ]
    return (*states, *outputs)


@operator("SequenceConstruct")
def sequence(node: Node, *tensors: Tensor) -> list[Tensor]:
    return list(tensors)


@operator("SequenceEmpty")
def empty_sequence(node: Node) -> list[Tensor]:
    return []


@operator("SequenceAt")
def sequence_at(node: Node, values: list[Tensor], place: Tensor) -> Tensor:
    return values[int(place)]


@operator("SequenceLength")
def sequence_length(node: Node, values: list[Tensor]) -> Tensor:
    return torch.tensor(len(values))


@operator("SequenceInsert")
def sequence_insert(node: Node, values: list[Tensor], tensor: Tensor, place: Tensor | None = None) -> list[Tensor]:
    position = len(values) if place is None else int(place) % (len(values) + 1) if int(place) >= 0 else int(place)
    return [*values[:position], tensor, *values[position:]]


@operator("SequenceErase")
def sequence_erase(node: Node, values: list[Tensor], place: Tensor | None = None) -> list[Tensor]:
    position = (len(values) - 1 if place is None else int(place)) % len(values)
    return [*values[:position], *values[position + 1 :]]


@operator("SequenceMap")
def sequence_map(
    node: Node, values: list[Tensor], *others: list[Tensor] | Tensor, scope: Mapping[str, Value]
) -> tuple[list[Tensor], ...]:
    rows = []
    for place, value in enumerate(values):
        rest = [each[place] if isinstance(each, list) else each for each in others]
        rows.append(node.get("body")(scope, value, *rest))
    return tuple(list(column) for column in zip(*rows, strict=True))


@operator("ConcatFromSequence")
def concat_from_sequence(node: Node, values: list[Tensor]) -> Tensor:
    join: Any = torch.stack if node.get("new_axis", 0) else torch.cat
    joined: Tensor = join(values, node.get("axis"))
    return joined


@operator("SplitToSequence")
def split_to_sequence(node: Node, x: Tensor, sizes: Tensor | None = None) -> list[Tensor]:
    axis = node.get("axis", 0)
    if sizes is None:
        parts = list(torch.split(x, 1, axis))
        return parts if node.get("keepdims", 1) else [part.squeeze(axis) for part in parts]
    return list(torch.split(x, int(sizes) if sizes.ndim == 0 else ints(sizes), axis))


@operator("Optional")
def optional(node: Node, value: Value = None) -> Value:
    return value


@operator("OptionalHasElement")
def has_element(node: Node, value: Value = None) -> Tensor:
    return torch.tensor(value is not None)


@operator("OptionalGetElement")
def get_element(node: Node, value: Value) -> Value:
    return value
