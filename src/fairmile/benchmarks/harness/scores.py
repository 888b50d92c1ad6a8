"""Scores: a trivial baseline, a strong classical one and the model, always in one table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fairmile.base.files import write_atomic
from fairmile.benchmarks.harness.task import Metric

FILE = "results.json"
_MOST_COLUMNS = 8


@dataclass(frozen=True)
class Score:
    """What one method reaches."""

    kind: Literal["trivial", "classical", "model"]
    name: str
    values: Mapping[str, float]  # by metric
    note: str = ""


@dataclass(frozen=True)
class Results:
    """What a run of a benchmark found out, as it is written to `results.json`."""

    benchmark: str
    data: str  # in words: made up or real, how much
    metric: Metric
    scores: Sequence[Score]
    seed: int
    settings: Mapping[str, Any]
    published: Sequence[Mapping[str, Any]] = ()  # {"name", "metric", "value", "source"}; never met on made-up data
    notes: Sequence[str] = ()
    figures: Sequence[str] = ()  # files beside it, in the order in which they are looked at

    def write(self, folder: Path) -> None:
        """Write it as JSON."""
        write_atomic(folder / FILE, json.dumps(asdict(self), indent=1, default=str) + "\n")

    def synthetic_verdict(self) -> str:
        """Return whether the model meets the target for generated data, in a line; empty where there is none."""
        name, target = self.metric.name, self.metric.synthetic_target
        values = [score.values[name] for score in self.scores if score.kind == "model" and name in score.values]
        if target is None or not values:
            return ""
        best = max(values) if self.metric.better == "higher" else min(values)
        verdict = "met" if self.metric.is_synthetic_met(best) else "not met"
        return f"synthetic target, for generated data only: {name} {target:g}, {verdict}"

    def table(self) -> str:
        """Return the scores as lines of text: one method each, or one metric each where there are many."""
        names = list(dict.fromkeys(name for score in self.scores for name in score.values))
        rows = [["", *names]]
        for score in self.scores:
            values = [f"{score.values[name]:.4g}" if name in score.values else "" for name in names]
            rows.append([f"{score.name} ({score.kind})", *values])
        if len(names) > _MOST_COLUMNS:
            rows = [list(column) for column in zip(*rows, strict=True)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)
