"""How long a run with many epochs takes, from short runs; and the wall time to ask a batch system for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median, variance
from typing import TYPE_CHECKING

from fairmile.base.distributions import Line, fit_line, t_quantile
from fairmile.base.errors import FairmileError, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import format_duration
from fairmile.meter.lines import Spans
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import Value
from fairmile.runs.results import Projection

if TYPE_CHECKING:
    from fairmile.jobs.queue import Jobs
    from fairmile.runs.record.spec import RunSpec

_MINUTE_S = 60
_STEPS = ("epochs", "steps", "iterations", "max_epochs", "num_epochs")  # parameters by which the time grows
_FAR = 100  # times the longest run: beyond it little of what will happen has been seen
_NO_INTERVAL_MARGIN = 0.5
_DRIFT = 0.1  # of the mean, over the steps that were seen


@dataclass(frozen=True)
class _Timed:
    """One finished run: its whole time, the steps it was asked for, and the time of each where it was logged."""

    elapsed_s: float
    asked: int | None
    steps_s: tuple[float, ...]


def project(
    runs: Sequence[Run], *, to: int, steps_param: str = "epochs", span: str = "epoch", level: float = 0.9
) -> Projection:
    """Return how long `to` steps take, from finished runs that differ in the number of steps only.

    Where a run timed its steps as spans, their scatter gives the interval and one run is enough; otherwise a line
    is drawn through whole runs, whose interval needs three of them.
    """
    if to < 1:
        raise UsageError(f"cannot project to {to} {steps_param}", hint="use 1 or more")
    if not 0 < level < 1:
        raise UsageError(f"the confidence level {level} is not between 0 and 1", hint="use a value such as 0.9")
    warnings = [*_check_alike(runs, steps_param)]
    timed = [each for each in (_timed(run, steps_param, span) for run in runs) if each is not None]
    if not timed:
        raise UsageError(
            "none of these runs succeeded",
            hint=f"run a short one first: -p {steps_param}=2",
        )
    if len(timed) < len(runs):
        warnings.append(f"{len(runs) - len(timed)} of {len(runs)} runs did not succeed and are excluded")
    stepped = [each for each in timed if len(each.steps_s) > 1]
    if stepped:
        return _from_steps(stepped, to, steps_param, level, warnings)
    return _from_whole_runs(timed, to, steps_param, span, level, warnings)


def walltime(projection: Projection, *, margin: float = 0.1, limit_s: float | None = None) -> int:
    """Return the seconds to ask a batch system for: the upper end and a margin, in whole minutes.

    Without an interval the margin is at least a half. UsageError where that is more than `limit_s`.
    """
    if margin < 0:
        raise UsageError(f"the margin {margin} is negative", hint="use 0.1 for 10 %")
    upper = projection.seconds if projection.high is None else projection.high
    share = 1 + (max(margin, _NO_INTERVAL_MARGIN) if projection.high is None else margin)
    needed = upper * share
    minutes = max(_MINUTE_S, math.ceil(needed / _MINUTE_S) * _MINUTE_S)
    if limit_s is None or minutes <= limit_s:
        return minutes
    if needed <= limit_s:
        return math.floor(limit_s)
    pessimism = share * max(upper / projection.seconds, 1)
    fitting = max(math.floor((limit_s / pessimism - projection.fixed_s) / projection.per_step_s), 0)
    raise UsageError(
        f"{projection.to} steps need {format_duration(needed)} with the margin,"
        f" but the limit is {format_duration(limit_s)}",
        hint=f"about {min(fitting, projection.to - 1)} steps fit; save a checkpoint and continue in a second job",
    )


def with_time(spec: RunSpec, history: Sequence[Run], jobs: Callable[[], Jobs]) -> tuple[RunSpec, tuple[str, ...]]:
    """Return a run of a scheduler with the wall time that earlier runs let expect, and a note that says so.

    One whose time is given, or for which nothing can be projected, stays as it is.
    """
    param = next((name for name in _STEPS if isinstance(spec.params.get(name), int)), "")
    if not spec.system or spec.resources.time_s is not None or not history or not param:
        return spec, ()
    machine = jobs().machines[spec.system]
    if not machine.has_scheduler:
        return spec, ()
    try:
        projection = project(history, to=int(str(spec.params[param])), steps_param=param)
        time_s = walltime(projection, limit_s=machine.limit_s(spec.resources.partition))
    except FairmileError as error:
        advice = f"; {error.hint}" if error.hint else ""
        return spec, (f"cannot predict the time from earlier runs: {error}{advice}",)
    resources = spec.resources.model_copy(update={"time_s": float(time_s)})
    note = f"requests {format_duration(time_s)}, predicted from earlier runs: {projection.basis}"
    return spec.model_copy(update={"resources": resources}), (note,)


def most_steps(params: Iterable[Mapping[str, Value]]) -> Mapping[str, Value]:
    """Return the parameters of the run that takes the most steps, among those of runs that differ in them."""
    return max(
        params, key=lambda each: max((value for name in _STEPS if isinstance(value := each.get(name), int)), default=0)
    )


def _check_alike(runs: Sequence[Run], steps_param: str) -> list[str]:
    """Refuse runs of different things; return what else differs, in words."""
    if not runs:
        raise UsageError("no run to project from", hint=f"run a short one first: -p {steps_param}=2")
    names = sorted({run.name for run in runs})
    if len(names) > 1:
        raise UsageError(f"cannot project runs with different names together: {', '.join(names)}")
    # A seed changes what is computed, not how much.
    keys = sorted({key for run in runs for key in run.params} - {steps_param, "seed"})
    for key in keys:
        values = list(dict.fromkeys(str(run.params.get(key)) for run in runs))
        if len(values) > 1:
            raise UsageError(
                f"the runs also differ in {key} ({', '.join(values)}), so their times cannot be fitted together",
                hint=f"use runs that differ in {steps_param} only",
            )
    places = sorted({run.system or "an unknown machine" for run in runs})
    return [f"the runs are from different machines ({', '.join(places)})"] if len(places) > 1 else []


def _timed(run: Run, steps_param: str, span: str) -> _Timed | None:
    elapsed_s = run.elapsed_s
    if run.state is not RunState.DONE or elapsed_s is None or not 0 < elapsed_s < math.inf:
        return None
    asked = _whole_number(run.params.get(steps_param))
    steps: list[float] = []
    if not run.packed and (run.spans.get(span) or not run.spans):
        steps = series(each for each in run.log().spans if each.name == span)
    if asked is not None and len(steps) > asked:
        # Several spans make one step: batches of an epoch. Where they cannot be shared out they tell nothing.
        each, rest = divmod(len(steps), asked)
        steps = [] if rest else [math.fsum(steps[at : at + each]) for at in range(0, len(steps), each)]
    return _Timed(elapsed_s, asked, tuple(steps))


def series(spans: Iterable[Spans]) -> list[float]:
    """Return the seconds of one step after the other.

    Processes that ran at the same time, such as ranks, did each step together: the slowest counts. Those that ran
    one after the other, such as attempts, did different steps.
    """
    ordered = sorted((each for each in spans if each.starts_ns), key=lambda each: each.starts_ns[0])
    groups: list[list[Spans]] = []
    end_ns = 0
    for each in ordered:
        if groups and each.starts_ns[0] < end_ns:
            groups[-1].append(each)
        else:
            groups.append([each])
        end_ns = max(end_ns, each.starts_ns[-1] + each.durations_ns[-1])
    steps: list[float] = []
    for group in groups:
        longest = max(len(each.durations_ns) for each in group)
        whole = [each.durations_ns for each in group if len(each.durations_ns) == longest]
        steps += [max(durations) / 1e9 for durations in zip(*whole, strict=True)]
    return steps


def _whole_number(value: object) -> int | None:
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except ValueError:
        return None
    return int(number) if 1 <= number < math.inf and number == math.floor(number) else None


# From the steps of runs


def _from_steps(runs: Sequence[_Timed], to: int, steps_param: str, level: float, warnings: list[str]) -> Projection:
    steady = [run.steps_s[_warm_up(run.steps_s) :] for run in runs]
    means = [fmean(each) for each in steady]
    count = sum(len(each) for each in steady)
    per_step_s = math.fsum(value for each in steady for value in each) / count
    fixed = [run.elapsed_s - len(run.steps_s) * mean for run, mean in zip(runs, means, strict=True)]
    seconds = fmean(fixed) + to * per_step_s
    error = _error(steady, means, fixed, to)
    if error is None:
        warnings.append("too few steps for an interval")
    elif len(runs) == 1:
        warnings.append("only one run: the interval ignores the variation between runs")
    warnings += _drift(max(steady, key=len), steps_param)
    warnings += _extrapolation_warnings(to, max(len(run.steps_s) for run in runs), steps_param)
    half = None if error is None else _half_width(error, level)
    left_out = sum(len(run.steps_s) for run in runs) - count
    basis = (
        f"{count} timed {steps_param} of {_runs(len(runs))}, {format_duration(per_step_s)} each"
        f" ({left_out} excluded as warm-up), plus {format_duration(max(fmean(fixed), 0.0))} for start-up and warm-up"
    )
    low, high = _bounds(seconds, half)
    return Projection(seconds, low, high, level, to, per_step_s, fmean(fixed), basis, "; ".join(warnings))


def _warm_up(steps: Sequence[float]) -> int:
    """Return how many of the first steps are no measure of the later ones: the first, and all clearly longer."""
    half = len(steps) // 2
    count = min(1, half)
    if len(steps) < 4:
        return count
    rest = steps[half:]
    centre = median(rest)
    scatter = 1.4826 * median(abs(each - centre) for each in rest)
    bound = centre + 3 * max(scatter, 0.02 * centre)
    while count < half and steps[count] > bound:
        count += 1
    return count


def _error(
    steady: Sequence[Sequence[float]], means: Sequence[float], fixed: Sequence[float], to: int
) -> list[tuple[float, int]] | None:
    """Return the parts of the variance of the whole, each with its degrees of freedom; None where none is known."""
    count, runs = sum(len(each) for each in steady), len(steady)
    parts: list[tuple[float, int]] = []
    within = 0.0
    if count > runs:
        squares = ((value - mean) ** 2 for each, mean in zip(steady, means, strict=True) for value in each)
        within = math.fsum(squares) / (count - runs)
        parts.append((within * to, count - runs))
    if runs > 1:
        # Not reduced by what the scatter within runs explains: with few runs that would promise too much.
        parts.append((variance(means) * to**2 * (1 + 1 / runs), runs - 1))
        parts.append((variance(fixed) * (1 + 1 / runs), runs - 1))
    elif parts:
        parts = [(within * (to + to**2 / count * _repetition(steady[0], means[0], within)), count - 1)]
    return parts or None


def _repetition(steps: Sequence[float], mean: float, within: float) -> float:
    """Return how many times a mean is less certain because a step resembles the one before it."""
    pairs = [(first - mean) * (second - mean) for first, second in pairwise(steps)]
    if len(pairs) < 8 or not within:
        return 1.0
    likeness = min(max(fmean(pairs) / within, 0.0), 0.9)
    return (1 + likeness) / (1 - likeness)


def _half_width(parts: Sequence[tuple[float, int]], level: float) -> float:
    total = math.fsum(part for part, _ in parts)
    if not total:
        return 0.0
    # Welch and Satterthwaite: the degrees of freedom of a sum of variances.
    degrees = total**2 / math.fsum(part**2 / degrees for part, degrees in parts)
    return t_quantile((1 + level) / 2, max(degrees, 1.0)) * math.sqrt(total)


def _drift(steps: Sequence[float], steps_param: str) -> list[str]:
    """Say when steps keep getting longer or shorter: no line foresees where that ends."""
    if len(steps) < 5:
        return []
    line = fit_line(range(len(steps)), steps)
    slope = line.slope_interval(0.99)
    change = line.slope * (len(steps) - 1) / fmean(steps)
    if slope is None or slope[0] <= 0 <= slope[1] or abs(change) < _DRIFT:
        return []
    way = "longer" if change > 0 else "shorter"
    return [f"the {steps_param} became {way} by {abs(change):.0%} from first to last, which the prediction ignores"]


# From whole runs


def _from_whole_runs(
    runs: Sequence[_Timed], to: int, steps_param: str, span: str, level: float, warnings: list[str]
) -> Projection:
    points = [(run.asked, run.elapsed_s) for run in runs if run.asked is not None]
    numbers = sorted({asked for asked, _ in points})
    hint = f"run with two different numbers of {steps_param}, or time each step with `with span({span!r}):`"
    if not points:
        raise UsageError(f"no successful run has spans {span!r} or a parameter {steps_param!r}", hint=hint)
    if len(numbers) < 2:
        raise UsageError(f"all runs have {numbers[0]} {steps_param}, so the start-up time is unknown", hint=hint)
    # The variance of a sum grows with the number of its terms.
    line = fit_line([asked for asked, _ in points], [took for _, took in points], [1 / asked for asked, _ in points])
    if line.slope <= 0:
        raise UsageError(
            f"runs with more {steps_param} did not take longer",
            hint=f"use more {steps_param}, so that they take longer than start-up",
        )
    if line.degrees < 1:
        warnings.append("two runs are too few for an interval")
    if line.at_zero < 0:
        warnings.append("the fitted start-up time is negative: the times scatter, or do not grow linearly")
    warnings += _extrapolation_warnings(to, numbers[-1], steps_param)
    basis = f"a line through {_runs(len(points))} of {', '.join(map(str, numbers))} {steps_param}"
    low, high = _bounds(line.at(to), _line_half_width(line, to, level))
    return Projection(line.at(to), low, high, level, to, line.slope, line.at_zero, basis, "; ".join(warnings))


def _line_half_width(line: Line, to: int, level: float) -> float | None:
    interval = line.interval(to, level, weight=1 / to)
    return None if interval is None else (interval[1] - interval[0]) / 2


def _bounds(seconds: float, half: float | None) -> tuple[float | None, float | None]:
    return (None, None) if half is None else (max(seconds - half, 0.0), seconds + half)


def _extrapolation_warnings(to: int, longest: int, steps_param: str) -> list[str]:
    if to <= _FAR * longest:
        return []
    return [f"{to} {steps_param} are more than {_FAR} times the longest run"]


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
