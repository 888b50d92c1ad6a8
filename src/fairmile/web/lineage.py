"""The lineage of an asset as a drawing: what it was made from, itself, and what was made from it."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fairmile.base.quick_dataclass import dataclass
from fairmile.reports.blocks import clean

_MOST = 8  # on each side
_BOX, _GAP, _SPACE = 46, 10, 56  # height of a box, between boxes, between columns
_LETTER = 7.3  # width of a letter, about


@dataclass(frozen=True)
class Node:
    """Something that an asset is linked with: how, its name, and its page where it has one."""

    relation: str
    name: str
    link: str = ""


def draw_lineage(own: Node, sources: Sequence[Node], uses: Sequence[Node]) -> Markup:
    """Return two drawings, with columns side by side and one below the other; the page's style shows one of them."""
    sides = [_shown(sources), _shown(uses)]
    return Markup("\n").join(
        Markup('<div class="{}">{}</div>').format(kind, _drawing(own, *sides, is_wide=kind == "wide"))
        for kind in ("wide", "narrow")
    )


def _shown(nodes: Sequence[Node]) -> list[Node]:
    rest = len(nodes) - _MOST
    return [*nodes[:_MOST], *([Node("", f"and {rest:,} more")] if rest > 0 else [])]


def _drawing(own: Node, sources: Sequence[Node], uses: Sequence[Node], *, is_wide: bool) -> Markup:
    columns = [list(sources), [own], list(uses)]
    parts: list[Markup] = []
    if is_wide:
        width, box = 760, (760 - 2 * _SPACE) // 3
        height = max(len(column) for column in columns) * (_BOX + _GAP) + _GAP
        places = [
            [(at * (box + _SPACE), (height - len(column) * (_BOX + _GAP) + _GAP) / 2 + each * (_BOX + _GAP))
             for each in range(len(column))]
            for at, column in enumerate(columns)
        ]  # fmt: skip
        middle = places[1][0]
        parts += [_line((x + box, y + _BOX / 2), (middle[0], middle[1] + _BOX / 2)) for x, y in places[0]]
        parts += [_line((middle[0] + box, middle[1] + _BOX / 2), (x, y + _BOX / 2)) for x, y in places[2]]
    else:
        width, box = 340, 316
        counted = [0, len(sources), len(sources) + 1]
        steps = [0, 24 if sources else 0, (24 if sources else 0) + (24 if uses else 0)]
        places = [
            [(12, _GAP + (counted[at] + each) * (_BOX + _GAP) + steps[at]) for each in range(len(column))]
            for at, column in enumerate(columns)
        ]
        top = places[1][0][1]
        height = int(_GAP + sum(map(len, columns)) * (_BOX + _GAP) + steps[2])
        parts += [_line((170, top - 30), (170, top), down=True)] if sources else []
        parts += [_line((170, top + _BOX), (170, top + _BOX + 30), down=True)] if uses else []
    for at, column in enumerate(columns):
        for node, place in zip(column, places[at], strict=True):
            parts.append(_box(node, place, box, is_own=at == 1))
    return Markup(
        '<svg class="lineage" viewBox="0 0 {} {}" role="group" aria-label="Lineage">'
        '<defs><marker id="arrow-{}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>{}</svg>'
    ).format(width, height, "w" if is_wide else "n", Markup("").join(parts))


def _line(start: tuple[float, float], end: tuple[float, float], *, down: bool = False) -> Markup:
    (x, y), (to_x, to_y) = start, end
    bend = (to_x - x) / 2
    path = (
        f"M{x:g} {y:g}V{to_y:g}"
        if down
        else f"M{x:g} {y:g}C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"
    )
    return Markup('<path class="edge" d="{}" marker-end="url(#arrow-{})"/>').format(path, "n" if down else "w")


def _box(node: Node, place: tuple[float, float], width: int, *, is_own: bool) -> Markup:
    x, y = place
    most = int((width - 24) / _LETTER)
    name = clean(node.name)
    shown = name if len(name) <= most else f"{name[: most - 1]}…"
    box = Markup('<rect x="{:g}" y="{:g}" width="{}" height="{}" rx="8"{}/>').format(
        x, y, width, _BOX, Markup(' class="own"') if is_own else ""
    )
    below = 19 if node.relation else 28
    texts = Markup('<text class="name" x="{:g}" y="{:g}">{}<title>{}</title></text>').format(
        x + 12, y + below, shown, name
    )
    if node.relation:
        texts += Markup('<text class="relation" x="{:g}" y="{:g}">{}</text>').format(x + 12, y + 36, node.relation)
    inside = box + texts
    return Markup('<a href="{}">{}</a>').format(node.link, inside) if node.link else Markup("<g>{}</g>").format(inside)
