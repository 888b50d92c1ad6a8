"""Records of runs as the recorder writes them, for tests that need no execution."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Document = dict[str, Any]
CREATED = 1794890000.125


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def trivial(state: str = "done", **result: Any) -> Document:
    """Return the record of a command without parameters, inputs, outputs and metrics."""
    ended: Document = {
        "state": state,
        "exit_code": 0 if state == "done" else 3,
        "signal": "",
        "reason": "" if state == "done" else "exit code 3",
        "hint": "",
        "started": CREATED,
        "ended": CREATED + 0.25,
        "elapsed_s": 0.25,
        "usage": {"cpu_s": 0.01, "max_rss_bytes": 4096, "read_bytes": 0, "written_bytes": 0},
        "metrics": {},
        "spans": {},
        "energy": {"total_j": None, "parts": [], "missing": {}},
        "outputs": {},
        "damaged_lines": 0,
        **result,
    }
    return {
        "format": "fairmile-run/1",
        "id": "run-k3x9qa",
        "created": CREATED,
        "identity": "",
        "spec": {"name": "run", "argv": ["true"]},
        "captured": {
            "code": {"files": []},
            "inputs": {},
            "environment": {"python": "3.11.7", "lock": []},
            "hardware": {"host": "n1", "cpu": {"model": "EPYC", "cores": 2}, "memory_bytes": 1 << 30, "gpus": []},
            "software": {"os": "Debian 12", "kernel": "6.1", "machine": "x86_64", "fairmile": "0.1"},
            "scheduler": {},
            "variables": {"OMP_NUM_THREADS": "4"},
        },
        "prediction": {},
        "attempts": [{"started": CREATED, "host": "n1", "pid": 4711}],
        "job": None,
        "state": state,
        "result": ended,
    }


def training(id: str = "train-k3x9qa") -> Document:
    """Return the record of a training with all that a record can hold; its output lies in the folder of the run."""
    document = trivial(
        usage={"cpu_s": 11.8, "max_rss_bytes": 1 << 20, "read_bytes": 10, "written_bytes": 20},
        metrics={"loss": _metric(0.5, 2.0, better="lower"), "val accuracy/größe": _metric(0.9, 0.1, "%", "higher")},
        spans={"epoch": {"count": 2, "total_s": 0.2, "mean_s": 0.1}},
        energy={
            "total_j": 1234.5,
            "parts": [{"joules": 1234.5, "method": "counter", "channel": "gpu0.energy", "source": "nvml"}],
            "missing": {},
        },
        outputs={"model é.pt": {"sha256": sha256(b"weights"), "size_bytes": 7}},
    )
    document["id"], document["identity"] = id, sha256(b"identity")
    document["spec"] = {
        "name": "train",
        "argv": ["python", "train.py", "--note", "two words"],
        "params": {"lr": 0.1, "epochs": 2, "deep": True, "note": "größer als 1", "none": None},
        "seed": 42,
        "outputs": ["*.pt"],
        "metrics": {"loss": {"better": "lower"}},
        "asset": "benchmark/mnist",
        "group": "repeats-1",
        "tags": ["nightly"],
    }
    document["captured"] |= {
        "agent": {"name": "Ada Løvelace", "email": "ada@example.net"},
        "code": {
            "git": {
                "root": "/home/a/p",
                "commit": "c" * 40,
                "branch": "main",
                "remote": "https://git.example.net/p.git",
                "dirty": True,
                "diff": "+x\n",
                "diff_sha256": sha256(b"+x\n"),
            },
            "files": [
                {"name": "train.py", "path": "/home/a/p/train.py", "sha256": sha256(b"code"), "size_bytes": 4},
            ],
        },
        "inputs": {"my data": {"path": "/d/x.csv", "asset": "dataset/mnist", "sha256": sha256(b"in"), "size_bytes": 2}},
        "environment": {"name": "", "digest": "", "python": "3.11.7", "lock": ["numpy==2.1.0", "torch==2.4"]},
        "scheduler": {"name": "slurm", "job_id": "42", "nodes": 2, "partition": "gpu"},
    }
    document["captured"]["hardware"] |= {
        "gpus": [{"model": "NVIDIA H200", "memory_bytes": 1 << 37}] * 2,
        "interconnect": ["mlx5_0 InfiniBand 200 Gb/s"],
    }
    return document


def lay_run(root: Path, document: Mapping[str, Any]) -> Path:
    """Write the folder of a run, with its log, its output and its files; the card is not among them."""
    folder = root / str(document["id"])
    (folder / "work").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(document), encoding="utf-8")
    clock = int(document["created"] * 1e9)
    lines: list[Mapping[str, Any]] = [
        {"writer": {"host": "n1", "rank": 0, "wall_ns": clock, "clock_ns": 0}, "p": 1},
        {"log": {"loss": 2.0, "val accuracy/größe": 0.1}, "step": 0, "at": 50_000_000, "p": 1},
        {"log": {"loss": 0.5, "val accuracy/größe": 0.9}, "step": 1, "at": 150_000_000, "p": 1},
    ]
    if not (document.get("result") or {}).get("metrics"):
        del lines[1:]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "output.log").write_bytes(b"epoch 1\nepoch 2\n")
    for name in (document.get("result") or {}).get("outputs") or {}:
        (folder / "work" / name).write_bytes(b"weights")
    return folder


def _metric(value: float, first: float, unit: str = "", better: str = "") -> Document:
    low, high = min(value, first), max(value, first)
    said = {"value": value, "first": first, "min": low, "max": high, "mean": (low + high) / 2, "count": 2}
    return {**said, "unit": unit, "better": better, "tolerance": None}
