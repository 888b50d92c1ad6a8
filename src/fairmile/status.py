"""The status of a workspace: what runs, its progress and expected end, and what ended last."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from fairmile.base.errors import FairmileError
from fairmile.base.files import process_began
from fairmile.base.html_tables import rows_table
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_size
from fairmile.flows.state import ActiveFlow
from fairmile.runs.record.index_rows import RunRow
from fairmile.runs.record.layout import OUTPUT
from fairmile.runs.record.ledger import Ledger, RunRows
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.shapes import RunRowDict
from fairmile.sweeps.folder import Sweep, list_sweeps

if TYPE_CHECKING:
    from fairmile.jobs.job_status import JobStatus
    from fairmile.store.reservations import Held

Kind = Literal["run", "sweep", "study", "flow", "job", "transfer"]
Basis = Literal["", "progress", "prediction", "time limit"]

_LAST = 5
_MOST_READ = 50  # runs whose progress is looked up; each is a file or two
_TAIL_BYTES = 16 << 10
_STEPS = ("epochs", "steps", "iterations", "max_epochs", "num_epochs", "max_steps")  # parameters that steps count up to
_PRINTED = lazy_pattern(
    r"\b(?:epochs?|steps?|iter\w*|batch)\W{0,3}(\d+)\s*(?:/|of)\s*(\d+)|\b(\d{1,3})%\|", re.IGNORECASE
)
_LOGGED_STEP = lazy_pattern(rb'"step": ?(\d+)')
_LEAST_PROGRESS = 0.01  # below it, an end cannot be told from what was seen


class ActivityDict(TypedDict):
    """Something that has not ended; `expected_end` is seconds since the epoch, `progress` a share, null if unknown."""

    kind: Kind
    id: str
    state: str
    system: str
    started: float | None
    progress: float | None
    progress_text: str
    expected_end: float | None
    expected_from: Basis


class WorkspaceStatusDict(TypedDict):
    """How many runs are in each state, what has not ended, and which runs began last."""

    counts: dict[str, int]
    active: list[ActivityDict]
    last: list[RunRowDict]


@dataclass(frozen=True, repr=False)
class Activity(Result):
    """A run, sweep, study, flow, job or transfer that has not ended: how far it is, and when it may end."""

    kind: Kind
    id: str
    state: str
    system: str = ""
    started: float | None = None
    progress: float | None = None
    progress_text: str = ""
    expected_end: float | None = None
    expected_from: Basis = ""

    def to_dict(self) -> ActivityDict:
        return {
            "kind": self.kind,
            "id": self.id,
            "state": self.state,
            "system": self.system,
            "started": self.started,
            "progress": self.progress,
            "progress_text": self.progress_text,
            "expected_end": self.expected_end,
            "expected_from": self.expected_from,
        }

    def summary(self) -> str:
        return ", ".join(filter(None, (f"{self.kind} {self.id} {self.state}", self.progress_text)))


@dataclass(frozen=True, repr=False)
class WorkspaceStatus(Result):
    """What runs, what waits and what began last in a workspace."""

    counts: Mapping[RunState, int]
    active: tuple[Activity, ...]
    last: RunRows

    def to_dict(self) -> WorkspaceStatusDict:
        return {
            "counts": {str(state): number for state, number in self.counts.items()},
            "active": [each.to_dict() for each in self.active],
            "last": [row.to_dict() for row in self.last],
        }

    def summary(self) -> str:
        active = f"; {len(self.active):,} unfinished" if self.active else ""
        return f"runs: {states_text(self.counts) or 'none'}{active}"

    def _repr_html_(self) -> str:
        if not self.active:
            return self.last._repr_html_()
        rows = [(each.kind, each.id, each.state, each.progress_text) for each in self.active]
        return rows_table(["", "id", "state", "progress"], rows)


def read_status(
    ledger: Ledger,
    sweeps: Path,
    *,
    flows: Sequence[ActiveFlow] = (),
    jobs: Iterable[JobStatus] = (),
    transfers: Iterable[Held] = (),
) -> WorkspaceStatus:
    """Return the status of the runs of a ledger, the sweeps below a folder, and of live flows, jobs and transfers."""
    now = time.time()
    known = list_sweeps(sweeps)
    with ledger.at_once():
        counts = ledger.counts([each.id for each in known])
        unfinished = [each for each in known if is_unfinished(each, counts[each.id])]
        groups = [each.id for each in unfinished]
        mean_s = ledger.mean_elapsed(groups)
        groups += [each.id for each in flows]
        live = ledger.rows(states=[RunState.RUNNING, RunState.QUEUED], outside=groups)
        last = ledger.rows(limit=_LAST)
    return WorkspaceStatus(
        counts=counts[""],
        active=(
            *(_of_sweep(each, counts[each.id], mean_s.get(each.id), now) for each in unfinished),
            *(_of_flow(each, now) for each in flows),
            *_of_runs(ledger, live, now),
            *(_of_job(each, now) for each in jobs),
            *(_of_transfer(each, now) for each in transfers),
        ),
        last=last,
    )


def states_text(counts: Mapping[RunState, int]) -> str:
    """Return numbers of runs in words: `3 done, 1 failed`."""
    return ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items()))


def live_jobs(root: Path) -> list[str]:
    """Return the ids of jobs that may not have ended and carry no run, from their files alone."""
    ids = []
    with suppress(OSError):
        for entry in os.scandir(root):
            if not entry.name.startswith(".") and _is_live_job(Path(entry.path)):
                ids.append(entry.name)
    return ids


def _is_live_job(folder: Path) -> bool:
    with suppress(OSError, ValueError, AttributeError, TypeError):
        state = json.loads((folder / "standing.json").read_bytes()).get("standing", {}).get("state", "")
        if state in _JOB_ENDS:
            return False
    with suppress(OSError, ValueError, AttributeError, TypeError):
        return not json.loads((folder / "job.json").read_bytes())["spec"].get("key")
    return False


_JOB_ENDS = frozenset({"done", "failed", "cancelled", "timed_out", "out_of_memory", "node_failed", "preempted", "lost"})


def is_unfinished(sweep: Sweep, counts: Mapping[RunState, int]) -> bool:
    """Tell whether a sweep has points that have not ended, or a study trials that run."""
    begun = sum(counts.values()) - counts.get(RunState.INTERRUPTED, 0) - counts.get(RunState.CANCELLED, 0)
    return _alive(counts) > 0 or begun < sweep.count


def _alive(counts: Mapping[RunState, int]) -> int:
    return counts.get(RunState.RUNNING, 0) + counts.get(RunState.QUEUED, 0)


def _of_sweep(sweep: Sweep, counts: Mapping[RunState, int], mean_s: float | None, now: float) -> Activity:
    total = _runs_of(sweep)
    ended = sum(counts.values()) - _alive(counts)
    running = counts.get(RunState.RUNNING, 0)
    expected = None
    if running and mean_s is not None and total > ended:
        expected = now + (total - ended) * mean_s / running
    return Activity(
        "study" if sweep.is_study else "sweep",
        sweep.id,
        "running" if running else "queued" if _alive(counts) else "unfinished",
        sweep.system,
        sweep.created,
        ended / total if total else None,
        sweep_progress(sweep, counts),
        expected,
        "progress" if expected is not None else "",
    )


def sweep_progress(sweep: Sweep, counts: Mapping[RunState, int]) -> str:
    """Return how many runs of a sweep or study are in which state, and how many there will be: `3 done of 12`."""
    text, total = states_text(counts) or "none started", _runs_of(sweep)
    return f"{text} of {total:,}" if total else text


def _runs_of(sweep: Sweep) -> int:
    """Return how many runs a sweep or study has in the end; 0 where nobody knows."""
    return sweep.study.settings.trials or 0 if sweep.is_study else sweep.count


def _of_flow(flow: ActiveFlow, now: float) -> Activity:
    share = flow.ended / flow.steps if flow.steps else None
    expected, basis = _expected_end(flow.started, share, now) if flow.is_held else (None, "")
    text = f"{flow.ended:,} of {flow.steps:,} steps ended, {flow.running:,} running"
    state = "running" if flow.is_held else "interrupted"
    return Activity("flow", flow.id, state, "", flow.started, share, text, expected, basis)


def _of_runs(ledger: Ledger, rows: Sequence[RunRow], now: float) -> Iterator[Activity]:
    for place, row in enumerate(rows):
        share, prediction_s = None, None
        if row.state is RunState.RUNNING and place < _MOST_READ:
            share, prediction_s = _progress(ledger, row)
        expected, basis = _expected_end(row.created, share, now)
        if expected is None and prediction_s is not None:
            expected, basis = row.created + prediction_s, "prediction"
        text = f"{share:.0%}" if share is not None else ""
        yield Activity("run", row.id, str(row.state), row.system, row.created, share, text, expected, basis)


def _expected_end(started: float | None, share: float | None, now: float) -> tuple[float | None, Basis]:
    if started is None or share is None or share < _LEAST_PROGRESS or now <= started:
        return None, ""
    return started + (now - started) / share, "progress"


def _progress(ledger: Ledger, row: RunRow) -> tuple[float | None, float | None]:
    """Return which share of a run is done, by the steps it logs or prints, and the seconds that were predicted."""
    try:
        run = ledger.get(row.id)
    except FairmileError:  # removed meanwhile
        return None, None
    return share_done(run), run.prediction.get("elapsed_s", {}).get("value")


def share_done(run: Run) -> float | None:
    """Return which share of a run is done, by the steps it logs or prints; None where neither tells."""
    params = run.spec.params
    total = next((value for name in _STEPS if isinstance(value := params.get(name), int) and value > 0), None)
    if total is not None:
        steps = _LOGGED_STEP.findall(_tail(run.folder / "events.jsonl"))
        last = int(steps[-1]) if steps else 0
        if 0 < last <= total:
            return last / total
    return _printed(run.folder / OUTPUT)


def _printed(file: Path) -> float | None:
    """Return the share that a program printed last, as `epoch 3/10` or as a bar of tqdm."""
    marks: list[tuple[str, str, str]] = _PRINTED.findall(_tail(file).decode(errors="replace"))
    for done, total, percent in reversed(marks):
        share = int(percent) / 100 if percent else int(done) / max(int(total), 1)
        if 0 <= share <= 1:
            return share
    return None


def _tail(file: Path) -> bytes:
    try:
        with open(file, "rb") as stream:
            stream.seek(max(os.fstat(stream.fileno()).st_size - _TAIL_BYTES, 0))
            return stream.read()
    except OSError:
        return b""


def _of_job(job: JobStatus, now: float) -> Activity:
    ended = sum(number for state, number in job.counts().items() if state.is_end)
    share = ended / len(job.tasks) if job.tasks else None
    expected, basis = _expected_end(job.status.started, share, now)
    if expected is None and job.status.started is not None and (limit_s := _time_limit(Path(job.folder))):
        expected, basis = job.status.started + limit_s, "time limit"
    return Activity(
        "job",
        job.id,
        job.state.replace("_", " "),
        job.system,
        job.status.started,
        share,
        f"{ended:,} of {len(job.tasks):,} tasks ended" if job.tasks else "",
        expected,
        basis,
    )


def _time_limit(folder: Path) -> float | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads((folder / "job.json").read_bytes())["spec"]["resources"]["time_s"])
    return None


def _of_transfer(held: Held, now: float) -> Activity:
    share = held.landed_bytes / held.size_bytes if held.size_bytes else None
    started = process_began(held.pid) if held.alive and held.host == os.uname().nodename else None
    expected, basis = _expected_end(started, share, now)
    text = f"{format_size(held.landed_bytes)} of {format_size(held.size_bytes)}, process {held.pid}"
    state = "running" if held.alive else "interrupted"
    return Activity("transfer", held.what, state, held.host, started, share, text, expected, basis)
