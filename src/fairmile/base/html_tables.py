"""Small HTML tables for notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairmile.base.lazy import lazy_pattern
from fairmile.base.units import format_duration, format_size

_MOST_ROWS = 30
_LONGEST_CELL, _LONGEST_FIELD = 160, 1000
_TIMES = ("created", "started", "ended", "used")  # seconds since the epoch
_COMMANDS = ("argv", "command")
_FIRST_TIME = 1e9
_LEFT = 'style="text-align:left"'
_NUMBER = lazy_pattern(r"[-+−]?[0-9][0-9,.]*(?:e[-+]?[0-9]+)?(?: ?(?:%|[kKMGTP]?i?B|[µmn]?s|min|h|J))?")
_DIGEST = lazy_pattern(r"[0-9a-f]{40,}")


def fields_table(fields: Mapping[str, Any]) -> str:
    """Return a table with one row per field; fields without a value are left out."""
    known = [(name, value) for name, value in fields.items() if not is_empty(value)]
    rows = (
        f"<tr><th {_LEFT}>{_text(name)}</th><td {_LEFT}>{_block(value)}</td></tr>" for name, value in known[:_MOST_ROWS]
    )
    more = f"<p>and {len(known) - _MOST_ROWS:,} more in to_dict()</p>" if len(known) > _MOST_ROWS else ""
    return f"<table>{''.join(rows)}</table>{more}"


def _block(value: Any) -> str:
    """Return a value with its lines as they are."""
    text = _text(value, _LONGEST_FIELD)
    return f"<pre>{text}</pre>" if "\n" in text.strip() else text


def rows_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "", *, longest: int = _LONGEST_CELL
) -> str:
    """Return a table of the first rows under their headings, how many more there are, and a note below it.

    Columns without any value are left out; those of texts begin at the left, where notebooks have numbers at the right.
    A text is cut after `longest` letters.
    """
    shown = [at for at in range(len(columns)) if not rows or not all(is_empty(row[at]) for row in rows)]
    aligned = {at: "" if all(_is_number(row[at]) for row in rows) else f" {_LEFT}" for at in shown}
    head = "".join(f"<th{aligned[at]}>{_text(columns[at])}</th>" for at in shown)
    cells = ("".join(f"<td{aligned[at]}>{_text(row[at], longest)}</td>" for at in shown) for row in rows[:_MOST_ROWS])
    body = "".join(f"<tr>{each}</tr>" for each in cells)
    more = f"<p>and {len(rows) - _MOST_ROWS:,} more</p>" if len(rows) > _MOST_ROWS else ""
    below = f"<p>{_text(note, _LONGEST_FIELD)}</p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}{below}"


def is_empty(value: Any) -> bool:
    """Tell whether a field has no value."""
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def _is_number(value: Any) -> bool:
    return is_empty(value) or isinstance(value, int | float) or bool(_NUMBER.fullmatch(str(value)))


def readable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of data as a person reads them: sizes, durations and times in words, names without their units.

    A nested name, `a.b`, is its last part where no other field has the same.
    """
    shown = {name: _readable(name, value) for name, value in fields.items()}
    short = [heading.rpartition(".")[2] for heading, _ in shown.values()]
    return {
        last if short.count(last) == 1 else heading: value
        for last, (heading, value) in zip(short, shown.values(), strict=True)
    }


def _readable(name: str, value: Any) -> tuple[str, Any]:
    heading = name.replace("_", " ")
    if isinstance(value, bool):
        return heading, "yes" if value else "no"
    if isinstance(value, list) and name.rpartition(".")[2] in _COMMANDS:
        return heading, " ".join(map(str, value))
    if isinstance(value, int | float):
        if name.endswith("_bytes"):
            return heading.removesuffix(" bytes"), format_size(int(value))
        if name.endswith("_s") and not name.endswith("_per_s"):
            return heading.removesuffix(" s"), format_duration(value)
        if name.rpartition(".")[2] in _TIMES and value > _FIRST_TIME:
            return heading, _time_text(value)
    return heading, value


def _time_text(seconds: float) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _text(value: Any, longest: int = _LONGEST_CELL) -> str:
    from html import escape  # which takes longer to load than a command that shows no table needs for its rows

    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        is_plain = not any(isinstance(each, Mapping | list | tuple) for each in value)
        value = ", ".join(map(str, value)) if is_plain else f"{len(value):,} item{'s' * (len(value) != 1)}"
    text = _DIGEST.sub(lambda match: f"{match[0][:12]}…", "" if value is None else str(value))
    return escape(text if len(text) <= longest else f"{text[: longest - 1]}…")
