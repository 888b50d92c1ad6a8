"""A step at batches that were not traced, from two that were: whatever grows with the batch grows in a line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairmile.costs.steps import Op, StepTrace, Storage, TensorSpec


class OtherBatches:
    """Foretells the trace of a step at other batches; `is_known` tells whether both traces do the same at all."""

    def __init__(self, batches: tuple[int, int], traces: tuple[StepTrace, StepTrace]) -> None:
        self._batches, self._traces = batches, traces

    @property
    def is_known(self) -> bool:
        """Whether both traces have the same operators and blocks in the same order, so that only sizes differ."""
        first, second = self._traces
        return (
            self._batches[0] != self._batches[1]
            and list(first.events) == list(second.events)
            and [each.name for each in first.ops] == [each.name for each in second.ops]
            and [(each.category, each.op) for each in first.storages]
            == [(each.category, each.op) for each in second.storages]
        )

    def at(self, batch: int) -> StepTrace:
        """Return the step at a batch, every size on the line through both traces."""
        first, second = self._traces
        share = (batch - self._batches[0]) / (self._batches[1] - self._batches[0])
        return replace(
            first,
            ops=[_op(one, other, share) for one, other in zip(first.ops, second.ops, strict=True)],
            storages=[_storage(one, other, share) for one, other in zip(first.storages, second.storages, strict=True)],
        )


def _op(one: Op, other: Op, share: float) -> Op:
    if one == other:
        return one
    return replace(
        one,
        inputs=_specs(one.inputs, other.inputs, share),
        outputs=_specs(one.outputs, other.outputs, share),
        arguments=_between(one.arguments, other.arguments, share),
        keywords=_between(one.keywords, other.keywords, share),
    )


def _specs(ones: tuple[TensorSpec, ...], others: tuple[TensorSpec, ...], share: float) -> tuple[TensorSpec, ...]:
    if len(ones) != len(others):
        return ones
    return tuple(
        replace(one, shape=_between(one.shape, other.shape, share), strides=_between(one.strides, other.strides, share))
        for one, other in zip(ones, others, strict=True)
    )


def _storage(one: Storage, other: Storage, share: float) -> Storage:
    if one.size_bytes == other.size_bytes:
        return one
    return replace(one, size_bytes=_between(one.size_bytes, other.size_bytes, share))


def _between(one: Any, other: Any, share: float) -> Any:
    """Return a value with each whole number in it on the line; what is no number, or of another form, stays."""
    if one == other or type(one) is not type(other):
        return one
    if isinstance(one, (tuple, list)) and len(one) == len(other):
        return type(one)(_between(*pair, share) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) and one.keys() == other.keys():
        return {name: _between(value, other[name], share) for name, value in one.items()}
    if isinstance(one, int) and not isinstance(one, bool):
        return max(1, round(one + (other - one) * share))
    return one
