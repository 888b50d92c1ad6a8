"""How much an operator has to do, whatever the device: floating-point operations and the bytes it cannot help moving.

A multiplication with its addition counts as two. Bytes count each element that is read or written once, however
often a kernel touches it; an element that is repeated by a stride of 0 lies in memory once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.steps import FUSED, Op, TensorSpec

KINDS = (
    "gemm",
    "conv",
    "attention",
    "rnn",
    "fft",
    "linalg",
    "norm",
    "elementwise",
    "reduction",
    "gather",
    "optimizer",
    "copy",
    "fill",
    "view",
    "wait",
)
ITEM_BYTES = {
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "uint64": 8,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
}


@dataclass(frozen=True, slots=True)
class Work:
    """What one call does: `kind` is one of KINDS; "view" only changes how the host sees memory."""

    flops: float
    bytes_read: int
    bytes_written: int
    kind: str

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


def work_of(op: Op) -> Work:
    """Return the work of a call; an operator that is not known counts as elementwise over what it touches."""
    base = base_name(op)
    kind = kind_of(op)
    if kind in ("view", "wait"):
        return Work(0.0, 0, 0, kind)
    read, written = _moved(op, base, kind)
    if op.name == FUSED and (moved := dict(op.keywords).get("moved_bytes")) is not None:
        read = max(0, moved - written)  # as Inductor counts: parts of a tensor, and what is read twice
    return Work(_flops(op, base, kind), read, written, kind)


def base_name(op: Op) -> str:
    """Return the name without its namespace, its overload and the underscore of those that work in place."""
    return _base(op.name)


def is_in_place(op: Op) -> bool:
    """Tell whether the call overwrites its first argument."""
    return _plain_name(op.name) != _base(op.name)


def kind_of(op: Op) -> str:
    """Return the class of an operator, one of KINDS."""
    return kind_of_name(op.name)


@cache
def kind_of_name(name: str) -> str:
    """Return the class of the operator of a name such as "aten.add.Tensor"."""
    base = _base(name)
    known = _KIND.get(base)
    if known is not None:
        return known
    for start, kind in _PREFIX:
        if base.startswith(start):
            return kind
    if "backward" in base:
        forward = _KIND.get(base.removesuffix("_backward_data").removesuffix("_backward"))
        if forward is not None and forward != "view":
            return forward
    return "elementwise"


@cache
def _base(name: str) -> str:
    plain = _plain_name(name)
    return plain[:-1] if plain.endswith("_") and not plain.endswith("__") else plain


def _plain_name(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name


def size_bytes(spec: TensorSpec) -> int:
    """Return the bytes of a tensor's elements, those that a stride of 0 repeats counted once."""
    count = 1
    for length, stride in zip(spec.shape, spec.strides, strict=True):
        if stride != 0 or length == 0:
            count *= length
    return count * item_bytes(spec.dtype)


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element."""
    return ITEM_BYTES.get(dtype, 1)


def tensor_at(op: Op, position: int) -> TensorSpec | None:
    """Return the tensor that an argument is, None where it is none or left out."""
    value = op.arguments[position] if position < len(op.arguments) else None
    if isinstance(value, dict) and isinstance(value.get("tensor"), int):
        return op.inputs[value["tensor"]]
    return None


def tensors_at(op: Op, position: int) -> list[TensorSpec]:
    """Return the tensors of an argument that is a list of tensors."""
    value = op.arguments[position] if position < len(op.arguments) else None
    if isinstance(value, dict) and "tensors" in value:
        return [op.inputs[each] for each in value["tensors"] if each is not None]
    if isinstance(value, (list, tuple)):
        return [op.inputs[each["tensor"]] for each in value if isinstance(each, dict) and "tensor" in each]
    return []


def argument(op: Op, position: int, name: str, default: Any = None) -> Any:
    """Return an argument by its place or, where it was given so, by its name."""
    for keyword, value in op.keywords:
        if keyword == name:
            return value
    return op.arguments[position] if position < len(op.arguments) else default


# ---- bytes


def _moved(op: Op, base: str, kind: str) -> tuple[int, int]:
    if kind == "gather":
        return _gathered(op, base)
    if base in ("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"):
        parameters = sum(map(size_bytes, tensors_at(op, 0)))
        read = sum(map(size_bytes, op.inputs))
        gradients = sum(map(size_bytes, tensors_at(op, 1)))
        return read, max(read - gradients, parameters)
    read = sum(map(size_bytes, op.inputs))
    written = sum(map(size_bytes, op.outputs))
    if is_in_place(op):
        first = tensors_at(op, 0) or [each for each in (tensor_at(op, 0),) if each is not None]
        own = sum(map(size_bytes, first))
        written = max(written, own)
        if base in ("copy", "_foreach_copy", "fill", "zero", "_foreach_zero", *_RANDOM):
            read -= own
    elif kind == "fill":
        read = 0
    elif base.startswith("_foreach") and not op.outputs:
        written = sum(map(size_bytes, tensors_at(op, 0)))
    return max(read, 0), written


def _gathered(op: Op, base: str) -> tuple[int, int]:
    """Return what reading or writing by index moves: the rows that are meant, not the table they lie in."""
    table = tensor_at(op, 0)
    others = sum(map(size_bytes, op.inputs)) - (size_bytes(table) if table is not None else 0)
    out = sum(map(size_bytes, op.outputs))
    if base in ("embedding", "index_select", "gather", "index", "_unsafe_index", "take"):
        rows = min(out, size_bytes(table)) if table is not None else out
        return rows + others, out
    if base == "embedding_dense_backward" or table is None:
        return sum(map(size_bytes, op.inputs)), out
    if is_in_place(op):
        # Only the rows that are named change: read, added to, written.
        rows = min(size_bytes(table), others)
        return others + rows, rows
    return size_bytes(table) + others, max(out, size_bytes(table))


# ---- floating-point operations


def _flops(op: Op, base: str, kind: str) -> float:
    counted = _COUNT.get(base)
    if counted is not None:
        return counted(op)
    if kind in ("copy", "fill", "gather", "view", "wait"):
        return float(_elements(op.outputs)) if base in _ADDING else 0.0
    if kind == "reduction":
        return float(max((each.elements for each in op.inputs), default=0))
    if kind == "norm":
        per = 11.0 if "backward" in base else 5.0
        return per * max((each.elements for each in op.inputs), default=0)
    if kind == "optimizer":
        lists = tensors_at(op, 0)
        return float(_elements(lists)) * (12.0 if base.startswith("_fused") else _per_element(base))
    elements = max(_elements(op.outputs), max((each.elements for each in op.inputs), default=0))
    return float(elements) * _per_element(base)


def _elements(tensors: Iterable[TensorSpec]) -> int:
    return sum(each.elements for each in tensors)


def _per_element(base: str) -> float:
    plain = base.removeprefix("_foreach_")
    for start, count in _ELEMENT_FLOPS:
        if plain.startswith(start):
            return count
    return 1.0


def _matrix_product(left: int, right: int) -> Callable[[Op], float]:
    """Count a (batched) product of the matrices or vectors at two places of the arguments."""

    def count(op: Op) -> float:
        a, b = tensor_at(op, left), tensor_at(op, right)
        if a is None or b is None or not a.shape:
            return 0.0
        inner = a.shape[-1] * (4 if a.dtype.startswith("complex") else 1)  # four products make a complex one
        columns = b.shape[-1] if len(b.shape) > 1 else 1
        if len(b.shape) > 2 and len(a.shape) < len(b.shape):
            return 2.0 * (a.shape[0] if len(a.shape) > 1 else 1) * math.prod(b.shape)
        return 2.0 * math.prod(a.shape[:-1]) * inner * columns

    return count


def _linear(op: Op) -> float:
    a, w = tensor_at(op, 0), tensor_at(op, 1)
    return 0.0 if a is None or w is None else 2.0 * a.elements * (w.elements / max(w.shape[-1], 1))


def _convolution(op: Op) -> float:
    x, w = tensor_at(op, 0), tensor_at(op, 1)
    if x is None or w is None or not op.outputs:
        return 0.0
    transposed = bool(op.arguments[6]) if len(op.arguments) > 6 and isinstance(op.arguments[6], bool) else False
    return _one_convolution(x, op.outputs[0], w, transposed)


def _one_convolution(x: TensorSpec, y: TensorSpec, w: TensorSpec, transposed: bool) -> float:
    # Every weight meets every place of the output once per sample; transposed, every place of the input. The weight
    # holds the channels of one group only, so that groups need no factor.
    side = x if transposed else y
    batch = side.shape[0] if len(side.shape) == len(w.shape) else 1
    places = math.prod(side.shape[2:] if len(side.shape) == len(w.shape) else side.shape[1:])
    return 2.0 * batch * places * w.elements


def _convolution_backward(op: Op) -> float:
    dy, x, w = (tensor_at(op, place) for place in range(3))
    if dy is None or x is None or w is None:
        return 0.0
    transposed = bool(argument(op, 7, "transposed", False))
    mask = argument(op, 10, "output_mask", [True, True, True])
    once = _one_convolution(x, dy, w, transposed)
    bias = float(dy.elements) if len(mask) > 2 and mask[2] else 0.0
    return once * (bool(mask[0]) + bool(mask[1])) + bias


def _attention(op: Op) -> float:
    q, k, v = (tensor_at(op, place) for place in range(3))
    if q is None or k is None or v is None or len(q.shape) < 3:
        return 0.0
    return _attention_pairs(op, q, k) * 2.0 * (q.shape[-1] + v.shape[-1])


def _attention_backward(op: Op) -> float:
    # Scores again, then the gradients of the values, of the probabilities, of the keys and of the queries.
    q, k, v = (tensor_at(op, place) for place in range(1, 4))
    if q is None or k is None or v is None or len(q.shape) < 3:
        return 0.0
    return _attention_pairs(op, q, k) * 2.0 * (3 * q.shape[-1] + 2 * v.shape[-1])


def _attention_pairs(op: Op, q: TensorSpec, k: TensorSpec) -> float:
    if base_name(op).startswith(("_flash", "_efficient")) and len(q.shape) == 4:  # batch, sequence, heads, width
        heads, queries, keys = q.shape[0] * q.shape[2], q.shape[1], k.shape[1]
    else:
        heads, queries, keys = math.prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    if not is_causal(op):
        return float(heads) * queries * keys
    first = min(queries, keys)
    return float(heads) * (first * (first + 1) / 2 + max(queries - keys, 0) * keys)


def is_causal(op: Op) -> bool:
    """Tell whether an attention call leaves out what comes after each query."""
    for name, value in op.keywords:
        if name == "is_causal":
            return bool(value)
    place = _CAUSAL_AT.get(base_name(op))
    if place is None or place >= len(op.arguments):
        return False
    return op.arguments[place] is True


def _rnn(times: float) -> Callable[[Op], float]:
    """Count a recurrent network: every matrix of its weights meets every sample at every moment once."""

    def count(op: Op) -> float:
        x = tensor_at(op, 0)
        if x is None or not x.shape:
            return 0.0
        lists = [tensors_at(op, place) for place in range(len(op.arguments))]
        weights = max(lists, key=_elements, default=[])
        matrices = sum(each.elements for each in weights if len(each.shape) == 2)
        if not matrices and weights:  # one flat buffer
            matrices = _elements(weights)
        return times * 2.0 * (x.elements / max(x.shape[-1], 1)) * matrices

    return count


def _cell(op: Op) -> float:
    return 15.0 * _elements(op.outputs[:1])


def _fourier(op: Op) -> float:
    shape = op.inputs[0].shape if op.inputs else ()
    if op.outputs and math.prod(op.outputs[0].shape) > math.prod(shape):
        shape = op.outputs[0].shape
    axes = op.arguments[1] if len(op.arguments) > 1 and isinstance(op.arguments[1], (list, tuple)) else [-1]
    points = math.prod(shape[axis] for axis in axes) if shape else 0
    each = 5.0 if base_name(op) == "_fft_c2c" else 2.5
    return each * math.prod(shape) * math.log2(points) if points > 1 else 0.0


def _cubic(factor: float) -> Callable[[Op], float]:
    def count(op: Op) -> float:
        shape = op.inputs[0].shape if op.inputs else ()
        return factor * math.prod(shape[:-2]) * shape[-2] * shape[-1] * min(shape[-2:]) if len(shape) > 1 else 0.0

    return count


def _triangular(op: Op) -> float:
    b = max(op.inputs, key=lambda each: each.elements, default=None)
    a = op.inputs[0] if op.inputs else None
    return float(a.shape[-1]) * (op.outputs[0].elements if op.outputs else b.elements) if a and b else 0.0


def _distance(op: Op) -> float:
    a = tensor_at(op, 0)
    return 3.0 * op.outputs[0].elements * a.shape[-1] if a is not None and op.outputs and a.shape else 0.0


def _sorted_out(op: Op) -> float:
    count = max((each.elements for each in op.inputs), default=0)
    longest = max((each.shape[-1] for each in op.inputs if each.shape), default=1)
    return float(count) * math.log2(max(longest, 2))


def _of(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


_RANDOM = ("normal", "uniform", "bernoulli", "random", "exponential", "geometric", "cauchy", "log_normal")
_ADDING = ("embedding_dense_backward", "index_add", "scatter_add", "index_put", "_index_put_impl", "scatter_reduce")
_KIND: dict[str, str] = {
    **_of("gemm", "mm addmm bmm baddbmm addbmm mv addmv dot vdot linear matmul addr _scaled_mm _addmm_activation"),
    **_of("gemm", "_grouped_mm _scaled_grouped_mm linear_backward _int_mm outer ger chain_matmul tensordot einsum"),
    **_of("conv", "convolution convolution_backward _convolution cudnn_convolution cudnn_convolution_transpose"),
    **_of("conv", "miopen_convolution conv1d conv2d conv3d conv_transpose2d conv_transpose3d slow_conv2d_forward"),
    **_of("conv", "convolution_overrideable convolution_backward_overrideable _slow_conv2d_forward mkldnn_convolution"),
    **_of("rnn", "_cudnn_rnn _cudnn_rnn_backward lstm gru rnn_tanh rnn_relu miopen_rnn miopen_rnn_backward"),
    **_of("rnn", "_thnn_fused_lstm_cell _thnn_fused_gru_cell mkldnn_rnn_layer"),
    **_of("norm", "native_layer_norm native_batch_norm cudnn_batch_norm native_group_norm miopen_batch_norm"),
    **_of("norm", "_softmax _log_softmax _batch_norm_with_update _batch_norm_no_update batch_norm_backward"),
    **_of("norm", "_native_batch_norm_legit _native_batch_norm_legit_no_training batch_norm_stats batch_norm_elemt"),
    **_of("norm", "_fused_rms_norm rms_norm _softmax_backward_data _log_softmax_backward_data softmax log_softmax"),
    **_of("norm", "native_batch_norm_backward batch_norm_update_stats batch_norm_backward_reduce batch_norm"),
    **_of("norm", "batch_norm_backward_elemt layer_norm group_norm local_response_norm"),
    **_of("reduction", "sum mean var std amax amin max min prod any all argmax argmin norm linalg_vector_norm cumsum"),
    **_of("reduction", "cumprod logsumexp var_mean std_mean count_nonzero nll_loss_forward nll_loss2d_forward topk"),
    **_of("reduction", "sort mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy nansum aminmax median"),
    **_of("reduction", "max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d"),
    **_of("reduction", "_adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d _cdist_forward bincount histc"),
    **_of("reduction", "_foreach_norm _foreach_max equal cummax cummin logcumsumexp binary_cross_entropy_with_logits"),
    **_of("optimizer", "_amp_foreach_non_finite_check_and_unscale"),
    **_of("reduction", "_ctc_loss kthvalue quantile searchsorted unique"),
    **_of("gather", "embedding embedding_dense_backward index _unsafe_index index_put _index_put_impl index_add"),
    **_of("gather", "index_select gather scatter scatter_add scatter_reduce index_copy index_fill masked_select take"),
    **_of("gather", "nonzero put _embedding_bag _unsafe_index_put grid_sampler_2d grid_sampler_3d segment_reduce"),
    **_of("gather", "grid_sampler_2d_backward grid_sampler_3d_backward _embedding_bag_dense_backward masked_scatter"),
    **_of("gather", "index_reduce argwhere repeat_interleave _unsafe_masked_index"),
    **_of("copy", "copy clone _to_copy contiguous cat stack constant_pad_nd repeat roll flip as_strided_copy tile pad"),
    **_of("copy", "_foreach_copy slice_backward select_backward pixel_shuffle pixel_unshuffle im2col col2im tril triu"),
    **_of("copy", "permute_copy view_copy slice_scatter select_scatter unfold_backward expand_copy _pad_enum"),
    **_of("copy", "reflection_pad1d reflection_pad2d replication_pad2d replication_pad3d channel_shuffle"),
    **_of("fill", "fill zero zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange eye"),
    **_of("fill", "scalar_tensor linspace _foreach_zero normal uniform bernoulli random exponential rand randn"),
    **_of("fill", "randperm rand_like randn_like randint_like tril_indices triu_indices geometric cauchy log_normal"),
    **_of("fill", "randint"),
    **_of("view", "view _unsafe_view reshape _reshape_alias t transpose permute expand slice select unsqueeze squeeze"),
    **_of("view", "as_strided detach alias split split_with_sizes chunk unbind narrow diagonal unfold view_as_real"),
    **_of("view", "view_as_complex real imag empty empty_like empty_strided new_empty new_empty_strided lift_fresh"),
    **_of("view", "_version set_ set resize movedim swapaxes adjoint mT mH H T flatten unflatten expand_as view_as"),
    **_of("view", "record_stream is_same_size stride size sym_size sym_stride sym_numel _conj conj _neg_view lift"),
    **_of("view", "unsafe_split unsafe_chunk unsafe_split_with_sizes tensor_split _reshape_copy set_data"),
    **_of("wait", "_local_scalar_dense item is_nonzero"),
    **_of("linalg", "_linalg_svd _linalg_eigh linalg_cholesky_ex linalg_lu_factor_ex linalg_inv_ex linalg_qr"),
    **_of("linalg", "linalg_solve_triangular triangular_solve _linalg_solve_ex cholesky_solve linalg_eig _linalg_det"),
}
_PREFIX = (
    ("_scaled_dot_product", "attention"),
    ("scaled_dot_product", "attention"),
    ("_flash_attention", "attention"),
    ("_efficient_attention", "attention"),
    ("_cudnn_attention", "attention"),
    ("_fft", "fft"),
    ("fft_", "fft"),
    ("_fused_adam", "optimizer"),
    ("_fused_sgd", "optimizer"),
    ("_fused_adagrad", "optimizer"),
    ("_foreach", "optimizer"),
    ("linalg_", "linalg"),
    ("_linalg_", "linalg"),
    ("sym_", "view"),
    ("split", "view"),
)
_CAUSAL_AT = {
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention": 6,
    "_scaled_dot_product_cudnn_attention_backward": 14,
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "_scaled_dot_product_fused_attention_overrideable": 5,
    "_scaled_dot_product_attention_math": 5,
    "scaled_dot_product_attention": 5,
}
_ELEMENT_FLOPS = (
    ("gelu_backward", 20.0),
    ("gelu", 12.0),
    ("tanh", 8.0),
    ("silu_backward", 10.0),
    ("silu", 6.0),
    ("mish", 14.0),
    ("sigmoid", 5.0),
    ("erf", 8.0),
    ("exp", 4.0),
    ("log", 4.0),
    ("sin", 6.0),
    ("cos", 6.0),
    ("pow", 4.0),
    ("sqrt", 2.0),
    ("rsqrt", 2.0),
    ("addcdiv", 3.0),
    ("addcmul", 3.0),
    ("lerp", 3.0),
    ("upsample_bilinear", 7.0),
    ("upsample_trilinear", 15.0),
    ("upsample_bicubic", 30.0),
    ("native_dropout_backward", 2.0),
    ("native_dropout", 3.0),
)
_COUNT: dict[str, Callable[[Op], float]] = {
    "mm": _matrix_product(0, 1),
    "bmm": _matrix_product(0, 1),
    "matmul": _matrix_product(0, 1),
    "mv": _matrix_product(0, 1),
    "dot": _matrix_product(0, 1),
    "vdot": _matrix_product(0, 1),
    "addmm": _matrix_product(1, 2),
    "_addmm_activation": _matrix_product(1, 2),
    "addbmm": _matrix_product(1, 2),
    "baddbmm": _matrix_product(1, 2),
    "addmv": _matrix_product(1, 2),
    "_scaled_mm": _matrix_product(0, 1),
    "_int_mm": _matrix_product(0, 1),
    "_grouped_mm": _matrix_product(0, 1),
    "linear": _linear,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "cudnn_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    "_cudnn_rnn": _rnn(1.0),
    "_cudnn_rnn_backward": _rnn(2.0),
    "miopen_rnn": _rnn(1.0),
    "miopen_rnn_backward": _rnn(2.0),
    "lstm": _rnn(1.0),
    "gru": _rnn(1.0),
    "rnn_tanh": _rnn(1.0),
    "rnn_relu": _rnn(1.0),
    "_thnn_fused_lstm_cell": _cell,
    "_thnn_fused_gru_cell": _cell,
    "_fft_c2c": _fourier,
    "_fft_r2c": _fourier,
    "_fft_c2r": _fourier,
    "linalg_cholesky_ex": _cubic(1 / 3),
    "linalg_lu_factor_ex": _cubic(2 / 3),
    "_linalg_solve_ex": _cubic(2 / 3),
    "_linalg_det": _cubic(2 / 3),
    "linalg_inv_ex": _cubic(2.0),
    "linalg_qr": _cubic(2.0),
    "_linalg_eigh": _cubic(9.0),
    "_linalg_svd": _cubic(17.0),
    "linalg_eig": _cubic(25.0),
    "linalg_solve_triangular": _triangular,
    "triangular_solve": _triangular,
    "_cdist_forward": _distance,
    "sort": _sorted_out,
    "topk": _sorted_out,
}
for _name in (*_CAUSAL_AT, "_flash_attention_forward", "_efficient_attention_forward"):
    _COUNT[_name] = _attention_backward if "backward" in _name else _attention
_COUNT["_flash_attention_backward"] = _COUNT["_efficient_attention_backward"] = _attention_backward


def total(works: Sequence[Work]) -> tuple[float, int]:
    """Return the sum of operations and of bytes."""
    return sum(each.flops for each in works), sum(each.bytes for each in works)
