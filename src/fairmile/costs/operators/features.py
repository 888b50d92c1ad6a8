"""What makes two operator calls alike in speed: numbers whose logarithms are compared, and marks that should agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.devices import Device
from fairmile.costs.operators.work import Work, base_name, is_causal, is_in_place, size_bytes, tensor_at, tensors_at
from fairmile.costs.steps import Op, TensorSpec

_TILE = 64  # rows and columns of a product that one multiprocessor works on at a time
# Queries, keys and width of heads that kernels of fused attention work on at a time, by their library.
_BLOCKS = {"dot_product_cudnn": (128, 128, 64), "dot_product_flash": (128, 128, 32)}
_SHORT = ("bfloat16", "float16")  # types whose convolutions are much alike in speed
_OTHER_NAME = 40.0  # of a reduction or a gathering: one of another name says little of it

# What one H200 takes for each row that it gathers, a sort and each index in it, and each element that it adds: fitted
# to 330 calls with 40,000 indices or more. Rows are loaded so many bytes at a time.
_ROW_S, _SORT_S, _KEY_S, _SUM_S, _SHORT_SUM_S = 0.605e-9, 45e-6, 0.25e-9, 6.9e-12, 8.3e-12
# What it takes to add a bias to an element and to sum its gradient, element by element; where channels are innermost,
# sums of few rows are slow and those of many as fast as they are read. Fitted to 50 such additions and sums.
_BIAS_S, _BIAS_SUM_S, _BIAS_ROW_S, _BIAS_ROWS_S = 2.8e-12, 1.6e-12, 8e-12, 3e-5
_MULTIPROCESSORS = 132
_LOAD_BYTES = 16
_GATHERING = ("embedding", "index", "_unsafe_index", "index_select", "gather")


@dataclass(frozen=True, slots=True)
class Features:
    """A call as its neighbours see it: only calls of one `family` are compared.

    `numbers` are logarithms to base 2; each of `marks` that differs adds its weight to the square of the distance.
    """

    family: str
    numbers: tuple[float, ...]
    marks: tuple[str, ...]
    weights: tuple[float, ...]


def features_of(op: Op, work: Work) -> Features:
    """Return what to compare a call by."""
    by_kind = _BY_KIND.get(work.kind, _plain)
    return by_kind(op, work)


def compute_dtype(op: Op) -> str:
    """Return the type that an operator computes in: that of its widest floating operand that is no scalar."""
    floats = [each for each in op.inputs if each.dtype.startswith(("float", "bfloat", "complex"))]
    large = [each for each in floats if each.shape] or floats
    if not large:
        return "int8" if op.name.startswith("aten._int_mm") else "float32"
    return max(large, key=lambda each: each.elements).dtype


def layout(spec: TensorSpec) -> str:
    """Return how a tensor lies: "dense", "last" (channels innermost), "broadcast" or "strided"."""
    lengths = [(n, s) for n, s in zip(spec.shape, spec.strides, strict=True) if n > 1]
    if any(s == 0 for _, s in lengths):
        return "broadcast"
    step = 1
    for n, s in reversed(lengths):
        if s != step:
            break
        step *= n
    else:
        return "dense"
    step = 1
    for n, s in sorted(lengths, key=lambda each: each[1]):
        if s != step:
            return "strided"
        step *= n
    return "last" if lengths and len(spec.shape) > 3 and spec.strides[1] == 1 else "permuted"


def channels_last(spec: TensorSpec) -> TensorSpec:
    """Return an image or volume, or weights of a convolution, with its channels innermost; others as they are."""
    if len(spec.shape) not in (4, 5):
        return spec
    strides, step = [0] * len(spec.shape), 1
    for axis in (1, *range(len(spec.shape) - 1, 1, -1), 0):
        strides[axis] = step
        step *= spec.shape[axis]
    return replace(spec, strides=tuple(strides))


def layout_bytes(op: Op) -> int:
    """Return what a convolution moves to turn its tensors to the order that the fast units read, and back."""
    if "convolution" not in op.name:
        return 0
    shift = 1 if "backward" in op.name else 0
    x, w = tensor_at(op, shift), tensor_at(op, 1 + shift)
    y = tensor_at(op, 0) if shift else (op.outputs[0] if op.outputs else None)
    if x is None or w is None or y is None or layout(x) == "last":
        return 0
    return 2 * sum(map(size_bytes, (x,) if _is_last(x, y) else (x, w, y)))


def _is_last(x: TensorSpec, y: TensorSpec) -> bool:
    """Tell whether a convolution is worked out with its channels innermost: one tensor that has them so decides."""
    return "last" in (layout(x), layout(y))


def bias_s(op: Op, on: Device) -> float:
    """Return the time of the kernel beside a convolution's own: its bias is added, or the gradient of it summed."""
    share = _MULTIPROCESSORS / on.multiprocessors
    if base_name(op) == "convolution" and tensor_at(op, 2) is not None and op.outputs:
        return _BIAS_S * op.outputs[0].elements * share
    y = tensor_at(op, 0)
    if base_name(op) != "convolution_backward" or y is None or op.arguments[10][2] is not True:
        return 0.0
    if layout(y) != "last":
        return on.least_op_s + _BIAS_SUM_S * y.elements * share
    few_s = min(_BIAS_ROW_S * y.elements * share, _BIAS_ROWS_S)
    return on.least_op_s + few_s + size_bytes(y) / on.bandwidth_ceiling


def strain(op: Op, work: Work, multiprocessors: int) -> float:
    """Return how many times the time of its operations a call takes, for the way in which kernels divide it.

    A batch of products leaves multiprocessors idle where its results are fewer tiles: unlike a single product it is
    not split along the inner length. Attention computes whole blocks of queries, of keys and of the width of heads.
    """
    if work.kind == "gemm":
        a, b = _factors(op)
        if a is None or b is None or len(a.shape) != 3 or len(b.shape) != 3:
            return 1.0
        tiles = a.shape[0] * math.ceil(a.shape[1] / _TILE) * math.ceil(b.shape[2] / _TILE)
        return max(multiprocessors / max(tiles, 1), 1.0)
    sides = next((sides for name, sides in _BLOCKS.items() if name in op.name), None)
    first = 1 if "backward" in op.name else 0
    q, k = tensor_at(op, first), tensor_at(op, first + 1)
    if sides is None or q is None or k is None or len(q.shape) != 4 or not q.elements or not k.elements:
        return 1.0
    lengths = (q.shape[2], k.shape[2], q.shape[3])
    return math.prod(math.ceil(n / side) * side / n for n, side in zip(lengths, sides, strict=True))


def idling(op: Op, work: Work, multiprocessors: int) -> float:
    """Return how many times the time of its bytes a norm takes: one multiprocessor has each of its parts, others none.

    A part is a channel of a batch whose channels lie apart, a group of a sample's channels, or a row.
    """
    parts = _parts(op) if work.kind == "norm" else None
    return max(multiprocessors / max(parts, 1), 1.0) if parts is not None else 1.0


def indexing_s(op: Op, work: Work, moving_s: float, multiprocessors: int) -> float:
    """Return the time of a call whose bytes take `moving_s`: reading or adding by index takes longer than they do."""
    way = _way_of(op) if work.kind == "gather" else ""
    share, rows = _MULTIPROCESSORS / multiprocessors, _named_rows(op) if way else 0
    if way == "rows":
        return max(moving_s, _ROW_S * rows * share)
    if way == "keys":
        return moving_s + _SORT_S + _KEY_S * rows * share
    if way == "sums":
        each_s = _SHORT_SUM_S if op.inputs[0].dtype in _SHORT else _SUM_S
        return max(moving_s, each_s * op.inputs[2].elements * share)
    return moving_s


def _way_of(op: Op) -> str:
    """Return what a call by index spends its time on; nothing where that is the bytes it moves.

    A gathering of whole rows starts a block of threads for each, an accumulating `index_put` sorts its indices, and
    sums into rows are atomic, element by element.
    """
    base = base_name(op)
    if base in _GATHERING and op.outputs:
        row_bytes, rest = divmod(size_bytes(op.outputs[0]), max(_named_rows(op), 1))
        return "rows" if row_bytes and not rest and row_bytes % _LOAD_BYTES == 0 else ""
    if base in ("index_put", "_unsafe_index_put", "_index_put_impl"):
        return "keys" if True in op.arguments[3:4] else ""
    return "sums" if base == "index_add" and len(op.inputs) > 2 else ""


def _named_rows(op: Op) -> int:
    """Return how many rows the indices of a call name: one that is expanded along a row names it once."""
    places = next((each for each in op.inputs if each.dtype in ("int64", "int32")), None)
    if places is None:
        return 0
    return math.prod(length for length, stride in zip(places.shape, places.strides, strict=True) if stride)


def _parts(op: Op) -> int | None:
    """Return how many pieces of a norm are worked on side by side, None where a piece is divided further."""
    base = base_name(op)
    x = tensor_at(op, 1 if "backward" in base else 0)
    if x is None or len(x.shape) < 2:
        return None
    if "batch_norm" in base:
        is_applied = base == "native_batch_norm" and len(op.arguments) > 5 and op.arguments[5] is False
        return None if is_applied or len(x.shape) < 3 or layout(x) == "last" else x.shape[1]
    if base == "native_group_norm":
        return x.shape[0] * int(op.arguments[6])
    if base == "native_layer_norm" and isinstance(op.arguments[1], (list, tuple)):
        return x.elements // max(math.prod(op.arguments[1]), 1)
    return None


def _log(value: float) -> float:
    return math.log2(value) if value > 1 else 0.0


def _alignment(*lengths: int, most: int = 3) -> float:
    """Return how well lengths suit wide loads and tiles: 0 where one is odd, 3 where 8 divides all."""
    return min(min((length & -length).bit_length() - 1, most) if length else most for length in lengths)


def _first_factor(op: Op) -> int:
    return 1 if base_name(op) in ("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation") else 0


def _factors(op: Op) -> tuple[TensorSpec | None, TensorSpec | None]:
    first = _first_factor(op)
    return tensor_at(op, first), tensor_at(op, first + 1)


def _gemm(op: Op, work: Work) -> Features:
    a, b = _factors(op)
    if a is None or b is None or len(a.shape) < 2 or len(b.shape) < 2:
        return _plain(op, work)
    if base_name(op) == "linear":
        b = TensorSpec(b.shape[::-1], b.strides[::-1], b.dtype, b.storage)
    m, k, n = math.prod(a.shape[:-1]) if len(a.shape) > 3 else a.shape[-2], a.shape[-1], b.shape[-1]
    batch = a.shape[0] if len(a.shape) == 3 and len(b.shape) == 3 else 1
    turned = ("t" if a.strides[-1] != 1 and a.shape[-1] > 1 else "n") + (
        "t" if b.strides[-1] != 1 and b.shape[-1] > 1 else "n"
    )
    family = f"{'bmm' if batch > 1 else 'mm'} {compute_dtype(op)}"
    apart = [
        max((s for s, length in zip(each.strides[-2:], each.shape[-2:], strict=True) if length > 1), default=8)
        for each in (a, b)
    ]
    aligned = _alignment(*apart, n)
    numbers = (_log(m), _log(n), _log(k), _log(batch), 1.5 * min(aligned, 2 if compute_dtype(op) == "float32" else 3))
    return Features(family, numbers, (turned, "bias" if _first_factor(op) else ""), (1.0, 0.4))


def _convolution(op: Op, work: Work) -> Features:
    backward = "backward" in op.name
    x, w = (tensor_at(op, 1), tensor_at(op, 2)) if backward else (tensor_at(op, 0), tensor_at(op, 1))
    y = tensor_at(op, 0) if backward else (op.outputs[0] if op.outputs else None)
    if x is None or w is None or y is None or len(x.shape) < 3:
        return _plain(op, work)
    shift = 1 if backward else 0
    stride, dilation, transposed = op.arguments[3 + shift], op.arguments[5 + shift], bool(op.arguments[6 + shift])
    groups = int(op.arguments[8 + shift])
    mask = op.arguments[10] if backward and len(op.arguments) > 10 else ()
    depthwise = groups > 1 and groups == x.shape[1]
    apart = 1 if depthwise else groups  # the channels of a group are loaded by themselves
    # One dimension is to the libraries two of which one has the length 1.
    what = f"{'transposed ' if transposed else ''}{'depthwise' if depthwise else 'conv'}{max(len(w.shape) - 2, 2)}d"
    dtype = compute_dtype(op)
    family = f"{what} {'backward' if backward else 'forward'} {'short' if dtype in _SHORT else dtype}"
    places = math.prod(y.shape[2:])
    numbers = (
        0.2 * _log(x.shape[0]),
        0.2 * _log(places),
        0.3 * _log(x.shape[0] * places),
        0.6 * _log(x.shape[1]),
        0.6 * _log(y.shape[1]),
        0.9 * _log(math.prod(w.shape[2:])),
        0.6 * _log(math.prod(stride) if isinstance(stride, (list, tuple)) else 1),
        0.6 * _log(groups) if not depthwise else 0.0,
        0.4 * _alignment(x.shape[1] // apart, most=5),
        0.4 * _alignment(y.shape[1] // apart, most=5),
        0.2 * _alignment(places, most=4),
    )
    is_dilated = isinstance(dilation, (list, tuple)) and any(each > 1 for each in dilation)
    given = "".join("x" if each else "-" for each in mask[:2])
    marks = (
        "last" if _is_last(x, y) else "first",
        given,
        "dilated" if is_dilated else "",
        dtype,
        "even" if places & (places - 1) == 0 else "",
    )
    # Gradients of volumes whose sides are powers of two are up to four times as fast as those of others.
    evenness = 1.0 if backward and len(w.shape) == 5 else 0.0
    # A depthwise one of channels side by side has kernels of its own, up to a hundred times slower in three dimensions.
    return Features(family, numbers, marks, (9.0 if depthwise else 1.0, 0.8, 0.8, 0.5, evenness))


def _attention(op: Op, work: Work) -> Features:
    first = 1 if "backward" in op.name else 0
    q, k = tensor_at(op, first), tensor_at(op, first + 1)
    if q is None or k is None or len(q.shape) < 4:
        return _plain(op, work)
    numbers = (_log(q.shape[0] * q.shape[1]), _log(q.shape[2]), _log(k.shape[2]), 2 * _log(q.shape[3]))
    masked = any(
        each.shape and len(each.shape) == 4 and each.shape[-2:] == (q.shape[2], k.shape[2]) for each in op.inputs
    )
    marks = ("causal" if is_causal(op) else "", "mask" if masked else "", "dropout" if _drops(op) else "")
    return Features(f"{base_name(op)} {compute_dtype(op)}", numbers, marks, (2.0, 3.0, 3.0))


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How a recurrent network runs: moments one after the other in `layers`, both directions of one counted twice.

    Torch chooses among cuDNN's ways by type and width: "small" and "static" are one kernel for all moments, "standard"
    starts kernels for each.
    """

    length: int
    batch: int
    hidden: int
    layers: int
    mode: int
    is_both: bool
    way: str
    is_projected: bool = False


def recurrence(op: Op) -> Recurrence | None:
    """Return how a call of cuDNN's recurrent networks runs, None where the operator is another."""
    if "_rnn" not in op.name:
        return None
    x, weights = tensor_at(op, 0), tensors_at(op, 1)
    is_backward = "backward" in op.name
    at = 10 if is_backward else 6
    if x is None or len(x.shape) < 3 or len(weights) < 2 or len(op.arguments) < at + 8:
        return None
    mode, hidden, projection, layers, is_batch_first = op.arguments[at : at + 5]
    is_both = op.arguments[at + 7] is True
    length, batch = (x.shape[1], x.shape[0]) if is_batch_first is True else (x.shape[0], x.shape[1])
    way = "standard"
    if not projection and x.dtype != "bfloat16":
        is_plain = mode < 2
        if hidden <= ((256 if is_plain else 128) if is_backward else (384 if is_plain else 192)):
            way = "small"
        elif x.dtype == "float16" and layers == 1 and not is_both and mode != 3 and batch % 8 == 0 and batch <= 128:
            is_fast = hidden <= 1024 and hidden % 128 == 0 and x.shape[2] % 128 == 0
            way = "static" if is_fast and (mode == 2 or batch < 96 or hidden < 896) else way
    return Recurrence(length, batch, hidden, layers * (2 if is_both else 1), mode, is_both, way, bool(projection))


def _drops(op: Op) -> bool:
    return any(isinstance(each, float) and 0 < each < 1 for each in op.arguments)


def _recurrent(op: Op, work: Work) -> Features:
    x, network = tensor_at(op, 0), recurrence(op)
    if x is None or network is None:
        return _plain(op, work)
    numbers = (
        0.4 * _log(network.length),
        _log(network.batch),
        _log(network.hidden),
        _log(network.layers),
        0.3 * _log(x.shape[2]),
        0.5 * _alignment(network.batch, network.hidden, most=6),
    )
    family = f"{base_name(op)} {network.way} {compute_dtype(op)}"
    return Features(family, numbers, (str(network.mode), str(network.is_both)), (1.0, 0.5))


def _normal(op: Op, work: Work) -> Features:
    largest = max(op.inputs, key=lambda each: each.elements, default=None)
    if largest is None:
        return _plain(op, work)
    if "batch_norm" in op.name and len(largest.shape) > 1:
        return _batch_norm(op, largest)
    kept = min((each.elements for each in op.outputs), default=1)
    layouts = sorted({layout(each) for each in op.inputs if each.elements == largest.elements})
    way, width = _reduced(op, largest)
    numbers = (_log(largest.elements), _log(kept), 0.5 * _log(width), _log(work.bytes))
    marks = (op.name, compute_dtype(op), " ".join(layouts), way)
    return Features(work.kind, numbers, marks, (9.0 if work.kind == "norm" else _OTHER_NAME, 1.5, 6.0, 3.0))


def _batch_norm(op: Op, x: TensorSpec) -> Features:
    applies = base_name(op) == "native_batch_norm" and len(op.arguments) > 5 and op.arguments[5] is False
    numbers = (0.8 * _log(x.shape[0]), _log(x.shape[1]), 0.8 * _log(math.prod(x.shape[2:])))
    last = "last" if layout(x) == "last" else ""
    marks = (last, "volume" if len(x.shape) > 4 else "")
    return Features(f"{base_name(op)}{' applied' if applies else ''} {compute_dtype(op)}", numbers, marks, (6.0, 0.5))


def _reduced(op: Op, largest: TensorSpec) -> tuple[str, int]:
    """Return which dimensions go (or how large a pool is), and how many elements lie side by side."""
    width = largest.shape[-1] if largest.shape else 1
    dims = op.arguments[1] if len(op.arguments) > 1 else None
    if "pool" in op.name:
        kernel = op.arguments[2] if "backward" in op.name and len(op.arguments) > 2 else dims
        return (f"of {math.prod(kernel)}" if isinstance(kernel, (list, tuple)) else ""), width
    if isinstance(dims, int) and not isinstance(dims, bool):
        dims = [dims]
    if not isinstance(dims, (list, tuple)) or not dims or not all(isinstance(each, int) for each in dims):
        return "", width
    count = len(largest.shape)
    gone = {each % count for each in dims} if count else set()
    if ("norm" in op.name and "vector" not in op.name) or not gone:
        return "", width
    is_inner = count - 1 in gone
    side = 1
    for place in reversed(range(count)):
        if (place in gone) != is_inner:
            break
        side *= largest.shape[place]
    return "inner" if is_inner else "outer", side


def _fourier(op: Op, work: Work) -> Features:
    x = max((*op.inputs, *op.outputs), key=lambda each: each.elements, default=None)
    axes = op.arguments[1] if len(op.arguments) > 1 else ()
    if x is None or not x.shape or not isinstance(axes, (list, tuple)) or not axes:
        return _plain(op, work)
    sides = [x.shape[axis] for axis in axes]
    points = math.prod(sides)
    numbers = (
        0.3 * _log(x.elements // max(points, 1)),
        0.7 * _log(points),
        0.5 * _log(max(sides)),
        0.5 * _log(x.elements),
    )
    is_inner = any(axis % len(x.shape) == len(x.shape) - 1 for axis in axes)
    marks = (str(len(axes)), "" if all(_is_smooth(side) for side in sides) else "odd", "inner" if is_inner else "outer")
    return Features(f"{base_name(op)} {compute_dtype(op)}", numbers, marks, (3.0, 3.0, 6.0))


def _is_smooth(length: int) -> bool:
    """Tell whether a length is made of the factors that transforms have kernels for."""
    for factor in (2, 3, 5, 7):
        while length > 1 and length % factor == 0:
            length //= factor
    return length <= 1


def _gathered(op: Op, work: Work) -> Features:
    largest = max((*op.inputs, *op.outputs), key=lambda each: each.elements, default=None)
    places = [each for each in op.inputs if each.dtype in ("int64", "int32")]
    count = max((each.elements for each in places), default=1)
    table = op.outputs[0] if base_name(op) == "embedding_dense_backward" and op.outputs else tensor_at(op, 0)
    rows = table.shape[0] if table is not None and table.shape else 1
    width = largest.elements // max(count, rows, 1) if largest is not None else 1
    numbers = (_log(work.bytes), _log(count), 0.5 * _log(width), 0.7 * _log(rows))
    name = _ALIKE.get(base_name(op), base_name(op))
    # Each way has a law of its own: beyond what was measured, those of another one say nothing.
    return Features(f"gather {_way_of(op)}".strip(), numbers, (name, compute_dtype(op)), (_OTHER_NAME, 1.0))


def _optimizer(op: Op, work: Work) -> Features:
    lists = tensors_at(op, 0)
    elements = sum(each.elements for each in lists)
    return Features("optimizer", (_log(elements), _log(len(lists))), (op.name, compute_dtype(op)), (3.0, 3.0))


def _plain(op: Op, work: Work) -> Features:
    large = [each for each in (*op.inputs, *op.outputs) if each.elements > 1]
    pattern, side = _pattern(large)
    numbers = (_log(work.bytes_read + 1), _log(work.bytes_written + 1), 0.0 if pattern == "dense" else 0.3 * _log(side))
    name = base_name(op) + ("_" if is_in_place(op) else "")
    types = " ".join(sorted({each.dtype for each in large}))
    return Features("plain", numbers, (name, pattern, types), (1.5, 3.0, 1.0))


def _pattern(tensors: list[TensorSpec]) -> tuple[str, int]:
    """Return how the tensors of a call lie to one another, and how many elements lie side by side in all of them.

    "dense": all in one order without gaps; "rows": in one order, with gaps; "inner" and "outer": one is repeated along
    its innermost dimension or another; "crossed": what is near in one is far in another.
    """
    layouts = {layout(each) for each in tensors}
    count = max((len(each.shape) for each in tensors), default=0)
    shapes = {each.elements for each in tensors}
    if len(layouts) <= 1 and layouts <= {"dense", "last", "permuted"} and len(shapes) <= 1:
        return "dense", 1
    inner, runs = set(), []
    whole = max(tensors, key=lambda each: each.elements)
    is_repeated = is_repeated_inside = False
    for each in tensors:
        shape, strides = (1,) * (count - len(each.shape)) + each.shape, (0,) * (count - len(each.shape)) + each.strides
        lengths = (1,) * (count - len(whole.shape)) + whole.shape
        steps = [(place, 0 if n == 1 else s) for place, (n, s) in enumerate(zip(shape, strides, strict=True))]
        wide = [(place, s) for place, s in steps if lengths[place] > 1]
        if any(s == 0 for _, s in wide):
            is_repeated = True
            is_repeated_inside |= bool(wide) and wide[-1][1] == 0
        moving = [(s, -place) for place, s in wide if s > 0]
        if moving:
            inner.add(-min(moving)[1])
            runs.append(_run(shape, strides))
    side = min(runs, default=1)
    if len(inner) > 1 and not is_repeated_inside:
        return "crossed", side
    if is_repeated:
        return "inner" if is_repeated_inside else "outer", side
    return "rows", side


def _run(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many elements of a tensor lie side by side."""
    step = 1
    for n, s in sorted(
        ((n, s) for n, s in zip(shape, strides, strict=True) if n > 1 and s > 0), key=lambda each: each[1]
    ):
        if s != step:
            break
        step *= n
    return step


_ALIKE = {"_unsafe_index_put": "index_put", "_unsafe_index": "index"}
_BY_KIND: dict[str, Callable[[Op, Work], Features]] = {
    "gemm": _gemm,
    "conv": _convolution,
    "attention": _attention,
    "rnn": _recurrent,
    "fft": _fourier,
    "norm": _normal,
    "reduction": _normal,
    "gather": _gathered,
    "optimizer": _optimizer,
}
