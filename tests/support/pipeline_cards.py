"""Three programs as assets of a catalog: prepare, train and evaluate, which pass files on to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairmile.catalog.catalog import Catalog
from fairmile.catalog.kinds import CONTEXT_IRI

PREPARE = """\
import sys
rows = sorted(map(float, open(sys.argv[1])))
open("clean.txt", "w").writelines(f"{row}\\n" for row in rows)
"""
TRAIN = """\
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--lr", type=float)
given = parser.parse_args()
mean = 0.0
for row in map(float, open(given.data)):
    mean += given.lr * (row - mean)
json.dump({"mean": mean, "lr": given.lr}, open("model.json", "w"))
"""
EVALUATE = """\
import json, sys
mean = json.load(open(sys.argv[1]))["mean"]
rows = [float(row) for row in open(sys.argv[2])]
print("loss:", sum((row - mean) ** 2 for row in rows) / len(rows))
open("score.txt", "w").write(f"{mean:.3f}")
"""
FLOW = """\
params: {lr: 0.5}
steps:
  prepare: {run: tide-prepare, inputs: {raw: raw.txt}, outputs: clean.txt}
  train: {run: tide-train, inputs: {data: clean.txt}, outputs: model.json}
  evaluate: {run: tide-evaluate, inputs: {model: model.json, data: clean.txt}, outputs: score.txt}
"""


def add_programs(catalog: Catalog, folder: Path) -> None:
    """Write the programs into a folder, and add their cards."""
    folder.mkdir()
    for name, code, command in (
        ("prepare", PREPARE, "{python} prepare.py {inputs.raw}"),
        ("train", TRAIN, "{python} train.py {inputs.data} --lr {lr}"),
        ("evaluate", EVALUATE, "{python} evaluate.py {inputs.model} {inputs.data}"),
    ):
        file = folder / f"{name}.py"
        file.write_text(code)
        more = {"hyperparameters": {"lr": 0.9}} if name == "train" else {}
        catalog.add(card("SoftwareSourceCode", f"tide-{name}", [file], command=command, **more))


def card(kind: str, name: str, files: list[Path], **more: Any) -> dict[str, Any]:
    """Return a card whose files are fetched from where they lie."""
    entries = [{"@type": "FileObject", "name": file.name, "contentUrl": file.as_uri()} for file in files]
    return {"@context": CONTEXT_IRI, "@type": kind, "name": name, "version": "1.0", "distribution": entries, **more}
