"""Values of tensors on the device without memory, computed only when a shape or a branch depends on them.

Routing, masks and lengths often depend on the inputs alone. This module keeps each call whose inputs have known values,
and computes it on the host on demand. Integers and booleans computed from weights, which have no values, are computed
from random numbers instead, and marked as assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fairmile.predict.fake_device.signatures import numbers_as_tensors

_torch: Any = torch  # for what its types do not tell
_MOST_ELEMENTS = 1 << 26  # of a tensor whose values are computed
_SMALL_ELEMENTS = 1 << 22  # of one that is copied from the host, and kept
_HOST = torch.device("cpu")


class _Node:
    """What a storage holds: the outcome of a call, or given elements."""

    __slots__ = ("call", "dtype", "elements", "is_assumed", "place", "value")

    def __init__(self, elements: int, dtype: torch.dtype, is_assumed: bool) -> None:
        self.elements, self.dtype, self.is_assumed = elements, dtype, is_assumed
        self.call: _Call | None = None
        self.place: tuple[int, tuple[int, ...], tuple[int, ...], int] | None = None  # which output, and how it lies
        self.value: torch.Tensor | None = None  # all elements of the storage in a row


class _View:
    """A tensor that goes into a call: a part of what a storage holds."""

    __slots__ = ("dtype", "node", "offset", "shape", "strides")

    def __init__(self, node: _Node, tensor: torch.Tensor) -> None:
        self.node, self.dtype = node, tensor.dtype
        self.shape, self.strides, self.offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()

    def of(self, elements: torch.Tensor) -> torch.Tensor:
        elements = elements if elements.dtype is self.dtype else elements.view(self.dtype)
        return elements.as_strided(self.shape, self.strides, self.offset)


class _Random:
    """A tensor that goes into a call and whose values nobody knows."""

    __slots__ = ("dtype", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype


class _Call:
    """An operator with its arguments; those that it writes to are changed in a copy."""

    __slots__ = ("args", "func", "kwargs", "number", "outputs", "views", "written")

    def __init__(
        self, number: int, func: Any, args: Any, kwargs: Any, views: list[_View], written: list[_View]
    ) -> None:
        self.number, self.func, self.args, self.kwargs = number, func, args, kwargs
        self.views, self.written = views, written
        self.outputs: list[torch.Tensor] | None = None

    def run(self, *, is_balanced: bool) -> None:
        """Compute the outputs; whatever goes in has its values, or random ones, for a router balanced ones."""
        changed = {id(view.node): view.node.value.clone() for view in self.written if view.node.value is not None}

        def real(value: Any) -> Any:
            if isinstance(value, _View):
                elements = changed.get(id(value.node), value.node.value)
                assert elements is not None
                return value.of(elements)
            if isinstance(value, _Random):
                if is_balanced and self.func in _CHOICES:
                    return _balanced(self.func, self.args, self.kwargs, value)
                return torch.randn(value.shape, device=_HOST).to(value.dtype)
            if isinstance(value, (list, tuple)):
                return type(value)([real(each) for each in value])
            return _HOST if isinstance(value, torch.device) else value

        keywords = {name: real(value) for name, value in self.kwargs.items() if name not in ("generator", "pin_memory")}
        arguments = numbers_as_tensors(self.func, [real(arg) for arg in self.args])
        with _drawing(self.number):
            try:
                out = self.func(*arguments, **keywords)
            except RuntimeError:  # the host has no such kernel for integers, as of `histc`
                out = self.func(*[_as_fractions(each) for each in arguments], **keywords)
        self.outputs = [*changed.values(), *flattened(out)] if changed else list(flattened(out))


class Values:
    """Which storages have known values, and what they are."""

    def __init__(self, index: Callable[[torch.Tensor], int], size_bytes: Callable[[int], int]) -> None:
        self._index, self._size_bytes = index, size_bytes
        self._nodes: dict[int, _Node] = {}
        self._calls = 0
        self.is_balanced = False  # whether choices of weights fall on all alike

    def _room(self, tensor: torch.Tensor) -> int:
        return self._size_bytes(self._index(tensor)) // tensor.dtype.itemsize

    def forget(self, index: int) -> None:
        """A storage is gone."""
        self._nodes.pop(index, None)

    def give(self, tensor: torch.Tensor, value: torch.Tensor, *, is_assumed: bool = False) -> None:
        """Note the values of a new tensor."""
        index = self._index(tensor)
        if index < 0 or value.numel() > _SMALL_ELEMENTS:
            return
        node = _Node(self._room(tensor), tensor.dtype, is_assumed)
        node.value = torch.zeros(node.elements, dtype=tensor.dtype, device=_HOST)
        node.value.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(value)
        self._nodes[index] = node

    def follow(
        self, func: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor], out: Any, *, live: bool
    ) -> None:
        """Note a call and what came out of it, where its values can be known; `live` while a model runs."""
        written = _written(func, args, kwargs) if func._schema.is_mutable else []
        nodes = [self._nodes.get(self._index(each)) for each in tensors if each.device.type != "cpu"]
        if not live:
            self._drop(written)
        elif None not in nodes:
            self._note(func, args, kwargs, written, out)
        elif written:
            self._drop(written)
        elif any(_is_discrete(each) for each in flattened(out)) and self._is_computed(tensors):
            self._note(func, args, kwargs, [], out)

    def _is_computed(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Say whether all tensors without values hold fractions, which a model computed."""
        return all(each.dtype.is_floating_point or self._index(each) in self._nodes for each in tensors)

    def _drop(self, written: Sequence[torch.Tensor]) -> None:
        for each in written:
            self._nodes.pop(self._index(each), None)

    def _note(self, func: Any, args: Any, kwargs: Any, written: Sequence[torch.Tensor], out: Any) -> None:
        views: list[_View] = []
        changed = {self._index(each) for each in written}
        is_assumed = False

        def held(value: Any) -> Any:
            nonlocal is_assumed
            if isinstance(value, torch.Tensor):
                if value.device.type == "cpu":
                    return value.clone() if value.numel() <= _SMALL_ELEMENTS else value
                node = self._nodes.get(self._index(value))
                is_assumed = is_assumed or node is None or node.is_assumed
                if node is None:
                    return _Random(value)
                views.append(_View(node, value))
                return views[-1]
            return type(value)([held(each) for each in value]) if type(value) in (list, tuple) else value

        kept = [held(arg) for arg in args]
        named = {name: held(value) for name, value in kwargs.items()}
        is_assumed = is_assumed and not _asks_whether_finite(func, args)
        nodes = {index: self._nodes[index] for index in changed if index in self._nodes}
        firsts = {id(node): next(view for view in views if view.node is node) for node in nodes.values()}
        self._calls += 1
        call = _Call(self._calls, func, kept, named, views, list(firsts.values()))
        for at, (index, node) in enumerate(nodes.items()):
            self._add(index, node.elements, node.dtype, is_assumed, call, (at, (node.elements,), (1,), 0))
        inside = {self._index(each) for each in _all_tensors((args, kwargs))}
        is_partly_known = any(isinstance(each, _Random) for each in flattened_any((kept, named)))
        for at, each in enumerate(flattened(out), len(nodes)):
            index = self._index(each)
            if index < 0 or index in inside or (is_partly_known and not _is_discrete(each)):
                continue  # a view or the same storage, which has its node
            place = (at, tuple(each.shape), each.stride(), each.storage_offset())
            self._add(index, self._room(each), each.dtype, is_assumed, call, place)

    def _add(self, index: int, elements: int, dtype: torch.dtype, is_assumed: bool, call: _Call, place: Any) -> None:
        node = self._nodes[index] = _Node(elements, dtype, is_assumed)
        node.call, node.place = call, place

    def known(self, tensor: torch.Tensor) -> tuple[torch.Tensor, bool] | None:
        """Return the values of a tensor on the host and whether they are assumed, None where nobody knows them."""
        if tensor.device.type == "cpu":
            return tensor, False
        node = self._nodes.get(self._index(tensor))
        if node is None:
            return (torch.empty(tensor.shape, dtype=tensor.dtype, device=_HOST), False) if not tensor.numel() else None
        if not _compute(node, is_balanced=self.is_balanced):
            self._nodes.pop(self._index(tensor), None)
            return None
        assert node.value is not None
        return _View(node, tensor).of(node.value), node.is_assumed


def _compute(wanted: _Node, *, is_balanced: bool) -> bool:
    """Compute what a storage holds, and all that it follows from; say whether that can be done."""
    waiting = [wanted]
    while waiting:
        node = waiting[-1]
        if node.value is not None:
            waiting.pop()
            continue
        call, place = node.call, node.place
        if call is None or place is None or node.elements > _MOST_ELEMENTS:
            return False
        if call.outputs is None:
            missing = [view.node for view in call.views if view.node.value is None]
            if missing:
                waiting += missing
                continue
            try:
                call.run(is_balanced=is_balanced)
            except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError):
                return False
        at, shape, strides, offset = place
        assert call.outputs is not None
        node.value = torch.zeros(node.elements, dtype=node.dtype, device=_HOST)
        node.value.as_strided(shape, strides, offset).copy_(call.outputs[at].reshape(shape))
        waiting.pop()
    return True


class _drawing:
    """Within the block random numbers are those of a number, and the program's own are left alone."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        self._guards = (torch.no_grad(), torch._C._AutoDispatchBelowAutograd())
        for guard in self._guards:
            guard.__enter__()
        self._state = torch.random.get_rng_state()
        _torch.random.default_generator.manual_seed(self._number)

    def __exit__(self, *raised: Any) -> None:
        torch.random.set_rng_state(self._state)
        for guard in reversed(self._guards):
            guard.__exit__(*raised)


def _asks_whether_finite(func: Any, args: Any) -> bool:
    """Say whether a call looks for what is no number or infinite: nothing is, in a step that works."""
    if func in _FINITE_CHECKS:
        return True
    if func.overloadpacket not in _COMPARISONS or len(args) < 2:
        return False
    return args[0] is args[1] or (isinstance(args[1], float) and math.isinf(args[1]))


aten = torch.ops.aten
_CHOICES = frozenset((aten.topk.default, aten.argmax.default, aten.max.dim, aten.sort.default, aten.sort.stable))
_FINITE_CHECKS = frozenset((aten.isnan.default, aten.isinf.default, aten.isfinite.default))
_COMPARISONS = frozenset((aten.eq, aten.ne))


def _balanced(func: Any, args: Any, kwargs: Any, scores: _Random) -> torch.Tensor:
    """Return scores of which each row's highest follow those of the row before: all are chosen equally often."""
    named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    dim = named.get("dim", -1)
    dim = -1 if dim is None or not scores.shape else dim
    experts = scores.shape[dim] if scores.shape else 1
    rest = [*scores.shape[:dim], *scores.shape[dim:][1:]]
    rows = torch.arange(math.prod(rest), device=_HOST)[:, None] * named.get("k", 1)
    order: torch.Tensor = (torch.arange(experts, device=_HOST) - rows) % max(1, experts)
    return -order.view(*rest, experts).movedim(-1, dim).to(scores.dtype)


def _as_fractions(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and _is_discrete(value) else value


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Return the tensors that one of a subclass holds its data in, or the tensor itself."""
    taken_apart = getattr(tensor, "__tensor_flatten__", None)
    if taken_apart is None:
        yield tensor
        return
    for name in taken_apart()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):
            yield from plain_tensors(part)


def _is_discrete(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that a call writes to."""
    written: list[torch.Tensor] = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[at] if at < len(args) else None)
            written += _all_tensors(value)
    return written


def flattened(out: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of what an operator returned, in order."""
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, (list, tuple)):
        for each in out:
            yield from flattened(each)


def flattened_any(value: Any) -> Iterator[Any]:
    """Return everything in nested lists and dictionaries."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from flattened_any(each)
    elif isinstance(value, dict):
        yield from flattened_any(list(value.values()))
    else:
        yield value


def _all_tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in flattened_any(value) if isinstance(each, torch.Tensor)]
