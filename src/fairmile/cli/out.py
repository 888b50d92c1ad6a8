"""What commands print: data on stdout, as a table or as JSON, and talk on stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

import click

from fairmile.base.lazy import lazy_pattern
from fairmile.base.results import Result
from fairmile.base.words import place as place

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound=Result)

_COLOURS = {"green": 32, "yellow": 33, "red": 31, "dim": 2}
# A card is somebody else's text: nothing in it may steer the terminal, colours included. Our own style is a mark that
# nobody outside this process can know; it becomes an escape sequence when the text is written.
_MARK = f"\ufdd0{os.urandom(4).hex()}:"
_CONTROL = lazy_pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufdd0]")
_STYLE = lazy_pattern(rf"{_MARK}(\d+);")
_PIECES = lazy_pattern(rf"{_STYLE.pattern}|.", re.DOTALL)
_GAP = "  "
_INDENT = "    "
# A column of prose narrower than this says nothing; it moves to a line of its own.
_LEAST_PROSE = 24
_LEAST_COLUMN = 8
_PAGE = 100
_BAR = 30
_PROGRESS_FROM = 500


def json_output(*results: type[Result]) -> Callable[[F], F]:
    """Give a command `--json`, which prints one of these results; the command receives an `out`."""

    def use(context: click.Context, _: click.Parameter, value: bool) -> bool:
        context.params["out"] = Out(as_json=value)
        return value

    def decorate(command: F) -> F:
        command.result_types = results  # type: ignore[attr-defined]
        return click.option(
            "--json", "as_json", is_flag=True, expose_value=False, callback=use, help="Print data as JSON."
        )(command)

    return decorate


def count(number: int, noun: str) -> str:
    """Return "1 card", "2 cards"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def printable(text: str) -> str:
    """Return the text without what could steer a terminal: control characters become visible, our own style stays."""
    if _MARK not in text:
        return _visible(text)
    pieces = _STYLE.split(text)  # texts and the numbers of styles in turn
    pieces[::2] = map(_visible, pieces[::2])
    pieces[1::2] = [f"{_MARK}{number};" for number in pieces[1::2]]
    return "".join(pieces)


def _visible(text: str) -> str:
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def _on_screen(text: str) -> str:
    """Return a text as it is written: printable, and our style as escape sequences."""
    return _STYLE.sub("\033[\\1m", printable(text))


def one_line(text: str) -> str:
    """Return the text on one line, with single blanks."""
    return printable(" ".join(text.split()))


def print_json(value: Any, stream: TextIO) -> None:
    """Write a value as JSON that is valid in whatever encoding the stream has."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=1)
    stream.write(re.sub(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


class Out:
    """Prints for a person at a terminal, or for a program."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.result: Result | None = None  # what was shown last
        self._seen = sys.stdout.isatty()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._styled = self._seen and not plain
        self._talks = sys.stderr.isatty()
        self._progress_shown = False
        self._redrawn = 0  # lines on the screen that the next ones replace
        self._progress_time = 0.0

    @property
    def width(self) -> int | None:
        """The width to fill, or None when nobody looks."""
        return max(shutil.get_terminal_size().columns, 20) if self._seen else None

    # Data

    def show(self, result: R, render: Callable[[R], None]) -> None:
        """Print a result: as JSON, or what `render` prints of it for a person."""
        self.result = result
        if self.as_json:
            self.data(result.to_dict())
        else:
            render(result)

    def data(self, value: Any) -> None:
        """Print a value as JSON."""
        self._end_progress()
        print_json(value, sys.stdout)

    def document(self, text: str | bytes) -> None:
        """Print a document as it is, byte for byte; a terminal gets it printable."""
        self._end_progress()
        data = text.encode() if isinstance(text, str) else text
        if self._seen:
            sys.stdout.write(_visible(data.decode("utf-8", "replace")))
            return
        sys.stdout.flush()
        sys.stdout.buffer.write(data)

    def line(self, text: str = "") -> None:
        """Print one line."""
        self._end_progress()
        sys.stdout.write(_on_screen(text) + "\n")

    def heading(self, text: str) -> None:
        """Print a line that stands out."""
        self.line(self.bold(" ".join(text.splitlines())))

    def paragraph(self, text: str) -> None:
        """Print a text folded to the width of the page."""
        for line in _folded(one_line(text), min(self.width or _PAGE, _PAGE)):
            self.line(line)

    def item(self, label: str, text: str) -> None:
        """Print a label and its text; on a terminal further lines stand under the text."""
        text = one_line(text)
        indent = len(_STYLE.sub("", label))
        lines = [text] if self.width is None else _folded(text, max(self.width - indent, 20))
        for number, line in enumerate(lines):
            self.line((label if number == 0 else " " * indent) + line)

    def items(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print labels and their texts under one another."""
        indent = max((len(label) for label, _ in pairs), default=0)
        for label, text in pairs:
            self.item(f"{one_line(label):<{indent}}{_GAP}", text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, shrink: Sequence[str] = ()) -> None:
        """Print rows under their headings; without rows, nothing.

        On a terminal that is too narrow the columns named in `shrink` are cut, the widest first, and
        what still has no room gets a line of its own. Elsewhere nothing is cut.
        """
        cells = [["" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
        if not cells:
            return
        widths = [max(map(_columns, column)) for column in zip(columns, *cells, strict=True)]
        if self.width is not None:
            widths = _fitting(columns, widths, shrink, self.width)
        shown = len(widths)
        self.line(self.bold(_row(columns[:shown], widths)))
        for row in cells:
            self.line(_row(row[:shown], widths))
            below = _GAP.join(filter(None, row[shown:]))
            if below:
                cut = self.width is not None and columns[-1] in shrink
                text = _cut(below, (self.width or 0) - len(_INDENT)) if cut else below
                self.line(_INDENT + self.colour(text, "dim"))

    # Style

    def bold(self, text: str) -> str:
        return _styled(text, 1) if self._styled else text

    def colour(self, text: str, name: str) -> str:
        return _styled(text, _COLOURS[name]) if self._styled else text

    def symbol(self, text: str, plain: str) -> str:
        """Return the symbol, or the plain text where the output cannot hold it."""
        return _encodable(sys.stdout, text, plain)

    def redraw(self, text: str) -> None:
        """Print lines that take the place of those before them on a terminal, and follow them elsewhere."""
        if self._seen:
            text = "\n".join(line[: self.width] for line in printable(text).splitlines())
            sys.stdout.write(f"\033[{self._redrawn}F\033[J" if self._redrawn else "")
            self._redrawn = text.count("\n") + 1
        sys.stdout.write(f"{_on_screen(text)}\n")
        sys.stdout.flush()

    # Talk

    def say(self, text: str) -> None:
        """Tell a person something that is not data."""
        self._end_progress()
        sys.stderr.write(_on_screen(text) + "\n")

    def hint(self, text: str) -> None:
        """Tell the next step."""
        self.say(f"hint: {one_line(text)}")

    def progress(self, done: int, total: int) -> None:
        """Show how far long work is; nothing where stderr is no terminal."""
        now = time.monotonic()
        if not self._talks or total < _PROGRESS_FROM or (now - self._progress_time < 0.1 and done < total):
            return
        self._progress_time = now
        self._progress_shown = True
        numbers = f"{done:,} of {total:,}"
        bar = max(min(_BAR, shutil.get_terminal_size().columns - len(numbers) - 5), 0)
        filled = bar * done // total
        full, empty = _encodable(sys.stderr, "█", "#"), _encodable(sys.stderr, "░", "-")
        sys.stderr.write(f"\r[{full * filled}{empty * (bar - filled)}] {numbers} ")
        sys.stderr.flush()
        if done >= total:
            self._end_progress()

    def _end_progress(self) -> None:
        if self._progress_shown:
            sys.stderr.write("\r\033[K")
            self._progress_shown = False


def _styled(text: str, number: int) -> str:
    return f"{_MARK}{number};{text}{_MARK}0;"


def _encodable(stream: TextIO, text: str, plain: str) -> str:
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return plain
    return text


def _folded(text: str, width: int) -> list[str]:
    import textwrap

    # Addresses and names stay whole, so that they can be copied.
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def _columns(text: str) -> int:
    """Return how many columns of a terminal the text takes; what only colours it takes none."""
    text = _STYLE.sub("", text) if _MARK in text else text
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(_character_columns(unicodedata.east_asian_width(each), unicodedata.category(each)) for each in text)


def _character_columns(width: str, category: str) -> int:
    return 0 if category in ("Mn", "Me", "Cf") else 2 if width in ("W", "F") else 1


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * max(len(widths) - 1, 0)


def _fitting(columns: Sequence[str], widths: Sequence[int], shrink: Sequence[str], room: int) -> list[int]:
    """Return the widths of the columns that fit beside one another; the rest goes below."""
    if _total(widths) <= room:
        return list(widths)
    left = room - _total(widths[:-1]) - len(_GAP)
    if columns[-1] in shrink and left >= _LEAST_PROSE:
        return [*widths[:-1], left]
    for shown in range(len(columns) - 1, 1, -1):
        fitting = _shrunk(columns[:shown], widths[:shown], shrink, room)
        if _total(fitting) <= room:
            return fitting
    return list(widths[:2])


def _shrunk(columns: Sequence[str], widths: Sequence[int], shrink: Sequence[str], room: int) -> list[int]:
    """Return the widths with those that may shrink made smaller, the widest first, as far as needed."""
    shrunk = list(widths)
    places = [place for place, name in enumerate(columns) if name in shrink]
    while _total(shrunk) > room and places:
        widest = max(places, key=lambda place: shrunk[place])
        if shrunk[widest] <= max(_LEAST_COLUMN, len(columns[widest])):
            break
        shrunk[widest] -= 1
    return shrunk


def _cut(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    mark = _encodable(sys.stdout, "…", "...")
    kept: list[str] = []
    styles: list[str] = []  # behind the cut: every one stays, so that none is left open
    room = width - len(mark)
    for match in _PIECES.finditer(text):
        piece = match[0]
        if room < 0:
            styles += [piece] if piece.startswith(_MARK) else []
        elif piece.startswith(_MARK):
            kept.append(piece)
        else:
            room -= _columns(piece)
            kept += [piece] if room >= 0 else []
    cut = "".join(kept)
    return (cut if styles else cut.rstrip()) + mark + "".join(styles)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = [_cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = [cell + " " * (width - _columns(cell)) for cell, width in zip(cut, widths, strict=True)]
    return _GAP.join(padded).rstrip()
