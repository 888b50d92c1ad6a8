"""A sweep of many runs, reported from some of them: what a page shows is soon there, however many there are."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace

from fairmile.base.quick_dataclass import dataclass
from fairmile.reports.blocks import Note, Title
from fairmile.reports.measures import measures, title
from fairmile.reports.page import Report
from fairmile.reports.sweep import Goal, main_metric
from fairmile.runs.record.ledger import Ledger
from fairmile.runs.record.query import NEWEST, RunQuery
from fairmile.runs.record.run import Run, RunState

_BEST = 20
_COLUMNS = ("elapsed_s", "energy_j")  # of the index, beside metrics
_STALE_S = 5.0  # the index was brought up to date when the ids were listed


@dataclass(frozen=True)
class Sample:
    """Some runs of a group: a share chosen at random, and the best by a metric."""

    runs: list[Run]
    total: int
    states: Mapping[str, int]  # of all runs
    metric: str

    def mark(self, report: Report) -> Report:
        """Return a report of these runs that says of how many they are."""
        states = ", ".join(f"{number:,} {state}" for state, number in sorted(self.states.items()))
        best = f", with the {_BEST} best by {title(self.metric)}" if self.metric else ""
        note = Note(
            f"This page is drawn from {len(self.runs):,} of {self.total:,} runs: a random sample{best}. "
            "Counts, times and means below are those of the sample.",
            "dim",
        )
        head, *rest = report.blocks
        if isinstance(head, Title):
            head = replace(head, badge=states, below=f"{self.total:,} runs · {head.below.partition(' · ')[2]}")
        return replace(report, blocks=(head, note, *rest))


def best_runs(ledger: Ledger, metric: str, text: str, most: int) -> tuple[list[Run], int]:
    """Return the finished runs with the best values of a metric, up to a maximum, and how many have a value.

    `text` are conditions as a `RunQuery` has them.
    """
    name = metric if metric in _COLUMNS else f"metric.{metric}"
    query = RunQuery(f'{text} "{name}">=-1e308', (str(RunState.DONE),))
    newest = ledger.page(query, limit=1)
    if not newest.rows:
        return [], 0
    better = measures(ledger.get(newest.rows[0].id))[metric].better
    sort = f"{'-' if better != 'lower' else ''}{name}"
    rows = ledger.page(replace(query, sort=sort), limit=most, stale_s=_STALE_S)
    return [ledger.get(row.id) for row in rows.rows], rows.total


def sample_runs(ledger: Ledger, group: str, most: int, goals: tuple[Goal, ...] = ()) -> Sample | None:
    """Return a sample of the runs of a group, the same each time; None where there are no more than `most`.

    `goals` are the metrics that matter, with their directions; else the first one whose direction runs tell.
    """
    ids = ledger.members(group)
    if len(ids) <= most:
        return None
    chosen = sorted(ids, key=lambda each: zlib.crc32(each.encode()))[: most - _BEST]
    runs = {id: ledger.get(id) for id in chosen}
    metric, better = goals[0] if goals else (main_metric(list(runs.values())), "")
    better = better or next((each.better for run in runs.values() if (each := measures(run).get(metric))), "")
    sort = f"{'-' if better == 'higher' else ''}metric.{metric}" if metric and better else NEWEST
    best = ledger.page(RunQuery(f'group="{group}"', (str(RunState.DONE),), sort), limit=_BEST, stale_s=_STALE_S)
    if sort != NEWEST:
        runs |= {row.id: ledger.get(row.id) for row in best.rows}
    ordered = [runs[id] for id in ids if id in runs]
    return Sample(ordered, len(ids), best.states, metric if better else "")
