"""Makes a recorder answer for the device: torch's dispatcher calls it for every operator there."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fairmile.predict.fake_device import kernels, operators
from fairmile.predict.fake_device.operators import OperatorRecorder

aten = torch.ops.aten
_torch: Any = torch  # for what its types do not tell
_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_current: list[OperatorRecorder] = []


def calibrate() -> None:
    """Find out how many references a gradient has here that nobody but the engine holds."""
    with recording() as recorder:
        recorder.rest()
        leaf = torch.empty(2, device=kernels.NAME, requires_grad=True)
        both = leaf * 2
        _torch.autograd.backward((both.relu() + both.sigmoid()).sum())
    operators.alone = operators.counted[-1]


# Composite for any device, one kernel on CUDA.
_WHOLE_NAMES = (
    "_to_copy clone copy_ embedding convolution convolution_backward native_layer_norm native_group_norm stack "
    "_stack abs logical_and logical_or logical_xor logical_not nan_to_num isinf add.Scalar sub.Scalar mul.Scalar "
    "div.Scalar add_.Scalar sub_.Scalar mul_.Scalar div_.Scalar arange arange.start arange.start_step linspace "
    "logspace eye eye.m randperm range range.step"
)
_WHOLE = frozenset(_WHOLE_NAMES.split())
_VIEWS = "as_strided view _reshape_alias unfold view_as_real view_as_complex set_.source_Tensor"


def install(library: Any) -> None:
    """Make the recorder in use answer for the device's kernels."""
    every = _torch.library.Library("_", "IMPL")
    every.fallback(_answer, "PrivateUse1")
    _kept.append(every)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        short = name.removeprefix("aten::")
        whole = short in _WHOLE or short.startswith(("_foreach_", "_amp_foreach_"))
        if whole and short.endswith("out"):
            continue
        own = has_kernel(name, "CompositeImplicitAutograd") and has_kernel(name, "CPU")
        if whole or own or has_kernel(name, "CompositeExplicitAutogradNonFunctional"):
            library.impl(short, functools.partial(_answer, _overload(short)), "PrivateUse1")
    library.impl("resize_", _resize, "PrivateUse1")
    for short in _VIEWS.split():
        library.impl(short, functools.partial(_overload(short).redispatch, _META), "PrivateUse1")


_kept: list[Any] = []
_adopted: set[str] = set()


def adopt() -> None:
    """Answer for operators of other libraries as their CUDA kernels would, whatever they do on other devices."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        space, _, short = name.partition("::")
        if space in ("aten", "c10d") or name in _adopted or has_kernel(name, "PrivateUse1"):
            continue
        if has_kernel(name, "CUDA") and has_kernel(name, "Meta"):
            packet, _, overload = short.partition(".")
            func = getattr(getattr(getattr(_torch.ops, space), packet), overload or "default")
            library = _torch.library.Library(space, "FRAGMENT")
            library.impl(short, functools.partial(_answer, func), "PrivateUse1")
            _kept.append(library)
            _adopted.add(name)


def refill(tensor: torch.Tensor, *, is_full: bool) -> None:
    """Note that a tensor's storage gives its memory back, or takes it again; one of the host really does."""
    if tensor.device.type == kernels.NAME:
        _current[-1].refill(tensor, is_full=is_full)
    else:
        tensor.untyped_storage().resize_(tensor.numel() * tensor.itemsize if is_full else 0)


def is_in_model() -> bool:
    """Say whether a model's forward or backward runs now."""
    return bool(_current) and _current[-1].phase in ("forward", "backward")


def _overload(short: str) -> Any:
    packet, _, overload = short.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _resize(tensor: torch.Tensor, shape: Any, *, memory_format: Any = None) -> torch.Tensor:
    return _current[-1].resize(tensor, shape)


def _answer(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _current[-1].call(func, args, kwargs)


@contextmanager
def recording() -> Iterator[OperatorRecorder]:
    """Within the block a new recorder answers for the device."""
    recorder = OperatorRecorder()
    _current.append(recorder)
    try:
        yield recorder
    finally:
        _current.pop()


@contextmanager
def hooked(recorder: OperatorRecorder, model: torch.nn.Module) -> Iterator[None]:
    """Within the block the recorder knows whose forward runs."""
    paths = {id(module): name for name, module in model.named_modules()}
    calls = torch.nn.modules.module

    def enter(module: torch.nn.Module, args: Any) -> None:
        recorder.enter(paths.get(id(module), recorder.modules[-1] if recorder.modules else ""))

    def leave(module: torch.nn.Module, args: Any, out: Any) -> None:
        recorder.leave()

    before = calls.register_module_forward_pre_hook(enter)
    after = calls.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
