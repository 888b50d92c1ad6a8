"""Climbs towards 1 in steps whose size a population tunes while it runs; any program with checkpoints looks like it."""

import os
import sys
from pathlib import Path

import fairmile as fm

rate = float(sys.argv[1])
before, after = os.environ["FAIRMILE_CHECKPOINT_FROM"], Path(os.environ["FAIRMILE_CHECKPOINT_TO"])
step, level = 0, 0.0
if before:
    said = (Path(before) / "state.txt").read_text().split()
    step, level = int(said[0]), float(said[1])
while step < int(os.environ["FAIRMILE_UNTIL"]):
    step += 1
    level += rate * (1 - level)
    fm.log(error=1 - level, step=step)
after.mkdir(parents=True, exist_ok=True)
(after / "state.txt").write_text(f"{step} {level}")
