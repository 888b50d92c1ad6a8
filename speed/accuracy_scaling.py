"""How far predictions of memory and scaling lie from published and measured figures: every row, no row hidden.

    python speed/accuracy_scaling.py [FOLDER]

FOLDER holds gpu_h200_training.csv and perf/; without it, the folder that FAIRMILE_SHARED_DATA names is taken, or
shared/data beside the checkout. vTrain's tables are split at random, with several seeds: the constants are calibrated
on the drawn runs and all others are predicted. (vTrain's own figures, 8.37 % on one node and 14.73 % on many, come from
kernel profiles without any fit to whole steps: the protocols differ.)
"""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling_accuracy.calibration import TransformerRun, calibrate
from scaling_accuracy.comparison import (
    Compared,
    compare_epochs,
    compare_megatron_memory,
    compare_megatron_times,
    compare_runs,
    split_runs,
    summarise,
)
from scaling_accuracy.epochs import find_pairs
from scaling_accuracy.published import read_megatron, read_mlperf_hpc, read_vtrain

from fairmile.base.errors import FairmileError
from fairmile.predict.memory.closed_forms import closed_form
from fairmile.predict.memory.descriptions import Transformer
from fairmile.predict.scaling.plans import TransformerPlanner
from fairmile.predict.scaling.step import NodeModel
from fairmile.predict.scaling.transformer import Constants, TransformerModel

SEEDS = range(10)

_GPT2 = {"kind": "transformer", "vocab": 50257, "positions": 1024, "activation": "gelu_composed"}
_VIT = {"kind": "transformer", "seq": 197, "positions": 198, "patch": 768, "classes": 1000, "dropout": False}
_COSMOFLOW = {"kind": "cnn", "dimensions": 3, "input_channels": 4, "dense": [128, 64, 4], "dropout": True}
DESCRIPTIONS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {**_GPT2, "hidden": 768, "heads": 12, "layers": 12},
    "gpt2_m": {**_GPT2, "hidden": 1024, "heads": 16, "layers": 24},
    "gpt2_xl": {**_GPT2, "hidden": 1600, "heads": 25, "layers": 48},
    "bert_b": {
        **{"kind": "transformer", "vocab": 30522, "positions": 514, "head_transform": True, "seq": 512},
        **{"hidden": 768, "heads": 12, "layers": 12},
    },
    "vit_b": {**_VIT, "hidden": 768, "heads": 12, "layers": 12},
    "vit_l": {**_VIT, "hidden": 1024, "heads": 16, "layers": 24},
    "resnet50": {"kind": "cnn", "side": [224, 224], "form": "resnet", "depths": [3, 4, 6, 3], "dense": [1000]},
    "resnet152": {"kind": "cnn", "side": [224, 224], "form": "resnet", "depths": [3, 8, 36, 3], "dense": [1000]},
    "unet": {"kind": "cnn", "side": [256, 384], "form": "unet", "input_channels": 16, "outputs": 3},
    "lstm": {"kind": "rnn", "layers": 2, "hidden": 1024, "inputs": 64, "outputs": 4, "seq": 256},
    "gcn": {"kind": "gnn", "nodes": 80, "edges": 3200, "hidden": 256, "layers": 4, "inputs": 128},
    "mlp": {"kind": "cnn", "dimensions": 1, "side": [4096], "input_channels": 1, "dense": [4096] * 8 + [1]},
}
_OPTIMIZERS = {"sgdm": "momentum", "adamw_fused": "adamw", "adamw_loop": "adamw"}


def description_of(row: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what a measured case says about itself as a description, or None where no form fits it."""
    name = row["model"]
    if name == "cosmoflow":
        stage = {"norm": False, "activation": "leaky_relu", "pool": True}
        stages = [{**stage, "channels": 32 * 2**level} for level in range(5)]
        said = {**_COSMOFLOW, "side": [int(row["side"] or 128)] * 3, "stages": stages}
    elif name in DESCRIPTIONS:
        said = dict(DESCRIPTIONS[name])
    else:
        return None
    said |= {"batch": int(row["batch"]), "precision": row["prec"], "optimizer": _OPTIMIZERS.get(row["opt"], row["opt"])}
    said["implementation"] = row["opt"].partition("_")[2] or "foreach"
    said["recompute"] = "full" if row["ckpt"] else "none"
    said["training"] = not row["infer"]
    if row["seq"]:
        said["seq"] = int(row["seq"])
    if row["hw"]:
        said["side"] = [int(length) for length in row["hw"].strip("()").split(",")]
    return said


def closed_form_rows(table: Path) -> tuple[list[Compared], list[str]]:
    """Return measured peaks beside closed forms, and the cases that no form describes."""
    rows, without = [], []
    with table.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            named = " ".join(row[key] for key in ("model", "batch", "prec", "opt", "seq", "side") if row[key])
            named += " recomputed" * bool(row["ckpt"]) + " inference" * bool(row["infer"])
            said = description_of(row)
            if said is None:
                without.append(named)
            else:
                rows.append(Compared(named, closed_form(said).peak_allocated_bytes, float(row["peak_allocated"])))
    return rows, without


def _print(title: str, rows: Sequence[Compared], unit: str = "", scale: float = 1.0) -> None:
    print(f"\n{title}")
    for row in rows:
        print(
            f"  {row.name:<58} {row.predicted / scale:>10.3f} {row.measured / scale:>10.3f} {unit:<4} {row.error:+8.2%}"
        )
    print(f"  {summarise(rows)}")


def closed_forms(folder: Path) -> None:
    rows, without = closed_form_rows(folder / "gpu_h200_training.csv")
    _print("Closed forms, peak allocated on one H200 (predicted, measured, error)", rows, "GB", 1e9)
    print(f"  no description fits: {', '.join(without) or 'none left out'}")


def megatron(folder: Path) -> None:
    rows = read_megatron(folder / "perf" / "megatron_korthikanti2022.csv")
    _print("Megatron, memory by closed form (bytes or percent)", compare_megatron_memory(rows))
    _print("Megatron, iteration time, calibrated on the other models' rows", compare_megatron_times(rows), "s")


def vtrain(folder: Path) -> None:
    many = read_vtrain(folder / "perf" / "vtrain_ground_truth_multi.csv", recompute="full")
    one = read_vtrain(folder / "perf" / "vtrain_ground_truth_single.csv", recompute="none")
    for title, runs, calibration, every in (
        ("vTrain, 64 to 512 GPUs", many, 20, True),
        ("vTrain, one node", one, 20, False),
        ("vTrain, one node", one, 60, False),
        ("vTrain, one node", one, 200, False),
    ):
        found = [split_runs(runs, calibration, seed) for seed in SEEDS]
        if every:
            _print(f"{title}: {calibration} calibration runs, seed {SEEDS[0]}", found[0], "s")
        print(f"\n{title}: {calibration} calibration runs, each of {len(found)} random splits, then all together")
        for seed, rows in zip(SEEDS, found, strict=True):
            print(f"  seed {seed}: {summarise(rows)}")
        print(f"  all: {summarise([row for rows in found for row in rows])}")
    _print("vTrain, 64 to 512 GPUs, usual constants, no calibration", compare_runs(many, Constants()), "s")
    print("\nvTrain, one node, each row, calibrated on 60 runs (seed 0)")
    for row in split_runs(one, 60, 0):
        print(f"  {row.name:<44} {row.predicted:9.4f} {row.measured:9.4f} s {row.error:+8.2%}")
    table = read_megatron(folder / "perf" / "megatron_korthikanti2022.csv")
    foreign = [
        TransformerRun(each.model, each.layout, each.iteration_time_s, f"{each.name} {each.mode}")
        for each in table
        if each.iteration_time_s is not None
    ]
    title = "Megatron by constants of vTrain's runs (other software, same GPU)"
    _print(title, compare_runs(foreign, calibrate(many)), "s")


def mlperf(folder: Path) -> None:
    rows = read_mlperf_hpc(folder / "perf" / "mlperf_hpc_summary.csv")
    pairs = find_pairs(rows)
    found = compare_epochs(pairs)
    _print("MLPerf HPC, epoch at the larger scale from the smaller, learned from the other pairs", found, "s")
    print(f"  average accuracy {1 - summarise(found).mean:.1%}")
    beyond = [pair for pair in find_pairs(rows, strict=False) if pair not in pairs]
    if beyond:
        title = (
            "MLPerf HPC, other submitter or round on the same machine (other program or rules, outside the protocol)"
        )
        _print(title, compare_epochs(beyond, lambda pair: pairs), "s")


def search(folder: Path) -> None:
    model = Transformer(batch=1, layers=96, hidden=12288, heads=96, vocab=51200, seq=2048, precision="pure_bf16")
    planner = TransformerPlanner(model, TransformerModel(), 80 * 2**30)
    machine = NodeModel()
    start = time.process_time()
    found = planner.search(4096, 6144)
    spent = time.process_time() - start
    best = found.best
    print(f"\nPlan search, 175 billion parameters on 4096 GPUs of {machine.gpus_per_node} per node")
    print(f"  {found.tried} plans in {spent:.2f} CPU s; best {best.layout if best else None}")


def main(folder: Path) -> int:
    parts: Sequence[Callable[[Path], None]] = (closed_forms, megatron, vtrain, mlperf, search)
    for part in parts:
        try:
            part(folder)
        except (FairmileError, OSError) as error:
            print(f"\n{part.__name__}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    usual = Path(os.environ.get("FAIRMILE_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else usual))
