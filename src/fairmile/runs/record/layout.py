"""The folder of a run: which files it holds, and the one place that reads and writes its record.

At most four files, unless the program adds its own:

    run.json                what was asked, what was found (code, inputs, machine), and how it ended
    events.jsonl            spans, metrics and samples, as `meter.lines` describes them
    output.log              what the program printed
    ro-crate-metadata.json  the card of the run, a Process Run Crate

`run.json` is written before the program starts and replaced as a whole when it has ended.
"""

from __future__ import annotations

import json
from pathlib import Path

from fairmile.base.errors import SystemFailure
from fairmile.base.files import write_atomic
from fairmile.runs.record.record import RecordedSpec, RunRecord

RECORD, OUTPUT, CARD = "run.json", "output.log", "ro-crate-metadata.json"
RECORDING = "recording.json"  # lies in a folder that `fairmile trace record` made
WORK = "work"  # where the program runs unless it is told otherwise
THERE = "run"  # the folder of a run in that of its job
WORK_THERE = f"{THERE}/{WORK}"
FAR = ".far"
PACKED = ".zip"  # ends the name of a run that was packed into one file
PACK = "run.zip"  # what a recorder on another machine leaves to be brought back


def read_record(folder: Path) -> RunRecord:
    """Return the record in the folder of a run; FileNotFoundError or NotADirectoryError where there is none."""
    file = folder / RECORD
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise SystemFailure(f"cannot read {file}: {error}") from error
    return parse_record(data, str(file))


def parse_record(data: bytes, source: str) -> RunRecord:
    """Return the record that the bytes of a run.json state; SystemFailure names `source` and the field."""
    try:
        stated = json.loads(data)
    except ValueError as error:
        raise SystemFailure(f"cannot read {source}: {error}") from error
    record = RunRecord.from_dict(stated, source)
    for name in ("id", "spec"):
        if stated.get(name) in (None, ""):
            raise SystemFailure(f"{source} is damaged: {name} is missing, expected the record of a run")
    return record


def write_record(folder: Path, record: RunRecord) -> None:
    """Replace run.json as a whole."""
    write_atomic(folder / RECORD, record_text(record))


def record_text(record: RunRecord) -> str:
    """Return what run.json holds."""
    return json.dumps(record.to_dict(), allow_nan=False)


def work_folder(folder: Path, spec: RecordedSpec) -> Path:
    """Return where the program of a run starts."""
    return Path(spec.folder) if spec.folder else folder / WORK / spec.subfolder


def open_arrays(root: Path) -> list[str]:
    """Return the keys of the job arrays elsewhere of which not all records are below `root` yet."""
    return sorted(file.stem for file in (root / FAR).glob("*.json"))
