"""Runs of our own making, by the hundred: documents as a recorder writes them, folders with events and output."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmile.runs.record.layout import OUTPUT, RECORD
from fairmile.runs.record.record import RunRecord
from fairmile.runs.record.run import Run

CREATED = 1_794_890_000.0
_NS = 1_000_000_000
_OWN = ("elapsed_s", "energy_j", "max_rss_bytes")
_BETTER = {"loss": "lower", "error": "lower", "accuracy": "higher"}


def run_document(
    id: str = "train-k3x9qa",
    *,
    name: str = "train",
    state: str = "done",
    metrics: Mapping[str, Any] | None = None,
    elapsed_s: float = 12.5,
    energy_j: float | None = 1234.5,
    max_rss_bytes: int = 3 << 30,
    params: Mapping[str, Any] | None = None,
    group: str = "",
    tags: Sequence[str] = (),
    system: str = "",
    host: str = "n1",
    identity: str = "a" * 64,
    commit: str = "0123456789abcdef0123456789abcdef01234567",
    lock: Sequence[str] = ("numpy==2.1.0", "torch==2.4.0"),
    inputs: Mapping[str, str] | None = None,
    prediction: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    captured: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    created: float = CREATED,
) -> dict[str, Any]:
    """Return the document of a run; a metric is a number (its last value) or the mapping that stands in run.json."""
    asked: dict[str, Any] = {"name": name, "argv": ["python", "train.py"], "params": dict(params or {})}
    asked |= {key: value for key, value in {"group": group, "tags": list(tags), "system": system}.items() if value}
    found = {
        "code": {
            "git": {"root": "/home/a/p", "commit": commit, "branch": "main", "remote": "", "dirty": False},
            "files": [{"name": "train.py", "path": "/home/a/p/train.py", "sha256": "b" * 64, "size_bytes": 812}],
        },
        "inputs": {
            key: {"path": f"/data/{key}", "asset": "", "sha256": digest, "size_bytes": 1234, "files": 1}
            for key, digest in (inputs if inputs is not None else {"data": "c" * 64}).items()
        },
        "environment": {"name": "", "digest": "", "python": "3.11.7", "lock": list(lock)},
        "hardware": {
            "host": host,
            "cpu": {"model": "Neoverse-N1", "cores": 2, "threads": 2, "sockets": 1, "numa_nodes": 1},
            "memory_bytes": 8 << 30,
            "gpus": [{"model": "NVIDIA H200", "memory_bytes": 139 << 30, "uuid": "GPU-1", "driver": "570.1"}],
            "interconnect": ["mlx5_0 InfiniBand 200 Gb/s"],
            "storage": {"/data": {"type": "ext4", "size_bytes": 100 << 30, "free_bytes": 50 << 30}},
        },
        "software": {"os": "Debian 12", "kernel": "6.1", "machine": "aarch64", "fairmile": "0.2", "libc": "glibc 2.36"},
        "scheduler": {},
        "variables": {"OMP_NUM_THREADS": "2"},
    }
    ended: dict[str, Any] | None = None
    if state not in ("queued", "running"):
        ended = _result(state, metrics or {}, elapsed_s, energy_j, max_rss_bytes, created) | dict(result or {})
    return {
        "format": "fairmile-run/1",
        "id": id,
        "created": created,
        "identity": identity,
        "spec": asked | dict(spec or {}),
        "captured": found | dict(captured or {}),
        "prediction": dict(prediction or {}),
        "attempts": [{"started": created + 0.1, "host": host, "pid": 4711}],
        "job": None,
        "state": state,
        "result": ended,
    }


def _result(
    state: str, metrics: Mapping[str, Any], elapsed_s: float, energy_j: float | None, max_rss_bytes: int, created: float
) -> dict[str, Any]:
    part = {
        "joules": energy_j,
        "method": "power samples",
        "channel": "gpu0.power",
        "source": "nvml",
        "scope": "device 0 (NVIDIA H200)",
        "error": "±5 % says the vendor",
    }
    return {
        "state": state,
        "exit_code": 0 if state == "done" else 1,
        "signal": "",
        "reason": "" if state == "done" else "the program ended with exit code 1",
        "hint": "",
        "started": created + 0.2,
        "ended": created + 0.2 + elapsed_s,
        "elapsed_s": elapsed_s,
        "usage": {"cpu_s": elapsed_s * 0.9, "max_rss_bytes": max_rss_bytes, "read_bytes": 1 << 20, "written_bytes": 99},
        "metrics": {name: metric_document(value) for name, value in metrics.items()},
        "spans": {},
        "energy": {
            "total_j": energy_j,
            "parts": [] if energy_j is None else [part],
            "missing": {"rapl": "no powercap on this machine"},
        },
        "outputs": {"model.pt": {"sha256": "d" * 64, "size_bytes": 4321}},
        "damaged_lines": 0,
    }


def metric_document(value: Any, *, unit: str = "", better: str = "", tolerance: float | None = None) -> dict[str, Any]:
    """Return a metric as it stands in run.json: a number or the text "NaN" becomes one that was logged once."""
    if isinstance(value, Mapping):
        return metric_document(value["value"]) | dict(value)
    said = dict.fromkeys(("value", "first", "min", "max", "mean"), value)
    return said | {"count": 1, "unit": unit, "better": better, "tolerance": tolerance}


def make_run(
    folder: Path, id: str = "train-k3x9qa", *, events: Iterable[Mapping[str, Any]] = (), output: str = "", **said: Any
) -> Run:
    """Write the folder `folder/id` of a run and return the run."""
    document = run_document(id, **said)
    place = folder / id
    place.mkdir(parents=True)
    (place / RECORD).write_text(json.dumps(document))
    lines = "".join(json.dumps(each) + "\n" for each in events)
    if lines:
        (place / "events.jsonl").write_text(lines)
    if output:
        (place / OUTPUT).write_text(output)
    return Run(RunRecord.from_dict(document), place)


def repeats(folder: Path, name: str, values: Mapping[str, Sequence[Any]], **said: Any) -> list[Run]:
    """Return runs of one group, the first with the first value of each metric, and so on.

    The names `elapsed_s`, `energy_j` and `max_rss_bytes` set what the record itself says.
    """
    runs = []
    for at in range(len(next(iter(values.values())))):
        logged = {
            key: metric_document(each[at], better=_BETTER.get(key, ""))
            for key, each in values.items()
            if key not in _OWN
        }
        numbers = {key: values[key][at] for key in _OWN if key in values}
        made = {"group": name, "name": name, "created": CREATED + at, **said, **numbers}
        runs.append(make_run(folder, f"{name}-{at:06d}", metrics=logged, **made))
    return runs


def training_events(
    *, epochs: int = 8, epoch_s: float = 3.0, final: float = 0.1, period_s: float = 0.25, power_w: float = 300.0
) -> list[dict[str, Any]]:
    """Return the lines of a training: phases load, epoch and validate, loss and error, the power of one GPU."""
    wall = int(CREATED * _NS)
    head = {"writer": {"host": "n1", "rank": 0, "wall_ns": wall, "clock_ns": 0}, "p": 4711}
    lines: list[dict[str, Any]] = [head]
    load_s, check_s = 2.0, 0.5
    lines.append({"spans": "load", "at": [0, int(load_s * _NS)], "thread": 1, "p": 4711})
    at_s, busy = load_s, []
    for epoch in range(epochs):
        took_s = epoch_s * (1 + 0.1 * math.sin(epoch))
        start, end = int(at_s * _NS), int((at_s + took_s) * _NS)
        lines.append({"spans": "epoch", "at": [start, end - start], "thread": 1, "p": 4711, "with": {"n": epoch}})
        busy.append((at_s, at_s + took_s))
        at_s += took_s
        lines.append({"spans": "validate", "at": [end, int(check_s * _NS)], "thread": 1, "p": 4711})
        at_s += check_s
        loss = final + (2.3 - final) * math.exp(-epoch / 2)
        logged = {"loss": loss, "error": loss * 0.3, "accuracy": 1 - loss * 0.3}
        lines.append({"log": logged, "step": epoch, "at": int(at_s * _NS), "p": 4711})
    channels = [
        {"name": "gpu0.power", "unit": "W", "source": "nvml", "scope": "device 0 (NVIDIA H200)", "error": "±5 %"},
        {"name": "host.cpu", "unit": "%", "source": "procfs", "scope": "node"},
    ]
    lines.append({"channels": channels, "watch": "4711-1", "p": 4711})
    for step in range(int(at_s / period_s) + 1):
        now = step * period_s
        watts = power_w if any(start <= now < end for start, end in busy) else power_w / 4
        lines.append({"sample": [watts + 10 * math.sin(now), 50.0], "at": int(now * _NS), "watch": "4711-1", "p": 4711})
    return lines
