"""What a run is expected to take, beside what it then took: from earlier runs, or from what others plug in."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from fairmile.base.distributions import fit_line, median, stdev, t_quantile
from fairmile.base.errors import FairmileError, SystemFailure
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.quick_named_tuple import NamedTuple
from fairmile.base.registry import Plugin, Registry
from fairmile.base.units import format_duration, format_size
from fairmile.runs.record.record import RecordedSpec
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.values import Value

if TYPE_CHECKING:
    from fairmile.runs.record.spec import RunSpec

LEVEL = 0.9
_NEWEST = 20  # runs that a number is taken from: what was long ago says less than it seems
_MOST = 100
_ROBUST_FROM = 5  # runs from which the median deviation is worth more than the standard deviation
_POINTS = 3
_WIDEST = 1.0  # of the value: a wider interval says nothing
# Neither changes how much there is to do.
_WITHOUT_EFFECT = ("time_s", "account", "qos", "reservation", "options")


class Fit(StrEnum):
    """Whether a run has room on its device; MAY_NOT where the prediction interval straddles the limit."""

    FITS = "fits"
    MAY_NOT = "may not fit"
    DOES_NOT = "does not fit"


@dataclass(frozen=True)
class Predicted:
    """One expected number; without `low` and `high` nothing tells how sure it is. `source` says where it is from.

    `limit` is the most that the `device` of the run can give of it, where that is known; `remedy` says how to find what
    it can do.
    """

    value: float
    low: float | None = None
    high: float | None = None
    source: str = ""
    limit: float | None = None
    device: str = ""
    remedy: str = ""

    @property
    def fit(self) -> Fit | None:
        """Whether the device has enough; None where no limit is known."""
        if self.limit is None:
            return None
        if (self.value if self.low is None else self.low) > self.limit:
            return Fit.DOES_NOT
        return Fit.FITS if (self.value if self.high is None else self.high) <= self.limit else Fit.MAY_NOT

    def to_json(self) -> dict[str, Any]:
        """Return it as run.json keeps it, with the verdict where there is one."""
        document = {"value": self.value, "low": self.low, "high": self.high, "source": self.source}
        if self.fit is None:
            return document
        return document | {"limit": self.limit, "device": self.device, "remedy": self.remedy, "fit": str(self.fit)}


class Predictor(Protocol):
    """Foresees numbers of a run: `elapsed_s`, `memory_bytes`, `energy_j` or a metric; what it cannot tell is absent."""

    def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]: ...


class Judged(NamedTuple):
    """An expected number beside the measured one; `inside` is None where either bounds or measurement are missing."""

    what: str
    predicted: Predicted
    measured: float | None
    inside: bool | None


# What was measured goes before what is computed: the table's `history` is asked first.
PREDICTORS: Registry[type[Predictor]] = Registry(
    "predictor",
    {"history": Plugin("fairmile.runs.prediction:FromHistory", summary="earlier runs of the same thing")},
    entry_points="fairmile.predictors",
)


@dataclass(frozen=True)
class Forecast:
    """What is expected of a run, as run.json keeps it, and whether its device has room for it."""

    numbers: Mapping[str, dict[str, Any]]
    unpredicted: str = ""  # why there are no numbers
    fit: Fit = Fit.FITS
    fit_reason: str = ""


@dataclass(frozen=True)
class Limit:
    """The most that a run may take of something, who sets that, and what to do where it is too little."""

    most: float
    source: str
    remedy: str


def forecast(
    spec: RunSpec,
    history: Sequence[Run],
    own: Mapping[str, Callable[[], Predictor]],
    limits: Mapping[str, Limit] = MappingProxyType({}),
) -> Forecast:
    """Return what is expected of a run; a predictor that breaks stops none.

    `own` are predictors beside those of plug-ins, each by the package of the programs that it knows. `limits` hold for
    numbers whose predictor knows none.
    """
    asked = {name: make for name, make in own.items() if any(word.startswith(name) for word in spec.argv)}
    try:
        numbers = predict(PREDICTORS, spec, history, asked)
    except FairmileError as error:
        return Forecast({}, str(error))
    if not numbers:
        why = "no earlier run with the same command, resources and machine" if history else "no successful earlier run"
        return Forecast({}, why)
    for what, limit in limits.items():
        if what in numbers and "limit" not in numbers[what]:
            expected = predicted_of(numbers[what])
            limited = replace(expected, limit=limit.most, device=limit.source, remedy=limit.remedy)
            numbers[what] = limited.to_json()
    return Forecast(numbers, "", *unfit(numbers))


def predict(
    predictors: Registry[type[Predictor]],
    spec: RunSpec,
    history: Sequence[Run],
    given: Mapping[str, Callable[[], Predictor]] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Ask one predictor after the other, as run.json keeps it; the first that knows a number gives it.

    Those `given` are asked last. SystemFailure names a predictor that breaks.
    """
    predicted: dict[str, Predicted] = {}
    for name in (*predictors.names(), *given):
        try:
            numbers = (given[name] if name in given else predictors[name])().predict(spec, history)
        except FairmileError:
            raise
        except Exception as error:
            raise SystemFailure(
                f"predictor {name!r} failed: {type(error).__name__}: {error}",
                hint="uninstall its package, or report this to its author",
            ) from error
        predicted = {**numbers, **predicted}
    return {what: each.to_json() for what, each in predicted.items()}


def predicted_of(stored: Mapping[str, Any]) -> Predicted:
    """Return an expected number as run.json has it."""
    bounds = stored.get("low"), stored.get("high")
    source, device, remedy = (str(stored.get(name) or "") for name in ("source", "device", "remedy"))
    return Predicted(stored["value"], *bounds, source, stored.get("limit"), device, remedy)


def unfit(prediction: Mapping[str, Mapping[str, Any]]) -> tuple[Fit, str]:
    """Return the worst verdict on what a run needs, and a sentence that says why; FITS where nothing speaks against it.

    Where no limit is known nothing speaks against it either, and the sentence is empty.
    """
    worst, why = Fit.FITS, ""
    order = list(Fit)
    for what, number in prediction.items():
        expected = predicted_of(number)
        if expected.fit is None or (why and order.index(expected.fit) <= order.index(worst)):
            continue
        worst = expected.fit
        need = amount_text(what, expected.value)
        if expected.low is not None and expected.high is not None:
            need += f" ({amount_text(what, expected.low)} to {amount_text(what, expected.high)})"
        limit = amount_text(what, expected.limit or 0.0)
        holder = expected.device or "the device"
        room = f"{holder} is {limit}" if holder.endswith("limit") else f"{holder} has {limit} for it"
        why = f"{quantity_name(what)} {need}; {room}"
    return worst, why


def quantity_name(what: str) -> str:
    """Return the name of a predicted quantity for people: `time` for elapsed_s, `peak memory` for peak_memory_bytes."""
    return "time" if what == "elapsed_s" else re.sub("_(bytes|j)$", "", what).replace("_", " ")


def amount_text(what: str, value: float) -> str:
    """Return the amount of a predicted quantity with its unit."""
    if what.endswith("_bytes"):
        return format_size(int(value))
    if what.endswith("_s") and not what.endswith("_per_s"):
        return format_duration(value)
    return f"{value:.4g} J" if what.endswith("_j") else f"{value:.4g}"


def judged(run: Run) -> list[Judged]:
    """Return what was expected of a run beside what was measured."""
    measured = {**{name: metric.value for name, metric in run.metrics.items()}, **measurements(run)}
    rows = []
    for what, number in run.prediction.items():
        expected = predicted_of(number)
        value = measured.get(what)
        inside = None
        if value is not None and expected.low is not None and expected.high is not None:
            inside = expected.low <= value <= expected.high
        rows.append(Judged(what, expected, value, inside))
    return rows


def measurements(run: Run) -> dict[str, float]:
    """Return those of `elapsed_s`, `memory_bytes` and `energy_j` that were measured."""
    measured = {"elapsed_s": run.elapsed_s, "memory_bytes": run.usage.get("max_rss_bytes"), "energy_j": run.energy_j}
    return {name: number for name, value in measured.items() if (number := _number(value)) is not None}


class FromHistory:
    """Predicts from runs that succeeded before: same name, command, resources, machine and kind of GPU.

    Runs with the same parameters give their median. Where there are none, runs that differ in one number only give
    a line through at least three of them. Where nothing fits, nothing is predicted. `host` and `gpus`, the models,
    describe where the new run goes when that is this machine.
    """

    def __init__(self, *, host: str = "", gpus: Sequence[str] | None = None) -> None:
        self._host = host or os.uname().nodename
        self._gpus = None if gpus is None else tuple(gpus)

    def predict(self, spec: RunSpec, history: Sequence[Run]) -> dict[str, Predicted]:
        place = spec.system or self._host
        comparable = self._on_same_gpus(_comparable(history, spec, place))
        if not comparable:
            return {}
        where = f"on {spec.system or 'this machine'}" + _gpu_words(comparable[0])
        points = [(run, measurements(run)) for run in comparable]
        same = [(run, numbers) for run, numbers in points if not _differing(run.params, spec.params)]
        predicted: dict[str, Predicted] = {}
        for what in ("elapsed_s", "memory_bytes", "energy_j"):
            number = _from_same(_measured(same, what), where)
            if number is None:
                number = _from_line(_measured(points, what), spec, where)
            if number is not None:
                predicted[what] = number
        return predicted

    def _on_same_gpus(self, runs: list[Run]) -> list[Run]:
        """Keep the runs on the GPUs of the new one; where these are not known, on those of the newest run."""
        if not runs:
            return []
        wanted = sorted(self._gpus if self._gpus is not None else _gpus(runs[0]))
        return [run for run in runs if sorted(_gpus(run)) == wanted]


def _comparable(history: Sequence[Run], spec: RunSpec, place: str) -> list[Run]:
    """Return the runs that tell something about the new one, the newest first."""
    resources = _effective(spec.resources.model_dump(mode="json", exclude_defaults=True))
    named = sorted((run for run in history if run.name == spec.name), key=lambda run: -run.created)
    return list(islice((run for run in named if _is_comparable(run, spec, place, resources)), _MOST))


def _is_comparable(run: Run, spec: RunSpec, place: str, resources: Mapping[str, Any]) -> bool:
    # The specification as recorded: validating hundreds of old ones would cost more than a short run.
    before = run.record.spec
    return (
        run.state is RunState.DONE
        and run.system == place
        and before.dataset == spec.dataset
        and _is_same_command(before, spec)
        and _effective(before.resources) == resources
    )


def _effective(resources: Mapping[str, Any]) -> dict[str, Any]:
    if not resources:  # as of most runs
        return {}
    return {name: value for name, value in resources.items() if name not in _WITHOUT_EFFECT}


def _is_same_command(before: RecordedSpec, now: RunSpec) -> bool:
    """Tell whether two commands are the same but for the values of parameters."""
    argv, params = before.argv, before.params
    if len(argv) != len(now.argv):
        return False
    if argv == list(now.argv):
        return True
    changes = {(str(value), str(now.params[name])) for name, value in params.items() if name in now.params}
    changes.add((str(before.seed), str(now.seed)))
    first, *rest = zip(argv, now.argv, strict=True)
    # The same program may lie elsewhere today.
    return os.path.basename(first[0]) == os.path.basename(first[1]) and all(
        one == other or (one, other) in changes or _is_same_option(one, other, changes) for one, other in rest
    )


def _is_same_option(before: str, now: str, changes: set[tuple[str, str]]) -> bool:
    option, _, value = before.partition("=")
    other_option, _, other_value = now.partition("=")
    return option == other_option and (value, other_value) in changes


def _differing(before: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """Return the parameters that differ; a seed changes what is computed, not how much."""
    if before == now:
        return []
    return [
        name
        for name in sorted({*before, *now} - {"seed"})
        if before.get(name) != now.get(name) or (name in before) != (name in now)
    ]


def _measured(points: Sequence[tuple[Run, Mapping[str, float]]], what: str) -> list[tuple[Run, float]]:
    values = [(run, numbers[what]) for run, numbers in points if what in numbers]
    if what == "energy_j" and values:
        # A sum over other counters is another quantity.
        channels = _channels(values[0][0])
        values = [(run, value) for run, value in values if _channels(run) == channels]
    return values


def _channels(run: Run) -> list[str]:
    return sorted(str(part.get("channel")) for part in run.energy.parts)


def _from_same(points: Sequence[tuple[Run, float]], where: str) -> Predicted | None:
    values = [value for _, value in points[:_NEWEST]]
    if not values:
        return None
    centre, count = median(values), len(values)
    source = f"{'1 earlier run' if count == 1 else f'median of {count} earlier runs'} {where}"
    if count == 1:
        return Predicted(centre, source=source)
    scatter = 1.4826 * median(abs(value - centre) for value in values) if count >= _ROBUST_FROM else 0.0
    scatter = scatter or stdev(values)
    width = t_quantile((1 + LEVEL) / 2, count - 1) * scatter * math.sqrt(1 + 1 / count)
    return Predicted(centre, max(centre - width, 0.0), centre + width, source)


def _from_line(points: Sequence[tuple[Run, float]], spec: RunSpec, where: str) -> Predicted | None:
    """Draw a line over the one number in which the runs differ from the new one; None where they support none."""
    best: Predicted | None = None
    for name, wanted in spec.params.items():
        x = _number(wanted)
        if x is None:
            continue
        near = [(run, value) for run, value in points if _differing(run.params, spec.params) in ([name], [])]
        at = [(number, value) for run, value in near[:_NEWEST] if (number := _number(run.params.get(name))) is not None]
        if len({number for number, _ in at}) < _POINTS:
            continue
        estimate = _on_line(at, x, f"a line over {name} through {len(at)} earlier runs {where}")
        if estimate is not None and (best is None or _width(estimate) < _width(best)):
            best = estimate
    return best


def _on_line(points: Sequence[tuple[float, float]], x: float, source: str) -> Predicted | None:
    line = fit_line([number for number, _ in points], [value for _, value in points])
    interval = line.interval(x, LEVEL)
    value = line.at(x)
    if interval is None or value <= 0 or interval[1] - interval[0] > 2 * _WIDEST * value:
        return None
    numbers = [number for number, _ in points]
    if not min(numbers) <= x <= max(numbers):
        source += f", extrapolated from {min(numbers):g} to {max(numbers):g}"
    return Predicted(value, max(interval[0], 0.0), interval[1], source)


def _width(predicted: Predicted) -> float:
    return (predicted.high or 0.0) - (predicted.low or 0.0)


def _gpus(run: Run) -> tuple[str, ...]:
    return tuple(str(gpu.get("model") or "") for gpu in run.hardware.get("gpus") or ())


def _gpu_words(run: Run) -> str:
    models = list(dict.fromkeys(filter(None, _gpus(run))))
    return f" with {', '.join(models)}" if models else ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
