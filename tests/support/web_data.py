"""Sweeps, studies and flows of the size that users have, written as their folders are, for pages of the server."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from run_making import CREATED, metric_document, run_document

from fairmile.runs.record.trial import STOPPED_EARLY
from fairmile.sweeps.folder import write_sweep
from fairmile.sweeps.record import Source, SweepRecord
from fairmile.workspace import Workspace


def make_sweep(workspace: Workspace, id: str, points: int, *, trials: bool = False) -> str:
    """Write a sweep over four parameters with so many runs, each with a loss; of trials every third is pruned."""
    chance = random.Random(7)
    runs = workspace.home / "runs"
    for number in range(points):
        params = {
            "lr": round(10 ** chance.uniform(-4, -1), 6),
            "depth": chance.choice([2, 4, 6, 8]),
            "width": chance.choice([64, 128, 256, 512]),
            "optimizer": chance.choice(["adam", "sgd", "lamb"]),
        }
        loss = 0.2 + (math.log10(params["lr"]) + 2.5) ** 2 / 4 + abs(params["depth"] - 6) / 20 + chance.random() / 10
        is_pruned = trials and number % 3 == 2
        document = run_document(
            f"{id}-{number:05d}",
            name=id.rpartition("-")[0],
            group=id,
            params=params,
            metrics={"loss": metric_document(loss, better="lower"), "accuracy": metric_document(1 - loss / 3)},
            elapsed_s=60 + 400 * chance.random(),
            created=CREATED + number,
            identity=f"{number:064x}",
            state="cancelled" if is_pruned else "done",
            result={"reason": f"{STOPPED_EARLY}below the median at step 12"} if is_pruned else None,
        )
        if trials:
            document["trial"] = {"study": id, "number": number, "generation": 0, "objectives": {"loss": "lower"}}
        folder = runs / document["id"]
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(document))
    folder = workspace.sweeps.root / id
    folder.mkdir(parents=True, exist_ok=True)
    write_sweep(folder, SweepRecord(id, id.rpartition("-")[0], CREATED, Source(), points))
    workspace.runs.reindex()
    return id


FLOW_STEPS = 40


def write_flow(folder: Path, *, name: str = "survey", steps: int = FLOW_STEPS) -> Path:
    """Write a flow of so many quick steps in five stages."""
    lines = [f"name: {name}", "steps:"]
    for number in range(steps):
        stage, lane = divmod(number, 8)
        needs = [f"stage{stage - 1}-{each}" for each in {lane, (lane + 3) % 8}] if stage else []
        lines += [f"  stage{stage}-{lane}:", f"    command: echo {number}"]
        lines += [f"    after: [{', '.join(sorted(needs))}]"] if needs else []
    file = folder / f"{name}.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file
