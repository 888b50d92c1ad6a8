"""What a table of measured operators says of its families, kept in the user's cache: working it out takes seconds."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fairmile.base.errors import FairmileError
from fairmile.base.files import write_atomic
from fairmile.base.quick_dataclass import dataclass
from fairmile.costs.devices import Device
from fairmile.costs.operators.table import OperatorTiming

_KEPT = 64  # files: a device has about ten
_ARRAYS = ("numbers", "ratios", "marks", "host_us")


@dataclass
class Family:
    """Rows that are compared with one another: an element of each array for each of them."""

    numbers: Any
    ratios: Any
    marks: Any  # each word as its number in `words`
    words: dict[str, int]
    host_us: Any


def fitted(
    rows: Sequence[OperatorTiming],
    on: Device,
    cold_share: float,
    fit: Callable[[], Mapping[str, Family]],
) -> Mapping[str, Family]:
    """Return the families of some rows as `fit` makes them, read from the user's cache where they are there."""
    folder = _cache()
    path = folder / f"{_digest(rows, on, cold_share)}.npz"
    kept = _read(path)
    if kept is not None:
        return kept
    families = fit()
    with contextlib.suppress(FairmileError):  # what cannot be kept is worked out again
        write_atomic(path, _packed(families), sync=False)
        _forget_the_oldest(folder)
    return families


def _cache() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "fairmile" / "operators"


@cache
def _code() -> bytes:
    """Return a digest of the code that sorts rows into families."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(each.read_bytes() for each in sources)).digest()


def _digest(rows: Sequence[OperatorTiming], on: Device, cold_share: float) -> str:
    digest = hashlib.sha256(_code())
    digest.update(repr((on, cold_share)).encode())
    digest.update("\n".join(f"{row.signature}\t{row.outputs}" for row in rows).encode())
    for times in ("device_us", "cold_us", "host_us"):
        digest.update(array("d", [getattr(row, times) for row in rows]))
    return digest.hexdigest()[:32]


def _packed(families: Mapping[str, Family]) -> bytes:
    """Return all families as one file: their arrays one after the other, and where each begins."""
    import numpy as np

    index = [
        {"family": name, "rows": len(each.host_us), "numbers": each.numbers.shape[1], "words": list(each.words)}
        | {"marks": each.marks.shape[1]}
        for name, each in families.items()
    ]
    parts = [
        np.concatenate([getattr(each, part).reshape(-1) for each in families.values()] or [np.empty(0)])
        for part in _ARRAYS
    ]
    file = io.BytesIO()
    np.savez(file, index=np.frombuffer(json.dumps(index).encode(), np.uint8), **dict(zip(_ARRAYS, parts, strict=True)))  # type: ignore[arg-type]
    return file.getvalue()


def _read(path: Path) -> dict[str, Family] | None:
    """Return the families that a file holds, None where there is none or it is damaged."""
    import zipfile

    import numpy as np

    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            index = json.loads(file["index"].tobytes())
            arrays = {part: file[part] for part in _ARRAYS}
        begins = dict.fromkeys(arrays, 0)
        families = {}
        for each in index:
            rows = each["rows"]
            parts = {}
            for part, width in (("numbers", each["numbers"]), ("ratios", 2), ("marks", each["marks"]), ("host_us", 1)):
                begin, begins[part] = begins[part], begins[part] + rows * width
                parts[part] = arrays[part][begin : begins[part]].reshape(rows, width)
            words = {word: number for number, word in enumerate(each["words"])}
            families[each["family"]] = Family(**parts | {"host_us": parts["host_us"].reshape(rows)}, words=words)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
    return families


def _forget_the_oldest(folder: Path) -> None:
    with contextlib.suppress(OSError):
        files = sorted(folder.glob("*.npz"), key=lambda each: each.stat().st_mtime)
        for each in files[:-_KEPT]:
            each.unlink(missing_ok=True)
