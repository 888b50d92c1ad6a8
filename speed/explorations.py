"""Models of benchmarks explored on a GPU, with predictions beside: `measure FILE` there, `show FILE FOLDER` anywhere.

`measure FILE --best energy` ranks by joules per sample, in turns that are long enough for NVML.

`explored_h200.json` and `explored_energy_h200.json` were measured on an NVIDIA H200 with PyTorch 2.11 on 2026-11-19;
such a machine needs PyTorch only. Weights are not trained: they have no effect on times, and the errors are those of
the first weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fairmile
import fairmile.benchmarks.suite
from fairmile.models.convert.request import Request
from fairmile.models.explore.request import Exploring

_SUITE = Path(fairmile.benchmarks.suite.__file__).parent
_RUNTIMES = ("torch", "compile", "cudagraphs")
_PRECISIONS = ("fp32", "tf32", "bf16")
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {  # the benchmark, its parameters and a batch size
    "cosmoflow-8": ("cosmoflow", {"preset": "mlperf"}, 8),
    "stemdl-32": ("stemdl", {"preset": "stfc"}, 32),
    "earthquake-256": ("earthquake", {"d_model": 160, "lstm_layers": 2}, 256),
    "cosmoflow-1": ("cosmoflow", {"preset": "mlperf"}, 1),
}


def asked_of(
    name: str, device: str, time_s: float, best: str = "latency", runtimes: str = "", precisions: str = ""
) -> Exploring:
    """Return the exploration of a model of the table."""
    benchmark, params, batch = MODELS[name]
    model = Request("onnx", code=f"{_SUITE / benchmark / 'step.py'}:build", params=params, takes_settings=True)
    on_gpu = device == "cuda"
    return Exploring(
        model,
        runtimes=tuple(filter(None, runtimes.split(","))) or (_RUNTIMES if on_gpu else _RUNTIMES[:2]),
        precisions=tuple(filter(None, precisions.split(","))) or (_PRECISIONS if on_gpu else ("fp32", "bf16")),
        batches=(batch,),
        threads=(1,),
        device=device,
        best=best,
        time_s=time_s,
        turn_s=0.4 if best == "energy" else 0.06,
    )


def measure(file: Path, explorations: dict[str, Exploring], until_s: float) -> None:
    """Explore models one after the other into a file; none is begun after `until_s` seconds."""
    begun = time.monotonic()
    variables = {**os.environ, "PYTHONPATH": str(Path(fairmile.__file__).parents[1])}  # it may be relative to here
    explored: dict[str, Any] = {}
    for name, asked in explorations.items():
        spent = time.monotonic() - begun
        if spent > until_s:
            print(f"{name}: not begun, {spent:.0f} s are over", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            argv = [sys.executable, "-m", "fairmile.models.explore.program", asked.to_json()]
            subprocess.run(argv, cwd=folder, env=variables, check=False)
            result = Path(folder) / "exploration.json"
            explored[name] = json.loads(result.read_text()) if result.is_file() else {"error": {"message": "it ended"}}
        file.write_text(json.dumps(explored, indent=1))
        answer = explored[name].get("answer") or explored[name]["error"]["message"]
        rounds = explored[name].get("rounds", 0)
        print(f"{name}: {answer}; {rounds} rounds, {time.monotonic() - begun - spent:.0f} s", flush=True)
        for row in explored[name].get("candidates", []):
            print(f"  {row['runtime']} {row['precision']}: {_cost_text(row)}", flush=True)


def _cost_text(row: dict[str, Any]) -> str:
    if row["state"] == "refused":
        return str(row["reason"])
    joules = f", {row['energy_per_sample_j']:.3g} J per sample" if "energy_per_sample_j" in row else ""
    return f"{row['latency_s'] * 1e3:.3g} ms{joules}, {row['verdict']}"


def show(file: Path, names: list[str], folder: Path) -> None:
    """Predict what was measured, print both, and write a page for each model."""
    from fairmile.base.units import format_duration, format_size
    from fairmile.models.explore.results import Exploration
    from fairmile.workspace import Workspace

    workspace = Workspace.open()
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {}
    explored: dict[str, Any] = json.loads(file.read_text())
    for name, data in ((each, explored[each]) for each in names if each in explored):
        if "error" in data:
            print(f"{name}: {data['error']['message']}")
            continue
        asked = asked_of(name, "cuda", 0.0)
        data |= {"model": name, "run": ""}
        data = workspace.predict.foresee_exploration(asked, data, folder)
        content[name] = data
        print(f"\n{name}: {data['answer']}, {data['rounds']} rounds")
        for row in data["candidates"]:
            if row["state"] == "refused":
                print(f"{row['runtime']} {row['precision']}: {row['reason']}")
                continue
            predicted = format_duration(row["predicted_s"]) if "predicted_s" in row else "–"
            ratio = f"{row['predicted_s'] / row['latency_s'] - 1:+.0%}" if "predicted_s" in row else ""
            memory = row.get("predicted_memory_bytes", 0)
            error = "not finite" if row["error"] is None else f"{row['error']:.1e}"
            cells = [row["runtime"], row["precision"], format_duration(row["latency_s"]), predicted, ratio]
            cells += [format_size(row["memory_bytes"]), format_size(memory) if memory else "–", error, row["verdict"]]
            cells += [f"{row['energy_per_sample_j']:.3g} J per sample"] if "energy_per_sample_j" in row else []
            print("  ".join(cells))
        workspace.reports.write_page(Exploration(data), folder / f"{name}.html")
    (folder / "explorations.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("measure", "show"))
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("explorations"))
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--time", type=float, default=40.0)
    parser.add_argument("--until", type=float, default=130.0)
    parser.add_argument("--best", default="latency", choices=("latency", "throughput", "energy"))
    parser.add_argument("--runtimes", default="")
    parser.add_argument("--precisions", default="")
    asked = parser.parse_args()
    if asked.verb == "measure":
        choice = asked.device, asked.time, asked.best, asked.runtimes, asked.precisions
        measure(asked.file, {name: asked_of(name, *choice) for name in asked.only.split(",")}, asked.until)
    else:
        show(asked.file, asked.only.split(","), asked.folder)


if __name__ == "__main__":
    main()
