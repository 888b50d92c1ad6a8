"""Where each part of a document stands, so that an error can name its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Place:
    """The line (from 1) of a key or item, and the places of what is inside it."""

    line: int
    inside: dict[str | int | float, Place] = field(default_factory=dict)

    def find(self, path: Sequence[str | int]) -> int:
        """Return the line of the part at `path`, or of the nearest part that holds it."""
        place = self
        for step in path:
            inner = place.inside.get(step)
            if inner is None:
                break
            place = inner
        return place.line
