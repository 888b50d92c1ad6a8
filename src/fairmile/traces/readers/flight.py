"""Reads what PyTorch's flight recorder dumps: the last collectives of a rank, their state and, where known, their time.

Dumps are JSON or pickles. A pickle can run any code when it is loaded, so ours builds plain lists, dicts, texts and
numbers and refuses everything else.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
from pathlib import Path
from typing import Any

from fairmile.base.errors import Integrity
from fairmile.base.units import format_size
from fairmile.traces.events import MOST_RANKS, EventKind, EventTable, Lane, Process, RankGroup, Rows
from fairmile.traces.readers.naming import (
    MOST,
    bytes_of_type,
    elements,
    listed_ranks,
    number_at_end,
    rank_in,
    whole,
    within,
)

_LARGEST = 1 << 30
_BROKEN = (pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError, OverflowError,
           MemoryError, RecursionError, struct.error)  # fmt: skip
_PEERS = re.compile(r"(\d+)\s*(?:->|<-)\s*(\d+)")


class _Plain(pickle._Unpickler):
    """Builds containers, texts and numbers alone; the one in Python, since that in C takes memory as it is told to."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, but flight recorder dumps have no objects")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to external objects")


def read(file: Path) -> EventTable:
    """Return the collectives that one rank's flight recorder still had; none where it came to none yet."""
    dump = _load(file)
    entries = [each for each in _listed(dump.get("entries")) if isinstance(each, dict)]
    rank = within(dump.get("rank"), 0, MOST_RANKS - 1)
    if rank < 0:
        named = rank_in(file.name)
        named = number_at_end(file.name) if named is None else named
        rank = -1 if named is None else named
    if not entries and (rank < 0 or not isinstance(dump.get("pg_config"), dict)):
        raise Integrity(f"{file} has no flight recorder entries")
    rank = max(rank, 0)
    groups = _groups(dump)
    rows = Rows()
    untimed = 0
    for entry in entries:
        untimed += _add(rows, entry, rank, groups)
    notes = [] if entries else [f"{file.name}: the flight recorder of rank {rank} has no collectives"]
    if untimed:
        notes.append(
            f"{file.name}: {untimed} of {len(entries)} collectives have no end time; their duration is set to 0"
        )
    world = max((each.ranks_count for each in groups.values()), default=-1)
    return rows.table([Process(rank, file=str(file), format="flight", world=world)], notes).sorted()


def _load(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _LARGEST:
        raise Integrity(f"{file} is larger than the limit for flight recorder dumps ({format_size(_LARGEST)})")
    data = file.read_bytes()
    try:
        document = _Plain(io.BytesIO(data)).load() if data.startswith(b"\x80") else json.loads(data)
    except _BROKEN as error:
        raise Integrity(f"{file} is not a flight recorder dump: {error}") from error
    if isinstance(document, list):
        document = {"entries": document}
    if not isinstance(document, dict):
        raise Integrity(f"{file} is not a flight recorder dump")
    return document


def _groups(dump: dict[str, Any]) -> dict[str, RankGroup]:
    config = dump.get("pg_config")
    groups = {}
    for key, each in config.items() if isinstance(config, dict) else ():
        ranks = listed_ranks(each.get("ranks", "")) if isinstance(each, dict) else ()
        name = str(each.get("name") or key) if isinstance(each, dict) else str(key)
        groups[name] = RankGroup(name, ranks, size=len(ranks) or -1)
    return groups


def _add(rows: Rows, entry: dict[str, Any], rank: int, groups: dict[str, RankGroup]) -> bool:
    """Add one entry; tell whether it has no length."""
    named = entry.get("process_group")
    name = str(named[0]) if isinstance(named, list | tuple) and named else str(named or "")
    # A dump of one group may leave its name out of the configuration.
    group = groups.get(name) or (next(iter(groups.values())) if len(groups) == 1 else RankGroup(name))
    call = str(entry.get("profiling_name", "collective"))
    is_message = bool(entry.get("is_p2p"))
    created = within(entry.get("time_created_ns"), 0, MOST, 0)
    start = within(entry.get("time_discovered_started_ns"), 0, MOST, 0) or created
    length = entry.get("duration_ms")
    end = within(entry.get("time_discovered_completed_ns"), 0, MOST, 0)
    if isinstance(length, (int, float)) and 0 < length < MOST / 1e6:
        end = start + round(length * 1e6)
    peers = _PEERS.search(call)
    about: dict[str, Any] = {"state": str(entry.get("state", ""))}
    types = _listed(entry.get("input_dtypes")) or _listed(entry.get("output_dtypes"))
    if types:
        about["dtype"] = str(types[0])
    if is_message and peers:
        about["peer"] = int(peers[2]) if int(peers[1]) == rank else int(peers[1])
    number = "p2p_seq_id" if is_message else "collective_seq_id"
    rows.add(
        EventKind.P2P if is_message else EventKind.COLLECTIVE, call, start, max(end, start), Lane(rank, "collectives"),
        group=group, sequence=whole(entry.get(number, entry.get("seq_id"))), bytes=_bytes(entry), with_=about,
    )  # fmt: skip
    return end <= start


def _bytes(entry: dict[str, Any]) -> int:
    sizes = []
    for side in ("input", "output"):
        pairs = zip(_listed(entry.get(f"{side}_dtypes")), _listed(entry.get(f"{side}_sizes")), strict=False)
        sizes.append(sum(bytes_of_type(str(dtype)) * elements(_listed(each)) for dtype, each in pairs))
    return max(sizes) or -1


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
