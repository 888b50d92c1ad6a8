"""Trains the earthquake benchmark on one GPU with a real catalog and prints the tables of its README.

    PYTHONPATH=src python speed/rig/earthquake_gpu.py CATALOG OUT [CASE ...]

A case is `name:seed`, or `name:seed:setting=value`; without any all are run. `from=LABEL` starts from the weights that
LABEL-SEED left in an earlier call. OUT gets `<name>-<seed>.json`, the results of each, and `table.md`: means over the
seeds, and how far each case is ahead of the best other method, with a 95 % interval over the seeds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

COMMON = {"precision": "bf16", "eval_batch_size": 4096}
LARGE = {
    **COMMON, "d_model": 64, "lstm_layers": 2, "dropout": 0.2, "batch_size": 1024, "epochs": 3, "learning_rate": 1e-3,
    "weight_decay": 1e-2, "optimizer": "adamw", "warmup_epochs": 0.1,
}  # fmt: skip
PUBLISHED = {
    "residual": False,
    "context": False,
    "balance": False,
    "focus": 1.0,
    "loss": "mae",
    "d_model": 160,
    "dropout": 0.1,
}
NORTH = {"south": 34.5, "north": 37.0, "west": -122.0}
CASES: dict[str, dict[str, Any]] = {
    "tft": LARGE,
    "tft-published": {**LARGE, **PUBLISHED, "learning_rate": 5e-4, "epochs": 2},
    "tft-mse": {**LARGE, **PUBLISHED, "d_model": 64, "loss": "mse"},
    "lstm": {**LARGE, "model": "lstm"},
    "hybrid": {**LARGE, "model": "hybrid"},
    "south": {**LARGE, "model": "lstm", "north": 34.5},
    "north": {**LARGE, "model": "lstm", **NORTH},
    "north-untrained": {**LARGE, "model": "lstm", **NORTH, "work": "inference"},
    "tft-time": {**LARGE, "split": "time"},
}
SEEDS = (0, 1, 2, 3, 4)
AT_ONCE = 5  # while one trains, the CPU draws and computes baselines for another
COLUMNS = (
    *("nnse_2wk", "nnse_14wk", "nnse_26wk", "nnse_52wk", "ahead_14wk", "ahead_26wk", "ahead_52wk"),
    *("summed_2wk", "summed_14wk", "summed_26wk", "summed_52wk"),
)
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}  # 0.975, by the number of seeds


def main(catalog: str, out: str, *asked: str) -> None:
    """Run the cases one after the other and write what they found."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for case in asked or [f"{name}:{seed}" for name in CASES for seed in SEEDS]:
            name, seed, *settings = case.split(":")
            params = {**CASES[name], **dict(each.split("=", 1) for each in settings)}
            label = "-".join([",".join([name, *settings]), seed])
            threads.submit(run, Path(catalog).resolve(), folder, label, int(seed), params)
    table = tables(folder)
    (folder / "table.md").write_text(table)
    print(table)


def run(catalog: Path, folder: Path, label: str, seed: int, params: dict[str, Any]) -> None:
    """Run one training in a folder of its own and keep its results and what it printed."""
    work = Path(os.environ.get("TMPDIR", "/tmp")) / "earthquake-gpu" / label
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    environ = {
        **os.environ, "FAIRMILE_SEED": str(seed), "FAIRMILE_PARAMS": json.dumps(params),
        "FAIRMILE_INPUT_DATA": str(catalog), "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    if start := params.pop("from", ""):
        environ["FAIRMILE_INPUT_INIT"] = str(work.with_name(f"{start}-{seed}") / "checkpoint.pt")
        environ["FAIRMILE_PARAMS"] = json.dumps(params)
    began = time.time()
    command = [sys.executable, "-m", "fairmile.benchmarks", "earthquake"]
    done = subprocess.run(command, cwd=work, env=environ, capture_output=True, text=True)
    epochs = [line for line in done.stdout.splitlines() if line.startswith("epoch")]
    print("\n".join([f"== {label}: {time.time() - began:.1f} s", *epochs, done.stderr[-2000:]]), flush=True)
    if (work / "results.json").exists():
        found = json.loads((work / "results.json").read_text())
        found["took_s"] = time.time() - began
        found["log"] = done.stdout
        (folder / f"{label}.json").write_text(json.dumps(found))
        if label == "tft-0":
            shutil.make_archive(str(folder / "figures-tft-0"), "gztar", work)


def tables(folder: Path) -> str:
    """Return the scores of all results, the mean of the seeds and its spread, as Markdown."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))}
    lines = ["| method | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    shown: set[str] = set()
    for results in found.values():
        given = results["settings"]
        split = f"split by {given['split']}, draw {given['split_seed']}, {given['south']:g} to {given['north']:g} N"
        for score in results["scores"][:-1]:
            name = f"{score['name']} ({split})"
            if name not in shown:
                shown.add(name)
                lines.append(_line(name, [score["values"]]))
    for case in dict.fromkeys(label.rsplit("-", 1)[0] for label in found):
        rows = [each["scores"][-1]["values"] for label, each in found.items() if label.rsplit("-", 1)[0] == case]
        lines.append(_line(f"**{case}**, {len(rows)} seeds", rows))
    lines += ["", "| ahead of the best other method | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for case in dict.fromkeys(label.rsplit("-", 1)[0] for label in found):
        seeds = [each["scores"] for label, each in found.items() if label.rsplit("-", 1)[0] == case]
        lines.append(f"| {case}, {len(seeds)} seeds | " + " | ".join(_margin(seeds, name) for name in COLUMNS) + " |")
    return "\n".join(lines) + "\n"


def _margin(seeds: list[list[dict[str, Any]]], column: str) -> str:
    """Return how far the model is ahead of the best baseline, with a 95 % interval over the seeds of its mean."""
    best = max(seeds[0][:-1], key=lambda score: score["values"][column])
    margins = [scores[-1]["values"][column] - best["values"][column] for scores in seeds]
    half = STUDENT.get(len(margins), 2.262) * stdev(margins) / len(margins) ** 0.5 if len(margins) > 1 else float("nan")
    return f"{mean(margins):+.4f} ± {half:.4f} ({best['name']})"


def _line(name: str, rows: list[dict[str, float]]) -> str:
    cells = []
    for column in COLUMNS:
        values = [row[column] for row in rows]
        cells.append(f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else ""))
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main(*sys.argv[1:])
