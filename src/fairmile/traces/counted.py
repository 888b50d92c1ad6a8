"""Recordings with counters: what their kernels moved in each step, beside what their operators have to move."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmile.base.errors import Integrity, Unsupported
from fairmile.runs.record.layout import RECORDING
from fairmile.traces.achieved import OperatorWork, device_of_names
from fairmile.traces.analyze import TraceAnalysis
from fairmile.traces.counters import FILE, KernelCount, Traffic, read_counts, traffic

_NOT_TIMED = "ncu held up each kernel: times and findings need a recording without --counters"


def is_counted(folder: Path) -> bool:
    """Tell whether a folder is a recording with counters."""
    return (folder / FILE).exists() and (folder / RECORDING).exists()


def traffic_of(folders: Sequence[Path], operators: Sequence[OperatorWork]) -> Traffic:
    """Return what the recordings counted; Unsupported says why they counted nothing."""
    counts: list[KernelCount] = []
    reasons: list[str] = []
    windows: list[dict[str, Any]] = []
    for folder in folders:
        more, reason = read_counts(folder / FILE)
        counts += more
        reasons += [reason] if reason else []
        windows += _windows(folder / RECORDING)
    if not counts:
        raise Unsupported(f"{folders[0]} has no counters: {reasons[0]}")
    devices = {str(each["device"]) for each in windows if each.get("device")}
    known = device_of_names(devices)
    steps = sum(each["last_step"] - each["first_step"] + 1 for each in windows if each["first_step"] is not None)
    return traffic(
        counts,
        steps=steps,
        device=", ".join(sorted(devices)),
        peak_bytes_per_s=known.bandwidth_bytes_per_s if known else None,
        model_bytes=float(sum(each.bytes * each.calls for each in operators)) if operators else None,
    )


def without_times(analysis: TraceAnalysis, counted: Traffic) -> TraceAnalysis:
    """Return an analysis without what its times would say of the program: they were taken under ncu."""
    operators = tuple(replace(each, seconds=0.0, flops_per_s=0.0, of_roof=None) for each in analysis.operators)
    notes = (_NOT_TIMED, *analysis.notes)
    return replace(analysis, traffic=counted, is_timed=False, findings=(), operators=operators, notes=notes)


def _windows(file: Path) -> list[dict[str, Any]]:
    try:
        windows = [each for each in json.loads(file.read_bytes())["processes"] if each["file"]]
        for each in windows:
            int(each["first_step"] or 0), int(each["last_step"] or 0)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Integrity(f"{file} is not what trace record writes: {type(error).__name__} {error}") from error
    return windows
