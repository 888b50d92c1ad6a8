"""The status of a workspace: which runs and sweeps are under way, and which ended last. Light, as every list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from fairmile.base.html_tables import rows_table
from fairmile.base.results import Result
from fairmile.runs.record.ledger import Ledger, RunRows
from fairmile.runs.record.run import RunState
from fairmile.runs.record.shapes import RunRowDict
from fairmile.sweeps.folder import Sweep, list_sweeps

_LAST = 5


class SweepProgressDict(TypedDict):
    id: str
    count: int
    runs: dict[str, int]


class WorkspaceStatusDict(TypedDict):
    """How many runs are in each state, which sweeps are unfinished, which runs are live, and which began last."""

    counts: dict[str, int]
    sweeps: list[SweepProgressDict]
    live: list[RunRowDict]
    last: list[RunRowDict]


@dataclass(frozen=True, repr=False)
class SweepProgress(Result):
    """An unfinished sweep or study, and how many of its runs are in each state."""

    sweep: Sweep
    counts: Mapping[RunState, int]

    def to_dict(self) -> SweepProgressDict:
        return {"id": self.sweep.id, "count": self.sweep.count, "runs": _by_state(self.counts)}

    def summary(self) -> str:
        return f"{self.sweep.id}: {states_text(self.counts) or 'no run'} of {self.sweep.count:,}"


@dataclass(frozen=True, repr=False)
class WorkspaceStatus(Result):
    """What runs, what waits and what ended last in a workspace."""

    counts: Mapping[RunState, int]
    sweeps: tuple[SweepProgress, ...]
    live: RunRows
    last: RunRows

    def to_dict(self) -> WorkspaceStatusDict:
        return {
            "counts": _by_state(self.counts),
            "sweeps": [each.to_dict() for each in self.sweeps],
            "live": [row.to_dict() for row in self.live],
            "last": [row.to_dict() for row in self.last],
        }

    def summary(self) -> str:
        unfinished = f"; {len(self.sweeps):,} unfinished sweeps" if self.sweeps else ""
        return f"runs: {states_text(self.counts) or 'none'}{unfinished}"

    def _repr_html_(self) -> str:
        return rows_table(["run", "state"], [(row.id, str(row.state)) for row in self.live or self.last])


def read_status(ledger: Ledger, sweeps: Path) -> WorkspaceStatus:
    """Return the status of the runs of a ledger and of the sweeps below a folder."""
    known = list_sweeps(sweeps)
    counts = ledger.counts([each.id for each in known])
    return WorkspaceStatus(
        counts=counts[""],
        sweeps=tuple(SweepProgress(each, counts[each.id]) for each in known if _is_unfinished(each, counts[each.id])),
        live=ledger.rows(states=[RunState.RUNNING, RunState.QUEUED]),
        last=ledger.rows(limit=_LAST),
    )


def states_text(counts: Mapping[RunState, int]) -> str:
    """Return numbers of runs in words: `3 done, 1 failed`."""
    return ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items()))


def _is_unfinished(sweep: Sweep, counts: Mapping[RunState, int]) -> bool:
    """Tell whether a sweep has points that have not ended, or a study trials that run."""
    alive = counts.get(RunState.RUNNING, 0) + counts.get(RunState.QUEUED, 0)
    begun = sum(counts.values()) - counts.get(RunState.INTERRUPTED, 0) - counts.get(RunState.CANCELLED, 0)
    return alive > 0 or begun < sweep.count


def _by_state(counts: Mapping[RunState, int]) -> dict[str, int]:
    return {str(state): number for state, number in counts.items()}
