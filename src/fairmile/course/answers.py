"""Answers of a learner, as their notebook shows and keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairmile.base.errors import RunFailed
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.course.checks import judge
from fairmile.runs.record.run import Run

ANSWER = "application/vnd.fairmile.answer+json"


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """An answer as its notebook keeps it; a cell that ends with it shows whether it is right so far."""

    exercise: str
    value: Any

    def to_dict(self) -> dict[str, Any]:
        return {"exercise": self.exercise, "value": self.value}

    def summary(self) -> str:
        return f"{self.exercise} {judge(self.exercise, self.value) or 'right'}"

    def _repr_html_(self) -> str:
        from html import escape

        problem = judge(self.exercise, self.value)
        mark, text = ("○", problem) if problem else ("✓", "Right.")
        return f"<p><b>{mark} Exercise {escape(self.exercise)}</b> {escape(text)}</p>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": self._repr_html_(), ANSWER: self.to_dict()}


def given_answers(executed: Path, run: Run) -> dict[str, Any]:
    """Return the answers that an executed notebook shows, or the error of the cell that should show one."""
    try:
        cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
    except FileNotFoundError:
        raise RunFailed(f"run {run.id} did not execute the lesson: {run.reason}", hint=run.hint or None) from None
    answers: dict[str, Any] = {}
    exercise, problem = "", ""
    for cell in (each for each in cells if each["cell_type"] == "code"):
        exercise = cell["metadata"].get("exercise", "")
        for output in cell["outputs"]:
            shown = output.get("data", {}).get(ANSWER)
            if shown:
                answers[shown["exercise"]] = shown["value"]
            if output["output_type"] == "error" and exercise:
                problem = " ".join(f"{output['ename']}: {output['evalue']}".split())
                answers[exercise] = RunFailed(problem)
    return answers
