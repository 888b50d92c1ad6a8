"""The graph of a flow for a page that follows it: once with the places of all boxes, then only what has changed.

A cursor stands for a moment in the history of a flow: how much of its journal was read, and how the runs stood that
were under way. Whoever asks with a cursor gets the steps and boxes that changed since, and the next cursor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypedDict

from fairmile.base.digest import sha256_hex
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.flows.drawing import draw_box, draw_svg
from fairmile.flows.layout import Box, Layout
from fairmile.flows.results import FlowStatus, StepStatus, StepStatusDict
from fairmile.flows.state import FlowState


class BoxDict(TypedDict):
    """One box: its place in pixels, the nodes in it, the lines it shows, and `svg`, the element that draws it."""

    id: int
    name: str
    count: int
    state: str
    lines: list[str]
    title: str
    x: float
    y: float
    width: float
    height: float
    svg: str


class AtCursorDict(TypedDict):
    """Where a flow stands at a cursor, and which picture its boxes belong to."""

    flow: str
    holder: str
    is_over: bool
    counts: dict[str, int]
    cursor: str
    layout: str


class FlowPictureDict(AtCursorDict):
    """A flow with its picture: boxes at their places, edges as pairs of boxes, and the whole as `svg`."""

    width: float
    height: float
    boxes: list[BoxDict]
    edges: list[list[int]]
    svg: str


class FlowChangesDict(AtCursorDict):
    """What changed since a cursor: steps, and boxes to draw anew. With another `layout` the picture is another one."""

    steps: list[StepStatusDict]
    boxes: list[BoxDict]


@dataclass(frozen=True, repr=False)
class _AtCursor(Result):
    status: FlowStatus
    cursor: str
    drawn: Layout

    def _at_cursor(self) -> AtCursorDict:
        return {
            "flow": self.status.id,
            "holder": self.status.holder,
            "is_over": self.status.is_over,
            "counts": self.status.counts(),
            "cursor": self.cursor,
            "layout": self.drawn.digest,
        }


@dataclass(frozen=True, repr=False)
class FlowPicture(_AtCursor):
    """The graph of a flow with places and states."""

    rows_field = "boxes"

    def to_dict(self) -> FlowPictureDict:
        boxes = self.drawn.boxes
        return {
            **self._at_cursor(),
            "width": self.drawn.width,
            "height": self.drawn.height,
            "boxes": [_box(number, box) for number, box in enumerate(boxes)],
            "edges": [[need, number] for number, box in enumerate(boxes) for need in box.needs],
            "svg": draw_svg(self.drawn, self.status.id),
        }

    def summary(self) -> str:
        return self.status.summary()


@dataclass(frozen=True, repr=False)
class FlowChanges(_AtCursor):
    """What changed of a flow since a cursor."""

    changed: Collection[str]  # names of steps
    rows_field = "steps"

    @property
    def steps(self) -> list[StepStatus]:
        return [step for step in self.status.steps if step.name in self.changed]

    def to_dict(self) -> FlowChangesDict:
        boxes = enumerate(self.drawn.boxes)
        return {
            **self._at_cursor(),
            "steps": [step.to_dict() for step in self.steps],
            "boxes": [_box(number, box) for number, box in boxes if not self._is_same(box.steps)],
        }

    def _is_same(self, steps: Iterable[str]) -> bool:
        return not self.changed or not any(each in self.changed for each in steps)

    def summary(self) -> str:
        return f"{self.status.summary()}; {len(self.changed):,} changed"


def _box(number: int, box: Box) -> BoxDict:
    return {
        "id": number,
        "name": box.lines[0],
        "count": len(box.steps),
        "state": box.state,
        "lines": box.lines,
        "title": box.title,
        "x": round(box.x - box.width / 2, 1),
        "y": round(box.y, 1),
        "width": round(box.width, 1),
        "height": round(box.height, 1),
        "svg": draw_box(number, box),
    }


def cursor_of(state: FlowState, status: FlowStatus) -> str:
    """Return the cursor of a state that was read before the status was taken."""
    live = sorted(
        (step.name, step.state, step.progress) for step in status.steps if step.state in ("running", "queued")
    )
    return f"{state.mark}.{sha256_hex(repr((live, status.holder, status.is_over)).encode())[:12]}"


def changed_since(cursor: str, now: str, state: FlowState, status: FlowStatus) -> Collection[str]:
    """Return the names of steps that changed between two cursors; all of them where that is not known."""
    if cursor == now:
        return ()
    mark, _, live = cursor.rpartition(".")
    names = state.names_since(mark)
    if names is None or (live != now.rpartition(".")[2] and not status.holder):  # nobody writes down what is left out
        return {step.name for step in status.steps}
    return {*names, *(step.name for step in status.steps if step.state in ("running", "queued"))}
