"""The parts of a report, without a format: each writer turns them into its own."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from fairmile.base.quick_dataclass import dataclass
from fairmile.reports.figures import Picture

Tone = Literal["", "good", "bad", "warn", "dim"]
_KEPT = frozenset("\n\t")
_STEERING = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


@dataclass(frozen=True)
class Title:
    """What the report is about, and how it went."""

    text: str
    badge: str = ""
    tone: Tone = ""
    below: str = ""


@dataclass(frozen=True)
class Heading:
    """The beginning of a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Note:
    """A sentence that must not be missed."""

    text: str
    tone: Tone = "warn"


NO_FIGURES = Note("Figures are left out: install matplotlib with pip install 'fairmile[plots]'.", "dim")


@dataclass(frozen=True)
class Tile:
    """One number that matters, its name, and what to know about it."""

    label: str
    value: str
    below: str = ""


@dataclass(frozen=True)
class Tiles:
    """Numbers that matter, side by side."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Facts:
    """Names and their values."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `sort` is what it is ordered by where that is not its text.

    `link` is an address of the same server, which only its pages show.
    """

    text: str
    sort: float | None = None
    tone: Tone = ""
    code: bool = False
    link: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under headings; the columns named in `numbers` are set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Drawing:
    """A figure that the program of a run drew: somebody else's file, shown as an image and never as markup."""

    title: str
    data: bytes
    media_type: str
    file: str


@dataclass(frozen=True)
class Image:
    """A figure."""

    picture: Picture


@dataclass(frozen=True)
class Code:
    """Text as it is: a command, an output."""

    text: str


@dataclass(frozen=True)
class Fold:
    """Parts that only some readers want."""

    title: str
    blocks: tuple[Block, ...]


Row = list[str | Cell]
Block = Title | Heading | Text | Note | Tiles | Facts | Table | Image | Drawing | Code | Fold


def table(columns: Sequence[str], rows: Sequence[Row], *, numbers: Sequence[str] = ()) -> Table:
    """Return a table of texts and cells."""
    cells = tuple(tuple(each if isinstance(each, Cell) else Cell(each) for each in row) for row in rows)
    return Table(tuple(columns), cells, frozenset(numbers))


def clean(text: str) -> str:
    """Return somebody's text without what could steer a reader: control characters, turned direction, half letters."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each in _KEPT or unicodedata.category(each)[0] != "C" else "�" for each in text)


def printed(data: bytes) -> str:
    """Return what a terminal would show of an output: colours gone, overwritten lines as they ended."""
    text = _STEERING.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    return clean("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")))
