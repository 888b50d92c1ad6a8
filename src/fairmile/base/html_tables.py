"""Small HTML tables for notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST_ROWS = 30


def fields_table(fields: Mapping[str, Any]) -> str:
    """Return a table with one row per field; fields without a value are left out."""
    known = {name: value for name, value in fields.items() if value not in (None, "")}
    rows = (f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in known.items())
    return f"<table>{''.join(rows)}</table>"


def rows_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table of the first rows under their headings, and how many more there are."""
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
    more = f"<p>and {len(rows) - _MOST_ROWS:,} more</p>" if len(rows) > _MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(value: Any) -> str:
    from html import escape  # which takes longer to load than a command that shows no table needs for its rows

    if isinstance(value, float):
        return f"{value:.6g}"
    return escape("" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value))
