"""The numbers of a run, each with unit and direction, and how people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fairmile.base.errors import NotFound
from fairmile.base.units import format_duration, format_size
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
    for name, value in own.items():
        if value is not None and name not in known:
            known[name] = Measure(float(value), *ALWAYS[name])
    return known


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


def unknown_metric(name: str, known: Sequence[str]) -> NotFound:
    """Return the error for a metric that none of the runs has."""
    near = did_you_mean(name, known)
    return NotFound(f"none of these runs has a metric {name!r}", hint=near or f"they have {', '.join(known) or 'none'}")


def title(name: str) -> str:
    """Return a metric's name as a person reads it; those of the record itself get words."""
    return _WORDS.get(name, name)


def value_text(value: Any) -> str:
    """Return the value of a parameter as people write it."""
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:.6g}")
    return "none" if value is None else str(value)


def unit_of(name: str) -> str:
    """Return the unit that a name carries, as in `elapsed_s`; empty where it carries none."""
    return next((unit for suffix, unit in _SUFFIXES.items() if name.endswith(suffix)), "")


def number(value: float | None, unit: str = "", *, digits: int = 4) -> str:
    """Return a number for people: sizes and durations in units that fit, others with some digits."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if unit in ("bytes", "B"):
        return format_size(round(value))
    if unit == "s" and abs(value) >= 120:
        return format_duration(value)
    scaled, unit = _scaled(value, unit)
    return f"{_plain(scaled, digits)} {unit}".strip()


def interval(mean: float, half_width: float | None, unit: str = "") -> str:
    """Return "mean ± half width" in one unit, the mean rounded to where the interval begins."""
    if half_width is None or not math.isfinite(mean):
        return number(mean, unit)
    size, word = _size_unit(max(abs(mean), half_width), unit)
    mean, half = mean / size, half_width / size
    if half == 0:
        return f"{_plain(mean, 6)} ± 0 {word}".strip()
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
    """Return a mean with its interval; where a bound cuts that with both ends, and of two values with these."""
    half = estimate.half_width if estimate.sd else estimate.sd
    if half is not None or estimate.ends is None or not math.isfinite(estimate.mean):
        return interval(estimate.mean, half, unit)
    if estimate.low is None:
        low, high = (number(each, unit) for each in estimate.ends)
        return f"{number(estimate.mean, unit)} ({low} and {high})"
    return f"{number(estimate.mean, unit)} ({between(*estimate.ends, unit)})"


def between(low: float | None, high: float | None, unit: str = "") -> str:
    """Return "low … high" in one unit; nothing where either end is not known."""
    if low is None or high is None:
        return ""
    largest = max(abs(low), abs(high))
    size, word = _size_unit(largest, unit) if math.isfinite(largest) else (1.0, unit)
    if (unit == "s" and largest >= 120) or not math.isfinite(largest):
        return f"{number(low, unit)} … {number(high, unit)}"
    return f"{_plain(low / size, 4)} … {_plain(high / size, 4)} {word}".strip()


def deviation(sd: float | None, mean: float, unit: str = "") -> str:
    """Return a standard deviation with two digits, in the unit that its mean is told in."""
    if sd is None:
        return ""
    size, word = _size_unit(max(abs(mean), sd), unit)
    return f"{_plain(sd / size, 2)} {word}".strip()


def percent(value: float | None, *, signed: bool = True) -> str:
    """Return a fraction as a percentage with three digits."""
    if value is None or not math.isfinite(value):
        return ""
    if value == 0:
        return "0 %"
    text = f"{value * 100:{'+' if signed else ''}{'.3g' if abs(value) < 9.995 else ',.0f'}}"
    return re.sub(r"e\+?(-?)0*(\d+)$", r"e\1\2", text).replace("-", "−") + " %"


def _plain(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 10**6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def _scaled(value: float, unit: str) -> tuple[float, str]:
    size, word = _size_unit(abs(value), unit)
    return value / size, word


def _size_unit(value: float, unit: str) -> tuple[float, str]:
    """Return by what to divide, and the name of the unit then."""
    if unit in ("bytes", "B"):
        power = min(max(int(math.log2(value)) // 10, 0), 5) if value >= 1 else 0
        return 1024.0**power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    if unit == "s" and 0 < value < 0.1:
        return (1e-3, "ms") if value >= 1e-4 else (1e-6, "µs")
    if unit in ("J", "W") and value >= 1e4:
        power = min(int(math.log10(value)) // 3, 4)
        return 1000.0**power, ("", "k", "M", "G", "T")[power] + unit
    return 1.0, unit
