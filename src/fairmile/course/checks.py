"""What judges the answers: quantities with tolerances, and a sentence that says what is wrong.

A check takes the answer as JSON data and returns what is wrong with it, or an empty text. Tolerances of figures that
differ from run to run are at least four times the widest distance from the mean among 20 repeats with other seeds,
on 1 and on 2 threads; those of figures that are computed from a file cover rounding and the choice of a formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound, UsageError
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
        f"an answer cannot be a {type(value).__name__}",
        hint="give a number, a text, a list, or what a call of Fairmile returned",
    )


def judge(exercise: str, value: Any) -> str:
    """Return what is wrong with an answer; an empty text if it is right."""
    try:
        check = CHECKS[exercise]
    except KeyError:
        raise NotFound(f"no exercise {exercise!r}", hint="`fairmile course ls` lists them") from None
    return "there is no answer yet" if value is None else check(value)


def _number(expected: float, within: float, unit: str, mistakes: Mapping[float, str] | None = None) -> Check:
    """Return a check of a number; `mistakes` are values that typical mistakes lead to, and what each is."""

    def check(value: Any) -> str:
        if not _is_number(value):
            return f"expected a number in {unit}, found {_shown(value)}"
        if abs(value - expected) <= within:
            return ""
        for mistaken, sentence in (mistakes or {}).items():
            if abs(value - mistaken) <= 0.015 * abs(mistaken):
                return sentence
        return f"{value:g} {unit} is too {'large' if value > expected else 'small'}"

    return check


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


# The trapezoid rule and the sum of all samples differ by 0.4 %, and idle by the mean or the median by 0.5 %.
_ENERGY_J = 18430.0
_ABOVE_IDLE_J = 10944.4

CHECKS: Mapping[str, Check] = {
    "1.1": _fitting_dataset,
    "1.2": _number(1.77, 0.0005, "m", {286: "that is the hour of the highest level", -1.685: "that is the lowest"}),
    "1.3": _described,
    "2.1": _better_run,
    "2.2": _repeated_run,
    "2.3": _first_epoch_below,
    "3.1": _number(
        _ENERGY_J,
        0.01 * _ENERGY_J,
        "J",
        {
            152.8: "that is the mean power in watts",
            5.12: "that is in watt-hours",
            152.8 * 3600: "hours are not seconds",
        },
    ),
    "3.2": _number(
        _ABOVE_IDLE_J,
        0.015 * _ABOVE_IDLE_J,
        "J",
        {
            _ENERGY_J: "that is all of the energy, idle included",
            17200: "idle took its power over all 120 s, not over 20 s",
        },
    ),
    "3.3": _busy_cores,
}
