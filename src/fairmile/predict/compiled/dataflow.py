"""The operators of an eager step as a graph of tensors: which ones Inductor fuses, and which it can compute again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.operators.work import base_name, is_in_place, kind_of, tensor_at
from fairmile.costs.steps import Op, Storage

_FUSIBLE_KINDS = ("elementwise", "copy", "fill", "norm", "reduction")
_FUSIBLE = (
    "embedding",
    "index_select",
    "gather",
    "index",
    "cat",
    "stack",
    "constant_pad_nd",
    "_log_softmax",
    "_softmax",
)
_FUSIBLE_STARTS = ("max_pool", "avg_pool", "_adaptive_avg_pool", "upsample_", "nll_loss", "mse_loss", "native_dropout")
_CALLED = (
    "max_pool3d",
    "normal",
    "uniform",
    "random",
    "bernoulli",
    "randperm",
    "multinomial",
    "sort",
    "topk",
    "nonzero",
    "unique",
)
_REDUCING_STARTS = ("max_pool", "nll_loss", "_adaptive_avg_pool")
_ROW_SUMS = ("sum",)
_NORMS = ("batch_norm", "group_norm", "layer_norm", "rms_norm")
_SOFTMAX = ("_softmax", "_log_softmax")
_ITEM_OF_INDEX = 8  # bytes of an index of eager pooling; Inductor keeps one byte


@dataclass(frozen=True)
class Value:
    """A tensor of the step; `again` are the values it can be computed from, None where it must be kept or made anew."""

    key: int
    size_bytes: int
    op: int  # place of the operator that makes it, -1: it was there before
    again: tuple[int, ...] | None


@dataclass
class Dataflow:
    """The outermost operators of a step by place, with the storages that each reads, makes and changes."""

    ops: Sequence[Op]
    made: list[list[int]] = field(default_factory=list)
    used: list[list[int]] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)  # the place of the last member; its own where it is not fused
    fused: list[bool] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)


def is_fusible(op: Op) -> bool:
    """Tell whether Inductor makes an operator part of a kernel of its own."""
    base = base_name(op)
    if any(base.startswith(name) for name in _CALLED) or (op.inputs and op.inputs[0].dtype.startswith("complex")):
        return False
    if base in _FUSIBLE or base.startswith(_FUSIBLE_STARTS):
        return True
    return kind_of(op) in _FUSIBLE_KINDS and "embedding" not in base and "cudnn_rnn" not in base


def is_norm(op: Op) -> bool:
    """Tell whether an operator reads its input twice: for its statistics, and to apply them."""
    return any(name in base_name(op) for name in _NORMS)


def dataflow(ops: Sequence[Op], made: Sequence[Sequence[int]], storages: Sequence[Storage]) -> Dataflow:
    """Return the graph of a forward and backward pass; `made` are the storages that each operator allocated."""
    flow = Dataflow(ops, [list(each) for each in made])
    producer = {key: place for place, keys in enumerate(flow.made) for key in keys}
    flow.fused = [is_fusible(op) for op in ops]
    flow.used = [list(dict.fromkeys(spec.storage for spec in op.inputs if spec.storage >= 0)) for op in ops]
    changed: dict[int, list[int]] = defaultdict(list)
    for place, op in enumerate(ops):
        first = tensor_at(op, 0)
        if is_in_place(op) and first is not None:
            changed[first.storage].append(place)
    flow.groups = _groups(flow, producer, changed)
    for place in range(len(ops)):
        for key in flow.used[place]:
            if key not in producer and key not in flow.values:
                flow.values[key] = Value(key, 0 if _stays(storages[key]) else storages[key].size_bytes, -1, None)
        for key in flow.made[place]:
            flow.values[key] = Value(key, storages[key].size_bytes, place, _sources(flow, place, key, changed))
    for place in _used_far_apart(flow):
        for key in flow.made[place]:
            flow.values[key] = replace(flow.values[key], again=None)
    return flow


def _used_far_apart(flow: Dataflow) -> set[int]:
    """Return the operators that read a tensor again after a call that followed from it: torch keeps what they make.

    Else a residual stream would be computed again from its very beginning.
    """
    readers: dict[int, list[int]] = defaultdict(list)
    for place, op in enumerate(flow.ops):
        if op.phase == "forward":
            for key in flow.used[place]:
                readers[key].append(place)
    first_call: dict[int, int] = {}  # of what an operator makes: the first call that follows from it
    for place in range(len(flow.ops) - 1, -1, -1):
        if flow.ops[place].phase == "forward":
            nexts = [each for key in flow.made[place] for each in readers[key] if each > place]
            calls = [first_call.get(each, len(flow.ops)) if flow.fused[each] else each for each in nexts]
            first_call[place] = min(calls, default=len(flow.ops))
    far: set[int] = set()
    for key, value in flow.values.items():
        if value.op >= 0 and flow.ops[value.op].phase == "forward":
            far |= {each for each in readers[key] if flow.fused[each] and each > first_call[value.op]}
    return far


def _stays(storage: Storage) -> bool:
    """Tell whether a tensor is there anyway, so that keeping it costs nothing."""
    return storage.category in ("parameter", "buffer", "optimizer")


def _sources(flow: Dataflow, place: int, key: int, changed: Mapping[int, Sequence[int]]) -> tuple[int, ...] | None:
    op = flow.ops[place]
    base, writers = base_name(op), changed.get(key, ())
    if not flow.fused[place] or op.phase != "forward" or base.startswith(_REDUCING_STARTS):
        return None
    if any(not flow.fused[each] or flow.ops[each].phase != "forward" for each in writers):
        return None
    sources = [each for each in flow.used[place] if each != key]
    for each in writers:
        sources += [other for other in flow.used[each] if other != key]
    if is_norm(op) or base == "native_dropout":  # the output from the input and the statistics or the mask
        first = flow.made[place][0] if not op.outputs else op.outputs[0].storage
        if key != first:
            return None
        return tuple(dict.fromkeys([*sources, *(other for other in flow.made[place] if other != key)]))
    if kind_of(op) == "reduction" and base not in _SOFTMAX:
        return None
    return tuple(dict.fromkeys(sources))


def _groups(flow: Dataflow, producer: Mapping[int, int], changed: Mapping[int, Sequence[int]]) -> list[int]:
    """Return for each operator the last of its group: neighbours over the same elements, with no call in between."""
    count = len(flow.ops)
    level, parent = [0] * count, list(range(count))
    written: dict[int, int] = dict(producer)

    def top(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for place, op in enumerate(flow.ops):
        before = [written[key] for key in flow.used[place] if key in written and written[key] < place]
        level[place] = max((level[each] + (not flow.fused[each]) for each in before), default=0)
        if flow.fused[place] and not _sums_rows(op):
            for each in before:
                same = flow.ops[each].phase == op.phase and level[each] == level[place] and flow.fused[each]
                if same and _domain(flow.ops[each]) == _domain(op) and not _sums_rows(flow.ops[each]):
                    parent[top(each)] = top(place)
        first = tensor_at(op, 0)
        if first is not None and place in changed.get(first.storage, ()):
            written[first.storage] = place
    last: dict[int, int] = {}
    for place in range(count):
        last[top(place)] = place
    return [last[top(place)] for place in range(count)]


def _sums_rows(op: Op) -> bool:
    return op.phase == "backward" and base_name(op) in _ROW_SUMS


def _domain(op: Op) -> int:
    return max((spec.elements for spec in (*op.inputs, *op.outputs)), default=0)


def index_bytes(storage: Storage) -> int:
    """Return what Inductor keeps of the indices of a pooling."""
    return max(1, storage.size_bytes // _ITEM_OF_INDEX)
