"""A training step seen from all sides: memory, roofline, input, communication, scaling, beside what was measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from fairmile.base.errors import NotFound, UsageError
from fairmile.base.html_tables import fields_table
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import format_duration, format_size
from fairmile.predict.results import MemoryPrediction, MemoryPredictionDict, TimePrediction, TimePredictionDict
from fairmile.predict.scaling.curves import ScalingPrediction, ScalingPredictionDict

_NUMBERS = "step_s", "peak_allocated_bytes", "peak_reserved_bytes"
_MOVED = "moved_bytes"


class MeasuredStepDict(TypedDict):
    """`MeasuredStep` as JSON holds it."""

    gpu: str
    step_s: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    date: str
    source: str
    moved_bytes: float | None


class ComparisonDict(TypedDict):
    """One quantity, predicted and measured; `off` is the error of the prediction as a share of what was measured."""

    quantity: str
    predicted: float
    measured: float
    off: float


class CharacterizationDict(TypedDict):
    """`Characterization` as JSON holds it."""

    target: str
    memory: MemoryPredictionDict
    time: TimePredictionDict
    scaling: ScalingPredictionDict | None
    arithmetic_intensity: float
    input_samples_per_s: float
    input_bytes_per_s: float | None
    gradient_bytes: int
    measured: MeasuredStepDict | None
    comparison: list[ComparisonDict]


@dataclass(frozen=True)
class MeasuredStep:
    """What a program measured of a step on a GPU."""

    gpu: str
    step_s: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    date: str = ""
    source: str = ""  # the file
    moved_bytes: float | None = None  # between the GPU and its memory, where its counters were read

    def to_dict(self) -> MeasuredStepDict:
        return {
            "gpu": self.gpu,
            "step_s": self.step_s,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "date": self.date,
            "source": self.source,
            "moved_bytes": self.moved_bytes,
        }


@dataclass(frozen=True, repr=False)
class Characterization(Result):
    """Predictions of one step on one GPU and on many, and a measurement of it where there is one."""

    memory: MemoryPrediction
    time: TimePrediction
    scaling: ScalingPrediction | None = None
    sample_bytes: float = 0.0
    measured: MeasuredStep | None = None

    @property
    def target(self) -> str:
        return self.memory.target

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte that is moved."""
        return self.time.step.flops / max(self.time.step.moved_bytes, 1)

    @property
    def samples_per_s(self) -> float:
        """Samples that one GPU consumes if they arrive in time."""
        return self.time.batch / self.time.step.step_time_s

    @property
    def gradient_bytes(self) -> int:
        """What data-parallel ranks exchange in each step: a gradient for each parameter, in its precision."""
        return int(self.memory.estimate.breakdown.get("parameters", 0))

    def comparison(self) -> list[ComparisonDict]:
        """Return what was predicted beside what was measured."""
        if self.measured is None:
            return []
        estimate = self.memory.estimate
        predicted = (self.time.step.step_time_s, estimate.peak_allocated_bytes, estimate.peak_reserved_bytes)
        pairs = zip(_NUMBERS, predicted, strict=True)
        rows = [(name, float(value), float(getattr(self.measured, name))) for name, value in pairs]
        if self.measured.moved_bytes is not None:
            rows.append((_MOVED, float(self.time.step.moved_bytes), self.measured.moved_bytes))
        rows.append(("samples_per_s", self.samples_per_s, self.time.batch / self.measured.step_s))
        return [
            {"quantity": name, "predicted": value, "measured": real, "off": value / real - 1}
            for name, value, real in rows
        ]

    def to_dict(self) -> CharacterizationDict:
        return {
            "target": self.target,
            "memory": self.memory.to_dict(),
            "time": self.time.to_dict(),
            "scaling": self.scaling.to_dict() if self.scaling is not None else None,
            "arithmetic_intensity": self.intensity,
            "input_samples_per_s": self.samples_per_s,
            "input_bytes_per_s": self.samples_per_s * self.sample_bytes or None,
            "gradient_bytes": self.gradient_bytes,
            "measured": self.measured.to_dict() if self.measured is not None else None,
            "comparison": self.comparison(),
        }

    def summary(self) -> str:
        return f"{self.time.summary()}; {format_size(self.memory.device_used_bytes)} on the device"

    def _repr_html_(self) -> str:
        return fields_table(dict(self.facts()))

    def facts(self) -> list[tuple[str, str]]:
        """Return the figures in words, for a terminal, a notebook and a page."""
        step = self.time.step
        pairs = [
            ("GPU", f"{self.memory.gpu.name}, batch of {self.memory.batch:,}"),
            (
                "step",
                f"{format_duration(step.step_time_s)} ({_between(step.low_s, step.high_s)}), {self.time.bound}-bound",
            ),
            ("samples", f"{self.samples_per_s:,.4g} a second"),
            ("arithmetic", f"{step.flops / 1e12:,.4g} Tflop, {step.flops / step.step_time_s / 1e12:,.3g} Tflop/s"),
            ("memory traffic", f"{format_size(step.moved_bytes)}, lower bound {format_size(step.least_bytes)}"),
            ("intensity", f"{self.intensity:,.3g} flop/B, at the roofline limit {format_duration(step.roof_s)}"),
            ("allocated", format_size(self.memory.estimate.peak_allocated_bytes)),
            ("device", f"{format_size(self.memory.device_used_bytes)} of {format_size(self.memory.gpu.memory_bytes)}"),
            ("input", f"{self.samples_per_s:,.4g} samples/s" + self._input_rate()),
            ("gradients", f"{format_size(self.gradient_bytes)} exchanged in each step of data-parallel training"),
        ]
        if self.scaling is not None and self.scaling.worth_up_to:
            least = f"efficiency at {self.scaling.threshold:.0%} or above"
            pairs.append(("scaling", f"up to {self.scaling.worth_up_to:,} GPUs on {self.scaling.on}: {least}"))
        return pairs

    def _input_rate(self) -> str:
        return f", {format_size(round(self.samples_per_s * self.sample_bytes))}/s" if self.sample_bytes else ""


def read_measurement(file: Path, target: str, arguments: Mapping[str, Any]) -> MeasuredStep:
    """Return the last measurement of a target with these arguments in a file of JSON lines."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {file}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {error}") from error
    seen, found = dict[str, None](), None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _row(line, f"{file}:{number}")
        if "step_s" not in row:
            continue
        seen[f"{row.get('benchmark')} {_words(row.get('arguments') or {})}".strip()] = None
        if row.get("benchmark") == target and (row.get("arguments") or {}) == dict(arguments):
            found = _measured(row, file, number)
    if found is None:
        asked = f"{target} {_words(arguments)}".strip()
        hint = f"it has {', '.join(seen)}" if seen else "expected JSON lines with benchmark, arguments and step_s"
        raise NotFound(f"{file} has no measurement of {asked}", hint=hint)
    return found


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise UsageError(f"{where}: expected an object, found {type(row).__name__}")
    return row


def _measured(row: Mapping[str, Any], file: Path, number: int) -> MeasuredStep:
    counted = [_MOVED] if row.get(_MOVED) is not None else []
    for name in (*_NUMBERS, *counted):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise UsageError(f"{file}:{number}: field {name!r}: expected a number above 0, found {value!r}")
    numbers = {name: float(row[name]) for name in (*_NUMBERS, *counted)}
    return MeasuredStep(gpu=str(row.get("gpu", "")), date=str(row.get("date", "")), source=file.name, **numbers)


def _words(arguments: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(arguments.items()))


def _between(low_s: float, high_s: float) -> str:
    return f"{format_duration(low_s)} to {format_duration(high_s)}"
