"""A report as Markdown that every reader of CommonMark with tables shows alike."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence

from fairmile.reports.blocks import (
    Block,
    Cell,
    Code,
    Drawing,
    Facts,
    Fold,
    Heading,
    Image,
    Note,
    Table,
    Text,
    Tiles,
    Title,
    clean,
)
from fairmile.reports.figures import Picture

Address = Callable[[Picture], str]
_MARKS = re.compile(r"([\\`*_{}\[\]#|~])")
_LINE_MARK = re.compile(r"^(\d{1,9})?([.)](?=\s|$)|[-+=](?=[\s=-]|$))")


def render(blocks: Sequence[Block], address: Address | None = None) -> str:
    """Return the whole text; `address` says where each figure lies, without it they are within the text."""
    return "\n\n".join(_block(block, address or data_address) for block in blocks) + "\n"


def data_address(picture: Picture) -> str:
    """Return a figure as an address that holds it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.svg()).decode()}"


def _block(block: Block, address: Address) -> str:
    match block:
        case Title():
            badge = f" ({_text(block.badge)})" if block.badge else ""
            return f"# {_text(block.text)}{badge}" + (f"\n\n{_text(block.below)}" if block.below else "")
        case Heading():
            return f"## {_text(block.text)}"
        case Text():
            return _text(block.text)
        case Note():
            return f"> {_text(block.text)}"
        case Tiles():
            rows = [(each.label, each.value, each.below) for each in block.tiles]
            return _rows(("", "", ""), [[Cell(text) for text in row] for row in rows], frozenset())
        case Facts():
            return "\n".join(f"- {_text(name)}: {_text(value)}" for name, value in block.pairs)
        case Table():
            return _rows(block.columns, block.rows, block.numbers)
        case Image():
            note = f"\n\n{_text(block.picture.note)}" if block.picture.note else ""
            return f"![{_text(block.picture.title)}]({address(block.picture)}){note}"
        case Drawing():
            data = base64.b64encode(block.data).decode()
            return f"![{_text(block.title)}](data:{block.media_type};base64,{data})"
        case Code():
            return _code(block.text)
        case Fold():
            inside = [_block(each, address) for each in block.blocks]
            return "\n\n".join([f"### {_text(block.title)}", *inside])


def _rows(columns: Sequence[str], rows: Sequence[Sequence[Cell]], numbers: frozenset[str]) -> str:
    lines = [
        "| " + " | ".join(map(_text, columns)) + " |",
        "|" + "|".join(" ---: " if column in numbers else " --- " for column in columns) + "|",
        *("| " + " | ".join(_text(cell.text) for cell in row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def _code(text: str) -> str:
    """Return text between fences longer than any within it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{clean(text).rstrip()}\n{fence}"


def _text(text: str) -> str:
    """Return somebody's text as one line that means nothing but itself."""
    line = _MARKS.sub(r"\\\1", " ".join(clean(text).split()))
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _LINE_MARK.sub(lambda match: f"{match[1] or ''}\\{match[2]}", line)
