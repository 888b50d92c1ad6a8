"""What benchmarks do alike: say what the data is, train, and report the model beside its baselines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairmile.benchmarks.harness.scores import Results, Score
from fairmile.benchmarks.harness.trainer import Trained, fit

if TYPE_CHECKING:
    from fairmile.benchmarks.harness.session import Session
    from fairmile.benchmarks.harness.task import Task


def train(task: Task, session: Session, data: str) -> Trained | None:
    """Train a task on data described in words; None where only data is prepared or another rank reports."""
    session.say(f"data: {data}")
    if task.settings.work == "prepare":
        return None
    trained = fit(task, session)
    return trained if session.ranks.is_first else None


def report(
    task: Task,
    session: Session,
    trained: Trained,
    baselines: Sequence[Score],
    *,
    data: str,
    published: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
    figures: Sequence[str] = (),
    tested: Mapping[str, float] | None = None,
) -> None:
    """Report the scores of a trained model below those of its baselines; `tested` are further scores of the model.

    Figures without a name, which were not drawn, are left out.
    """
    weights = sum(each.numel() for each in trained.model.parameters())
    values = {**trained.scores, **(tested or {})}
    model = Score("model", task.settings.model, values, f"{weights:,} parameters")
    results = Results(
        benchmark=session.name,
        data=data,
        metric=task.metric,
        scores=[*baselines, model],
        seed=session.seed,
        settings=dataclasses.asdict(task.settings),
        published=published,
        notes=notes,
        figures=[each for each in figures if each],
    )
    session.report(results)
