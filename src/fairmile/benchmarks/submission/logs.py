"""MLPerf's log of a recorded run, with the labels of a submission."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.base.errors import NotFound
from fairmile.base.quick_dataclass import dataclass
from fairmile.meter.mllog import MLLogText, Record, mllog_line, parse_mllog
from fairmile.runs.exchange import folder_of
from fairmile.runs.record.layout import work_folder
from fairmile.runs.record.run import Run
from fairmile.runs.runs import Runs

_MARK = ":::MLLOG"
_SUFFIXES = (".txt", ".log", ".out")
_LARGEST_BYTES = 64 << 20
_KEY = re.compile(r'"key":\s*"([^"]*)"')


@dataclass(frozen=True)
class RunLog:
    """The log of a run as its program wrote it; `source` is the file, empty where there is none."""

    run: Run
    source: str
    text: str
    parsed: MLLogText

    def values(self, key: str) -> list[Any]:
        """Return every value logged under a key."""
        return [record.value for record in self.parsed.records if record.key == key]

    def value(self, key: str) -> Any:
        """Return the first value logged under a key; None where there is none."""
        return next(iter(self.values(key)), None)

    @property
    def duration_s(self) -> float | None:
        """The time from `run_start` to `run_stop`; None where the log lacks one of them."""
        starts, stops = self._times("run_start"), self._times("run_stop")
        return (max(stops) - min(starts)) / 1000 if starts and stops else None

    def _times(self, key: str) -> list[float]:
        return [record.time_ms for record in self.parsed.records if record.key == key]

    @property
    def first(self) -> Record | None:
        """The first line of the log."""
        return next(iter(self.parsed.records), None)


def read_log_of(runs: Runs, run: Run) -> RunLog:
    """Return MLPerf's log of a run: an output file that holds one, else the printed output."""
    names = [
        name for name, file in run.outputs.items() if name.endswith(_SUFFIXES) and file.size_bytes <= _LARGEST_BYTES
    ]
    for name in sorted(names, key=lambda each: ("mllog" not in each, each)):
        text = _output_text(runs, run, name)
        if _MARK in text:
            return RunLog(run, name, text, parse_mllog(text.splitlines()))
    printed = runs.output(run.id).decode(errors="replace")
    return RunLog(run, "output.log" if _MARK in printed else "", printed, parse_mllog(printed.splitlines()))


def _output_text(runs: Runs, run: Run, name: str) -> str:
    with folder_of(run) as folder, tempfile.TemporaryDirectory(prefix="fairmile-log-") as scratch:
        place = work_folder(folder, run.record.spec) / name
        if not place.is_file():
            place = Path(scratch) / "log"
            try:
                runs.bring_output(run, name, place)
            except NotFound:
                return ""
        return place.read_text(encoding="utf-8", errors="replace")


def labelled_text(log: RunLog, labels: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the text of a log with these values for these keys, and the keys that were changed or added."""
    changed: dict[str, None] = {}
    lines: list[str] = []
    for line in log.text.splitlines():
        key = _KEY.search(line) if _MARK in line else None
        if key is not None and key[1] in labels:
            line = _with_value(line, key[1], labels[key[1]], changed)
        lines.append(line)
    absent = [key for key in labels if not log.values(key)]
    if absent and log.first is not None:
        at = log.first.line - 1
        added = [mllog_line("POINT_IN_TIME", key, labels[key], time_ms=int(log.first.time_ms)) for key in absent]
        lines[at:at] = added
    return "\n".join(lines) + "\n", [*changed, *absent]


def _with_value(line: str, key: str, value: Any, changed: dict[str, None]) -> str:
    start, mark, text = line.partition(_MARK)
    try:
        entry = json.loads(text)
    except ValueError:  # a damaged line is reported, not repaired
        return line
    if entry.get("value") == value:
        return line
    changed[key] = None
    return f"{start}{mark} {json.dumps({**entry, 'value': value})}"


def same_seeds(logs: Sequence[RunLog]) -> dict[str, str]:
    """Return the runs that logged the seed of an earlier one, each with that earlier run."""
    first: dict[str, str] = {}
    repeats: dict[str, str] = {}
    for log in logs:
        seed = log.value("seed")
        if seed is None:
            continue
        if str(seed) in first:
            repeats[log.run.id] = first[str(seed)]
        first.setdefault(str(seed), log.run.id)
    return repeats
