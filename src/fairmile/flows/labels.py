"""What labels of steps may tell: names, progress and times, for formats that have a language of labels."""

from __future__ import annotations

from collections.abc import Mapping

from fairmile.flows.results import StepStatus
from fairmile.flows.state import FlowState


def label_facts(step: StepStatus, state: FlowState, created: float | None) -> Mapping[str, str | float | None]:
    """Return what is known of a step, by the names of labels: times in seconds, None where one is not known yet."""
    entries = state.newest.values()
    starts = [entry.at - (entry.elapsed_s or 0.0) for entry in entries]
    ends = [entry.at for entry in entries if entry.state != "begun"]
    entry = state.newest.get(step.name)
    is_over = entry is not None and entry.state != "begun"
    end = entry.at if entry is not None and is_over else None
    start = entry.at - (entry.elapsed_s or 0.0) if entry is not None else None
    first, last = min(starts, default=None), max(ends, default=None)
    progress = step.progress if step.progress is not None else 1.0 if step.state == "done" else 0.0
    return {
        "name": step.name,
        "progress": f"{progress:.0%}".rstrip("%"),
        "created": created,
        "modified": entry.at if entry is not None else None,
        "tstart": start,
        "tend": end,
        "t0": first,
        "t1": last,
        "dt": step.elapsed_s,
        "dt0": start - first if start is not None and first is not None else None,
        "dt1": last - first if last is not None and first is not None else None,
    }
