"""The folder of a run: which files it holds, and its record as data.

At most four files, unless the program adds its own:

    run.json                what was asked, what was found (code, inputs, machine), and how it ended
    events.jsonl            spans, metrics and samples, as `meter.lines` describes them
    output.log              what the program printed
    ro-crate-metadata.json  the card of the run, a Process Run Crate

`run.json` is written before the program starts and replaced as a whole when it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairmile.base.errors import SystemFailure
from fairmile.base.files import write_atomic

FORMAT = "fairmile-run/1"
RECORD, OUTPUT, CARD = "run.json", "output.log", "ro-crate-metadata.json"
WORK = "work"  # where the program runs unless it is told otherwise
FAR = ".far"
PACK = "run.zip"  # what a recorder on another machine leaves to be brought back


def read_record(folder: Path) -> dict[str, Any]:
    """Return what run.json in a folder holds."""
    file = folder / RECORD
    try:
        document = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        raise SystemFailure(f"cannot read {file}: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict) or "id" not in document:
        raise SystemFailure(f"{file} is damaged: expected the record of a run")
    return document


def write_record(folder: Path, document: Mapping[str, Any]) -> None:
    """Replace run.json as a whole."""
    write_atomic(folder / RECORD, json.dumps(document, allow_nan=False))


def work_folder(folder: Path, spec: Mapping[str, Any]) -> Path:
    """Return where the program of a run starts."""
    return Path(spec["folder"]) if spec.get("folder") else folder / WORK / spec.get("subfolder", "")


def open_arrays(root: Path) -> list[str]:
    """Return the keys of the job arrays elsewhere of which not all records are below `root` yet."""
    return sorted(file.stem for file in (root / FAR).glob("*.json"))
