"""Operators that make tensors, change their shape, and take from or put into places of them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.base.errors import Unsupported
from fairmile.models.onnx_torch.operators import Node, ints, known_numbers, operator

# Make


@operator("Constant")
def constant(node: Node) -> Tensor:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        value = node.get(name)
        if value is not None:
            break
    else:
        raise Unsupported("Constant: only tensors and numbers are supported")
    if isinstance(value, Tensor):
        return value
    dtype = torch.int64 if name in ("value_int", "value_ints") else node.precision or torch.float32
    return torch.tensor(value, dtype=dtype)


@operator("ConstantOfShape")
def constant_of_shape(node: Node, shape: Tensor) -> Tensor:
    value = node.get("value")
    fill = value if value is not None else torch.zeros(1, dtype=node.precision or torch.float32)
    return fill.reshape(()).expand(ints(shape)).clone().to(shape.device)


@operator("Range")
def number_range(node: Node, start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    known = [known_numbers(each) for each in (start, limit, step)]
    if all(each is not None for each in known):
        first, last, by = (each[0] for each in known if each)
        return torch.arange(first, last, by, dtype=start.dtype, device=start.device)
    count = max(0, math.ceil((limit.item() - start.item()) / step.item()))
    numbers = torch.arange(count, device=start.device)
    return (start + numbers.to(start.dtype) * step).to(start.dtype)


@operator("EyeLike")
def eye_like(node: Node, x: Tensor) -> Tensor:
    dtype = node.dtype(node.get("dtype")) if node.get("dtype") is not None else x.dtype
    diagonal = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    offset = node.get("k", 0)
    return (diagonal.triu(offset) & diagonal.tril(offset)).to(dtype)


@operator("OneHot")
def one_hot(node: Node, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    count, axis = ints(depth)[0], node.get("axis", -1)
    places = indices.to(torch.int64)
    places = torch.where(places < 0, places + count, places).unsqueeze(axis)
    numbers = torch.arange(count, device=indices.device)
    axis = axis % places.ndim
    mask = places == numbers.reshape((-1,) + (1,) * (places.ndim - axis - 1))
    return torch.where(mask, values[1], values[0])


@operator("Shape")
def shape_of(node: Node, x: Tensor) -> Tensor:
    return torch.tensor(x.shape[node.get("start", 0) : node.get("end")], dtype=torch.int64, device=x.device)


@operator("Size")
def size_of(node: Node, x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64, device=x.device)


@operator("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
def random(node: Node, like: Tensor | None = None) -> Tensor:
    shape = node.get("shape") if like is None else like.shape
    number = node.get("dtype")
    dtype = node.dtype(number) if number is not None else (like.dtype if like is not None else torch.float32)
    if "Normal" in node.type:
        return node.number("mean", 0.0) + node.number("scale", 1.0) * torch.randn(shape, dtype=dtype)
    low, high = node.number("low", 0.0), node.number("high", 1.0)
    return low + (high - low) * torch.rand(shape, dtype=dtype)


@operator("Bernoulli")
def bernoulli(node: Node, x: Tensor) -> Tensor:
    drawn = torch.bernoulli(x.to(torch.float64))
    return drawn.to(node.dtype(node.get("dtype")) if node.get("dtype") is not None else x.dtype)


# Change the shape


@operator("Reshape")
def reshape(node: Node, x: Tensor, shape: Tensor | None = None) -> Tensor:
    sizes = ints(shape if shape is not None else node.get("shape"))
    if not node.get("allowzero", 0):
        sizes = [x.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    if -1 in sizes and not x.numel():
        known = math.prod(size for size in sizes if size != -1)
        sizes = [x.numel() // known if size == -1 and known else max(size, 0) for size in sizes]
    return x.reshape(sizes)


@operator("Transpose")
def transpose(node: Node, x: Tensor) -> Tensor:
    return x.permute(node.get("perm") or list(range(x.ndim))[::-1])


@operator("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Squeeze")
def squeeze(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = ints(axes if axes is not None else node.get("axes"))
    return x.squeeze(chosen or [place for place, size in enumerate(x.shape) if size == 1])


@operator("Unsqueeze")
def unsqueeze(node: Node, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = ints(axes if axes is not None else node.get("axes"))
    rank = x.ndim + len(chosen)
    for axis in sorted(each % rank for each in chosen):
        x = x.unsqueeze(axis)
    return x


@operator("Expand")
def expand(node: Node, x: Tensor, shape: Tensor) -> Tensor:
    sizes = [1] * (x.ndim - shape.numel()) + ints(shape)
    own = [1] * (len(sizes) - x.ndim) + list(x.shape)
    return x.expand([have if want == 1 else want for have, want in zip(own, sizes, strict=True)])


@operator("Tile")
def tile(node: Node, x: Tensor, repeats: Tensor) -> Tensor:
    return x.repeat(ints(repeats))


@operator("Concat")
def concat(node: Node, *inputs: Tensor) -> Tensor:
    return torch.cat(inputs, node.get("axis", 1))


@operator("Split")
def split(node: Node, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = node.get("axis", 0)
    chosen = ints(sizes if sizes is not None else node.get("split"))
    if not chosen:
        count = node.get("num_outputs") or node.outputs
        each = math.ceil(x.shape[axis] / count)
        chosen = [each] * (count - 1) + [x.shape[axis] - each * (count - 1)]
    return tuple(torch.split(x, chosen, axis))


@operator("Trilu")
def triangle(node: Node, x: Tensor, k: Tensor | None = None) -> Tensor:
    offset = ints(k)[0] if k is not None else 0
    return torch.triu(x, offset) if node.get("upper", 1) else torch.tril(x, offset)


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    block = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // block**2, h * block, w * block)


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    block = node.get("blocksize")
    parts = x.reshape(n, c, h // block, block, w // block, block)
    order = (0, 1, 3, 5, 2, 4) if node.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return parts.permute(order).reshape(n, c * block**2, h // block, w // block)


@operator("Pad")
def pad(
    node: Node, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    amounts = ints(pads if pads is not None else node.get("pads") or node.get("paddings"))
    fill = value.reshape(-1)[0].item() if value is not None else node.get("value", 0.0)
    chosen = [axis % x.ndim for axis in ints(axes)] if axes is not None else list(range(x.ndim))
    begins, ends = [0] * x.ndim, [0] * x.ndim
    for place, axis in enumerate(chosen):
        begins[axis], ends[axis] = amounts[place], amounts[place + len(chosen)]
    mode = node.get("mode", "constant")
    if mode == "constant":
        flat = [amount for pair in zip(reversed(begins), reversed(ends), strict=True) for amount in pair]
        return F.pad(x, flat, value=fill)
    for axis in range(x.ndim):
        x = _pad_axis(x, axis, begins[axis], ends[axis], mode)
    return x


def _pad_axis(x: Tensor, axis: int, begin: int, end: int, mode: str) -> Tensor:
    """Return a tensor padded along an axis by elements of its own."""
    if not begin and not end:
        return x
    size = x.shape[axis]
    places = torch.arange(-begin, size + end, device=x.device)
    if mode == "edge":
        places = places.clamp(0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = places.abs() % period
        places = torch.where(places >= size, period - places, places)
    return x.index_select(axis, places)


@operator("ReverseSequence")
def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    time, batch = node.get("time_axis", 0), node.get("batch_axis", 1)
    steps = torch.arange(x.shape[time], device=x.device).reshape(-1, 1)
    places = torch.where(steps < lengths, lengths - 1 - steps, steps)
    places = places if time < batch else places.T
    shape = [x.shape[axis] if axis in (time, batch) else 1 for axis in range(x.ndim)]
    return x.gather(time, places.reshape(shape).expand(x.shape))


# Take and put


@operator("Slice")
def slice_of(
    node: Node,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    begins = ints(starts if starts is not None else node.get("starts"))
    stops = ints(ends if ends is not None else node.get("ends"))
    along = ints(axes if axes is not None else node.get("axes")) or list(range(len(begins)))
    strides = ints(steps) or [1] * len(begins)
    for begin, stop, axis, step in zip(begins, stops, along, strides, strict=True):
        size = x.shape[axis]
        if step > 0:
            index = [slice(None)] * x.ndim
            index[axis] = slice(begin, stop, step)
            x = x[tuple(index)]
            continue
        last = size if begin >= size else begin
        stop = None if stop < -size else stop  # type: ignore[assignment]
        places = list(range(size))[last:stop:step]
        x = x.index_select(axis, torch.tensor(places, dtype=torch.int64, device=x.device))
    return x


def _from_end(indices: Tensor, size: int) -> Tensor:
    """Return indices with negative ones counted from the end."""
    places = indices.to(torch.int64)
    return torch.where(places < 0, places + size, places)


@operator("Gather")
def gather(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = node.get("axis", 0) % x.ndim
    places = _from_end(indices, x.shape[axis])
    taken = x.index_select(axis, places.reshape(-1))
    return taken.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


@operator("GatherElements")
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = node.get("axis", 0)
    return x.gather(axis, _from_end(indices, x.shape[axis]))


@operator("GatherND")
def gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    shared = node.get("batch_dims", 0)
    if not shared:
        return x[tuple(indices.to(torch.int64).unbind(-1))]
    batch = x.shape[:shared]
    flat, places = x.reshape(-1, *x.shape[shared:]), indices.reshape(-1, *indices.shape[shared:])
    taken = [part[tuple(place.to(torch.int64).unbind(-1))] for part, place in zip(flat, places, strict=True)]
    return torch.stack(taken).reshape(*batch, *taken[0].shape)


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@operator("ScatterElements", "Scatter")
def scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis, how = node.get("axis", 0), node.get("reduction", "none")
    places = _from_end(indices, x.shape[axis])
    if how == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[how])


@operator("ScatterND")
def scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    how, depth = node.get("reduction", "none"), indices.shape[-1]
    places = tuple(_from_end(each, x.shape[axis]) for axis, each in enumerate(indices.unbind(-1)))
    if how in ("none", "add"):
        return x.index_put(places, updates, accumulate=how == "add")
    sizes = x.shape[:depth]
    flat = x.reshape(math.prod(sizes), -1)
    row = torch.zeros_like(places[0])
    for place, size in zip(places, sizes, strict=True):
        row = row * size + place
    changes = updates.reshape(row.numel(), -1)
    rows = row.reshape(-1, 1).expand_as(changes)
    return flat.scatter_reduce(0, rows, changes, _REDUCTIONS[how]).reshape(x.shape)


@operator("TensorScatter")
def tensor_scatter(node: Node, cache: Tensor, update: Tensor, start: Tensor | None = None) -> Tensor:
    axis = node.get("axis", -2) % cache.ndim
    result = cache.clone()
    for batch in range(cache.shape[0]):
        begin = int(start[batch]) if start is not None else 0
        places = begin + torch.arange(update.shape[axis], device=cache.device)
        if node.get("mode", "linear") == "circular":
            places = places % cache.shape[axis]
        result[batch] = result[batch].index_copy(axis - 1, places, update[batch])
    return result


@operator("NonZero")
def non_zero(node: Node, x: Tensor) -> Tensor:
    return torch.nonzero(x).T


@operator("Compress")
def compress(node: Node, x: Tensor, condition: Tensor) -> Tensor:
    axis = node.get("axis")
    x = x.reshape(-1) if axis is None else x
    places = torch.nonzero(condition).reshape(-1)
    return x.index_select(axis or 0, places)
