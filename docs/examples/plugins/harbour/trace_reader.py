"""Reads traces that are tables: rank,kind,name,start_us,end_us with a header line."""

import csv
from pathlib import Path

from fairmile.base.errors import Integrity
from fairmile.traces.events import EventKind, EventTable, Lane, Process, Rows

_KINDS = {"step": EventKind.PHASE, "compute": EventKind.REGION, "input": EventKind.IO}


def read(file: Path) -> EventTable:
    """Return the events of all ranks in a file."""
    rows, ranks = Rows(), set()
    with file.open(newline="", encoding="utf-8") as stream:
        for number, line in enumerate(csv.DictReader(stream), 2):
            try:
                kind, rank = _KINDS[line["kind"]], int(line["rank"])
                start, end = (round(float(line[key]) * 1000) for key in ("start_us", "end_us"))
            except (KeyError, TypeError, ValueError) as error:
                raise Integrity(f"{file}:{number} is no event: {error}") from error
            rows.add(kind, line["name"], start, end, Lane(rank, "main"))
            ranks.add(rank)
    about = [Process(rank, file=str(file), format="csv", world=len(ranks), since_epoch=False) for rank in sorted(ranks)]
    return rows.table(about).sorted().with_steps()
