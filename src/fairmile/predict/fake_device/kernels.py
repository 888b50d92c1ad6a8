"""What CUDA does with an operator where the way of a device unknown to torch would differ."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

NAME = "fgpu"
_torch: Any = torch  # for what its types do not tell
aten = torch.ops.aten


def register(library: Any) -> None:
    """Give composite operators that have kernels of their own on CUDA such kernels here."""
    library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
    for name, mode in (("lstm", 2), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 0)):
        library.impl(f"{name}.input", _recurrent(mode), "AutogradPrivateUse1")
        library.impl(f"{name}.data", _recurrent_packed(mode), "AutogradPrivateUse1")
    library.impl("_cudnn_rnn", _recurrent_cast, "AutocastPrivateUse1")


# In which order CUDA allocates an operator's outputs, where it is not theirs.
ORDER = {
    aten.native_dropout.default: (1, 0),
    aten._scaled_dot_product_cudnn_attention.default: (6, 7, 0, 1, 2, 3, 4, 5, 8),
    aten._thnn_fused_lstm_cell.default: (2, 0, 1),
    aten._thnn_fused_gru_cell.default: (1, 0),
}


# Which tensors of an operator CUDA copies first where they do not lie in order.
CONTIGUOUS = {
    aten.native_layer_norm.default: (0,),
    aten._fused_rms_norm.default: (0,),
    aten.native_group_norm.default: (0,),
    aten.native_group_norm_backward.default: (0, 1),
    aten._softmax.default: (0,),
    aten._softmax_backward_data.default: (0, 1),
    aten._log_softmax.default: (0,),
    aten._log_softmax_backward_data.default: (0, 1),
    aten.embedding_dense_backward.default: (0, 1),
}

NORMS_BACKWARD = frozenset((aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default))


@functools.lru_cache(4096)
def _last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Say whether a tensor of this form has its channels last."""
    form = torch.empty_strided(shape, strides, device="meta")
    return bool(suggest_memory_format(form) in (torch.channels_last, torch.channels_last_3d))


def layout(data: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the order in which cuDNN computes a convolution of these."""
    if data.dim() in (4, 5) and any(_last(tuple(each.shape), each.stride()) for each in (data, weight)):
        return torch.channels_last if data.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


def convolution_shapes(
    data: Any,
    weight: Any,
    bias: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    """Return the output of a convolution for arguments without data."""
    ranks = data.dim() - 2
    by, pad, wide, more = (
        list(each) * (ranks if len(each) == 1 else 1) for each in (stride, padding, dilation, output_padding)
    )
    shape = [data.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    for at in range(ranks):
        length, reach = data.shape[at + 2], wide[at] * (weight.shape[at + 2] - 1)
        if transposed:
            shape.append((length - 1) * by[at] - 2 * pad[at] + reach + more[at] + 1)
        else:
            shape.append((length + 2 * pad[at] - reach - 1) // by[at] + 1)
    if data.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups):
        raise ValueError(f"a convolution with a weight of {tuple(weight.shape)} got {data.shape[1]} channels")
    if min(shape) < 0:
        raise ValueError(f"a convolution with a kernel of {tuple(weight.shape[2:])} got {tuple(data.shape[2:])}")
    return torch.empty(shape, dtype=data.dtype, device="meta", memory_format=layout(data, weight))


def convolution_backward_shapes(grad: Any, data: Any, weight: Any, *rest: Any) -> Any:
    """Return the gradients of a convolution for arguments without data."""
    order, wanted, sizes = layout(data, weight), rest[-1], rest[0]
    return (
        torch.empty(data.shape, dtype=data.dtype, device="meta", memory_format=order) if wanted[0] else None,
        torch.empty(weight.shape, dtype=weight.dtype, device="meta", memory_format=order) if wanted[1] else None,
        grad.new_empty(sizes if sizes is not None else grad.shape[1:2]) if wanted[2] else None,
    )


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Choose the attention kernel as torch does on Hopper: cuDNN, flash, efficient, else plain matrix products."""
    chosen = _attention_kernel(query, key, value, attn_mask, is_causal, enable_gqa)
    mask = attn_mask
    if mask is not None and mask.dtype is torch.bool:
        # A scalar of the host, as in torch's own conversion.
        other = torch.scalar_tensor(-math.inf, dtype=query.dtype, device="cpu")
        mask = torch.where(mask, torch.scalar_tensor(0.0, dtype=query.dtype, device="cpu"), other)
    needs_grad = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    if chosen == "cudnn":
        bias = None if mask is None else _expanded(mask, query, key)
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, False, scale=scale
        )[0]
    if chosen == "flash":
        width = query.shape[-1]
        padded = [_padded(each, -width % 8) for each in (query, key, value)]
        scale = scale if scale is not None else 1 / math.sqrt(width)
        out = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return out if out.shape[-1] == width else out[..., :width]
    if chosen == "efficient":
        if mask is not None:
            mask = _expanded(_aligned(mask), query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    grouped: bool,
) -> str:
    if any(each.dim() != 4 for each in (query, key, value)) or 0 in (*query.shape, *key.shape):
        return "math"
    if any(each.shape[-1] != 1 and each.stride(-1) != 1 for each in (query, key, value)):
        return "math"
    if len({query.dtype, key.dtype, value.dtype}) > 1 or key.shape[1] != value.shape[1]:
        return "math"
    if query.shape[1] != key.shape[1] and not grouped:  # also where one head of keys would do for all
        return "math"
    half = query.dtype in (torch.float16, torch.bfloat16)
    width, value_width = query.shape[-1], value.shape[-1]
    in_order = mask is None or mask.stride(-1) == 1
    fits = width % 8 == 0 and value_width % 8 == 0 and max(width, value_width) <= 128 and key.shape[2] != 1
    masked = mask is None or (in_order and not mask.requires_grad)
    if half and fits and masked:
        return "cudnn"
    if half and mask is None and width == value_width <= 256 and (not causal or query.shape[2] == key.shape[2]):
        return "flash"
    aligned = 8 if half else 4
    if query.shape[1] != key.shape[1]:  # the efficient kernel knows no groups of heads
        return "math"
    if query.dtype is not torch.float64 and in_order and width % aligned == 0 and value_width % aligned == 0:
        return "efficient"
    return "math"


def _padded(tensor: torch.Tensor, by: int) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (0, by)) if by else tensor


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask whose rows begin at a multiple of 8 elements, which the efficient kernel needs."""
    columns = mask.shape[-1]
    return mask if columns % 8 == 0 else _padded(mask, -columns % 8)[..., :columns]


def _expanded(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _recurrent(mode: int) -> Any:
    def run(
        data: torch.Tensor,
        hx: Any,
        params: list[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        state, cell = (hx[0], hx[1]) if mode == 2 else (hx, None)
        out = _cudnn(
            data, state, cell, params, has_biases, mode, num_layers, dropout, train, bidirectional, batch_first, []
        )
        return (out[0], out[1], out[2]) if mode == 2 else (out[0], out[1])

    return run


def _recurrent_cast(data: Any, weights: Any, stride: int, flat: Any, hx: Any, cx: Any, *rest: Any) -> Any:
    """Run a recurrent layer under autocast: CUDA takes float16 for it, whatever else is taken."""
    with torch._C._ExcludeDispatchKeyGuard(_torch._C.DispatchKeySet(_torch._C.DispatchKey.AutocastPrivateUse1)):
        if weights[0].dtype is torch.float32:
            weights, flat = _cast_to_one_buffer(weights)
            cx = cx.to(torch.float16) if cx is not None else None
            hx, data = hx.to(torch.float16), data.to(torch.float16)
        return aten._cudnn_rnn(data, weights, stride, flat, hx, cx, *rest)


def _cast_to_one_buffer(weights: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return float16 copies of weights that lie in one buffer, and the buffer; gradients reach the weights."""
    flat = weights[0].new_zeros(sum(weight.numel() for weight in weights), dtype=torch.float16)
    copies, at = [], 0
    for weight in weights:
        # Detached: each is written on its own, not as a part of the buffer.
        piece = flat.as_strided(weight.shape, weight.stride(), at).detach()
        copies.append(piece.copy_(weight))
        at += weight.numel()
    return copies, flat


def _recurrent_packed(mode: int) -> Any:
    def run(
        data: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: list[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        state, cell = (hx[0], hx[1]) if mode == 2 else (hx, None)
        sizes = batch_sizes.tolist()
        out = _cudnn(
            data, state, cell, params, has_biases, mode, num_layers, dropout, train, bidirectional, False, sizes
        )
        return (out[0], out[1], out[2]) if mode == 2 else (out[0], out[1])

    return run


def _cudnn(
    data: torch.Tensor,
    state: torch.Tensor,
    cell: torch.Tensor | None,
    params: list[torch.Tensor],
    has_biases: bool,
    mode: int,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    batch_sizes: list[int],
) -> Any:
    hidden = params[1].shape[1] if mode != 2 else params[0].shape[0] // 4
    proj = state.shape[2] if mode == 2 and state.shape[2] != hidden else 0
    stride = (4 if has_biases else 2) + (1 if proj else 0)
    flat = flat_weights(params)
    if dropout and train and not _dropout_state:
        _dropout_state.append(torch.empty(_DROPOUT_STATE_BYTES, dtype=torch.uint8, device=NAME))
    dropping = _dropout_state[0] if dropout and train else None
    return aten._cudnn_rnn(
        data, params, stride, flat, state, cell, mode, hidden, proj, num_layers, batch_first, dropout, train,
        bidirectional, batch_sizes, dropping,
    )  # fmt: skip


_DROPOUT_STATE_BYTES = 132 * 48 * 1024  # of the random numbers, for each multiprocessor of an H200
_dropout_state: list[torch.Tensor] = []


def forget() -> None:
    """Begin anew: nothing that libraries keep for a process is there."""
    _dropout_state.clear()


def flat_weights(params: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the buffer that all weights of a recurrent layer are views of, None where they are apart."""
    storages = {param.untyped_storage()._cdata for param in params}
    if len(storages) != 1 or len(params) < 2:
        return None
    with torch.no_grad():
        total = sum(param.numel() for param in params)
        return params[0].detach().as_strided([total], [1], 0)


def rnn_shapes(*args: Any) -> tuple[Any, ...]:
    """Return the outputs of `_cudnn_rnn` for arguments without data."""
    data, weights, _stride, flat, hx, _cx, mode, hidden, proj, layers, batch_first, dropout, train, both = args[:14]
    sizes = args[14]
    directions, width = 2 if both else 1, proj or hidden
    if sizes:
        steps, batch, shape = len(sizes), sizes[0], [data.shape[0], width * directions]
    elif batch_first:
        steps, batch = data.shape[1], data.shape[0]
        shape = [batch, steps, width * directions]
    else:
        steps, batch = data.shape[0], data.shape[1]
        shape = [steps, batch, width * directions]
    # cuDNN computes with time first: the output is a transposed view of what it wrote.
    if batch_first and not sizes:
        out = data.new_empty([steps, batch, width * directions]).transpose(0, 1)
    else:
        out = data.new_empty(shape)
    state = hx.new_empty([layers * directions, batch, width])
    last = hx.new_empty([layers * directions, batch, hidden]) if mode == 2 else hx.new_empty([0])
    rows = data.shape[0] if sizes else steps * batch
    reserve = rnn_reserve_bytes(mode, rows, hidden, proj, layers, directions, dropout, data.element_size())
    buffer = data.new_empty([reserve if train else 0], dtype=torch.uint8)
    if flat is None:
        flat = data.new_empty([sum(weight.numel() for weight in weights)])
    return out, state, last, buffer, flat


def rnn_reserve_bytes(
    mode: int, rows: int, hidden: int, proj: int, layers: int, directions: int, dropout: float, element_bytes: int
) -> int:
    """Return the size of what cuDNN keeps of a recurrent layer for its backward; `rows` are steps times batch."""
    kept = {0: 1, 1: 1, 2: 5, 3: 6}[mode]
    values = (kept * layers + layers - 1) * hidden + (layers * (hidden + proj) if proj else 0)
    masks = (layers - 1) * rows * hidden * directions**2 // 8 if dropout else 0
    return rows * directions * values * element_bytes + masks + 256


def rnn_backward_shapes(*args: Any) -> tuple[Any, ...]:
    """Return the outputs of `_cudnn_rnn_backward` for arguments without data."""
    data, weights, _stride, _flat, hx, cx = args[:6]
    mask = args[-1]
    grads = data.new_empty([sum(weight.numel() for weight in weights)]) if mask[3] else None
    pieces = []
    if grads is not None:
        at = 0
        for weight in weights:
            pieces.append(grads.as_strided(weight.shape, weight.stride(), at))
            at += weight.numel()
    return (
        torch.empty_like(data),
        torch.empty_like(hx),
        torch.empty_like(cx) if cx is not None else hx.new_empty([0]),
        pieces,
    )


def lstm_cell_shapes(gates: Any, _hidden: Any, cx: Any, *biases: Any) -> tuple[Any, ...]:
    """Return the outputs of one step of an LSTM in one kernel: both states and the gates that its backward reads."""
    return cx.new_empty(cx.shape), cx.new_empty(cx.shape), gates.new_empty(gates.shape)


def lstm_cell_backward_shapes(_hy: Any, _cy: Any, cx: Any, _cell: Any, kept: Any, has_bias: bool) -> tuple[Any, ...]:
    """Return the gradients of the gates, the state and the bias."""
    return kept.new_empty(kept.shape), cx.new_empty(cx.shape), kept.new_empty(kept.shape[1:]) if has_bias else None


def gru_cell_shapes(_gates: Any, _hidden: Any, hx: Any, *biases: Any) -> tuple[Any, ...]:
    """Return the outputs of one step of a GRU in one kernel: the state and what its backward reads."""
    return hx.new_empty(hx.shape), hx.new_empty([hx.shape[0], 5 * hx.shape[1]])


def gru_cell_backward_shapes(gradient: Any, kept: Any, has_bias: bool) -> tuple[Any, ...]:
    """Return the gradients of both sets of gates, the state and both biases."""
    gates = [kept.shape[0], kept.shape[1] // 5 * 3]
    biases = [kept.new_empty(gates[1:]) if has_bias else None for _ in range(2)]
    return kept.new_empty(gates), kept.new_empty(gates), gradient.new_empty(gradient.shape), *biases


def loss_shapes(data: Any, target: Any, *rest: Any, **named: Any) -> Any:
    """Return a loss whose storage has room for every element, though one is left: CUDA shrinks it, and keeps that."""
    whole = data.new_empty(spread(data, target))
    return whole.as_strided([], [], 0) if reduction(rest, named) else whole


def norm_backward_shapes(_grad: Any, data: Any, width: list[int], *rest: Any) -> tuple[Any, ...]:
    """Return the gradients of a norm over the last dimensions, in order however the one that came in lies."""
    *others, wanted = rest
    like = next((each for each in others if each is not None and list(each.shape) == list(width)), data)
    parts = (like.new_empty(width) if each else None for each in wanted[1:])
    return data.new_empty(data.shape) if wanted[0] else None, *parts


def squares_backward_shapes(_grad: Any, data: Any, target: Any, *rest: Any) -> Any:
    """Return the gradient of a mean of squares, which CUDA lays out with channels first whatever came in."""
    return data.new_empty(spread(data, target))


def ctc_shapes(scores: Any, targets: Any, lengths: Any, target_lengths: Any, *rest: Any, **named: Any) -> Any:
    """Return a CTC loss of each sequence, and the sums over paths that its backward reads."""
    longest = max(target_lengths, default=0)
    steps, batch = scores.shape[:2]
    return scores.new_empty([batch]), scores.new_empty([batch, steps, 2 * longest + 1])


def ctc_backward_shapes(_grad: Any, scores: Any, *rest: Any) -> Any:
    """Return the gradient of a CTC loss."""
    return torch.empty_like(scores)


def spread(data: Any, target: Any) -> list[int]:
    """Return the shape that two tensors have together."""
    return list(_torch.broadcast_shapes(data.shape, target.shape))


def reduction(rest: tuple[Any, ...], named: dict[str, Any]) -> int:
    """Return how a loss is reduced; 0 leaves its elements."""
    return int(named.get("reduction", rest[0] if rest and isinstance(rest[0], int) else 1))


REDUCED = frozenset((aten.smooth_l1_loss.default, aten.huber_loss.default))

CTC_BACKWARD = frozenset((aten._ctc_loss_backward.default,))

SHAPES: dict[Any, Any] = {
    aten._ctc_loss.default: ctc_shapes,
    **dict.fromkeys(CTC_BACKWARD, ctc_backward_shapes),
    aten.mse_loss.default: loss_shapes,
    aten.mse_loss_backward.default: squares_backward_shapes,
    **dict.fromkeys(NORMS_BACKWARD, norm_backward_shapes),
    aten.smooth_l1_loss.default: loss_shapes,
    aten._cudnn_rnn.default: rnn_shapes,
    aten._cudnn_rnn_backward.default: rnn_backward_shapes,
    aten._thnn_fused_lstm_cell.default: lstm_cell_shapes,
    aten._thnn_fused_lstm_cell_backward_impl.default: lstm_cell_backward_shapes,
    aten._thnn_fused_gru_cell.default: gru_cell_shapes,
    aten._thnn_fused_gru_cell_backward.default: gru_cell_backward_shapes,
    aten.convolution.default: convolution_shapes,
    aten.convolution_backward.default: convolution_backward_shapes,
}
