"""What makes two operator calls alike in speed: numbers whose logarithms are compared, and marks that should agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fairmile.perf.compute.work import Work, base_name, is_causal, is_in_place, size_bytes, tensor_at, tensors_at
from fairmile.perf.steps import Op, TensorSpec


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
        return "float32"
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


def layout_bytes(op: Op) -> int:
    """Return what a convolution moves to turn its tensors to the order that the fast units read, and back."""
    if "convolution" not in op.name:
        return 0
    shift = 1 if "backward" in op.name else 0
    x, w = tensor_at(op, shift), tensor_at(op, 1 + shift)
    y = tensor_at(op, 0) if shift else (op.outputs[0] if op.outputs else None)
    if x is None or w is None or y is None or layout(x) == "last":
        return 0
    return 2 * sum(map(size_bytes, (x, w, y)))


def _log(value: float) -> float:
    return math.log2(value) if value > 1 else 0.0


def _alignment(*lengths: int, most: int = 3) -> float:
    """Return how well lengths suit wide loads and tiles: 0 where one is odd, 3 where 8 divides all."""
    return min(min((length & -length).bit_length() - 1, most) if length else most for length in lengths)


def _gemm(op: Op, work: Work) -> Features:
    first = 1 if base_name(op) in ("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation") else 0
    a, b = tensor_at(op, first), tensor_at(op, first + 1)
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
    return Features(family, numbers, (turned, "bias" if first else ""), (1.0, 0.4))


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
    # One dimension is to the libraries two of which one has the length 1.
    what = f"{'transposed ' if transposed else ''}{'depthwise' if depthwise else 'conv'}{max(len(w.shape) - 2, 2)}d"
    family = f"{what} {'backward' if backward else 'forward'} {compute_dtype(op)}"
    numbers = (
        0.8 * _log(x.shape[0]),
        _log(x.shape[1]),
        _log(y.shape[1]),
        0.8 * _log(math.prod(y.shape[2:])),
        1.5 * _log(math.prod(w.shape[2:])),
        _log(math.prod(stride) if isinstance(stride, (list, tuple)) else 1),
        _log(groups) if not depthwise else 0.0,
        0.6 * _alignment(x.shape[1], most=5),
        0.6 * _alignment(y.shape[1], most=5),
    )
    is_dilated = isinstance(dilation, (list, tuple)) and any(each > 1 for each in dilation)
    given = "".join("x" if each else "-" for each in mask[:2])
    marks = ("last" if layout(x) == "last" else "first", given, "dilated" if is_dilated else "")
    return Features(family, numbers, marks, (1.5, 2.0, 8.0))


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


def moments(op: Op) -> int:
    """Return how many times one layer's cell follows another in a recurrent network: each waits for the one before."""
    x, weights = tensor_at(op, 0), tensors_at(op, 1)
    if x is None or len(x.shape) < 3:
        return 0
    layers = max(sum(len(each.shape) == 2 for each in weights) // 2, 1)
    return _length_and_batch(op, x)[0] * layers


def _length_and_batch(op: Op, x: TensorSpec) -> tuple[int, int]:
    at = 14 if "backward" in op.name else 10
    is_batch_first = len(op.arguments) > at and op.arguments[at] is True
    return (x.shape[1], x.shape[0]) if is_batch_first else (x.shape[0], x.shape[1])


def _drops(op: Op) -> bool:
    return any(isinstance(each, float) and 0 < each < 1 for each in op.arguments)


def _recurrent(op: Op, work: Work) -> Features:
    x = tensor_at(op, 0)
    weights = tensors_at(op, 1)
    if x is None or len(x.shape) < 3 or not weights:
        return _plain(op, work)
    hidden = max((each.shape[-1] for each in weights[1:2]), default=1)
    length, batch = _length_and_batch(op, x)
    numbers = (0.5 * _log(length), _log(batch), _log(hidden), _log(len(weights)), 0.3 * _log(x.shape[2]))
    return Features(f"{base_name(op)} {compute_dtype(op)}", (*numbers, 0.5 * _alignment(batch, hidden, most=6)), (), ())


def _normal(op: Op, work: Work) -> Features:
    largest = max(op.inputs, key=lambda each: each.elements, default=None)
    if largest is None:
        return _plain(op, work)
    kept = min((each.elements for each in op.outputs), default=1)
    width = largest.shape[-1] if largest.shape else 1
    numbers = (_log(largest.elements), _log(kept), 0.5 * _log(width), _log(work.bytes))
    trains = "apply" if base_name(op) == "native_batch_norm" and op.arguments[5] is False else ""
    return Features(work.kind, numbers, (op.name + trains, compute_dtype(op), layout(largest)), (9.0, 1.5, 6.0))


def _gathered(op: Op, work: Work) -> Features:
    largest = max((*op.inputs, *op.outputs), key=lambda each: each.elements, default=None)
    places = [each for each in op.inputs if each.dtype in ("int64", "int32")]
    count = max((each.elements for each in places), default=1)
    width = largest.shape[-1] if largest is not None and largest.shape else 1
    table = op.outputs[0] if base_name(op) == "embedding_dense_backward" and op.outputs else tensor_at(op, 0)
    rows = table.shape[0] if table is not None and table.shape else 1
    numbers = (_log(work.bytes), _log(count), 0.5 * _log(width), 0.7 * _log(rows))
    name = _ALIKE.get(base_name(op), base_name(op))
    return Features("gather", numbers, (name, compute_dtype(op)), (9.0, 1.0))


def _optimizer(op: Op, work: Work) -> Features:
    lists = tensors_at(op, 0)
    elements = sum(each.elements for each in lists)
    return Features("optimizer", (_log(elements), _log(len(lists))), (op.name, compute_dtype(op)), (3.0, 3.0))


def _plain(op: Op, work: Work) -> Features:
    patterns = {layout(each) for each in (*op.inputs, *op.outputs) if each.elements > 1}
    pattern = "dense" if patterns <= {"dense"} or (len(patterns) == 1 and patterns & {"last", "permuted"}) else ""
    if not pattern:
        pattern = "broadcast" if patterns <= {"dense", "broadcast"} else "mixed"
    inner = min((each.shape[-1] for each in (*op.inputs, *op.outputs) if each.shape), default=1)
    numbers = (
        _log(work.bytes_read + 1),
        _log(work.bytes_written + 1),
        0.0 if pattern == "dense" else 0.3 * _log(inner),
    )
    name = base_name(op) + ("_" if is_in_place(op) else "")
    types = " ".join(sorted({each.dtype for each in (*op.inputs, *op.outputs) if each.elements > 1}))
    return Features("plain", numbers, (name, pattern, types), (1.5, 3.0, 1.0))


_ALIKE = {"_index_put_impl": "index_put", "_unsafe_index_put": "index_put", "_unsafe_index": "index"}
_BY_KIND: dict[str, Callable[[Op, Work], Features]] = {
    "gemm": _gemm,
    "conv": _convolution,
    "attention": _attention,
    "rnn": _recurrent,
    "norm": _normal,
    "reduction": _normal,
    "gather": _gathered,
    "optimizer": _optimizer,
}
