"""The places of boxes and edges in the picture of a flow: layers by the longest path, edges that go around boxes.

An edge that passes layers takes a place of its own in each of them, as a box would. All such edges of one box share
those places. Layers are ordered so that few edges cross, and then moved sideways so that edges are as straight as the
boxes leave room for.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from fairmile.base.digest import sha256_hex
from fairmile.base.quick_dataclass import dataclass

LETTER_PX, SMALL_PX, LINE_PX, ROOF_PX = 8.0, 7.0, 17, 14
_MARGIN_PX, _LAYER_PX, _GAP_PX, _LEAST_PX = 20, 56, 18, 90
_LANE_PX = 8.0  # of an edge that passes a layer
_SWEEPS = 6  # over the layers, to uncross edges
_STRAIGHT = 8.0  # an edge that passes a layer is kept straight before a box is moved towards its neighbours
_MOST_LANES = 5_000  # of a picture with more the edges are straight lines

Point = tuple[float, float]


@dataclass
class Box:
    """One box of the picture: a step, or all nodes of one that is repeated often; the last line shows the state."""

    lines: list[str]
    state: str
    needs: list[int]
    title: str = ""
    shape: str = ""
    steps: Sequence[str] = ()  # the names of its nodes
    room: int = 0  # letters that its last line may come to have
    layer: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        slant = 2 * ROOF_PX if self.shape in ("hexagon", "oval") else 0
        name_px = max(map(len, self.lines[:-1])) * LETTER_PX
        state_px = max(len(self.lines[-1]), self.room) * SMALL_PX
        return max(max(name_px, state_px) + 20, _LEAST_PX) + slant

    @property
    def height(self) -> float:
        return len(self.lines) * LINE_PX + 14 + (ROOF_PX if self.shape in ("house", "invhouse") else 0)

    def points(self) -> list[Point]:
        """Return the corners of an outline other than a box."""
        left, right, top, bottom = self.x - self.width / 2, self.x + self.width / 2, self.y, self.y + self.height
        if self.shape == "house":
            return [(left, bottom), (left, top + ROOF_PX), (self.x, top), (right, top + ROOF_PX), (right, bottom)]
        if self.shape == "invhouse":
            return [(left, top), (left, bottom - ROOF_PX), (self.x, bottom), (right, bottom - ROOF_PX), (right, top)]
        middle, inner = (top + bottom) / 2, ROOF_PX
        sides = [(left, middle), (left + inner, top), (right - inner, top)]
        return [*sides, (right, middle), (right - inner, bottom), (left + inner, bottom)]


@dataclass(frozen=True)
class Layout:
    """The boxes of a picture at their places, the edges between them, and its size.

    An edge is the numbers of two boxes and the points that it goes through, two in each layer: it goes straight down
    from the first to the second, and bends on its way to the next two.
    """

    boxes: list[Box]
    edges: list[tuple[int, int, list[Point]]]
    width: float
    height: float

    @property
    def digest(self) -> str:
        """Changes with the places and the edges of boxes, not with their states."""
        places = [(box.x, box.y, box.width, box.height, box.needs, box.lines[0]) for box in self.boxes]
        return sha256_hex(repr((places, self.edges)).encode())[:16]


def place(boxes: list[Box]) -> Layout:
    """Give each box its place; those before a box come before it in the list."""
    for box in boxes:
        box.layer = max((boxes[need].layer + 1 for need in box.needs), default=0)
    layers = _Layers(boxes)
    layers.uncross()
    layers.align()
    return layers.layout()


class _Slot:
    """What takes room in a layer: a box, or an edge that passes the layer."""

    def __init__(self, layer: int, width: float, box: Box | None = None) -> None:
        self.layer, self.width, self.box = layer, width, box
        self.above: dict[_Slot, None] = {}
        self.below: dict[_Slot, None] = {}
        self.x = 0.0


class _Layers:
    """The slots of a picture, layer by layer from the top."""

    def __init__(self, boxes: list[Box]) -> None:
        self._boxes = boxes
        self._slots = [_Slot(box.layer, box.width, box) for box in boxes]
        self._layers: list[list[_Slot]] = [[] for _ in range(max((box.layer for box in boxes), default=0) + 1)]
        for slot in self._slots:
            self._layers[slot.layer].append(slot)
        self._lanes = self._make_lanes()
        for number, box in enumerate(boxes):
            for need in box.needs:
                way = [self._slots[need], *self._lane(need, box.layer), self._slots[number]]
                for upper, lower in itertools.pairwise(way):
                    lower.above[upper] = upper.below[lower] = None

    def _make_lanes(self) -> dict[int, list[_Slot]]:
        """Return by box the slots of its long edges in the layers below it."""
        ends: dict[int, int] = {}
        for box in self._boxes:
            for need in box.needs:
                ends[need] = max(ends.get(need, 0), box.layer)
        first = {need: self._boxes[need].layer + 1 for need in ends}
        if sum(ends[need] - first[need] for need in ends) > _MOST_LANES:
            return {}
        lanes = {need: [_Slot(layer, _LANE_PX) for layer in range(first[need], ends[need])] for need in ends}
        for slots in lanes.values():
            for slot in slots:
                self._layers[slot.layer].append(slot)
        return lanes

    def _lane(self, need: int, layer: int) -> list[_Slot]:
        """Return the slots between a box and a layer below it."""
        return self._lanes.get(need, [])[: layer - self._boxes[need].layer - 1]

    def uncross(self) -> None:
        """Order each layer by where the neighbours of its slots stand, down and up again."""
        at = {slot: place for layer in self._layers for place, slot in enumerate(layer)}
        for sweep in range(_SWEEPS):
            for layer in self._layers if sweep % 2 == 0 else reversed(self._layers):
                wanted = {slot: _mean(slot.above if sweep % 2 == 0 else slot.below, at, at[slot]) for slot in layer}
                layer.sort(key=wanted.__getitem__)
                at |= {slot: place for place, slot in enumerate(layer)}

    def align(self) -> None:
        """Move the slots of each layer, which stay in their order, towards their neighbours."""
        for layer in self._layers:
            _spread(layer, dict.fromkeys(layer, 0.0))
        for sweep in range(_SWEEPS):
            for layer in reversed(self._layers) if sweep % 2 == 0 else self._layers:
                _spread(layer, {slot: _mean_x(slot, slot.below if sweep % 2 == 0 else slot.above) for slot in layer})
        left = min((slot.x - slot.width / 2 for layer in self._layers for slot in layer), default=0.0)
        for layer in self._layers:
            for slot in layer:
                slot.x += _MARGIN_PX - left

    def layout(self) -> Layout:
        """Return the picture, with boxes at their places."""
        tops, y = [], float(_MARGIN_PX)
        bottoms = []
        for layer in self._layers:
            tops.append(y)
            bottoms.append(y + max((slot.box.height for slot in layer if slot.box is not None), default=0.0))
            y = bottoms[-1] + _LAYER_PX
        for slot, box in zip(self._slots, self._boxes, strict=True):
            box.x, box.y = slot.x, tops[box.layer]
        edges = []
        for number, box in enumerate(self._boxes):
            for need in box.needs:
                upper = self._boxes[need]
                points = [(upper.x, upper.y + upper.height), (upper.x, bottoms[upper.layer])]
                for slot in self._lane(need, box.layer):
                    points += [(slot.x, tops[slot.layer]), (slot.x, bottoms[slot.layer])]
                edges.append((need, number, [*points, (box.x, box.y)]))
        right = max((slot.x + slot.width / 2 for layer in self._layers for slot in layer), default=0.0)
        return Layout(self._boxes, edges, right + _MARGIN_PX, y - _LAYER_PX + _MARGIN_PX)


def _mean(neighbours: Collection[_Slot], at: Mapping[_Slot, int], own: int) -> float:
    return sum(at[each] for each in neighbours) / len(neighbours) if neighbours else float(own)


def _mean_x(slot: _Slot, neighbours: Collection[_Slot]) -> float:
    return sum(each.x for each in neighbours) / len(neighbours) if neighbours else slot.x


def _spread(layer: Sequence[_Slot], wanted: Mapping[_Slot, float]) -> None:
    """Place the slots of a layer without overlap where the squares of their ways from the wanted places are least."""
    offsets, offset = [], 0.0
    for before, slot in zip([None, *layer], layer, strict=False):
        if before is not None:
            offset += (before.width + slot.width) / 2 + _GAP_PX
        offsets.append(offset)
    groups: list[tuple[float, float, int]] = []  # of slots that touch: where they stand, their weight, their number
    for slot, offset in zip(layer, offsets, strict=True):
        at, weight, count = wanted[slot] - offset, 1.0 if slot.box is not None else _STRAIGHT, 1
        while groups and groups[-1][0] >= at:
            other_at, other_weight, other_count = groups.pop()
            at = (at * weight + other_at * other_weight) / (weight + other_weight)
            weight, count = weight + other_weight, count + other_count
        groups.append((at, weight, count))
    starts = (at for at, _, count in groups for _ in range(count))
    for slot, offset, at in zip(layer, offsets, starts, strict=True):
        slot.x = at + offset
