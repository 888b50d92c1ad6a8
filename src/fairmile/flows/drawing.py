"""The graph of a flow as a picture (SVG, laid out here) and as Mermaid text, with the states of steps in colour.

A step that is repeated many times is one box that tells how many there are in each state. Of the edges only those are
drawn that no longer way through other boxes implies.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairmile.base.files import write_atomic
from fairmile.base.lazy import lazy
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_typed_dict import TypedDict
from fairmile.base.results import Result
from fairmile.base.units import format_duration
from fairmile.flows.layout import LINE_PX, ROOF_PX, Box, Layout, Point, place
from fairmile.flows.results import FlowStatus, StepStatus

if TYPE_CHECKING:
    from html import escape
else:
    escape = lazy("html:escape")

FORMATS = ("svg", "mermaid")
_MOST_SHOWN = 8  # nodes of one step; more are one box
_STATE_LETTERS = 16  # room for a state and a time, so that boxes keep their places while a flow runs
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
_ARROW_PX = 2  # between the end of an edge and its box
_STYLE = """\
<style>
@media (prefers-color-scheme: dark) {
  .flow-page { fill: #17191d } .flow-edge { stroke: #8b8f98 } .flow-arrow { fill: #b4b8c0 }
}
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


def lay_out(
    status: FlowStatus, labels: Mapping[str, str] | None = None, shapes: Mapping[str, str] | None = None
) -> Layout:
    """Return the boxes of a flow at their places.

    `labels` are texts of steps in place of their names, `shapes` words of Graphviz such as `house`.
    """
    return place(_boxes(status.steps, labels or {}, shapes or {}))


def draw(
    status: FlowStatus, format: str, labels: Mapping[str, str] | None = None, shapes: Mapping[str, str] | None = None
) -> Drawing:
    """Return the graph of a flow as `svg` or `mermaid`; see `lay_out`."""
    layout = lay_out(status, labels, shapes)
    return Drawing(format, draw_svg(layout, status.id) if format == "svg" else _mermaid(layout.boxes))


def _boxes(steps: Sequence[StepStatus], labels: Mapping[str, str], shapes: Mapping[str, str]) -> list[Box]:
    groups: dict[str, list[StepStatus]] = {}
    for step in steps:
        groups.setdefault(step.name.partition("[")[0], []).append(step)
    boxes: list[Box] = []
    at: dict[str, int] = {}
    members: list[list[StepStatus]] = []
    for name, group in groups.items():
        for part in [group] if len(group) > _MOST_SHOWN else [[each] for each in group]:
            at |= {each.name: len(boxes) for each in part}
            boxes.append(_group(name, part) if len(part) > 1 else _single(part[0], labels.get(part[0].name, "")))
            shape = shapes.get(name, "")
            boxes[-1].shape = _SAME_SHAPES.get(shape, shape if shape in _SHAPES else "")
            boxes[-1].steps = [each.name for each in part]
            members.append(part)
    for number, part in enumerate(members):
        needs = {at[need] for each in part for need in each.needs if need in at} - {number}
        boxes[number].needs = sorted(needs)
    _drop_implied(boxes)
    return boxes


def _drop_implied(boxes: Sequence[Box]) -> None:
    """Drop the edges from boxes that another way leads from, too; a box comes after those it needs."""
    before: list[int] = []  # for each box the numbers of all before it, as bits
    for box in boxes:
        implied = 0
        for need in box.needs:
            implied |= before[need]
        before.append(implied | sum(1 << need for need in box.needs))
        box.needs = [need for need in box.needs if not implied >> need & 1]


def _single(step: StepStatus, label: str) -> Box:
    facts = [step.state]
    if step.state == "running" and step.progress is not None:
        facts.append(f"{step.progress:.0%}")
    elif step.elapsed_s is not None and step.state != "waiting":
        facts.append(format_duration(step.elapsed_s))
    facts += [f"on {step.on}"] if step.on != "local" else []
    room = _STATE_LETTERS + (len(f" · on {step.on}") if step.on != "local" else 0)
    lines = [_short(line) for line in (label.splitlines() or [step.name])]
    title = ": ".join(filter(None, [step.name, step.reason or step.state]))
    return Box([*lines, " · ".join(facts)], step.state, [], title, room=room)


def _group(name: str, steps: Sequence[StepStatus]) -> Box:
    counts = Counter(step.state for step in steps)
    state = next(each for each in _WORST if counts[each])
    shown = ", ".join(f"{counts[each]:,} {each}" for each in _WORST if counts[each])
    room = min(len("{0:,} running, {0:,} waiting, {0:,} done".format(len(steps))), _LONGEST)
    return Box([_short(f"{name} × {len(steps):,}"), _short(shown)], state, [], f"{name}: {shown}", room=room)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


# SVG


def draw_svg(layout: Layout, title: str) -> str:
    """Return the picture of a flow; each box is a group with `data-box`, its number."""
    boxes, width, height = layout.boxes, layout.width, layout.height
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="flow-arrow" d="M0 0 8 4 0 8z" fill="#777"/></marker></defs>',
        _STYLE,
        f'<rect class="flow-page" width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    parts += [_edge(points) for _, _, points in layout.edges]
    parts += [draw_box(number, box) for number, box in enumerate(boxes)]
    return "\n".join([*parts, "</svg>", ""])


def _edge(points: Sequence[Point]) -> str:
    *_, (x, y) = points
    path = "M{:.1f} {:.1f}".format(*points[0])
    for (x1, y1), (x2, y2) in itertools.pairwise([*points[:-1], (x, y - _ARROW_PX)]):
        bend = (y2 - y1) / 2
        bends = f"C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} "
        path += f"{'L' if x1 == x2 else bends}{x2:.1f} {y2:.1f}"
    line = 'fill="none" stroke="#999" stroke-width="1.2" marker-end="url(#arrow)"'
    return f'<path class="flow-edge" d="{path}" {line}/>'


def draw_box(number: int, box: Box) -> str:
    """Return the group of one box."""
    fill, line = COLOURS.get(box.state, COLOURS["waiting"])
    dash = ' stroke-dasharray="4 3"' if box.state == "left out" else ""
    paint = f'fill="{fill}" stroke="{line}" stroke-width="1.4"{dash}'
    parts = [f'<g data-box="{number}"><title>{escape(_visible(box.title))}</title>', f"<{_outline(box)} {paint}/>"]
    roof = ROOF_PX if box.shape == "house" else 0
    for number, text in enumerate(box.lines):
        is_last = number == len(box.lines) - 1
        style = f'fill="{line}" font-size="11"' if is_last else 'fill="#1b1b1b"'
        style += ' font-weight="600"' if number == 0 else ""
        y = box.y + roof + 20 + number * LINE_PX
        parts.append(f'<text x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle" {style}>{escape(_visible(text))}</text>')
    return "".join([*parts, "</g>"])


def _outline(box: Box) -> str:
    if box.shape in ("", "oval"):
        rounded = box.height / 2 if box.shape else 6
        left = box.x - box.width / 2
        size = f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{rounded:g}"'
        return f'rect x="{left:.1f}" y="{box.y:.1f}" {size}'
    return f'polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in box.points())}"'


def _visible(text: str) -> str:
    """Return a text without characters that XML cannot hold."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "�", text)


# Mermaid


def _mermaid(boxes: Sequence[Box]) -> str:
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
