"""What the step of a benchmark is expected to need and to do, kept so that it is traced once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmile.base.digest import sha256_hex
from fairmile.base.files import write_atomic
from fairmile.base.version import __version__
from fairmile.perf.compute.devices import device
from fairmile.perf.compute.step_time import step_time
from fairmile.perf.memory.account import account
from fairmile.perf.memory.footprints import batch_of
from fairmile.perf.tracing.trace import TraceRequest, trace_target


@dataclass(frozen=True)
class Foreseen:
    """A step on one GPU: its peak of allocated memory and its time with what bounds them, and time by operator kind."""

    gpu: str
    batch: int
    peak_bytes: tuple[int, int, int]  # expected, least, most
    step_s: tuple[float, float, float]
    by_kind: Mapping[str, float]

    @property
    def samples_per_s(self) -> tuple[float, float, float]:
        """Expected, least and most."""
        expected, least, most = self.step_s
        return self.batch / expected, self.batch / most, self.batch / least


def foresee(file: Path, params: Mapping[str, Any], gpu: str, cache: Path) -> Foreseen:
    """Return what the step that `file` builds is expected to do; what was found before is read from `cache`."""
    on = device(gpu)
    asked = json.dumps([__version__, str(file), dict(params), on.slug], sort_keys=True).encode()
    kept = cache / f"{sha256_hex(asked + file.read_bytes())[:32]}.json"
    try:
        said = json.loads(kept.read_bytes())
        return Foreseen(said["gpu"], said["batch"], tuple(said["peak_bytes"]), tuple(said["step_s"]), said["by_kind"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there yet, or something else wrote it
    folder = cache / f"{kept.stem}.tracing"
    folder.mkdir(parents=True, exist_ok=True)
    trace = trace_target(TraceRequest(str(file), arguments=dict(params)), folder=folder)
    taken, step = account(trace, on), step_time(trace, on)
    spans = taken.allocated_span
    found = Foreseen(
        on.slug,
        batch_of(trace),
        (taken.peak_allocated_bytes, spans.low, spans.high),
        (step.step_time_s, step.low_s, step.high_s),
        dict(step.by_kind),
    )
    write_atomic(kept, json.dumps(found.__dict__))
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    return found
