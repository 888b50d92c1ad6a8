"""Documents of either format, JSON or YAML: strict reading and the line of each part."""

from __future__ import annotations

from collections.abc import Sequence

from fairmile.base.errors import InvalidDocument
from fairmile.base.strict_json import load_json
from fairmile.base.yaml import load_located

__all__ = ["load_json", "locate"]


def locate(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line of the key or item at `path`, or of the nearest part that holds it; None if unreadable."""
    try:
        return load_located(text).line(path)
    except InvalidDocument:
        return None
