"""Dates as cards write them: ISO 8601, from a year to a time of day."""

from __future__ import annotations

import re
from datetime import datetime

# The properties of a card that hold one date.
DATE_TERMS = ("datePublished", "dateModified", "dateCreated", "startTime", "endTime")
_PARTS = re.compile(
    r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:[T ](\d{2}):(\d{2})(?::[0-5]\d(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?)?)?", re.ASCII
)


def is_date(text: str) -> bool:
    """Tell whether the text is written as a date is and the calendar has that day."""
    match = _PARTS.fullmatch(text)
    if match is None:
        return False
    year, month, day, hour, minute = (
        int(part or default) for part, default in zip(match.groups(), "11100", strict=True)
    )
    try:
        datetime(year, month, day, hour, minute)
    except ValueError:
        return False
    return True
