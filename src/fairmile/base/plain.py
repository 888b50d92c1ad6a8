"""Values as JSON holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries, tuples as lists and paths as text, however deep; the rest stays as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, PurePath) else value
