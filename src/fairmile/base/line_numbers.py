"""Where each part of a document stands, so that an error can name its line."""

from __future__ import annotations

from collections.abc import Sequence


class Position:
    """The line (from 1) of a key or item, and the places of what is inside it."""

    __slots__ = ("inside", "line")

    def __init__(self, line: int, inside: dict[str | int | float, Position] | None = None) -> None:
        self.line = line
        self.inside = {} if inside is None else inside

    def find(self, path: Sequence[str | int]) -> int:
        """Return the line of the part at `path`, or of the nearest part that holds it."""
        place = self
        for step in path:
            inner = place.inside.get(step)
            if inner is None:
                break
            place = inner
        return place.line
