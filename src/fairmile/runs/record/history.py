"""The metrics of a run over time, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from fairmile.base.results import Results
from fairmile.meter.lines import Logged

Row = dict[str, Any]


class History(Results[Row]):
    """The values that a run logged, a row for each step."""

    def summary(self) -> str:
        """Return the metrics and how many rows there are."""
        metrics = dict.fromkeys(name for row in self for name in row if name != "step")
        return f"{len(self):,} rows of {', '.join(metrics) or 'no metric'}"


def history_rows(logged: Iterable[Logged]) -> Iterator[Row]:
    """Yield a row for each step of each writer, in the order in which they were logged.

    A metric without steps counts its own values.
    """
    rows: dict[Any, Row] = {}
    counts: Counter[Any] = Counter()
    for each in logged:
        step = each.step if each.step is not None else counts[each.writer, each.name]
        counts[each.writer, each.name] += 1
        row = rows.setdefault((each.writer, step), {"step": int(step) if float(step).is_integer() else step})
        row[each.name] = each.value
    yield from rows.values()
