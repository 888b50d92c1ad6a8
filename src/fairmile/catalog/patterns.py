"""Regular expressions over the names of cards."""

from __future__ import annotations

from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.patterns import compile_linear

_MAX_REGEX_CHARACTERS = 200
# A pattern that can tell the ends of the whole text from those of a line must see each line alone.
_ANCHORED = lazy_pattern(rb"\\[Az]|\(\?[a-zA-Z]*-")


def compile_names(pattern: str) -> Any:
    """Return the pattern ready to search lines of names with, in any case of letters; UsageError when it is none."""
    if len(pattern) > _MAX_REGEX_CHARACTERS:
        raise UsageError(f"the regular expression is longer than {_MAX_REGEX_CHARACTERS} characters")
    # Each name is a line; no match reaches over into the next.
    compile_linear(pattern.encode(errors="replace"), ignore_case=True, within_lines=True)
    # In front, not around: a quotation that is left open would swallow the closing bracket.
    return compile_linear(f"(?m){pattern}".encode(errors="replace"), ignore_case=True, within_lines=True)


def matching_ids(pattern: Any, ids: str, lines: bytes) -> set[int]:
    """Return the ids, one for each line, of the lines that match."""
    places = _matching_lines(pattern, lines)
    if not places:
        return set()
    numbers = ids.split()
    return {int(numbers[place]) for place in places}


def _matching_lines(pattern: Any, lines: bytes) -> list[int]:
    """Return the numbers of the lines that match."""
    if _ANCHORED.search(pattern.pattern):
        return [number for number, line in enumerate(lines.split(b"\n")[:-1]) if pattern.search(line)]
    numbers: list[int] = []
    start, number = 0, 0
    while (hit := pattern.search(lines, start)) is not None:
        number += lines.count(b"\n", start, hit.start())
        end = lines.find(b"\n", hit.start())
        if end < 0:
            break
        numbers.append(number)
        start, number = end + 1, number + 1
    return numbers
