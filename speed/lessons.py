"""Repeats whole lessons of the course and shows how far each checked quantity spreads beside what its check allows.

Run: python speed/lessons.py [--lesson NUMBER]… [--repeats N]

Each repeat executes the notebook with its model solutions in a new folder with a new workspace, half of them with one
thread and half with two. A row is one quantity: its smallest and largest value, what the check allows, and how many
answers the check found right. A quantity that is compared with the run of the same execution is given relative to it.
Of texts, each different one is shown.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any, NamedTuple

from fairmile.course.answers import shown_answers
from fairmile.course.checks import CHECKS, Number, judge
from fairmile.course.lessons import Lesson, lessons, write_notebook
from fairmile.sweeps.notebooks import notebook_argv


class Quantity(NamedTuple):
    """What a check compares with limits: its name, where it stands in an answer, and the limits."""

    name: str
    of: Callable[[Any], float | str]
    least: float = -math.inf
    most: float = math.inf


def final(run: Any, metric: str) -> float:
    return float(run["result"]["metrics"][metric]["value"])


def busy_cores(answer: Any) -> float:
    result = answer["run"]["result"]
    return float(answer["cores"]) * float(result["elapsed_s"]) / float(result["usage"]["cpu_s"])


def spread(answer: Any) -> float:
    errors = [float(each["metrics"]["rmse"]) for each in answer["sweep"]["points"] if each["values"]["lr"] == 0.05]
    return float(answer["noise"]) / statistics.stdev(errors)


def lead(answer: Any) -> float:
    """Return by how much the best point of a sweep is better than the second best, relative to it."""
    best, second, *_ = sorted(point["metrics"]["rmse"] for point in answer["sweep"]["points"])
    return float((second - best) / best)


def best_trial(answer: Any) -> Any:
    return min((each for each in answer["study"]["trials"] if each["state"] == "done"), key=lambda it: it["values"][0])


def crossing(answer: Any) -> float:
    """Return how far the errors of the two epochs around 0.15 m stay away from it."""
    return min(abs(float(row["rmse"]) - 0.15) for row in answer["history"] if abs(row["step"] - answer["epoch"]) <= 1)


def cells(answer: Any) -> Any:
    return next(row["cells"] for row in answer["comparison"]["rows"] if row["metric"] == "rmse")


def done(trials: Any) -> float:
    return [each["state"] for each in trials].count("done")


QUANTITIES: dict[str, list[Quantity]] = {
    "1.1": [Quantity("handle", str)],
    "1.3": [Quantity("FAIR score", lambda it: it["score"], 60)],
    "2.1": [Quantity("rmse / rmse of run", lambda it: final(it["better"], "rmse") / final(it["run"], "rmse"), 0, 1)],
    "2.2": [Quantity("reproduced", lambda it: it["reproduced"], 1, 1)],
    "2.3": [
        Quantity("epoch", lambda it: it["epoch"]),
        Quantity("rmse beside 0.15 m", crossing, 0),
    ],
    "3.3": [Quantity("cores / of the record", busy_cores, 0.99, 1.01)],
    "4.1": [Quantity("points", lambda it: len(it["points"]), 3, 3)],
    "4.2": [Quantity("lr", lambda it: it["lr"]), Quantity("lead of the best", lead, 0)],
    "5.1": [Quantity("noise in m", lambda it: it["noise"]), Quantity("noise / of the record", spread, 0.98, 1.02)],
    "5.2": [Quantity("verdict", lambda it: it["verdict"])],
    "5.3": [
        Quantity("repeats", lambda it: min(each["estimate"]["count"] for each in cells(it)), 3),
        Quantity("groups that are better", lambda it: sum(each["verdict"] == "better" for each in cells(it)), 1),
    ],
    "6.1": [Quantity("lr / of the best trial", lambda it: it["lr"] / best_trial(it)["params"]["lr"], 0.99, 1.01)],
    "6.2": [Quantity("trials", lambda it: done(it["longer"]["trials"]), 7)],
    "6.3": [Quantity("trials", lambda it: done(it["trials"]), 3)],
    "7.1": [Quantity("error", lambda it: final(it, "error"), -math.inf, 2e-6)],
    "7.2": [Quantity("rule", lambda it: it["rule"]), Quantity("target", lambda it: it["target"])],
    "8.2": [Quantity("peak in GB", lambda it: it["peak_allocated_bytes"] / 1e9)],
    "8.3": [Quantity("step on the last row in s", lambda it: it["rows"][-1]["step_time_s"])],
    "9.1": [Quantity("tasks", lambda it: len(it["tasks"]), 4, 4)],
    "9.2": [
        Quantity("first job in s", lambda it: lasted(it)[0], 1),
        Quantity("until the second in s", lambda it: lasted(it)[1], 0),
    ],
    "9.3": [Quantity("cause", lambda it: it["what"])],
    "10.1": [Quantity("steps", lambda it: len(it["steps"]))],
    "10.2": [Quantity("steps", lambda it: len(it["steps"]))],
    "10.3": [Quantity("steps", lambda it: len(it["steps"]), 2, 2)],
    "11.1": [Quantity("problems", lambda it: len(it["problems"]), 0, 0)],
    "11.2": [Quantity("problems", lambda it: len(it["problems"]), 0, 0)],
    "11.3": [Quantity("missing", lambda it: len(it["missing"]))],
}


def lasted(answer: Any) -> tuple[float, float]:
    first, second = (each["standing"] for each in (answer["jobs"] if isinstance(answer, dict) else answer))
    return first["ended"] - first["started"], second["started"] - first["ended"]


def quantities(exercise: str) -> list[Quantity]:
    """Return what the check of an exercise compares."""
    check = CHECKS[exercise]
    if isinstance(check, Number):
        low, high = check.expected - check.within, check.expected + check.within
        return [Quantity(f"in {check.unit}" if check.unit else "number", float, low, high)]
    return QUANTITIES[exercise]


def executed(lesson: Lesson, threads: int) -> dict[str, Any]:
    """Return the answers that a lesson shows when it is executed with its model solutions in a new folder."""
    with tempfile.TemporaryDirectory(prefix="fairmile-lesson-") as name:
        folder = Path(name) / lesson.name
        folder.mkdir()
        for file in lesson.files:
            copy(file, folder)
        write_notebook(lesson.solved(), folder / f"{lesson.name}.ipynb")
        limits = {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "OPENBLAS", "MKL")}
        environ = {**os.environ, **limits, "HOME": name, "FAIRMILE_HOME": f"{name}/home"}
        argv = notebook_argv(f"{lesson.name}.ipynb")
        done = subprocess.run(argv, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done.returncode:
            print(f"{lesson.name} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
        return shown_answers(folder / argv[-1])


def value(quantity: Quantity, answer: Any) -> float | str:
    try:
        return quantity.of(answer)
    except (TypeError, LookupError, ValueError, ZeroDivisionError, StopIteration) as error:
        return f"{type(error).__name__}: {error}"


def print_exercise(exercise: str, answers: list[Any]) -> None:
    """Print a row for each quantity of an exercise."""
    verdicts = [judge(exercise, None if isinstance(answer, Exception) else answer) for answer in answers]
    for row in quantities(exercise):
        values = [value(row, answer) for answer in answers]
        numbers = [each for each in values if not isinstance(each, str)]
        seen = sorted({each for each in values if isinstance(each, str)})
        if numbers:
            seen.append(" to ".join(dict.fromkeys(f"{each:.6g}" for each in (min(numbers), max(numbers)))))
        limits = " ".join(f"{sign} {at:.6g}" for sign, at in (("≥", row.least), ("≤", row.most)) if math.isfinite(at))
        print(f"{exercise:5} {row.name:24} {', '.join(seen):30} {limits:20} {verdicts.count('')}/{len(answers)} right")
    for problem in sorted({verdict for verdict in verdicts if verdict}):
        print(f"      {verdicts.count(problem)} times: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lesson", type=int, action="append", help="number of a lesson (default: all with exercises)")
    parser.add_argument("--repeats", type=int, default=20, help="repeats of each (default: 20)")
    args = parser.parse_args()
    for lesson in lessons():
        if not lesson.exercises or (args.lesson and lesson.number not in args.lesson):
            continue
        started = time.time()
        each = [executed(lesson, 1 + number % 2) for number in range(args.repeats)]
        print(f"{lesson.name}, {args.repeats} times in {time.time() - started:.0f} s")
        for exercise in lesson.exercises:
            print_exercise(exercise, [answers.get(exercise) for answers in each])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
