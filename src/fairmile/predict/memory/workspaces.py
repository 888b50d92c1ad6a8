"""Memory that libraries and kernels take while an operator runs, beside what the operator returns.

Rules are byte for byte where a kernel's own arithmetic is known, and measured neighbours elsewhere; numbers that differ
between architectures stand in data/workspaces. Copies that bring an operand into another layout are operators of the
trace itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, Literal

from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.steps import Op, TensorSpec
from fairmile.predict.memory.contexts import libraries
from fairmile.predict.memory.convolutions import ConvolutionCall, ConvolutionTable
from fairmile.predict.memory.recurrent import RecurrentCall, recurrent_workspace_bytes, reserve_bytes
from fairmile.predict.memory.reductions import Multiprocessors, reduction_bytes

_ELEMENT = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
# Per value of batch norm with channels last, by type where cuDNN does it; "other": sums per channel and block of rows.
_NORM_BYTES = {"float32": 129 / 1024, "float16": 129 / 2560, "other": 4}
_NORM_BACKWARD_BYTES = {"float32": 1 / 12, "float16": 1 / 12, "other": 2}


@dataclass(frozen=True)
class BlockGroup:
    """Blocks taken together once the operator made `after` of its own; given back at once unless `until` says later."""

    after: int
    sizes_bytes: tuple[int, ...]
    until: Literal["now", "end", "never"] = "now"


@dataclass(frozen=True)
class LibraryRules:
    """What an architecture's libraries take; `verified` says whether that was measured."""

    architecture: str
    blas_handle_bytes: int
    blas_epilogue_bytes: int
    processor_threads: int
    convolutions: str
    verified: bool
    source: str
    date: str


@cache
def library_rules(architecture: str) -> LibraryRules:
    """Return the rules of an architecture, or those of the nearest that has some."""
    table: dict[str, dict[str, Any]] = libraries()["architectures"]
    rules = table.get(architecture, table["default"])
    return LibraryRules(architecture=architecture, **rules)


class Workspaces:
    """Rules for one device; equal calls are answered from memory."""

    def __init__(self, architecture: str, multiprocessors: int) -> None:
        self.rules = library_rules(architecture)
        self._processors = Multiprocessors(multiprocessors, self.rules.processor_threads)
        self._convolutions = ConvolutionTable(self.rules.convolutions)
        self._known: dict[Any, tuple[BlockGroup, ...]] = {}

    def of(self, op: Op) -> tuple[BlockGroup, ...]:
        """Return what a call takes while it runs, in the order in which it is taken."""
        rule = _RULES.get(op.name.removeprefix("aten.").split(".")[0])
        if rule is None:
            return ()
        key = (op.name, tuple((each.shape, each.strides, each.dtype) for each in op.inputs), repr(op.arguments))
        groups = self._known.get(key)
        if groups is None:
            groups = self._known[key] = tuple(each for each in rule(self, op) if sum(each.sizes_bytes))
        return groups

    def kept_bytes(self, op: Op) -> dict[int, int]:
        """Return by storage how much a library keeps for the backward pass, where that is not what the trace says."""
        if op.name != "aten._cudnn_rnn.default" or len(op.outputs) < 4 or op.outputs[3].elements == 0:
            return {}
        return {op.outputs[3].storage: reserve_bytes(_recurrent(op, 6))}

    def _convolution(self, op: Op) -> list[BlockGroup]:
        tensors = _tensors(op)
        x, weight = tensors[0], tensors[1]
        stride, transposed, groups = op.arguments[3], bool(op.arguments[6]), int(op.arguments[8])
        last = _is_channels_last(x) or _is_channels_last(weight)
        output = op.outputs[0].shape if op.outputs else ()
        if not output:
            return []
        call = _call("dgrad" if transposed else "fwd", weight, last, x.shape, output, stride, groups, transposed)
        return [BlockGroup(1, (self._convolutions.workspace_bytes(call),))]

    def _convolution_backward(self, op: Op) -> list[BlockGroup]:
        gradient, x, weight = _tensors(op)[:3]
        stride, transposed, groups, wanted = (
            op.arguments[4],
            bool(op.arguments[7]),
            int(op.arguments[9]),
            op.arguments[10],
        )
        last = _is_channels_last(x) or _is_channels_last(weight)
        result: list[BlockGroup] = []
        made = 0

        def work(direction: str) -> int:
            return self._convolutions.workspace_bytes(
                _call(direction, weight, last, x.shape, gradient.shape, stride, groups, transposed)
            )

        if wanted[0]:
            made += 1
            result.append(BlockGroup(made, (work("fwd" if transposed else "dgrad"),)))
        if wanted[1]:
            made += 1
            result.append(BlockGroup(made, (work("wgrad"),)))
        if wanted[2]:
            made += 1
            dims = [0, *range(2, len(gradient.shape))]
            result.append(BlockGroup(made, reduction_bytes(gradient.shape, gradient.strides, dims, self._processors)))
        return result

    def _reduction(self, op: Op) -> list[BlockGroup]:
        x = _tensors(op)[0]
        dims = (
            op.arguments[1] if len(op.arguments) > 1 and not isinstance(op.arguments[1], (dict, bool, float)) else None
        )
        if isinstance(dims, int):
            dims = [dims]
        chosen = list(dims) if dims else list(range(len(x.shape)))
        whole = x.dtype in ("bool", "int64", "int32")
        cast = x.elements * 8 if x.dtype == "bool" else 0
        sizes = reduction_bytes(x.shape, x.strides, chosen, self._processors, 8 if whole else 4)
        return [BlockGroup(1, (cast, *sizes) if cast else sizes)]

    def _layer_norm_backward(self, op: Op) -> list[BlockGroup]:
        x = _tensors(op)[1]
        width = prod(op.arguments[2]) if isinstance(op.arguments[2], (list, tuple)) else x.shape[-1]
        rows = x.elements // max(width, 1)
        groups: list[BlockGroup] = []
        gradient = _tensors(op)[0]
        if not _is_contiguous(gradient):  # its copy, which the trace notes for its time, is there as long as the sums
            groups.append(BlockGroup(3, (_bytes(gradient),), until="end"))
        if rows > 65536 and width // 32 < self._processors.count // 2:
            # Tall and narrow: partial sums of blocks of 32 rows, added up afterwards.
            partial = -(-rows // 32)
            groups.append(BlockGroup(3, (partial * width * 4, partial * width * 4), until="end"))
            groups += [BlockGroup(3, reduction_bytes((partial, width), (width, 1), [0], self._processors))] * 2
        return groups

    def _batch_norm(self, op: Op) -> list[BlockGroup]:
        x, training = _tensors(op)[0], op.arguments[5]
        return [BlockGroup(3, _channel_sums_bytes(x, _NORM_BYTES))] if training is True else []

    def _batch_norm_backward(self, op: Op) -> list[BlockGroup]:
        x, training = _tensors(op)[1], op.arguments[7]
        return [BlockGroup(3, _channel_sums_bytes(x, _NORM_BACKWARD_BYTES))] if training is True else []

    def _safe_softmax(self, op: Op) -> list[BlockGroup]:
        x = _tensors(op)[0]
        return [BlockGroup(1, (x.elements, x.elements // max(1, x.shape[-1])))]

    def _softmax_backward(self, op: Op) -> list[BlockGroup]:
        return [BlockGroup(1, (_bytes(_tensors(op)[0]),))]

    def _fused_attention_backward(self, op: Op) -> list[BlockGroup]:
        """Gradient of the queries in float32, and a row sum for each; cuDNN and flash alike."""
        query = _tensors(op)[1]
        return [BlockGroup(3, (query.elements * 4 + query.elements // query.shape[-1] * 4 + 256,))]

    def _flash_attention_backward(self, op: Op) -> list[BlockGroup]:
        query = _tensors(op)[1]
        batch, heads, length, width = query.shape
        padded = -(-length // 128) * 128
        wide = -(-width // 32) * 32
        row = batch * heads * padded * 4
        return [BlockGroup(1, (_bytes(query), _bytes(query), row, row * wide))]

    def _efficient_attention_backward(self, op: Op) -> list[BlockGroup]:
        gradient, query = _tensors(op)[:2]
        batch, heads, length, width = query.shape
        row = batch * heads * length * 4
        tiles = -(-length // 128)
        work = BlockGroup(3, (row, batch * heads * (tiles * 128 * width * 4 + tiles * 32)))
        if gradient.dtype != "float32":
            return [work]
        # In float32 the gradient times the output is written out before it is added up.
        return [BlockGroup(3, (_bytes(gradient), row, row)), work]

    def _embedding_backward(self, op: Op) -> list[BlockGroup]:
        gradient, index = _tensors(op)[:2]
        count, rows, width = index.elements, int(op.arguments[2]), gradient.shape[-1]
        if count <= 3072:
            return []
        partial = count // 10 + min(count, rows)
        eight = count * 8
        return [
            BlockGroup(0, (eight, eight), until="end"),
            BlockGroup(0, (eight, _sort_bytes(count, 16))),
            BlockGroup(1, (eight, eight, partial * 8, partial * width * 4)),
        ]

    def _index_put(self, op: Op) -> list[BlockGroup]:
        tensors = _tensors(op)
        accumulates = len(op.arguments) > 3 and op.arguments[3] is True
        index = next((each for each in tensors[1:] if each.dtype in ("int64", "int32")), None)
        if not accumulates or index is None:
            return []
        values = tensors[-1]
        eight = index.elements * 8
        copy = (0,) if _is_contiguous(values) else (_bytes(values),)
        made = 0 if op.name.removeprefix("aten.").startswith("_index_put_impl_") else 1
        return [BlockGroup(made, (eight, *copy, eight, eight, eight, _sort_bytes(index.elements, 16)))]

    def _sort(self, op: Op) -> list[BlockGroup]:
        x = _tensors(op)[0]
        if not x.shape or x.elements // x.shape[-1] > 1 or x.elements <= 4096:
            return [BlockGroup(2, (x.elements * 8,))] if len(x.shape) < 2 else []
        return [BlockGroup(2, (x.elements * 8, _sort_bytes(x.elements, 8 + _ELEMENT.get(x.dtype, 4))))]

    def _product(self, op: Op) -> list[BlockGroup]:
        """Operands that no layout of a matrix product covers are copied."""
        sizes = tuple(_bytes(each) for each in _tensors(op)[-2:] if not _is_matrix(each))
        return [BlockGroup(0, sizes, until="end")] if sizes else []

    def _loss(self, op: Op) -> list[BlockGroup]:
        x = _tensors(op)[0]
        return [BlockGroup(1, (_bytes(x),))] if op.outputs and not op.outputs[0].shape else []

    def _copy_of_input(self, op: Op) -> list[BlockGroup]:
        return [BlockGroup(1, (_bytes(_tensors(op)[0]),))]

    def _transform(self, op: Op) -> list[BlockGroup]:
        """A transform to real numbers works on a copy, one whose batch is no single run of memory reads a copy."""
        x, dims = _tensors(op)[0], op.arguments[1]
        sizes: tuple[int, ...] = ()
        strides = x.strides
        if op.name.startswith("aten._fft_c2r"):
            sizes, strides = (_bytes(x),), _contiguous_strides(x.shape)
        if not _is_one_run(x.shape, strides, [each % len(x.shape) for each in dims]):
            sizes = (*sizes, _bytes(x))
        return [BlockGroup(1, sizes)]

    def _roll(self, op: Op) -> list[BlockGroup]:
        dims = op.arguments[2] if len(op.arguments) > 2 else ()
        return self._copy_of_input(op) if isinstance(dims, (list, tuple)) and len(dims) > 1 else []

    def _rnn(self, op: Op) -> list[BlockGroup]:
        call = _recurrent(op, 6)
        made = 3 if call.kind == "lstm" else 2
        turned = BlockGroup(0, (_bytes(op.inputs[0]),), until="end")
        work = BlockGroup(made, (recurrent_workspace_bytes(call),), until="end")
        return [turned, work] if _is_batch_first(op, 6) else [work]

    def _rnn_backward(self, op: Op) -> list[BlockGroup]:
        """Gradients of the data, then of the weights; what has the batch first is turned for each."""
        call = _recurrent(op, 10)
        size = recurrent_workspace_bytes(call)
        cells = call.layers * call.directions * call.state_bytes // call.steps
        hidden = cells * call.width // call.hidden
        final = (hidden, cells) if call.kind == "lstm" else (hidden,)
        result = [BlockGroup(0, final, until="end")]  # the final states have gradients of zero
        made = 1 + len(final)
        if not _is_batch_first(op, 10):
            return [*result, BlockGroup(made, (size,)), BlockGroup(1 << 20, (size,))]
        data = _bytes(op.inputs[0])
        turned = call.directions * call.state_bytes * call.width // call.hidden
        return [*result, BlockGroup(made, (turned, data, size)), BlockGroup(1 << 20, (data, size))]


_RULES: dict[str, Callable[[Workspaces, Op], Sequence[BlockGroup]]] = {
    "convolution": Workspaces._convolution,
    "convolution_backward": Workspaces._convolution_backward,
    "sum": Workspaces._reduction,
    "mean": Workspaces._reduction,
    "amax": Workspaces._reduction,
    "amin": Workspaces._reduction,
    "native_layer_norm_backward": Workspaces._layer_norm_backward,
    "_fused_rms_norm_backward": Workspaces._layer_norm_backward,
    "native_batch_norm": Workspaces._batch_norm,
    "native_batch_norm_backward": Workspaces._batch_norm_backward,
    "_safe_softmax": Workspaces._safe_softmax,
    "_softmax_backward_data": Workspaces._softmax_backward,
    "_scaled_dot_product_cudnn_attention_backward": Workspaces._fused_attention_backward,
    "_scaled_dot_product_flash_attention_backward": Workspaces._flash_attention_backward,
    "_scaled_dot_product_efficient_attention_backward": Workspaces._efficient_attention_backward,
    "embedding_dense_backward": Workspaces._embedding_backward,
    "index_put": Workspaces._index_put,
    "_index_put_impl_": Workspaces._index_put,
    "sort": Workspaces._sort,
    "mm": Workspaces._product,
    "bmm": Workspaces._product,
    "addmm": Workspaces._product,
    "baddbmm": Workspaces._product,
    "mse_loss": Workspaces._loss,
    "_fft_c2r": Workspaces._transform,
    "_fft_r2c": Workspaces._transform,
    "_fft_c2c": Workspaces._transform,
    "roll": Workspaces._roll,
    "_cudnn_rnn": Workspaces._rnn,
    "_cudnn_rnn_backward": Workspaces._rnn_backward,
}
PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "_addmm_activation", "addbmm"})


def _tensors(op: Op) -> list[TensorSpec]:
    return list(op.inputs)


def _bytes(tensor: TensorSpec) -> int:
    return tensor.elements * _ELEMENT.get(tensor.dtype, 4)


def _channel_sums_bytes(x: TensorSpec, each: Mapping[str, float]) -> tuple[int, ...]:
    """Return what batch norm takes where channels lie last: per value in cuDNN, per block of rows in torch itself."""
    if not _is_channels_last(x) or not x.elements:
        return ()
    channels = x.shape[1]
    rows = x.elements // channels
    if x.dtype in each:
        multiple = 64 if channels % 4 == 0 else 16
        return (int(rows * -(-channels // multiple) * multiple * each[x.dtype]) + 8 * channels,)
    across = min(_power_below(channels), 32)
    down = min(_power_below(-(-rows // 16)), 512 // across)
    across = min(_power_below(channels), 512 // down)
    blocks = min(-(-rows // (down * 16)), 128)
    return (int(4 * channels * blocks * each["other"]), 4 * -(-channels // across)) if blocks >= 8 else ()


def _power_below(count: int) -> int:
    return 1 << (max(count, 1).bit_length() - 1)


def _recurrent(op: Op, at: int) -> RecurrentCall:
    """Read the layers from a call whose argument `at` says which kind they are."""
    mode, hidden, projection, layers, first, dropout, training, both, sizes = op.arguments[at : at + 9]
    data = op.inputs[0]
    if sizes:
        steps, batch = len(sizes), sizes[0]
    else:
        steps, batch = (data.shape[1], data.shape[0]) if first else data.shape[:2]
    return RecurrentCall(
        kind={2: "lstm", 3: "gru"}.get(mode, "rnn"),
        dtype=data.dtype,
        layers=layers,
        directions=2 if both else 1,
        dropout=bool(dropout and training),
        steps=steps,
        batch=batch,
        hidden=hidden,
        inputs=data.shape[-1],
        projection=projection or 0,
        backward=at == 10,
        training=bool(training),
        packed=bool(sizes),
    )


def _is_batch_first(op: Op, at: int) -> bool:
    return bool(op.arguments[at + 4]) and not op.arguments[at + 8]


def _sort_bytes(count: int, pair_bytes: int) -> int:
    """Room of a radix sort of pairs: a second copy, and counters."""
    return count * pair_bytes + 16_900 + count * 22 // 100


def _is_contiguous(tensor: TensorSpec) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[number + 1 :]) for number in range(len(shape)))


def _is_one_run(shape: Sequence[int], strides: Sequence[int], without: Sequence[int]) -> bool:
    """Tell whether all dimensions but some can be seen as a single one."""
    rest = [(stride, size) for n, (size, stride) in enumerate(zip(shape, strides, strict=True)) if n not in without]
    ordered = sorted((each for each in rest if each[1] != 1), reverse=True)
    return all(outer == inner * size for (outer, _), (inner, size) in pairwise(ordered))


def _is_channels_last(tensor: TensorSpec) -> bool:
    """Tell whether torch takes a tensor's channels to be last; strides tell, also where a dimension has one entry."""
    if len(tensor.shape) not in (4, 5) or 0 in tensor.shape or not tensor.strides[1]:
        return False
    least = 0
    for number in (1, *range(len(tensor.shape) - 1, 1, -1), 0):
        stride = tensor.strides[number]
        if stride < least or (number == 0 and least == tensor.strides[1]):
            return False
        least = stride * tensor.shape[number]
    return True


def _is_matrix(tensor: TensorSpec) -> bool:
    if len(tensor.shape) < 2:
        return True
    (rows, columns), (down, across) = tensor.shape[-2:], tensor.strides[-2:]
    return (
        (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows)) or rows == 1 or columns == 1
    )


def _call(
    direction: str,
    weight: TensorSpec,
    last: bool,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    stride: Any,
    groups: int,
    transposed: bool,
) -> ConvolutionCall:
    x, y = (output_shape, input_shape) if transposed else (input_shape, output_shape)
    return ConvolutionCall(direction, weight.dtype, last, tuple(x), tuple(y), weight.shape, max(stride), groups)
