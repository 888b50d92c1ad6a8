"""The graph of a flow as a picture (SVG, laid out here) and as Mermaid text, with the states of steps in colour.

A step that is repeated many times is one box that tells how many there are in each state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TypedDict

from fairmile.base.files import write_atomic
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.flows.results import FlowStatus, StepStatus

FORMATS = ("svg", "mermaid")
_MOST_SHOWN = 8  # nodes of one step; more are one box
_SWEEPS = 6  # over the layers, to uncross edges
_LETTER_PX, _LINE_PX, _MARGIN_PX, _LAYER_PX, _GAP_PX, _LEAST_PX = 8.0, 17, 20, 56, 18, 90
_LONGEST = 40
# Fill and line of each state; text on all of them is dark enough to be read.
COLOURS = {
    "done": ("#d9f2df", "#2e7d46"),
    "running": ("#d6e8fb", "#1f6fb8"),
    "queued": ("#fdf3d1", "#a37c10"),
    "failed": ("#fbdcdc", "#b3261e"),
    "timeout": ("#fbdcdc", "#b3261e"),
    "interrupted": ("#fbdcdc", "#b3261e"),
    "cancelled": ("#f0dcf2", "#7b3f85"),
    "left out": ("#f3f3f3", "#9a9a9a"),
    "waiting": ("#ffffff", "#6b6b6b"),
}
# The outlines that are drawn, by the words of Graphviz for them, with the marks of Mermaid; others are boxes.
_SHAPES = {
    "house": ('[/"', '"\\]'),
    "invhouse": ('[\\"', '"/]'),
    "hexagon": ('{{"', '"}}'),
    "oval": ('(["', '"])'),
}
_SAME_SHAPES = {"diamond": "hexagon", "ellipse": "oval", "circle": "oval"}
_ROOF_PX = 14  # of a house
_STYLE = """\
<style>
@media (prefers-color-scheme: dark) { .flow-page { fill: #17191d } .flow-edge { stroke: #8b8f98 } }
</style>"""
_WORST = ("failed", "timeout", "interrupted", "cancelled", "running", "queued", "waiting", "done", "left out")


class DrawingDict(TypedDict):
    """A picture as text: `svg` or `mermaid`."""

    format: str
    text: str


@dataclass(frozen=True, repr=False)
class Drawing(Result):
    """The graph of a flow as text of a format."""

    format: str
    text: str

    def to_dict(self) -> DrawingDict:
        return {"format": self.format, "text": self.text}

    def summary(self) -> str:
        return f"{self.format}, {len(self.text):,} characters"

    def write(self, target: Path) -> None:
        """Write the picture to a file."""
        write_atomic(target, self.text)

    def _repr_html_(self) -> str:
        return self.text if self.format == "svg" else f"<pre>{escape(self.text)}</pre>"


@dataclass
class _Box:
    """One box of the picture."""

    lines: list[str]
    state: str
    needs: list[int]
    title: str = ""
    shape: str = ""
    layer: int = 0
    x: float = 0.0
    y: float = 0.0
    followers: list[int] = field(default_factory=list)

    @property
    def width(self) -> float:
        slant = 2 * _ROOF_PX if self.shape in ("hexagon", "oval") else 0
        return max(max(map(len, self.lines)) * _LETTER_PX + 20, _LEAST_PX) + slant

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE_PX + 14 + (_ROOF_PX if self.shape in ("house", "invhouse") else 0)

    def points(self) -> list[tuple[float, float]]:
        """Return the corners of an outline other than a box."""
        left, right, top, bottom = self.x - self.width / 2, self.x + self.width / 2, self.y, self.y + self.height
        if self.shape == "house":
            return [(left, bottom), (left, top + _ROOF_PX), (self.x, top), (right, top + _ROOF_PX), (right, bottom)]
        if self.shape == "invhouse":
            return [(left, top), (left, bottom - _ROOF_PX), (self.x, bottom), (right, bottom - _ROOF_PX), (right, top)]
        middle, inner = (top + bottom) / 2, _ROOF_PX
        sides = [(left, middle), (left + inner, top), (right - inner, top)]
        return [*sides, (right, middle), (right - inner, bottom), (left + inner, bottom)]


def draw(
    status: FlowStatus, format: str, labels: Mapping[str, str] | None = None, shapes: Mapping[str, str] | None = None
) -> Drawing:
    """Return the graph of a flow as `svg` or `mermaid`.

    `labels` are texts of steps in place of their names, `shapes` words of Graphviz such as `house`.
    """
    boxes = _boxes(status.steps, labels or {}, shapes or {})
    return Drawing(format, _svg(boxes, status.id) if format == "svg" else _mermaid(boxes))


def _boxes(steps: Sequence[StepStatus], labels: Mapping[str, str], shapes: Mapping[str, str]) -> list[_Box]:
    groups: dict[str, list[StepStatus]] = {}
    for step in steps:
        groups.setdefault(step.name.partition("[")[0], []).append(step)
    boxes: list[_Box] = []
    place: dict[str, int] = {}
    members: list[list[StepStatus]] = []
    for name, group in groups.items():
        for part in [group] if len(group) > _MOST_SHOWN else [[each] for each in group]:
            place |= {each.name: len(boxes) for each in part}
            boxes.append(_group(name, part) if len(part) > 1 else _single(part[0], labels.get(part[0].name, "")))
            shape = shapes.get(name, "")
            boxes[-1].shape = _SAME_SHAPES.get(shape, shape if shape in _SHAPES else "")
            members.append(part)
    for number, part in enumerate(members):
        needs = {place[need] for each in part for need in each.needs if need in place} - {number}
        boxes[number].needs = sorted(needs)
        for need in boxes[number].needs:
            boxes[need].followers.append(number)
    return boxes


def _single(step: StepStatus, label: str) -> _Box:
    facts = [step.state]
    if step.state == "running" and step.progress is not None:
        facts.append(f"{step.progress:.0%}")
    if step.elapsed_s is not None and step.state != "waiting":
        facts.append(format_duration(step.elapsed_s))
    facts += [f"on {step.on}"] if step.on != "local" else []
    lines = [_short(line) for line in (label.splitlines() or [step.name])]
    title = ": ".join(filter(None, [step.name, step.reason or step.state]))
    return _Box([*lines, " · ".join(facts)], step.state, [], title)


def _group(name: str, steps: Sequence[StepStatus]) -> _Box:
    counts = Counter(step.state for step in steps)
    state = next(each for each in _WORST if counts[each])
    shown = ", ".join(f"{counts[each]:,} {each}" for each in _WORST if counts[each])
    return _Box([_short(f"{name} × {len(steps):,}"), _short(shown)], state, [], f"{name}: {shown}")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


# SVG


def _svg(boxes: list[_Box], title: str) -> str:
    width, height = _place(boxes)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
        _STYLE,
        f'<rect class="flow-page" width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    for box in boxes:
        parts += [_edge(boxes[need], box) for need in box.needs]
    parts += [_drawn(box) for box in boxes]
    return "\n".join([*parts, "</svg>", ""])


def _edge(one: _Box, other: _Box) -> str:
    x1, y1, x2, y2 = one.x, one.y + one.height, other.x, other.y - 2
    bend = max((y2 - y1) / 2, 12)
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    line = 'fill="none" stroke="#999" stroke-width="1.2" marker-end="url(#arrow)"'
    return f'<path class="flow-edge" d="{path}" {line}/>'


def _drawn(box: _Box) -> str:
    fill, line = COLOURS.get(box.state, COLOURS["waiting"])
    dash = ' stroke-dasharray="4 3"' if box.state == "left out" else ""
    paint = f'fill="{fill}" stroke="{line}" stroke-width="1.4"{dash}'
    parts = [f"<g><title>{escape(_visible(box.title))}</title>", f"<{_outline(box)} {paint}/>"]
    roof = _ROOF_PX if box.shape == "house" else 0
    for number, text in enumerate(box.lines):
        is_last = number == len(box.lines) - 1
        style = f'fill="{line}" font-size="11"' if is_last else 'fill="#1b1b1b"'
        style += ' font-weight="600"' if number == 0 else ""
        y = box.y + roof + 20 + number * _LINE_PX
        parts.append(f'<text x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle" {style}>{escape(_visible(text))}</text>')
    return "".join([*parts, "</g>"])


def _outline(box: _Box) -> str:
    if box.shape in ("", "oval"):
        rounded = box.height / 2 if box.shape else 6
        left = box.x - box.width / 2
        size = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{rounded:g}"'
        return f'rect x="{left:.1f}" y="{box.y:.1f}" {size}'
    return f'polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in box.points())}"'


def _visible(text: str) -> str:
    """Return a text without characters that XML cannot hold."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "�", text)


def _place(boxes: list[_Box]) -> tuple[float, float]:
    """Give each box its place and return the size of the picture: layers by the longest path, few crossings."""
    for box in boxes:  # those before a box come before it in the list
        box.layer = max((boxes[need].layer + 1 for need in box.needs), default=0)
    layers: list[list[int]] = [[] for _ in range(max((box.layer for box in boxes), default=0) + 1)]
    for number, box in enumerate(boxes):
        layers[box.layer].append(number)
    _uncross(boxes, layers)
    widths = [sum(boxes[each].width for each in layer) + _GAP_PX * (len(layer) - 1) for layer in layers]
    width = max(widths, default=0.0) + 2 * _MARGIN_PX
    y = float(_MARGIN_PX)
    for layer, own in zip(layers, widths, strict=True):
        x = (width - own) / 2
        for each in layer:
            boxes[each].x, boxes[each].y = x + boxes[each].width / 2, y
            x += boxes[each].width + _GAP_PX
        y += max((boxes[each].height for each in layer), default=0.0) + _LAYER_PX
    return width, y - _LAYER_PX + _MARGIN_PX


def _uncross(boxes: list[_Box], layers: list[list[int]]) -> None:
    """Order each layer by where the neighbours of its boxes stand, down and up again."""
    for sweep in range(_SWEEPS):
        at = {each: place for layer in layers for place, each in enumerate(layer)}
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            layer.sort(key=lambda each: _mean(boxes[each], at, down=sweep % 2 == 0, own=at[each]))
            at |= {each: place for place, each in enumerate(layer)}


def _mean(box: _Box, at: Mapping[int, int], *, down: bool, own: int) -> float:
    neighbours: Iterable[int] = box.needs if down else box.followers
    places = [at[each] for each in neighbours]
    return sum(places) / len(places) if places else float(own)


# Mermaid


def _mermaid(boxes: Sequence[_Box]) -> str:
    lines = ["flowchart TD"]
    for number, box in enumerate(boxes):
        label = "<br/>".join(_mermaid_text(line) for line in box.lines)
        start, end = _SHAPES.get(box.shape, ('["', '"]'))
        lines.append(f"    n{number}{start}{label}{end}:::{_class(box.state)}")
    lines += [f"    n{need} --> n{number}" for number, box in enumerate(boxes) for need in box.needs]
    for state in dict.fromkeys(box.state for box in boxes):
        fill, line = COLOURS.get(state, COLOURS["waiting"])
        lines.append(f"    classDef {_class(state)} fill:{fill},stroke:{line},color:#1b1b1b")
    return "\n".join(lines) + "\n"


def _class(state: str) -> str:
    return state.replace(" ", "_")


def _mermaid_text(text: str) -> str:
    """Return a text whose marks Mermaid takes for letters, by their numbers."""
    return re.sub(r"[^\w .,×·…/-]", lambda match: f"#{ord(match[0])};", text)
