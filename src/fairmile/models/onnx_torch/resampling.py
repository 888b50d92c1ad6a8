"""Images at other sizes and other places: resize, sampling on grids, regions and boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmile.base.errors import Unsupported
from fairmile.models.onnx_torch.operators import Node, ints, known_numbers, operator


@operator("Resize", "Upsample")
def resize(
    node: Node, x: Tensor, roi: Tensor | None = None, scales: Tensor | None = None, sizes: Tensor | None = None
) -> Tensor:
    if node.type == "Upsample" or node.opset < 11:
        scales = roi if roi is not None else torch.tensor(node.get("scales"))
        roi = None
    axes = [axis % x.ndim for axis in node.get("axes") or range(x.ndim)]
    wanted, factors = _targets(node, x, axes, scales, sizes)
    regions = (known_numbers(roi) or roi.tolist()) if roi is not None and roi.numel() else None
    for place, axis in enumerate(axes):
        if wanted[place] == x.shape[axis] and factors[place] == 1 and regions is None:
            continue
        region = (regions[place], regions[place + len(axes)]) if regions else (0.0, 1.0)
        x = _Axis(node, x.shape[axis], wanted[place], factors[place], region).apply(x, axis)
    return x


def _targets(
    node: Node, x: Tensor, axes: Sequence[int], scales: Tensor | None, sizes: Tensor | None
) -> tuple[list[int], list[float]]:
    """Return the size of each axis in the output and its scale."""
    if sizes is None or not sizes.numel():
        assert scales is not None
        factors = [float(each) for each in known_numbers(scales) or scales.tolist()]
        return [math.floor(x.shape[axis] * factor) for axis, factor in zip(axes, factors, strict=True)], factors
    wanted = ints(sizes)
    factors = [want / x.shape[axis] for axis, want in zip(axes, wanted, strict=True)]
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        factor = min(factors) if policy == "not_larger" else max(factors)
        factors = [factor] * len(factors)
        wanted = [math.floor(factor * x.shape[axis] + 0.5) for axis in axes]
    return wanted, factors


class _Axis:
    """How one axis is resampled: which elements each new one is made of, and with which weights."""

    def __init__(self, node: Node, size: int, wanted: int, scale: float, region: tuple[float, float]) -> None:
        self._size, self._wanted, self._scale, self._region = size, wanted, scale, region
        default = "half_pixel" if node.type == "Resize" and node.opset >= 11 else "asymmetric"
        self._transformation = node.get("coordinate_transformation_mode", default)
        self._mode = node.get("mode", "nearest")
        rounding = "round_prefer_floor" if node.type == "Resize" and node.opset >= 11 else "floor"
        self._rounding = node.get("nearest_mode", rounding)
        self._cubic = node.get("cubic_coeff_a", -0.75)
        self._excludes = bool(node.get("exclude_outside", 0))
        self._fill = node.get("extrapolation_value", 0.0)
        self._antialias = bool(node.get("antialias", 0))

    def apply(self, x: Tensor, axis: int) -> Tensor:
        """Return a tensor resampled along an axis."""
        places = self._places()
        is_outside = None
        if self._transformation == "tf_crop_and_resize":
            is_outside = (places < 0) | (places > self._size - 1)
        if self._mode == "nearest":
            result = x.index_select(axis, self._nearest(places).to(x.device))
        else:
            dtype = x.dtype if x.is_floating_point() else torch.float32
            weights = self._weights(places).to(x.device, dtype)
            result = torch.movedim(torch.movedim(x.to(dtype), axis, -1) @ weights.T, -1, axis)
            result = result if x.is_floating_point() else torch.round(result).to(x.dtype)
        if is_outside is not None and bool(is_outside.any()):
            shape = [-1 if each == axis else 1 for each in range(x.ndim)]
            result = torch.where(is_outside.reshape(shape).to(x.device), torch.full_like(result, self._fill), result)
        return result

    def _places(self) -> Tensor:
        """Return where each new element lies in the original axis."""
        places = torch.arange(self._wanted, dtype=torch.float64)
        length = self._scale * self._size
        how = self._transformation
        if how == "asymmetric":
            return places / self._scale
        if how == "align_corners":
            return places * (self._size - 1) / (length - 1) if length > 1 else torch.zeros_like(places)
        if how == "tf_crop_and_resize":
            begin, end = self._region
            if self._wanted == 1:
                return torch.full_like(places, 0.5 * (begin + end) * (self._size - 1))
            return begin * (self._size - 1) + places * (end - begin) * (self._size - 1) / (self._wanted - 1)
        if how == "pytorch_half_pixel" and self._wanted == 1:
            return torch.zeros_like(places) - 0.5
        if how == "half_pixel_symmetric":
            offset = self._size / 2 * (1 - self._wanted / length)
            return offset + (places + 0.5) / self._scale - 0.5
        if how in ("half_pixel", "pytorch_half_pixel"):
            return (places + 0.5) / self._scale - 0.5
        if how == "tf_half_pixel_for_nn":
            return (places + 0.5) / self._scale
        raise Unsupported(f"Resize: coordinate transformation {how} is not supported")

    def _nearest(self, places: Tensor) -> Tensor:
        if self._rounding.startswith("round"):
            places = places - 0.5 if self._rounding == "round_prefer_floor" else places + 0.5
        rounded = torch.ceil(places) if self._rounding in ("ceil", "round_prefer_floor") else torch.floor(places)
        return rounded.to(torch.int64).clamp(0, self._size - 1)

    def _weights(self, places: Tensor) -> Tensor:
        """Return the share of each element of the axis in each new one."""
        reach = 2 if self._mode == "cubic" else 1
        squeeze = min(self._scale, 1.0) if self._antialias else 1.0
        width = math.ceil(reach / squeeze)
        base = torch.floor(places)
        offsets = torch.arange(-width + 1, width + 1, dtype=torch.float64)
        elements = base[:, None] + offsets
        if self._antialias:
            elements = base[:, None] + torch.arange(-width, width + 2, dtype=torch.float64)
        distance = (places[:, None] - elements).abs() * squeeze
        shares = self._kernel(distance)
        if self._excludes or (self._antialias and self._mode == "linear"):
            inside = (elements >= 0) & (elements < self._size)
            shares = torch.where(inside, shares, torch.zeros_like(shares)) if self._excludes else shares
        if self._antialias or self._excludes:
            shares = shares / shares.sum(1, keepdim=True)
        columns = elements.to(torch.int64).clamp(0, self._size - 1)
        return torch.zeros(len(places), self._size, dtype=torch.float64).scatter_add(1, columns, shares)

    def _kernel(self, distance: Tensor) -> Tensor:
        if self._mode == "linear":
            return torch.clamp(1 - distance, min=0)
        a, d = self._cubic, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return torch.where(d <= 1, near, torch.where(d < 2, far, torch.zeros_like(d)))


_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}


@operator("GridSample")
def grid_sample(node: Node, x: Tensor, grid: Tensor) -> Tensor:
    mode = _MODES[node.get("mode", "linear")]
    return F.grid_sample(
        x,
        grid.to(x.dtype),
        mode=mode,
        padding_mode=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )


@operator("AffineGrid")
def affine_grid(node: Node, theta: Tensor, size: Tensor) -> Tensor:
    return F.affine_grid(theta, ints(size), align_corners=bool(node.get("align_corners", 0)))


@operator("NonMaxSuppression")
def non_max_suppression(
    node: Node,
    boxes: Tensor,
    scores: Tensor,
    most: Tensor | None = None,
    overlap: Tensor | None = None,
    threshold: Tensor | None = None,
) -> Tensor:
    limit = int(most.reshape(-1)[0]) if most is not None else 0
    allowed = float(overlap.reshape(-1)[0]) if overlap is not None else 0.0
    lowest = float(threshold.reshape(-1)[0]) if threshold is not None else -math.inf
    chosen = []
    for batch in range(boxes.shape[0]):
        corners = _corners(boxes[batch], is_centred=bool(node.get("center_point_box", 0)))
        for kind in range(scores.shape[1]):
            picked: list[int] = []
            for place in torch.argsort(scores[batch, kind], descending=True, stable=True).tolist():
                if len(picked) >= limit or scores[batch, kind, place] <= lowest:
                    break
                if all(_overlap(corners[place], corners[other]) <= allowed for other in picked):
                    picked.append(place)
            chosen += [(batch, kind, place) for place in picked]
    return torch.tensor(chosen, dtype=torch.int64).reshape(-1, 3)


def _corners(boxes: Tensor, *, is_centred: bool) -> Tensor:
    if is_centred:
        x, y, width, height = boxes.unbind(-1)
        return torch.stack((y - height / 2, x - width / 2, y + height / 2, x + width / 2), -1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), -1)


def _overlap(a: Tensor, b: Tensor) -> float:
    low, high = torch.maximum(a[:2], b[:2]), torch.minimum(a[2:], b[2:])
    shared = float(torch.clamp(high - low, min=0).prod())
    union = float((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod()) - shared
    return shared / union if union > 0 else 0.0


@operator("RoiAlign")
def roi_align(node: Node, x: Tensor, rois: Tensor, batches: Tensor) -> Tensor:
    height, width = node.get("output_height", 1), node.get("output_width", 1)
    ratio, scale = node.get("sampling_ratio", 0), node.get("spatial_scale", 1.0)
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    is_half = node.get("coordinate_transformation_mode", default) == "half_pixel"
    results = []
    for roi, batch in zip(rois.tolist(), batches.tolist(), strict=True):
        left, top, right, bottom = (each * scale - (0.5 if is_half else 0.0) for each in roi)
        wide, high = right - left, bottom - top
        if not is_half:
            wide, high = max(wide, 1.0), max(high, 1.0)
        rows = ratio or math.ceil(high / height)
        columns = ratio or math.ceil(wide / width)
        ys = top + (torch.arange(height * rows) + 0.5) * high / (height * rows)
        xs = left + (torch.arange(width * columns) + 0.5) * wide / (width * columns)
        results.append(_pooled_samples(x[int(batch)], ys, xs, (height, rows, width, columns), node))
    return torch.stack(results) if results else x.new_zeros(0, x.shape[1], height, width)


def _pooled_samples(image: Tensor, ys: Tensor, xs: Tensor, shape: tuple[int, int, int, int], node: Node) -> Tensor:
    """Return bilinear samples of an image, averaged or their largest in each bin."""
    height, rows, width, columns = shape
    y_weights, x_weights = _linear(ys, image.shape[1]), _linear(xs, image.shape[2])
    if node.get("mode", "avg") == "avg":
        samples = torch.einsum("chw,yh,xw->cyx", image, y_weights.sum(1).to(image), x_weights.sum(1).to(image))
        return samples.reshape(-1, height, rows, width, columns).mean((2, 4))
    # The largest is taken of the weighted neighbours themselves, as ONNX defines it.
    parts = torch.einsum("chw,ynh,xmw->cyxnmhw", image, y_weights.to(image), x_weights.to(image))
    samples = parts.sum((5, 6)).amax((3, 4))
    return samples.reshape(-1, height, rows, width, columns).amax((2, 4))


def _linear(places: Tensor, size: int) -> Tensor:
    """Return the weights of the two neighbours of each place; places too far outside have none."""
    is_outside = (places < -1) | (places > size)
    inside = places.clamp(min=0)
    low = torch.floor(inside).to(torch.int64).clamp(max=size - 1)
    high = (low + 1).clamp(max=size - 1)
    share = torch.where(low >= size - 1, torch.zeros_like(inside), inside - low)
    weights = torch.zeros(len(places), 2, size)
    number = torch.arange(len(places))
    weights[number, 0, low] += 1 - share
    weights[number, 1, high] += share
    return torch.where(is_outside[:, None, None], torch.zeros_like(weights), weights)
