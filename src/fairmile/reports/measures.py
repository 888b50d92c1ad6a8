"""The numbers of a run, each with unit and direction, and how people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import fitting_unit, format_number, plain_number
from fairmile.base.words import did_you_mean
from fairmile.reports.inference import CONFIDENCE, Estimate, estimate
from fairmile.runs.record.run import Run, RunState
from fairmile.runs.record.trial import is_trial, objective_value, result_of
from fairmile.runs.record.values import Better, better_of, bounds_of

# What every run has beside the metrics of its own.
ALWAYS: dict[str, tuple[str, Better]] = {
    "elapsed_s": ("s", "lower"),
    "energy_j": ("J", "lower"),
    "max_rss_bytes": ("bytes", "lower"),
}
# What programs log to say where they are; no result, so no figure and no column unless it is asked for.
_COUNTERS = {"epoch", "epochs", "step", "steps", "global_step", "iteration", "iterations", "batch_index"}
_FLOPS = re.compile(r"([kMGTPE]?)(?:FLOPS|FLOP/s|Flop/s|flop/s|flops)")
_GIGA = {"": 1e-9, "k": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3, "P": 1e6, "E": 1e9}
_SUFFIXES = {"_s": "s", "_j": "J", "_w": "W", "_bytes": "bytes"}
_WORDS = {
    "elapsed_s": "elapsed time",
    "energy_j": "energy",
    "max_rss_bytes": "largest memory",
    "memory_bytes": "memory",
}


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    value: float
    unit: str = ""
    better: Better = ""
    tolerance: float | None = None


def measures(run: Run) -> dict[str, Measure]:
    """Return the numbers of a run: its metrics by their last value, then elapsed time, energy and memory if known.

    Of floating-point operations per second it has GFLOPS per watt as well, where the energy is known.
    The objective of a trial has the best value over all steps, as everywhere a study is told of.
    """
    objectives = run.trial.objectives if run.trial is not None else {}
    known = {
        name: Measure(
            objective_value(metric, name, objectives), metric.unit, metric.better or better_of(name), metric.tolerance
        )
        for name, metric in run.metrics.items()
    }
    own = {"elapsed_s": run.elapsed_s, "energy_j": run.energy_j, "max_rss_bytes": run.usage.get("max_rss_bytes")}
    per_watt = _per_watt(known, run.elapsed_s, run.energy_j)
    for name, value in own.items():
        if value is not None and name not in known:
            known[name] = Measure(float(value), *ALWAYS[name])
    return known | per_watt


def _per_watt(known: Mapping[str, Measure], elapsed_s: float | None, energy_j: float | None) -> dict[str, Measure]:
    """Return each metric in floating-point operations per second by the mean power of the whole run."""
    if not elapsed_s or not energy_j:
        return {}
    power_w = energy_j / elapsed_s
    rates = {name: _FLOPS.fullmatch(each.unit) for name, each in known.items()}
    return {
        f"{name}_per_watt": Measure(known[name].value * _GIGA[unit[1]] / power_w, "GFLOPS/W", "higher")
        for name, unit in rates.items()
        if unit
    }


def ending(run: Run) -> str:
    """Return how a run counts: by its state, but a trial that was pruned or has no value of its objective as that."""
    if is_trial(run):
        result = result_of(run)
        if result.state == "pruned" or (result.state == "failed" and run.state is RunState.DONE):
            return result.state
    return str(run.state)


def counts(run: Run) -> bool:
    """Tell whether the numbers of a run are a result; those of a pruned trial are, as far as it came."""
    return ending(run) in ("done", "pruned")


def known_names(runs: Iterable[Run]) -> list[str]:
    """Return the names of all numbers that any of the runs has, those of their own first."""
    names = dict.fromkeys(name for run in runs for name in measures(run))
    return [*(name for name in names if name not in ALWAYS), *(name for name in ALWAYS if name in names)]


def results_only(names: Iterable[str]) -> list[str]:
    """Return names of metrics without counters such as `epoch`, and without what every run has."""
    return [name for name in names if name not in ALWAYS and name.lower() not in _COUNTERS]


def unknown_metric(name: str, known: Sequence[str]) -> NotFound:
    """Return the error for a metric that none of the runs has."""
    near = did_you_mean(name, known)
    return NotFound(f"none of these runs has a metric {name!r}", hint=near or f"they have {', '.join(known) or 'none'}")


def title(name: str) -> str:
    """Return a metric's name as a person reads it; those of the record itself get words."""
    return _WORDS.get(name, name)


def unit_of(name: str) -> str:
    """Return the unit that a name carries, as in `elapsed_s`; empty where it carries none."""
    return next((unit for suffix, unit in _SUFFIXES.items() if name.endswith(suffix)), "")


def interval(mean: float, half_width: float | None, unit: str = "") -> str:
    """Return "mean ± half width" in one unit, the mean rounded to where the interval begins."""
    if half_width is None or not math.isfinite(mean):
        return format_number(mean, unit)
    size, word = fitting_unit(max(abs(mean), half_width), unit)
    mean, half = mean / size, half_width / size
    if half == 0:
        return f"{plain_number(mean, 4)} ± 0 {word}".strip()
    places = 1 - math.floor(math.log10(half))
    if places > 8 or abs(mean) >= 1e7 or max(abs(mean), half) < 1e-4:
        return f"{mean:.4g} ± {half:.2g} {word}".strip()
    places = max(0, places)
    return f"{mean:,.{places}f} ± {half:,.{places}f} {word}".strip().replace("-", "−")


def estimate_of(name: str, unit: str, values: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Return what repeats say about the mean of a metric, within the bounds that its name and unit give."""
    bounds = bounds_of(name, unit, [value for value in values if math.isfinite(value)])
    return estimate(values, confidence=confidence, bounds=bounds)


def estimate_text(estimate: Estimate, unit: str = "") -> str:
    """Return a mean with its interval; where a bound cuts that with both ends, and of few values with their range."""
    if estimate.half_width is not None or estimate.ends is None or not estimate.sd:
        return interval(estimate.mean, estimate.half_width, unit)
    if estimate.low is None:
        return f"{format_number(estimate.mean, unit)} ({between(*estimate.ends, unit, to=' to ')})"
    return f"{format_number(estimate.mean, unit)} ({between(*estimate.ends, unit)})"


def between(low: float | None, high: float | None, unit: str = "", *, to: str = " … ") -> str:
    """Return "low … high" in one unit; nothing where either end is not known."""
    if low is None or high is None:
        return ""
    largest = max(abs(low), abs(high))
    size, word = fitting_unit(largest, unit) if math.isfinite(largest) else (1.0, unit)
    if (unit == "s" and largest >= 120) or not math.isfinite(largest):
        return f"{format_number(low, unit)}{to}{format_number(high, unit)}"
    return f"{plain_number(low / size, 4)}{to}{plain_number(high / size, 4)} {word}".strip()


def deviation(sd: float | None, mean: float, unit: str = "") -> str:
    """Return a standard deviation with two digits, in the unit that its mean is told in."""
    if sd is None:
        return ""
    size, word = fitting_unit(max(abs(mean), sd), unit)
    return f"{plain_number(sd / size, 2)} {word}".strip()


def percent(value: float | None, *, signed: bool = True) -> str:
    """Return a fraction as a percentage with three digits."""
    if value is None or not math.isfinite(value):
        return ""
    if value == 0:
        return "0 %"
    text = f"{value * 100:{'+' if signed else ''}{'.3g' if abs(value) < 9.995 else ',.0f'}}"
    return re.sub(r"e\+?(-?)0*(\d+)$", r"e\1\2", text).replace("-", "−") + " %"
