"""Autocast as CUDA does it, on the device without memory: which operators cast to what, and the weights' cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

_torch: Any = torch  # for what its types do not tell
_library: Any = torch.library.Library

_LOWER_NAMES = (
    "_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul "
    "einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell "
    "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention "
    "scaled_dot_product_attention"
)
_SET_DTYPE_NAMES = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm "
    "linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
_PROMOTE_NAMES = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_LOWER = frozenset(_LOWER_NAMES.split())
_SET_DTYPE = frozenset(_SET_DTYPE_NAMES.split())
_PROMOTE = frozenset(_PROMOTE_NAMES.split())
_NORM = frozenset(("norm.Scalar", "norm.ScalarOpt_dim"))
_BANNED = frozenset(("binary_cross_entropy",))
_ELSEWHERE = frozenset(("aten::_cudnn_rnn",))  # kernels.py has its cast; builds without CUDA know of none

_cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


def register(library: Any, device: str) -> None:
    """Give every operator that CUDA casts in autocast the same cast on `device`."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or name in _ELSEWHERE or not has_kernel(name, "AutocastCUDA"):
            continue
        short = name.removeprefix("aten::")
        packet, _, overload = short.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(short, _kernel(short, op, device), "AutocastPrivateUse1")
    every = _library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _kept.append(every)
    _torch.clear_autocast_cache = _clear_cache


_kept: list[Any] = []


def _clear_cache() -> None:
    _cache.clear()


def _kernel(short: str, op: Any, device: str) -> Callable[..., Any]:
    keys = _torch._C.DispatchKeySet(_torch._C.DispatchKey.AutocastPrivateUse1)
    without = torch._C._ExcludeDispatchKeyGuard

    def to_lower(*args: Any, **kwargs: Any) -> Any:
        with without(keys):
            dtype = torch.get_autocast_dtype(device)
            return op(*_cast_all(args, dtype, device), **_cast_named(kwargs, dtype, device))

    def to_float32(*args: Any, **kwargs: Any) -> Any:
        with without(keys):
            return op(*_cast_all(args, torch.float32, device), **_cast_named(kwargs, torch.float32, device))

    def to_widest(*args: Any, **kwargs: Any) -> Any:
        with without(keys):
            dtype = _widest(args, torch.get_autocast_dtype(device), device)
            return op(*_cast_all(args, dtype, device), **_cast_named(kwargs, dtype, device))

    def with_dtype(*args: Any, **kwargs: Any) -> Any:
        with without(keys):
            if _eligible(args[0], device) and not _dtype_given(op, args, kwargs):
                return op(*args, **{**kwargs, "dtype": torch.float32})
            return op(*args, **kwargs)

    def norm(*args: Any, **kwargs: Any) -> Any:
        with without(keys):
            if not _eligible(args[0], device):
                return op(*args, **kwargs)
            if short == "norm.Scalar":
                return torch.ops.aten.norm.ScalarOpt_dtype(*args, dtype=torch.float32)
            dims = list(args) + [[], False][len(args) - 2 :]
            return torch.ops.aten.norm.ScalarOpt_dim_dtype(*dims, dtype=torch.float32)

    def banned(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "binary_cross_entropy is unsafe to autocast: use binary_cross_entropy_with_logits or BCEWithLogitsLoss"
        )

    for kernel, names in (
        (to_lower, _LOWER),
        (with_dtype, _SET_DTYPE),
        (to_widest, _PROMOTE),
        (norm, _NORM),
        (banned, _BANNED),
    ):
        if short in names:
            return kernel
    return to_float32


def _dtype_given(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if kwargs.get("dtype") is not None:
        return True
    names = [argument.name for argument in op._schema.arguments]
    at = names.index("dtype")
    return at < len(args) and args[at] is not None


def _eligible(value: Any, device: str) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == device
        and value.dtype.is_floating_point
        and value.dtype is not torch.float64
    )


def _widest(args: Any, lowest: torch.dtype, device: str) -> torch.dtype:
    widest = lowest
    for arg in args:
        if isinstance(arg, (list, tuple)):
            widest = _widest(arg, widest, device)
        elif _eligible(arg, device) and arg.dtype is torch.float32:
            widest = torch.float32
    return widest


def _cast_all(args: tuple[Any, ...], dtype: torch.dtype, device: str) -> list[Any]:
    # The last first: so does the compiled code, and the order decides which block a cast gets.
    return [_cast(arg, dtype, device) for arg in reversed(args)][::-1]


def _cast_named(kwargs: dict[str, Any], dtype: torch.dtype, device: str) -> dict[str, Any]:
    return {name: _cast(value, dtype, device) for name, value in kwargs.items()} if kwargs else kwargs


def _cast(value: Any, dtype: torch.dtype, device: str) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(each, dtype, device) for each in value]
    if not isinstance(value, torch.Tensor) or value.dtype is dtype or not _eligible(value, device):
        return value
    cacheable = (
        value.requires_grad
        and value.is_leaf
        and value.dtype is torch.float32
        and dtype is not torch.float32
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not cacheable:
        return value.to(dtype)
    held = _cache.get(id(value))
    if held is not None and held[0]() is value:
        return held[1]
    cast = value.to(dtype)
    _cache[id(value)] = (weakref.ref(value), cast)
    return cast
