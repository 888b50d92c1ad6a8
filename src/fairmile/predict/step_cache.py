"""What the step of a benchmark is expected to need and to do, kept so that it is traced once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import FairmileError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.version import __version__
from fairmile.costs.devices import Device
from fairmile.predict.fake_device.request import TraceRequest, trace_target
from fairmile.predict.measured import MeasuredTimes
from fairmile.predict.memory.account import account
from fairmile.predict.memory.footprints import batch_of
from fairmile.predict.step_time import step_time

_LONGEST_S = 600.0


@dataclass(frozen=True)
class StepForecast:
    """A step on one GPU: its peak of allocated memory and its time with what bounds them, and time by operator kind.

    `usable_bytes` is what the GPU has for it: its memory without what CUDA and its libraries take.
    """

    gpu: str
    batch: int
    peak_bytes: tuple[int, int, int]  # expected, least, most
    step_s: tuple[float, float, float]
    by_kind: Mapping[str, float]
    usable_bytes: int

    @property
    def samples_per_s(self) -> tuple[float, float, float]:
        """Expected, least and most."""
        expected, least, most = self.step_s
        return self.batch / expected, self.batch / most, self.batch / least


def foresee(
    file: Path, params: Mapping[str, Any], on: Device, cache: Path, measured: MeasuredTimes | None
) -> StepForecast:
    """Return what the step that `file` builds is expected to do; what was found before is read from `cache`.

    It is traced again when a Python file beside it has changed, or what was `measured`; without that the table that
    comes along tells the time.
    """
    known = measured.digest(on) if measured is not None else ""
    asked = json.dumps([__version__, str(file), dict(params), on.slug, known], sort_keys=True).encode()
    code = b"".join(each.read_bytes() for each in sorted(file.parent.glob("*.py")) if each.is_file())
    kept = cache / f"{sha256_hex(asked + code)[:32]}.json"
    try:
        document = json.loads(kept.read_bytes())
        (peak, low, high), (step_s, low_s, high_s) = document["peak_bytes"], document["step_s"]
        numbers = (peak, low, high), (step_s, low_s, high_s)
        return StepForecast(document["gpu"], document["batch"], *numbers, document["by_kind"], document["usable_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there yet, or something else wrote it
    with tempfile.TemporaryDirectory(prefix="fairmile-trace-") as folder:
        request = TraceRequest(str(file), arguments=dict(params))
        trace = trace_target(request, timeout_s=_LONGEST_S, folder=Path(folder))
    taken, step = account(trace, on), step_time(trace, on) if measured is None else measured.step_time(trace, on)
    spans = taken.allocated_span
    forecast = StepForecast(
        on.slug,
        batch_of(trace),
        (taken.peak_allocated_bytes, spans.low, spans.high),
        (step.step_time_s, step.low_s, step.high_s),
        dict(step.by_kind),
        max(0, taken.device_bytes - taken.context_bytes),
    )
    with suppress(FairmileError):  # what cannot be kept is traced again
        write_atomic(kept, json.dumps(asdict(forecast)))
    return forecast
