"""What commands print: data on stdout, as a table or as JSON, and talk on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Give a command `--json`; the command receives an `out`."""

    def use(context: click.Context, _: click.Parameter, value: bool) -> bool:
        context.params["out"] = Out(as_json=value)
        return value

    return click.option(
        "--json", "as_json", is_flag=True, expose_value=False, callback=use, help="Print data as JSON."
    )(command)


class Out:
    """Prints for a person at a terminal, or for a program."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._talks = sys.stderr.isatty()
        self._progress_shown = False
        self._progress_time = 0.0

    @property
    def width(self) -> int:
        """The width to fill: the terminal's, or as much as there is when nobody looks."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000

    def data(self, value: Any) -> None:
        """Print a value as JSON."""
        sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def line(self, text: str = "") -> None:
        """Print one line of data."""
        self._end_progress()
        sys.stdout.write(text + "\n")

    def text(self, text: str) -> None:
        """Print a text as it is."""
        sys.stdout.write(text)

    def paragraph(self, text: str, indent: str = "") -> None:
        """Print a text folded to the width of the page."""
        width = min(self.width, 100)
        sys.stdout.write(
            textwrap.fill(" ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent) + "\n"
        )

    def heading(self, text: str) -> None:
        """Print a line that stands out."""
        self.line(self.bold(text))

    def bold(self, text: str) -> str:
        return f"\033[1m{text}\033[0m" if self._styled else text

    def colour(self, text: str, name: str) -> str:
        codes = {"green": 32, "yellow": 33, "red": 31, "dim": 2, "blue": 34}
        return f"\033[{codes[name]}m{text}\033[0m" if self._styled else text

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print rows under their headings; on a terminal the last column is cut to the width."""
        self._end_progress()
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)] if cells else []
        if not cells:
            return
        self.line(self.bold(self._row(columns, widths)))
        for row in cells:
            self.line(self._row(row, widths))

    def _row(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        text = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        return text if len(text) <= self.width else text[: self.width - 1] + "…"

    def say(self, text: str) -> None:
        """Tell a person something that is not data."""
        self._end_progress()
        sys.stderr.write(text + "\n")

    def hint(self, text: str) -> None:
        """Tell the next step."""
        self.say(f"hint: {text}")

    def progress(self, done: int, total: int) -> None:
        """Show how far long work is; nothing where stderr is no terminal."""
        now = time.monotonic()
        if not self._talks or total < 500 or (now - self._progress_time < 0.1 and done < total):
            return
        self._progress_time = now
        self._progress_shown = True
        filled = 30 * done // max(total, 1)
        sys.stderr.write(f"\r[{'█' * filled}{'░' * (30 - filled)}] {done:,} of {total:,} ")
        if done >= total:
            self._end_progress()

    def _end_progress(self) -> None:
        if self._progress_shown:
            sys.stderr.write("\r\033[K")
            self._progress_shown = False
