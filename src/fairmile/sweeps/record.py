"""What the folder of a sweep tells of it; light enough for every list."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmile.base.errors import SystemFailure

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """A sweep as its folder tells."""

    folder: Path
    document: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def created(self) -> float:
        return float(self.document["created"])

    @property
    def count(self) -> int:
        return int(self.document["count"])

    @property
    def system(self) -> str:
        return str(self.document["system"])

    @property
    def is_study(self) -> bool:
        return "study" in self.document


def list_sweeps(root: Path) -> list[Sweep]:
    """Return all sweeps below a folder, the newest first; a damaged one is left out."""
    found = []
    for file in root.glob(f"*/{SWEEP}"):
        with contextlib.suppress(SystemFailure):
            found.append(read_sweep(file.parent))
    return sorted(found, key=lambda sweep: sweep.created, reverse=True)


def read_sweep(folder: Path) -> Sweep:
    """Return the sweep that a folder holds."""
    try:
        document = json.loads((folder / SWEEP).read_bytes())
    except (OSError, ValueError) as error:
        raise SystemFailure(f"cannot read {folder / SWEEP}: {error}") from error
    if not isinstance(document, dict) or "id" not in document:
        raise SystemFailure(f"{folder / SWEEP} is damaged: expected the record of a sweep")
    return Sweep(folder, document)
