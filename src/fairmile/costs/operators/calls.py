"""Operator calls made real: a signature's tensors filled, its indices valid, ready to be called again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairmile.base.errors import Unsupported
from fairmile.costs.operators.work import base_name
from fairmile.costs.steps import Op, TensorSpec

Call = Callable[[], Any]


def bind(op: Op, device: str) -> Call:
    """Return a function that makes the call on tensors of its own; Unsupported where this torch has no such operator.

    An operator that works in place works on the same tensors each time.
    """
    import torch

    made = _REMADE.get(base_name(op)) if device != "cpu" else None
    tensors = [_filled(torch, spec, device) for spec in op.inputs]
    arguments = [_real(torch, value, tensors, device) for value in op.arguments]
    keywords = {name: _real(torch, value, tensors, device) for name, value in op.keywords}
    if not tensors:
        keywords["device"] = torch.device(device)  # a signature does not name it
    if made is not None:
        return made(torch, arguments)
    function = _function(torch, op.name)
    prepare = _PREPARE.get(base_name(op)) if device != "cpu" or "cudnn" not in op.name else None
    if prepare is not None:
        prepare(torch, op, arguments, tensors)
    return lambda: function(*arguments, **keywords)


def _function(torch: Any, name: str) -> Any:
    parts = name.split(".")
    function: Any = torch.ops
    for part in parts:
        function = getattr(function, part, None)
        if function is None:
            raise ValueError(f"torch {torch.__version__} has no operator {name}")
    return function


def _filled(torch: Any, spec: TensorSpec, device: str) -> Any:
    dtype = getattr(torch, spec.dtype)
    where = device if spec.storage >= 0 or 0 in spec.shape else "cpu"
    length = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True)) if 0 not in spec.shape else 0
    flat = torch.empty(length, dtype=dtype, device=where)
    if dtype.is_floating_point:
        if flat.element_size() == 1:
            flat = torch.randn(length, device=where).to(dtype)
        else:
            flat.normal_()
    elif dtype.is_complex:
        torch.view_as_real(flat).normal_()
    elif dtype == torch.bool:
        flat.bernoulli_(0.5)
    else:
        flat.zero_()  # places that must lie within a table are filled by those who know it
    return flat.as_strided(spec.shape, spec.strides)


def _real(torch: Any, value: Any, tensors: list[Any], device: str) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "tensors" in value:
            return [None if each is None else tensors[each] for each in value["tensors"]]
        (kind, number), *_ = value.items()
        if kind in ("dtype", "layout", "memory_format"):
            return getattr(torch, str(number).removeprefix("torch."))
        if kind == "device":
            return torch.device("cpu" if str(number) == "cpu" else device)
        raise Unsupported(f"an argument of kind {kind!r} cannot be recreated")
    if value in ("inf", "-inf", "nan"):  # as JSON cannot say them
        return float(value)
    if isinstance(value, list):
        return [_real(torch, each, tensors, device) for each in value]
    return value


# ---- operators whose tensors cannot be just anything


def _places(tensor: Any, below: int) -> None:
    # What a stride of 0 repeats lies in memory once, and is filled once.
    for dimension in range(tensor.dim()):
        if tensor.stride(dimension) == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    tensor.random_(0, max(int(below), 1))


def _rows_of_first(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _places(arguments[1], arguments[0].shape[0])


def _embedding_backward(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _places(arguments[1], arguments[2])


def _bags(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    table, places, starts = arguments[:3]
    _places(places, table.shape[0])
    starts.copy_(torch.arange(starts.numel()) * _per_bag(places, starts))


def _bags_backward(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _, places, starts, bags, sizes, largest, rows = arguments[:7]
    each = _per_bag(places, starts)
    _places(places, rows)
    _places(largest, rows)
    starts.copy_(torch.arange(starts.numel()) * each)
    bags.copy_(torch.arange(bags.numel()) // each)
    sizes.fill_(each)


def _per_bag(places: Any, starts: Any) -> int:
    return max(int(places.numel()) // max(int(starts.numel()), 1), 1)


def _each_dimension(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    for place, index in enumerate(arguments[1]):
        if index is not None and index.dtype != torch.bool:
            _places(index, arguments[0].shape[place])


def _along(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _places(arguments[2], arguments[0].shape[arguments[1]])


def _classes(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _places(arguments[1], arguments[0].shape[1 if arguments[0].dim() > 1 else 0])


def _classes_backward(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _places(arguments[2], arguments[1].shape[1 if arguments[1].dim() > 1 else 0])
    arguments[6].fill_(float(arguments[2].numel()))


def _pooled(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    name = op.name.split(".")[1].removesuffix("_backward")
    forward = getattr(torch.ops.aten, name).default
    indices = forward(*arguments[1:-1])[1]
    arguments[-1].copy_(indices)


def _flat(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    # A network keeps its weights in one piece; a trace does not see it.
    if arguments[3] is None:
        count = sum(each.numel() for each in arguments[1])
        arguments[3] = torch.empty(count, dtype=arguments[0].dtype, device=arguments[0].device).normal_()


def _recurrent(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _flat(torch, op, arguments, tensors)
    x, weights, stride, buffer, hx, cx = arguments[:6]
    rest = arguments[10:20]  # mode, hidden, projection, layers, batch first, dropout, train, both ways, sizes, state
    arguments[20] = torch.ops.aten._cudnn_rnn.default(x, weights, stride, buffer, hx, cx, *rest)[3]


def _attended_efficiently(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    _, q, k, v, bias, _, _, _, _, dropout = arguments[:10]
    causal = bool(arguments[11]) if len(arguments) > 11 else False
    scale = dict(op.keywords).get("scale")
    forward = torch.ops.aten._scaled_dot_product_efficient_attention.default
    arguments[5:9] = forward(q, k, v, bias, True, dropout, causal, scale=scale)


def _attended_by_flash(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    q, k, v = arguments[1:4]
    scale = dict(op.keywords).get("scale")
    forward = torch.ops.aten._scaled_dot_product_flash_attention.default
    done = forward(q, k, v, arguments[10], arguments[11], False, scale=scale)
    arguments[4:6], arguments[12:14] = done[:2], done[6:8]


def _attended_by_library(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    q, k, v = arguments[1:4]
    scale = dict(op.keywords).get("scale")
    forward = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    done = forward(q, k, v, arguments[8], True, arguments[13], arguments[14], False, scale=scale)
    arguments[4:6], arguments[6:8] = done[:2], done[6:8]


def _normalised(torch: Any, op: Op, arguments: list[Any], tensors: list[Any]) -> None:
    x, _, weight, mean, variance, _, _, epsilon, _ = arguments
    done = torch.ops.aten.cudnn_batch_norm.default(x, weight, weight, mean, variance, True, 0.1, epsilon)
    arguments[8] = done[3]


_PREPARE: dict[str, Callable[[Any, Op, list[Any], list[Any]], None]] = {
    "embedding": _rows_of_first,
    "embedding_dense_backward": _embedding_backward,
    "_embedding_bag": _bags,
    "_embedding_bag_forward_only": _bags,
    "_embedding_bag_backward": _bags_backward,
    "index": _each_dimension,
    "_unsafe_index": _each_dimension,
    "index_put": _each_dimension,
    "_index_put_impl": _each_dimension,
    "index_select": _along,
    "index_add": _along,
    "index_copy": _along,
    "index_fill": _along,
    "gather": _along,
    "scatter": _along,
    "scatter_add": _along,
    "scatter_reduce": _along,
    "nll_loss_forward": _classes,
    "nll_loss2d_forward": _classes,
    "nll_loss_backward": _classes_backward,
    "nll_loss2d_backward": _classes_backward,
    "max_pool2d_with_indices_backward": _pooled,
    "max_pool3d_with_indices_backward": _pooled,
    "_cudnn_rnn": _flat,
    "_cudnn_rnn_backward": _recurrent,
    "_scaled_dot_product_efficient_attention_backward": _attended_efficiently,
    "_scaled_dot_product_flash_attention_backward": _attended_by_flash,
    "_scaled_dot_product_cudnn_attention_backward": _attended_by_library,
    "cudnn_batch_norm_backward": _normalised,
}


# ---- operators that torch takes from a library where there is one, which a call by name passes by


def _batch_norm(torch: Any, arguments: list[Any]) -> Call:
    x, weight, bias, mean, variance, training, momentum, epsilon = arguments
    function = torch.ops.aten._batch_norm_impl_index.default
    return lambda: function(x, weight, bias, mean, variance, training, momentum, epsilon, True)


def _batch_norm_backward(torch: Any, arguments: list[Any]) -> Call:
    dy, x, weight, mean, variance, _, _, training, epsilon, mask = arguments
    done = torch.ops.aten._batch_norm_impl_index.default(
        x, weight, weight, mean, variance, training, 0.1, epsilon, True
    )
    _, kept_mean, kept_scale, kept, choice = done
    function = torch.ops.aten._batch_norm_impl_index_backward.default
    rest = (training, epsilon, mask, kept)
    return lambda: function(choice, x, dy, weight, mean, variance, kept_mean, kept_scale, *rest)


_REMADE: dict[str, Callable[[Any, list[Any]], Call]] = {
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}
