"""What each of two ranks does in the tests of strategies; its results go to the folder that it is given."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_task import INPUTS, SmallTask, session

from fairmile.benchmarks.harness.ranks import Ranks
from fairmile.benchmarks.harness.strategies import make_strategy
from fairmile.benchmarks.harness.trainer import Trained, fit


class EvenTask(SmallTask):
    """A task whose loss does not depend on how its batches are cut: nothing is dropped out or normed over a batch."""

    def __init__(self, **params: Any) -> None:
        super().__init__(dropout=0.0, **({"epochs": 2, "clip_norm": 0.5} | params))

    def model(self) -> torch.nn.Module:
        block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Tanh())
        return torch.nn.Sequential(torch.nn.Linear(INPUTS, 8), torch.nn.Tanh(), block, torch.nn.Linear(8, 1))


def trained(folder: Path, ranks: Ranks, is_resumed: bool = False, **params: Any) -> Trained:
    """Train the task in a folder."""
    return fit(EvenTask(**params), replace(session(folder, is_resumed=is_resumed), ranks=ranks))


def main(folder: Path) -> None:
    """Train in every way over the ranks, and write down what came out."""
    torch.set_num_threads(1)
    ranks = Ranks.of(os.environ)
    ways: dict[str, dict[str, Any]] = {
        "ddp": {},
        "fsdp": {},
        "ddp-accumulated": {"accumulate": 3},
        "fsdp-accumulated": {"accumulate": 3},
        "ddp-checkpointed": {"checkpoint_activations": True},
    }
    for name, params in ways.items():
        found = trained(folder / name, ranks, strategy=name.split("-")[0], batch_size=4, **params)
        weights = {key: value.tolist() for key, value in found.model.state_dict().items()}
        outputs = {key: value.tolist() for key, value in found.outputs.items()}
        said = {"history": found.history, "weights": weights, "outputs": outputs, "scores": dict(found.scores)}
        (folder / f"{name}.{ranks.rank}.json").write_text(json.dumps(said))
    # The training that one process began goes on with the one, then with the other.
    trained(folder / "chain", ranks, is_resumed=True, strategy="ddp", batch_size=4, epochs=2)
    trained(folder / "chain", ranks, is_resumed=True, strategy="fsdp", batch_size=4, epochs=3)
    strategy = make_strategy(EvenTask(strategy="ddp").settings, ranks)
    rows = strategy.gather(np.arange(3 * (2 - ranks.rank), dtype=np.int16).reshape(-1, 3) + 100 * ranks.rank)
    empty = strategy.gather(np.zeros(0 if ranks.is_first else 2))
    said = {"rows": rows.tolist(), "dtype": str(rows.dtype), "empty": empty.tolist()}
    strategy.barrier()
    strategy.close()
    (folder / f"gathered.{ranks.rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
