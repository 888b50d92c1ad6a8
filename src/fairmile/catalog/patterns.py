"""Regular expressions over names, in time linear in the text: RE2, never Python's own engine."""

from __future__ import annotations

import re
from typing import Any

from fairmile.base.errors import UsageError

_MAX_REGEX_CHARACTERS = 200
# A pattern that can tell the ends of the whole text from those of a line must see each line alone.
_ANCHORED = re.compile(rb"\\[Az]|\(\?[a-zA-Z]*-")


def compile_linear(pattern: str) -> Any:
    """Return the pattern ready to search lines of names with, in any case of letters; UsageError when it is none."""
    import re2

    if len(pattern) > _MAX_REGEX_CHARACTERS:
        raise UsageError(f"the regular expression is longer than {_MAX_REGEX_CHARACTERS} characters")
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = 8 << 20
    options.never_nl = True  # each name is a line; no match reaches over into the next
    try:
        re2.compile(pattern.encode(errors="replace"), options)
        # In front, not around: a quotation that is left open would swallow the closing bracket.
        return re2.compile(f"(?m){pattern}".encode(errors="replace"), options)
    except re2.error as error:
        text = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise UsageError(
            f"/{pattern}/ is not a regular expression: {text}", hint="RE2 syntax: no look-around, no back-references"
        ) from error


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
    found: list[int] = []
    start, number = 0, 0
    while (hit := pattern.search(lines, start)) is not None:
        number += lines.count(b"\n", start, hit.start())
        end = lines.find(b"\n", hit.start())
        if end < 0:
            break
        found.append(number)
        start, number = end + 1, number + 1
    return found
