"""What judges the answers: quantities with tolerances, and a sentence that says what is wrong.

A check takes the answer as JSON data and returns what is wrong with it, or an empty text. What differs from one
execution to the next is judged against the run that the answer cell hands over, never against a number here. 20
repeats of `train.py` on 1 and on 2 threads printed the same digits, so tolerances cover rounding and the choice of a
formula, and are said beside each number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from statistics import pstdev, stdev
from typing import Any

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result

Check = Callable[[Any], str]


def as_data(value: Any) -> Any:
    """Return an answer as JSON data: a result of Fairmile as its fields, what is missing as None."""
    if value is None or value is Ellipsis:
        return None
    if isinstance(value, Result):
        return as_data(value.to_dict())
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): as_data(each) for name, each in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [as_data(each) for each in value]
    if hasattr(value, "tolist"):  # numbers and arrays of NumPy and PyTorch
        return as_data(value.tolist())
    raise UsageError(
        f"an answer cannot be of type {type(value).__name__}",
        hint="give a number, a text, a list, or what a call of Fairmile returned",
    )


def judge(exercise: str, value: Any) -> str:
    """Return what is wrong with an answer; an empty text if it is right."""
    try:
        check = CHECKS[exercise]
    except KeyError:
        raise NotFound(f"no exercise {exercise!r}", hint="`fairmile course ls` lists them") from None
    if value is None:
        return "there is no answer yet"
    try:
        return check(value)
    except (TypeError, LookupError, AttributeError, ValueError, ArithmeticError):
        # Whoever answers may have overwritten what the lesson compares the answer with.
        return f"{_shown(value)} is not what the exercise asks for"


@dataclass(frozen=True)
class Number:
    """A check of a number; `mistakes` are values that typical mistakes lead to, and what each is."""

    expected: float
    within: float
    unit: str = ""
    mistakes: Mapping[float, str] = field(default_factory=dict)

    def __call__(self, value: Any) -> str:
        if not _is_number(value):
            return f"expected a number{f' in {self.unit}' if self.unit else ''}, found {_shown(value)}"
        if abs(value - self.expected) <= self.within:
            return ""
        for mistaken, sentence in self.mistakes.items():
            if abs(value - mistaken) <= 0.015 * abs(mistaken):
                return sentence
        return f"{f'{value:g} {self.unit}'.strip()} is too {'large' if value > self.expected else 'small'}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _at(value: Any, *path: str) -> Any:
    """Return a nested field of an answer; None where it has none."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _run_problem(run: Any, program: str = "train.py") -> str:
    """Return why an answer is not the record of a finished run of a program."""
    if run is None:
        return "there is no answer yet"
    if not isinstance(_at(run, "spec", "argv"), list):
        return f"expected what `fm.run` returned, found {_shown(run)}"
    if not any(Path(str(word)).name == program for word in run["spec"]["argv"]):
        return f"the run executed {' '.join(run['spec']['argv'])[:60]}, not {program}"
    if _at(run, "result", "state") != "done":
        return f"the run did not end well: {_at(run, 'result', 'reason') or run.get('state', 'no state')}"
    return ""


def _final(run: Any, metric: str) -> Any:
    return _at(run, "result", "metrics", metric, "value")


def _fitting_dataset(value: Any) -> str:
    if not isinstance(value, str):
        return f"expected a handle as a text, found {_shown(value)}"
    name = value.rpartition("/")[2].partition("@")[0]
    if name == "deepcam-cam5":
        return ""
    if name == "deeplabv3plus-xception":
        return "that is the model; the handle of the data set is in the same row"
    return f"{value} is not the best match; `fm.match` lists the best one first"


def _described(value: Any) -> str:
    handle, score = str(_at(value, "handle") or ""), _at(value, "score")
    if not _is_number(score):
        return f"expected what `fm.catalog.fair` returned, found {_shown(value)}"
    if not handle.startswith("local/dataset/levels@"):
        return f"that is the score of {handle}; add a card with the name levels, and score that"
    if score < 60:
        return f"a score of {score} is possible without a licence or a description: state both"
    return ""


def _better_run(value: Any) -> str:
    better, run = _at(value, "better"), _at(value, "run")
    problem = _run_problem(better)
    if problem:
        return problem
    hidden, rmse = _at(better, "spec", "params", "hidden"), _final(better, "rmse")
    if hidden != 32:
        return f"the run has hidden={hidden}; the exercise asks for hidden=32"
    if not _is_number(rmse) or not rmse < _final(run, "rmse"):
        return f"its rmse ends at {rmse}, that of `run` at {_final(run, 'rmse')}"
    return ""


def _repeated_run(value: Any) -> str:
    if not isinstance(_at(value, "verdicts"), list):
        return f"expected what `fm.rerun` returned, found {_shown(value)}"
    if not value.get("reproduced"):
        return "the rerun does not reproduce the run; repeat `run` unchanged"
    return ""


def _first_epoch_below(value: Any) -> str:
    epoch, history = _at(value, "epoch"), _at(value, "history") or []
    if epoch is None:
        return "there is no answer yet"
    if not _is_number(epoch) or epoch != int(epoch):
        return f"expected the number of an epoch, found {_shown(epoch)}"
    below = [row["step"] for row in history if row["rmse"] < 0.15]
    if below and epoch == below[0]:
        return ""
    if epoch + 1 in below[:1]:
        return "nearly: the script counts epochs from 1"
    value_then = next((row["rmse"] for row in history if row["step"] == epoch), None)
    if value_then is None:
        return f"the history has no epoch {epoch:g}"
    return f"after epoch {epoch:g} the rmse is {value_then}, and " + (
        "it was below 0.15 before" if value_then < 0.15 else "that is not below 0.15"
    )


def _busy_cores(value: Any) -> str:
    cores, run = _at(value, "cores"), _at(value, "run")
    if cores is None:
        return "there is no answer yet"
    if not _is_number(cores):
        return f"expected a number of cores, found {_shown(cores)}"
    cpu_s, elapsed_s = _at(run, "result", "usage", "cpu_s"), _at(run, "result", "elapsed_s")
    expected = cpu_s / elapsed_s
    if abs(cores - expected) <= 0.01 * expected:  # the same two numbers are divided: only rounding
        return ""
    if abs(cores - 1 / expected) <= 0.01 / expected:
        return "that is wall time divided by CPU time; it is the other way round"
    return f"{cores:g} is not the CPU time of `run` divided by its wall time"


def _points(sweep: Any, expected: str = "fm.sweep") -> tuple[list[Mapping[str, Any]], str]:
    """Return the points of a sweep that has ended well, or why an answer is none."""
    points = _at(sweep, "points")
    if not isinstance(points, list):
        return [], "there is no answer yet" if sweep is None else f"expected what `{expected}` returned"
    undone = sum(point["state"] != "done" for point in points)
    return points, f"{undone} of {len(points)} points did not end well" if undone else ""


def _swept_widths(value: Any) -> str:
    points, problem = _points(value)
    if problem:
        return problem
    widths = sorted({point["values"].get("hidden") for point in points} - {None})
    if widths != [4, 16, 64]:
        return f"the sweep has hidden={', '.join(map(str, widths)) or 'nothing'}; the exercise asks for 4, 16 and 64"
    if any(point["values"].get("lr") != 0.1 or point["values"].get("epochs") != 5 for point in points):
        return "only the width may differ: lr=0.1 and 5 epochs at every point"
    return ""


def _best_rate(value: Any) -> str:
    lr = _at(value, "lr")
    points, problem = _points(_at(value, "sweep"))
    if lr is None or problem:
        return problem or "there is no answer yet"
    by_rmse = sorted(points, key=lambda point: float(point["metrics"]["rmse"]))
    if lr == by_rmse[0]["values"]["lr"]:
        return ""
    if lr == by_rmse[-1]["values"]["lr"]:
        return "that is the largest error; a lower rmse is better"
    return f"{_shown(lr)} is not the learning rate with the lowest rmse"


def _noise(value: Any) -> str:
    noise = _at(value, "noise")
    points, problem = _points(_at(value, "sweep"))
    if noise is None or problem:
        return problem or "there is no answer yet"
    if not _is_number(noise):
        return f"expected a number in m, found {_shown(noise)}"
    errors = [point["metrics"]["rmse"] for point in points if point["values"]["lr"] == 0.05]
    if math.isclose(noise, stdev(errors), rel_tol=0.02):  # computed from the same values: only rounding
        return ""
    if math.isclose(noise, pstdev(errors), rel_tol=0.02):
        return "that divides by the number of repeats; a sample divides by one less"
    if math.isclose(noise, stdev([point["metrics"]["rmse"] for point in points]), rel_tol=0.02):
        return "that mixes both learning rates; take the repeats of one"
    if math.isclose(noise, max(errors) - min(errors), rel_tol=0.02):
        return "that is the range, from the lowest to the highest"
    return f"{noise:g} m is not the standard deviation of these repeats"


def _cells(comparison: Any) -> list[Mapping[str, Any]]:
    """Return the groups of the comparison by `rmse`; none where an answer is no comparison."""
    rows = _at(comparison, "comparison", "rows")
    cells = [row["cells"] for row in rows if row["metric"] == "rmse"] if isinstance(rows, list) else []
    return cells[0] if cells else []


def _verdict(value: Any) -> str:
    verdict = _at(value, "verdict")
    if verdict is None:
        return "there is no answer yet"
    expected = _cells(_at(value, "comparison"))[1]["verdict"]
    if not isinstance(verdict, str):
        return f"expected a text, found {_shown(verdict)}"
    return "" if verdict.strip().lower() == expected else f"`fm.compare` says something else than {verdict!r}"


def _clearly_better(value: Any) -> str:
    cells = _cells(value)
    if not cells:
        return f"expected what `fm.compare` returned for rmse, found {_shown(value)}"
    if any(cell["estimate"]["count"] < 3 for cell in cells):
        return "a group has fewer than three repeats"
    if "lr=0.05" not in [cell["group"] for cell in cells]:
        return "compare with lr=0.05: it must be one of the groups, and the first"
    if not any(cell["verdict"] == "better" for cell in cells):
        return "no learning rate is better than the first beyond noise; try one that is further away"
    return ""


def _trials(study: Any) -> tuple[list[Mapping[str, Any]], str]:
    """Return the finished trials of a study, or why an answer is none."""
    if not isinstance(_at(study, "trials"), list):
        return [], "there is no answer yet" if study is None else "expected what `fm.tune` returned"
    return [trial for trial in study["trials"] if trial["state"] == "done"], ""


def _best_trial(value: Any) -> str:
    lr = _at(value, "lr")
    trials, problem = _trials(_at(value, "study"))
    if lr is None or problem:
        return problem or "there is no answer yet"
    if not _is_number(lr):
        return f"expected a learning rate, found {_shown(lr)}"
    best = min(trials, key=lambda trial: float(trial["values"][0]))
    if math.isclose(lr, best["params"]["lr"], rel_tol=0.01):
        return ""
    if math.isclose(lr, best["values"][0], rel_tol=0.01):
        return "that is the rmse of the best trial"
    worst = max(trials, key=lambda trial: float(trial["values"][0]))
    return "that is the worst trial" if lr == worst["params"]["lr"] else f"the best trial does not have lr={lr:g}"


def _longer_study(value: Any) -> str:
    longer = _at(value, "longer")
    trials, problem = _trials(longer)
    if problem:
        return problem
    if longer["id"] != _at(value, "study", "id"):
        return "that is another study; give `fm.tune` the id of `study`"
    return "" if len(trials) >= 7 else f"the study has {len(trials)} finished trials; the exercise asks for 7"


def _own_study(value: Any) -> str:
    trials, problem = _trials(value)
    if problem:
        return problem
    lags = [trial["params"].get("lags") for trial in trials]
    if None in lags or any(lag != int(lag) or not 4 <= lag <= 24 for lag in lags):
        return 'the trials must search `lags` in whole numbers from 4 to 24: "4..24"'
    if [(each["metric"], each["better"]) for each in value["objectives"]] != [("rmse", "lower")]:
        return "the objective must be the lowest rmse"
    return "" if len(trials) >= 3 else f"only {len(trials)} trials ended well; the exercise asks for 3"


def _precise_run(value: Any) -> str:
    problem = _run_problem(value, "run.sh")
    if problem:
        return problem
    error = _final(value, "error")
    return "" if _is_number(error) and error < 2e-6 else f"its error is {error}; give it more terms"


def _own_rule(value: Any) -> str:
    rule, target = _at(value, "rule"), _at(value, "target")
    if not isinstance(rule, str):
        return f"expected what `fm.benchmarks.show` returned, found {_shown(value)}"
    if not _is_number(target):
        return "the card states no number as `target` in `matchSpec`"
    return "state a rule of your own" if rule == "distance from pi, lower is better" else ""


def _array_job(value: Any) -> str:
    tasks = _at(value, "tasks")
    if not isinstance(tasks, Mapping):
        return f"expected the status of a job, found {_shown(value)}"
    if value["system"] != "practice":
        return f"the job ran on {value['system']}, not on practice"
    if len(tasks) != 4:
        return f"the job has {len(tasks)} tasks; the exercise asks for 4"
    return "" if value["state"] == "done" else f"the job is {value['state']}; wait for its end"


def _dependent_jobs(value: Any) -> str:
    jobs = _at(value, "jobs") if isinstance(value, Mapping) else value
    if (
        not isinstance(jobs, list)
        or len(jobs) != 2
        or not all(isinstance(_at(each, "standing"), Mapping) for each in jobs)
    ):
        return f"expected the status of two jobs, found {_shown(value)}"
    if any(each["state"] != "done" for each in jobs):
        return "both jobs must end well; wait for them"
    first, second = (each["standing"] for each in jobs)
    if first["ended"] - first["started"] < 1:  # whole seconds
        return "the first job must take two seconds"
    return "" if second["started"] >= first["ended"] else "the second job did not wait for the first"


def _missing_file(value: Any) -> str:
    what, line = _at(value, "what"), _at(value, "line")
    if not isinstance(what, str):
        return f"expected what `fm.jobs.explain` returned, found {_shown(value)}"
    if "FileNotFoundError" in str(line) or "No such file" in str(line):
        return ""
    return f"that job failed for another reason: {what}"


def _fitting_step(value: Any) -> str:
    if not isinstance(_at(value, "peak_allocated_bytes"), int):
        return f"expected what `fm.predict.memory` returned, found {_shown(value)}"
    if value["gpu"] != "a100-40gb":
        return f"that is a prediction for {value['gpu']}; the exercise asks for a100-40gb"
    if value["batch"] != 8:
        return f"that is a batch of {value['batch']}; the exercise asks for 8"
    return "" if value["fits"] else "that does not fit; recompute activations"


def _weak_scaling(value: Any) -> str:
    rows = _at(value, "rows")
    if not isinstance(rows, list):
        return f"expected what `fm.predict.scaling` returned, found {_shown(value)}"
    if _at(value, "mode") != "weak":
        return "that is strong scaling: the batch stays the same"
    if _at(value, "on") != "juwels" or {8, 64} - {row["gpus"] for row in rows}:
        return "predict it on juwels, for 8 to 64 GPUs"
    return ""


def _steps(flow: Any, *, status: bool = True) -> tuple[list[Mapping[str, Any]], str]:
    """Return the steps of a flow, or why an answer is no status (or plan) of one."""
    call = "fm.flows.run" if status else "fm.flows.plan"
    steps = _at(flow, "steps")
    if not isinstance(steps, list) or any(("state" if status else "action") not in step for step in steps):
        return [], f"expected what `{call}` returned, found {_shown(flow)}"
    undone = [step["name"] for step in steps if status and step["state"] != "done"]
    return steps, f"{undone[0]} did not end well" if undone else ""


def _three_rates(value: Any) -> str:
    steps, problem = _steps(value)
    trained = [step for step in steps if step["name"].startswith("train[")]
    if problem or len(trained) != 3:
        return problem or f"the flow trained with {len(trained)} rates; the exercise asks for 3"
    wrong = [step["name"] for step in trained if step["on"] != "practice"]
    return f"{wrong[0]} ran on {steps[0]['on'] or 'this machine'}, not on practice" if wrong else ""


def _restored(value: Any) -> str:
    steps, problem = _steps(value, status=False)
    if problem:
        return problem
    actions = {step["name"]: step["action"] for step in steps}
    if actions.get("best") == "restore" and set(actions.values()) == {"restore", "skip"}:
        return ""
    if "run" in actions.values():
        return "a step would run: run flow.yaml first, then remove best.txt alone"
    return "best.txt is still there, so nothing has to be done"


def _own_flow(value: Any) -> str:
    steps, problem = _steps(value)
    if problem or len(steps) != 2:
        return problem or f"the flow has {len(steps)} steps; the exercise asks for 2"
    if [step["on"] for step in steps] != ["practice", "desk"]:
        return f"the steps ran on {' and '.join(step['on'] or 'this machine' for step in steps)}, not practice and desk"
    if steps[1]["needs"] != [steps[0]["name"]]:
        return f"{steps[1]['name']} does not read what {steps[0]['name']} writes: state it under inputs and outputs"
    return ""


def _own_crate(value: Any) -> str:
    problems = _at(value, "problems")
    if not isinstance(problems, list):
        return f"expected the name of a folder, found {_shown(value)}"
    if Path(value["folder"]).name in ("crate", "broken"):
        return "that is a crate of the lesson; export a run of your own"
    return f"the validator says: {problems[0]}" if problems else ""


def _repaired_crate(value: Any) -> str:
    date, problems = _at(value, "date"), _at(value, "problems")
    if not isinstance(date, str) or not isinstance(problems, list):
        return f"expected a date as a text, found {_shown(date)}"
    return f"the validator says: {problems[0]}" if problems else ""


def _complete_submission(value: Any) -> str:
    missing = _at(value, "missing")
    if not isinstance(missing, list):
        return f"expected what `fm.benchmarks.submit` returned, found {_shown(value)}"
    if value.get("dry_run"):
        return "a dry run writes nothing; submit without `dry_run`"
    of_system = [each for each in missing if each.startswith("system ")]
    if of_system:
        return f"still missing: {of_system[0]}"
    failed = [each["checker"] for each in value["checks"] if each["required"] and not each["passed"]]
    return f"the {failed[0]} did not pass" if failed else ""


# The trapezoid rule and the sum of all samples differ by 0.4 %, and idle by the mean or the median by 0.5 %.
_ENERGY_J = 18430.0
_ABOVE_IDLE_J = 10944.4

CHECKS: Mapping[str, Check] = {
    "1.1": _fitting_dataset,
    "1.2": Number(1.77, 0.0005, "m", {286: "that is the hour of the highest level", -1.685: "that is the lowest"}),
    "1.3": _described,
    "2.1": _better_run,
    "2.2": _repeated_run,
    "2.3": _first_epoch_below,
    "3.1": Number(
        _ENERGY_J,
        0.01 * _ENERGY_J,
        "J",
        {
            152.8: "that is the mean power in watts",
            5.12: "that is in watt-hours",
            152.8 * 3600: "hours are not seconds",
        },
    ),
    "3.2": Number(
        _ABOVE_IDLE_J,
        0.015 * _ABOVE_IDLE_J,
        "J",
        {
            _ENERGY_J: "that is all of the energy, idle included",
            17200: "idle took its power over all 120 s, not over 20 s",
        },
    ),
    "3.3": _busy_cores,
    "4.1": _swept_widths,
    "4.2": _best_rate,
    "4.3": Number(60, 0, "runs", {20: "each point runs three times", 27: "the axes multiply, they do not add up"}),
    "5.1": _noise,
    "5.2": _verdict,
    "5.3": _clearly_better,
    "6.1": _best_trial,
    "6.2": _longer_study,
    "6.3": _own_study,
    "7.1": _precise_run,
    "7.2": _own_rule,
    # The next term of the series is 1/(2 terms)³ of the first: at 1,000 terms, the product is 1 to six digits.
    "7.3": Number(1.0, 0.001, "", {1000.0: "that is the number of terms", 0.001: "that is the error alone"}),
    # One sample is less than the interval of the prediction.
    "8.1": Number(11, 1, "samples", {3: "that is the largest batch of an a100-40gb"}),
    "8.2": _fitting_step,
    "8.3": _weak_scaling,
    "9.1": _array_job,
    "9.2": _dependent_jobs,
    "9.3": _missing_file,
    "10.1": _restored,
    "10.2": _three_rates,
    "10.3": _own_flow,
    "11.1": _own_crate,
    "11.2": _repaired_crate,
    "11.3": _complete_submission,
}
