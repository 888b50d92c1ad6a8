"""Measure operators on a device, one after the other, so that steps made of them can be predicted without it.

`python -m fairmile.costs.operators.calibrate SIGNATURES OUT [--for 120s] [--device cuda]` measures what a list (or a
trace) names and writes a table. It needs torch and nothing else that is not in Python, goes on where an earlier call
stopped, and survives operators that break the device.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from fairmile.base.errors import FairmileError, MissingExtra, RunFailed
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.results import Result
from fairmile.base.units import parse_duration
from fairmile.costs.operators.calls import Call, bind
from fairmile.costs.operators.grid import generic_candidates
from fairmile.costs.operators.samples import returned
from fairmile.costs.operators.signatures import (
    Candidate,
    by_signature,
    candidates_of,
    read_candidates,
    signature,
    write_candidates,
    write_tensors,
)
from fairmile.costs.operators.table import OperatorTiming, TableOrigin, append_rows, read_rows, write_table
from fairmile.costs.operators.work import kind_of, work_of
from fairmile.costs.steps import Op, read_trace

GRID = "grid"
# What torch raises where it cannot make a call.
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError, IndexError, KeyError)
_MOST_BYTES = 60_000_000_000
_FLUSH_BYTES = 256_000_000
_COLD_BYTES = (500_000, 150_000_000)  # below it a call is all latency, above it no cache holds it anyway
_TARGET_S = 0.002
_CYCLES_PER_S = 2.0e9
_MANY_S = 300e-6  # a call that takes the host longer starts many kernels, more than a device's queue may hold


class CalibratedDict(TypedDict):
    """`Calibrated` as JSON holds it."""

    rows: int
    measured: int
    failed: int
    left: int


@dataclass(frozen=True, repr=False)
class Calibrated(Result):
    """What a calibration came to: rows in the table now, of them measured in this call, failed, and not reached."""

    rows: int
    measured: int
    failed: int
    left: int

    def to_dict(self) -> CalibratedDict:
        return {"rows": self.rows, "measured": self.measured, "failed": self.failed, "left": self.left}

    def summary(self) -> str:
        return f"{self.rows:,} operators, {self.measured:,} new, {self.failed:,} failed, {self.left:,} not reached"


def calibrate(
    candidates: Iterable[Candidate],
    out: Path,
    *,
    for_s: float = 120.0,
    since: float | None = None,
    device: str = "cuda",
    restarts: int = 20,
) -> Calibrated:
    """Measure each candidate that `out` lacks, in order, until the time is over, and write the table to `out`.

    The time runs from the call on, or `since` an earlier moment of `time.monotonic`, but half of it is kept for the
    process that measures.
    The work is done in a child process, which is started again without the operator that broke it.
    """
    begun = time.monotonic() if since is None else since
    _torch()  # where it is missing nothing is begun
    wanted = by_signature(candidates)
    part, now, todo = (out.with_name(out.name + suffix) for suffix in (".part", ".now", ".todo.gz"))
    out.parent.mkdir(parents=True, exist_ok=True)
    before = _known(out, part)
    write_candidates([each for text, each in wanted.items() if text not in before], todo)
    first = len(before)
    end = time_left_s(for_s, since=begun) + time.monotonic()
    for _ in range(restarts + 1):
        left_s = end - time.monotonic()
        if left_s <= 0:
            break
        command = [sys.executable, "-P", "-m", __spec__.name, str(todo), str(part), "--for", f"{left_s:.1f}s"]
        done = subprocess.run([*command, "--device", device, "--worker"], check=False)
        if done.returncode == 0:
            break
        if not now.exists():
            raise RunFailed(
                f"the calibration of {device} did not start (exit code {done.returncode})",
                hint="its messages are above",
            )
        broken, _, outputs = now.read_text().partition("\n")
        if broken not in _known(part):
            append_rows(part, [OperatorTiming(broken, outputs, (), problem=f"ended the process ({done.returncode})")])
        now.unlink()
    rows = _known(out, part)
    origins = {text: each.origins for text, each in wanted.items()}
    final = [_with_origins(row, origins.get(row.signature, ())) for row in rows.values()]
    write_table(out, final, _about(device))
    for each in (part, now, todo):
        each.unlink(missing_ok=True)
    failed = sum(bool(each.problem) for each in final)
    return Calibrated(len(final), len(final) - first, failed, len(wanted) - len(set(origins) & set(rows)))


def time_left_s(for_s: float, *, since: float) -> float:
    """Return what is left of a time that began `since`; half of it is kept for what it is meant for."""
    return max(for_s - (time.monotonic() - since), for_s / 2)


def _known(*paths: Path) -> dict[str, OperatorTiming]:
    timings: dict[str, OperatorTiming] = {}
    for path in paths:
        if path.exists():
            timings.update((row.signature, row) for row in read_rows(path)[1])
    return timings


def _with_origins(row: OperatorTiming, origins: Sequence[str]) -> OperatorTiming:
    return row._replace(origins=tuple(dict.fromkeys((*row.origins, *origins))))


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("calibration needs torch", "predict") from error
    return torch


def _about(device: str) -> TableOrigin:
    torch = _torch()
    today = time.strftime("%Y-%m-%d", time.gmtime())
    if device == "cpu":
        return TableOrigin("cpu", "", torch.__version__, today)
    at = torch.cuda.get_device_name(torch.device(device))
    return TableOrigin(at, _driver(), torch.__version__, today)


def _driver() -> str:
    try:
        result = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip().splitlines()[0] if result.returncode == 0 and result.stdout.strip() else ""


# ---- the child process


def measure(candidates: Sequence[Candidate], part: Path, *, for_s: float, device: str) -> int:
    """Measure candidates in this process, a row appended for each, and return how many; `part` may hold some."""
    torch = _torch()
    torch.manual_seed(0)
    clock = _Cpu() if device == "cpu" else _Cuda(torch, device)
    end = float("inf")
    known = _known(part)
    now = part.with_suffix(".now")
    rows: list[OperatorTiming] = []
    count, saved = 0, time.monotonic()
    for each in candidates:
        text = signature(each.op)
        if text in known:
            continue
        if time.monotonic() > end:
            break
        op = _with_outputs(each.op)
        outputs = write_tensors(op.outputs)
        now.write_text(f"{text}\n{outputs}")
        rows.append(_row(torch, Candidate(op, each.origins), text, outputs, clock, device))
        if count == 0:  # the time begins here: torch loads much with its first call, which may take many seconds
            end = time.monotonic() + for_s
        count += 1
        is_broken = "CUDA error" in rows[-1].problem
        if is_broken or time.monotonic() - saved > 2:
            append_rows(part, rows)
            rows, saved = [], time.monotonic()
        if is_broken:
            os._exit(3)  # nothing works after a broken kernel; the parent starts anew
    append_rows(part, rows)
    now.unlink(missing_ok=True)
    return count


def _with_outputs(op: Op) -> Op:
    """Return a call with what it returns, where a list leaves that out and torch can tell."""
    try:
        return op if op.outputs else replace(op, outputs=returned(op))
    except _REFUSALS:
        return op


def _row(torch: Any, each: Candidate, text: str, outputs: str, clock: _Clock, device: str) -> OperatorTiming:
    kind = kind_of(each.op)
    if kind == "wait":
        return OperatorTiming(text, outputs, each.origins, problem="waits for the device")
    work = work_of(each.op)
    if work.bytes > _MOST_BYTES:
        return OperatorTiming(text, outputs, each.origins, problem="too large for the device's memory")
    try:
        with torch.no_grad():
            call = bind(each.op, device)
            if kind == "view":
                return OperatorTiming(text, outputs, each.origins, 0.0, 0.0, clock.host_us(call))
            return clock.row(call, text, outputs, each.origins, work.bytes)
    except _REFUSALS as error:
        if device != "cpu" and "out of memory" in str(error):
            torch.cuda.empty_cache()
        return OperatorTiming(
            text, outputs, each.origins, problem=f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        )


class _Clock:
    """How calls are timed on one kind of device."""

    def row(self, call: Call, text: str, outputs: str, origins: tuple[str, ...], moved_bytes: int) -> OperatorTiming:
        raise NotImplementedError

    def host_us(self, call: Call) -> float:
        """Return what the host takes for a call that starts nothing on the device."""
        for _ in range(3):
            call()
        start = time.perf_counter()
        for _ in range(50):
            call()
        return (time.perf_counter() - start) / 50 * 1e6


class _Cpu(_Clock):
    def row(self, call: Call, text: str, outputs: str, origins: tuple[str, ...], moved_bytes: int) -> OperatorTiming:
        call()
        once = _seconds(call)
        count = max(1, min(20, int(_TARGET_S / max(once, 1e-7))))
        best = min(_seconds(call, count) / count for _ in range(2))
        return OperatorTiming(text, outputs, origins, best * 1e6, best * 1e6, best * 1e6)


def _seconds(call: Callable[[], Any], count: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


class _Cuda(_Clock):
    """Times by events; the device first sleeps so long that the host has queued all calls before they start."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch = torch
        torch.cuda.set_device(torch.device(device if ":" in device else "cuda:0"))
        self.flush = torch.zeros(_FLUSH_BYTES // 4, dtype=torch.float32, device=device)
        self.flush_us = 0.0
        self.flush_us = min(self._queued(lambda: None, 20, 100e-6, flush=True)[0] for _ in range(3))

    def row(self, call: Call, text: str, outputs: str, origins: tuple[str, ...], moved_bytes: int) -> OperatorTiming:
        torch = self.torch
        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        kept = call()
        host_s = time.perf_counter() - start
        torch.cuda.synchronize()
        once_s = time.perf_counter() - start
        workspace = torch.cuda.max_memory_allocated() - max(torch.cuda.memory_allocated(), before)
        del kept
        if host_s > _MANY_S:
            # Behind a device that sleeps the host would wait for room in the queue: its own time is that alone.
            host_s = min(host_s, self._issue_s(call), self._issue_s(call))
            hot_us = min(self._queued(call, 1, host_s)[0] for _ in range(3))
            return OperatorTiming(text, outputs, origins, hot_us, hot_us, host_s * 1e6, workspace)
        count = max(3, min(30, int(_TARGET_S / max(once_s, 1e-6))))
        hot_us, host_us = min(self._queued(call, count, host_s) for _ in range(2 if once_s < 0.003 else 1))
        cold_us = hot_us
        if _COLD_BYTES[0] <= moved_bytes <= _COLD_BYTES[1]:
            times = [self._queued(call, max(4, min(count, 8)), host_s, flush=True)[0] for _ in range(2)]
            cold_us = max(min(times) - self.flush_us, hot_us)
        return OperatorTiming(text, outputs, origins, hot_us, cold_us, host_us, workspace)

    def _issue_s(self, call: Callable[[], Any]) -> float:
        """Return the host's seconds for a call with nothing queued before it."""
        start = time.perf_counter()
        call()
        spent_s = time.perf_counter() - start
        self.torch.cuda.synchronize()
        return spent_s

    def _queued(self, call: Callable[[], Any], count: int, host_s: float, flush: bool = False) -> tuple[float, float]:
        """Return the device's and the host's microseconds per call."""
        torch = self.torch
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        ahead_s = min(count * (host_s + (30e-6 if flush else 5e-6)) * 1.3 + 50e-6, 0.05)
        torch.cuda._sleep(int(ahead_s * _CYCLES_PER_S))
        start.record()
        begun = time.perf_counter()
        for _ in range(count):
            if flush:
                self.flush.max()  # a read of more than the cache holds leaves nothing to be written back
            call()
        host_us = (time.perf_counter() - begun) / count * 1e6
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3 / count, host_us


# ---- the program


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; the exit code is 0 where a table was written."""
    parser = argparse.ArgumentParser(prog="python -m fairmile.costs.operators.calibrate", description=__doc__)
    parser.add_argument("signatures", help=f"list of operators, a trace, or {GRID!r} for the built-in list")
    parser.add_argument("out", type=Path, help="table to write or extend")
    parser.add_argument("--for", dest="for_s", default="120s", help="stop after this time (default: 120s)")
    parser.add_argument("--device", default="cuda", help="device to measure: cuda, cuda:N or cpu (default: cuda)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    for_s = parse_duration(chosen.for_s)
    try:
        candidates = _chosen(chosen.signatures)
        if chosen.worker:
            measure(candidates, chosen.out, for_s=for_s, device=chosen.device)
            return 0
        done = calibrate(candidates, chosen.out, for_s=for_s, device=chosen.device)
    except FairmileError as error:
        print(f"error: {error}" + (f" ({error.hint})" if error.hint else ""), file=sys.stderr)  # noqa: T201
        return error.exit_code
    print(  # noqa: T201
        f"{chosen.out}: {done.rows} operators, {done.measured} of them new, {done.failed} failed, "
        f"{done.left} not reached"
    )
    return 0


def _chosen(name: str) -> list[Candidate]:
    if name == GRID:
        return generic_candidates()
    path = Path(name)
    if path.suffix == ".json":
        return candidates_of(read_trace(path), path.stem)
    return read_candidates(path)


if __name__ == "__main__":
    sys.exit(main())
