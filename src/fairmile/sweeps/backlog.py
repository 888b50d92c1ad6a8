"""What of a sweep on a system waits: the limits of its jobs, and the points that are held back by them.

Both stand in the sweep's folder, so that any later process goes on as the first one was asked to.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from fairmile.base.files import write_atomic
from fairmile.runs.execute.scheduler import Packing
from fairmile.sweeps.folder import Sweep

_LIMITS = "limits.json"
_HELD = "held.json"


def packing(sweep: Sweep, **given: int | None) -> Packing:
    """Return how the points of a sweep are packed into jobs; values that are given are kept, others are as before."""
    file = sweep.folder / _LIMITS
    known = json.loads(file.read_bytes()) if file.exists() else {}
    limits = {name: given.get(name) for name in ("pack", "slots", "at_once", "queued")}
    limits = {name: value if value is not None else known.get(name) for name, value in limits.items()}
    if any(value is not None for value in given.values()):
        write_atomic(file, json.dumps(known | limits))
    return Packing(limits["pack"], limits["slots"] or 1, limits["at_once"], limits["queued"])


def held_back(sweep: Sweep) -> list[int]:
    """Return the points of a sweep that wait for room in the queue."""
    try:
        return [int(number) for number in json.loads((sweep.folder / _HELD).read_bytes())]
    except FileNotFoundError:
        return []


def hold_back(sweep: Sweep, numbers: Collection[int]) -> None:
    """Note which points of a sweep wait for room in the queue."""
    if numbers:
        write_atomic(sweep.folder / _HELD, json.dumps(sorted(numbers)))
    else:
        (sweep.folder / _HELD).unlink(missing_ok=True)
