"""Small traces as the tools write them, for the tests of their readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000


def kineto_events(rank: int, *, steps: range = range(2), late_us: float = 0.0) -> list[dict[str, Any]]:
    """Return a step of 1000 µs each: an operator, its launch and kernel, a copy, and an all-reduce that ends at 900."""
    host, device = {"pid": 100 + rank, "tid": 100 + rank}, {"pid": rank, "tid": 7}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "ts": 0, **host, "args": {"name": "main"}},
        {"ph": "M", "name": "thread_name", "ts": 0, **device, "args": {"name": "stream 7"}},
    ]
    for number, step in enumerate(steps):
        at = 5_000_000.0 + 1000.0 * step
        id = 10 * number + 1
        about = {
            "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000,
            "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 40 + step,
        }  # fmt: skip
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", **host, "ts": at, "dur": 990.5},
            {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#x", **host, "ts": at + 1, "dur": 10},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", **host, "ts": at + 20, "dur": 30,
             "args": {"Input Dims": [[2, 3], [3, 4]], "Note": {"deep": [{"a": 1}, {"b": "},{"}]}}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": at + 25, "dur": 5,
             "args": {"correlation": id}},
            {"ph": "s", "id": id, "cat": "ac2g", "name": "ac2g", **host, "ts": at + 25},
            {"ph": "X", "cat": "kernel", "name": "gemm", **device, "ts": at + 100, "dur": 200.25,
             "args": {"stream": 7, "correlation": id, "blocks per SM": 0.5}},
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", **device, "ts": at + 400, "dur": 50,
             "args": {"stream": 7, "correlation": id + 1, "bytes": 4096}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "pid": rank, "tid": 20,
             "ts": at + 500 + late_us, "dur": 400 - late_us, "args": {"correlation": id + 2, **about}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", **host, "ts": at + 600, "dur": 310,
             "args": {"correlation": id + 3}},
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **host, "ts": at + 700,
             "args": {"Total Allocated": 5000, "Bytes": -1024, "Device Type": 1}},
        ]  # fmt: skip
    return events


def write_kineto(
    folder: Path, rank: int, *, world: int = 2, events: list[dict[str, Any]] | None = None, name: str = "", **head: Any
) -> Path:
    """Write a trace of the PyTorch profiler and return its file; a keyword of `head` that is None is left out."""
    told = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": world,
            "pg_config": [{"pg_name": "0", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}],
        },
        "host_name": f"n{rank}",
        "baseTimeNanoseconds": BASE_NS,
    } | head  # fmt: skip
    body = {
        **{key: value for key, value in told.items() if value is not None},
        "traceEvents": kineto_events(rank) if events is None else events,
        "traceName": "x.json",
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (name or f"rank{rank}.json")
    file.write_text(json.dumps(body, indent=1), encoding="utf-8")
    return file
