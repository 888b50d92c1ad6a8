"""The pages of predictions: what a step needs, how long it takes, how far it scales."""

from __future__ import annotations

from fairmile.perf.predict import MemoryPrediction, TimePrediction
from fairmile.perf.scaling.curves import ScalingPrediction
from fairmile.reports import html
from fairmile.reports.blocks import Title


def memory_page(found: MemoryPrediction) -> str:
    """Return what a step needs as one HTML file that needs nothing else."""
    return html.render(found.target, [Title(found.target)])


def time_page(found: TimePrediction) -> str:
    """Return how long a step takes as one HTML file that needs nothing else."""
    return html.render(found.target, [Title(found.target)])


def scaling_page(found: ScalingPrediction, *, title: str) -> str:
    """Return how a target scales as one HTML file that needs nothing else."""
    return html.render(title, [Title(title)])
