"""Answers of a learner, as their notebook shows and keeps them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fairmile.base.errors import RunFailed
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.course.checks import judge
from fairmile.course.lessons import LONGEST_S, answered_exercise
from fairmile.runs.record.run import Run

_CELL_FILE = re.compile(r"\(\d+\.py, ")  # what IPython calls a cell
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
    """Return the answers that the notebook of a run shows; RunFailed where the run did not get that far."""
    try:
        return shown_answers(executed)
    except FileNotFoundError:
        raise RunFailed(f"run {run.id} did not execute the lesson: {run.reason}", hint=run.hint or None) from None


def shown_answers(executed: Path) -> dict[str, Any]:
    """Return the answers that an executed notebook shows; for one that is not shown, the error that prevented it."""
    cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
    answers: dict[str, Any] = {}
    for cell in (each for each in cells if each["cell_type"] == "code"):
        exercise = cell["metadata"].get("exercise") or answered_exercise("".join(cell["source"]))
        for output in cell["outputs"]:
            shown = output.get("data", {}).get(ANSWER)
            if shown and shown["exercise"] == exercise and "exercise" not in cell["metadata"]:
                answers[exercise] = shown["value"]
            if output["output_type"] == "error" and exercise:
                # The first of them is the reason: without its variable, the answer fails, too.
                answers.setdefault(exercise, RunFailed(_problem(output["ename"], output["evalue"])))
    return answers


def _problem(kind: str, message: str) -> str:
    if kind == "KeyboardInterrupt":
        return f"the cell ran for {LONGEST_S} s and was interrupted: does a loop in it never end?"
    text = _CELL_FILE.sub("(", " ".join(f"{kind}: {message}".split()))
    if kind == "NameError":
        return f"{text}; of your cells, only those of the exercises are executed, so put all that one needs into it"
    return text
