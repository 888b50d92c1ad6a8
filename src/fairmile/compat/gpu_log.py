"""Reads the logs of cloudmesh-gpu (`cms gpu watch`), of all its versions, as samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fairmile.base.errors import InvalidDocument, NotFound, Problem, SystemFailure
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.lines import Channel, Column, Samples, Writer

# Its column, ours, and what to multiply with.
_COLUMNS = {
    "gpu_util": ("utilisation", "%", 1.0),
    "memory_util": ("memory_utilisation", "%", 1.0),
    "encoder_util": ("encoder_utilisation", "%", 1.0),
    "decoder_util": ("decoder_utilisation", "%", 1.0),
    "gpu_temp": ("temperature", "°C", 1.0),
    "power_draw": ("power", "W", 1.0),
    "vram_mem_used": ("memory", "bytes", float(1 << 20)),
    "vram_mem_total": ("memory_total", "bytes", float(1 << 20)),
}
_HEADING = re.compile(r"(\d+) (\w+)(?: (\S+))?")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[:T ](\d\d:\d\d:\d\d(?:\.\d{1,6})?)")
_NUMBER = re.compile(r"\s*(-?\d+(?:\.\d*)?)\s*[A-Za-z%]*\s*")
_POWER_ERROR = "±5 % (NVML reference, for Fermi and Kepler); written by nvidia-smi through cloudmesh-gpu"
_ERROR = "written by nvidia-smi through cloudmesh-gpu"


@dataclass(frozen=True, slots=True)
class GpuLog:
    """What a log holds; `damaged` counts lines that could not be read."""

    samples: Samples
    damaged: int = 0


def recognises(text: str) -> bool:
    """Tell whether a file that begins so is a log of cloudmesh-gpu."""
    return any(_headings(line) is not None for line in text.splitlines()[:10])


def read(path: Path) -> GpuLog:
    """Read a log; its times, which name no zone, are taken as UTC."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except OSError as error:
        raise SystemFailure(f"cannot read {path}: {error.strerror}") from error
    headings: list[str] | None = None
    places: list[int] = []
    columns: list[Column] = []
    samples: Samples | None = None
    factors: list[float] = []
    damaged = 0
    for line in lines:
        names = _headings(line)
        if names is not None:
            if headings is None:
                headings = names
                places, channels, factors = _columns(headings)
                columns = [Column() for _ in channels]
                samples = Samples(tuple(channels), Writer("", 0, None, 0, 0), columns=columns)
            elif names != headings:
                damaged += 1  # another set of GPUs from here on: its columns would be read wrongly
                break
            continue
        if not line.strip(" #\t"):
            continue
        values = _values(line, len(headings or ()), places, factors)
        if samples is None or values is None:
            damaged += 1
            continue
        samples.at_ns.append(values[0])
        for column, value in zip(columns, values[1], strict=True):
            column.append(value)
    if samples is None:
        raise InvalidDocument(
            [Problem("it has no column header of a cloudmesh-gpu log ('time, 0 id, 0 gpu_util %, …')", file=str(path))]
        )
    return GpuLog(samples, damaged)


def _headings(line: str) -> list[str] | None:
    fields = [field.strip() for field in line.lstrip("# ").rstrip(", \t").split(",")]
    return fields if len(fields) > 1 and fields[0] == "time" and _HEADING.fullmatch(fields[1]) else None


def _columns(headings: Sequence[str]) -> tuple[list[int], list[Channel], list[float]]:
    places, channels, factors = [], [], []
    for place, heading in enumerate(headings):
        match = _HEADING.fullmatch(heading)
        if match is None or match[2] not in _COLUMNS:
            continue
        what, unit, factor = _COLUMNS[match[2]]
        error = _POWER_ERROR if what == "power" else _ERROR
        places.append(place)
        factors.append(factor)
        channels.append(Channel(f"gpu{match[1]}.{what}", unit, "gauge", "nvidia-smi", f"device {match[1]}", error))
    return places, channels, factors


def _values(
    line: str, width: int, places: Sequence[int], factors: Sequence[float]
) -> tuple[int, list[float | None]] | None:
    """Return the time and the values of a line, None where it is no line of values."""
    fields = line.split(",")
    at = _TIME.fullmatch(fields[0].strip())
    if at is None or len(fields) != width:
        return None
    try:
        moment = datetime.fromisoformat(f"{at[1]}T{at[2]}").replace(tzinfo=UTC)
    except ValueError:
        return None
    seconds = int(moment.replace(microsecond=0).timestamp())
    scaled = [(_value(fields[place]), factor) for place, factor in zip(places, factors, strict=True)]
    values = [None if value is None else value * factor for value, factor in scaled]
    return seconds * 1_000_000_000 + moment.microsecond * 1000, values


def _value(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:  # "1024 MiB"; for "N/A" and the like the reading failed
        number = _NUMBER.fullmatch(text)
        return float(number[1]) if number else None
    return value if -float("inf") < value < float("inf") else None
