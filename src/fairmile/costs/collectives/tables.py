"""Measured times of collectives: our own files, and the text that nccl-tests and the OSU benchmarks print."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fairmile.base.errors import FairmileError, UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.strict_json import load_json
from fairmile.costs.collectives.formulas import collective_name

FORMAT = 1
_OSU = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "bcast": "broadcast",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "barrier": "barrier",
    "": "point_to_point",
}
_PER_PEER = ("all_gather", "all_to_all")  # whose size OSU states for one other rank, not for the whole buffer
_OSU_TITLE = re.compile(r"#\s*OSU\s+MPI(?:-\w+)?\s*(?:(\w+)\s+)?Latency Test", re.IGNORECASE)
_NCCL_NAME = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall|sendrecv)_perf\b")
_NCCL_RANK = re.compile(r"#\s+Rank\s+(\d+)\b(?:.*?\bon\s+(\S+)\s+device\b)?")


@dataclass(frozen=True)
class MeasuredPoint:
    """One measured time: that of the slowest rank, the median over repeats where there were several."""

    collective: str
    size_bytes: float
    ranks: int
    time_s: float
    nodes: int = 1

    def document(self) -> dict[str, Any]:
        """Return it as JSON can say it."""
        return asdict(self)


def parse_points(
    text: str, *, ranks: int | None = None, collective: str = "", file: str = "the text"
) -> tuple[MeasuredPoint, ...]:
    """Return the measured times of a text, whatever printed it."""
    if text.lstrip().startswith("{"):
        points = _own(text, file)
    elif "OSU" in text:
        points = _osu(text, ranks, file)
    else:
        points = _nccl_tests(text, ranks, collective, file)
    if not points:
        raise UsageError(
            f"{file} contains no measured times",
            hint="expected the output of nccl-tests, of an OSU latency test, or of `fairmile benchmark collectives`",
        )
    return tuple(points)


def _own(text: str, file: str) -> list[MeasuredPoint]:
    document = load_json(text, file=file)
    rows = document.get("points")
    if document.get("format") != FORMAT or not isinstance(rows, list):
        raise UsageError(f"{file}: expected `format` {FORMAT} and a list `points`")
    return [_point(row, f"{file}: points[{number}]") for number, row in enumerate(rows)]


def _point(row: Any, where: str) -> MeasuredPoint:
    try:
        point = MeasuredPoint(
            collective_name(row["collective"]),
            float(row["size_bytes"]),
            int(row["ranks"]),
            float(row["time_s"]),
            int(row.get("nodes", 1)),
        )
    except FairmileError as error:
        raise UsageError(f"{where}: {error}", hint=error.hint) from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: {row!r} lacks collective, size_bytes, ranks or time_s") from error
    return checked(point, where)


def checked(point: MeasuredPoint, where: str) -> MeasuredPoint:
    """Return the point, or say what cannot be true of it."""
    if not (math.isfinite(point.time_s) and point.time_s > 0 and point.size_bytes >= 0 and point.ranks >= 1):
        raise UsageError(
            f"{where}: invalid measurement: {point.size_bytes:g} bytes, {point.ranks} ranks, {point.time_s!r} s"
        )
    return point


def _osu(text: str, ranks: int | None, file: str) -> list[MeasuredPoint]:
    points: list[MeasuredPoint] = []
    name: str | None = None
    for line in text.splitlines():
        title = _OSU_TITLE.search(line)
        if title:
            name = _OSU.get((title[1] or "").lower())
            continue
        words = line.split()
        if name is None or not words or words[0].startswith("#"):
            continue
        numbers = _numbers(words)
        if numbers is None:
            continue
        count = 2 if name == "point_to_point" else ranks
        if count is None:
            raise UsageError(f"{file} does not say how many ranks took part", hint="pass the number of ranks")
        if name == "barrier":
            points.append(checked(MeasuredPoint(name, 0.0, count, numbers[0] * 1e-6), file))
        elif len(numbers) >= 2:
            size = numbers[0] * (count if name in _PER_PEER else 1)
            points.append(checked(MeasuredPoint(name, size, count, numbers[1] * 1e-6), file))
    return points


def _nccl_tests(text: str, ranks: int | None, collective: str, file: str) -> list[MeasuredPoint]:
    header: Sequence[str] = ()
    seen: set[int] = set()
    hosts: set[str] = set()
    points: list[MeasuredPoint] = []
    named = _NCCL_NAME.search(text)
    name = collective or (named[1] if named else "")
    for line in text.splitlines():
        rank = _NCCL_RANK.match(line)
        if rank:
            seen.add(int(rank[1]))
            hosts.add(rank[2] or "")
        words = line.lstrip("# ").split()
        if line.startswith("#"):
            if {"size", "time", "busbw"} <= set(words):
                header = words
            continue
        if not header or len(words) <= header.index("time") or not words[0].isdigit():
            continue
        count = ranks or len(seen)
        if not name or not count:
            missing = "which collective it measured" if not name else "how many ranks took part"
            raise UsageError(f"{file} does not say {missing}", hint="pass it as an argument")
        time_us = _numbers([words[header.index("time")]])
        if time_us is not None and time_us[0] > 0:
            plain = "point_to_point" if name == "sendrecv" else collective_name(name)
            points.append(MeasuredPoint(plain, float(words[0]), count, time_us[0] * 1e-6, max(1, len(hosts))))
    return points


def _numbers(words: Sequence[str]) -> list[float] | None:
    try:
        return [float(word) for word in words]
    except ValueError:
        return None
