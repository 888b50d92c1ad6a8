"""The page of whatever a prediction, an analysis or an exploration returned."""

from __future__ import annotations

from fairmile.base.errors import UsageError
from fairmile.models.explore.results import Exploration
from fairmile.predict.characterization import Characterization
from fairmile.predict.results import MemoryPrediction, TimePrediction
from fairmile.predict.scaling.curves import ScalingPrediction
from fairmile.reports.characterization_page import characterization_page
from fairmile.reports.model_page import exploration_page
from fairmile.reports.predict_page import memory_page, scaling_page, time_page
from fairmile.reports.trace_page import trace_page
from fairmile.traces.analyze import TraceAnalysis


def result_page(
    result: MemoryPrediction | TimePrediction | ScalingPrediction | Characterization | TraceAnalysis | Exploration,
    title: str,
) -> str:
    """Return a result as one HTML file that needs nothing else; `title` is for those that have none of their own."""
    match result:
        case MemoryPrediction():
            return memory_page(result)
        case TimePrediction():
            return time_page(result)
        case ScalingPrediction():
            return scaling_page(result, title=title or "Scaling")
        case Characterization():
            return characterization_page(result)
        case TraceAnalysis():
            return trace_page(result, title=title or "Trace")
        case Exploration():
            return exploration_page(result)
    raise UsageError(
        f"a {type(result).__name__} has no page of its own",
        hint="pass what fm.predict.memory, .time, .scaling, .characterize, fm.traces.analyze or fm.models.explore "
        "returns; runs have fm.report(…).write",
    )
