"""Reads from the source of a Triton kernel how much work it does, beyond the tensors that it is given."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter

from fairmile.base.quick_named_tuple import NamedTuple

_BYTES = {"i1": 1, "i8": 1, "u8": 1, "i16": 2, "fp16": 2, "bf16": 2, "i32": 4, "fp32": 4, "i64": 8, "fp64": 8}
_LENGTH = re.compile(r"^\s+(\w+)numel = (\d+)$")
_SIGNATURE = re.compile(r"'signature': (\{[^}]*\})")
_MOVED = re.compile(r"'kernel_num_gb': ([0-9.e+-]+)")
_LOAD = re.compile(r"tl\.load\((\w+) \+ \(?(.*)")
_ATOMIC = re.compile(r"tl\.atomic_\w+\((\w+) \+")
_RANDOM = re.compile(r"\b(?:tl\.rand|triton_helpers\.rand)\w*\(")
_RUNNING = re.compile(r"\bwelford_reduce\(")
_LOOPED = re.compile(r"\.(?:exp2?|online_softmax_combine|log|erf|tanh|sigmoid)\(")


class KernelWork(NamedTuple):
    """Bytes that a kernel moves once, and what it does more."""

    moved_bytes: int | None  # of its tensors, each once
    gathered_bytes: int  # read where other values say
    added: int  # elements added where other values say, one after the other
    random: int  # random numbers
    running: int  # elements of running means and spreads
    looped: int  # elements of exponentials and the like within loops, where each waits for the one before

    def keywords(self) -> dict[str, int]:
        """Return what there is of it."""
        return {name: count for name, count in self._asdict().items() if count}


def pointers(source: str) -> dict[str, str]:
    """Return the parameters of a kernel with their types, in order."""
    found = _SIGNATURE.search(source)
    return dict(ast.literal_eval(found[1])) if found else {}


def work_of_text(source: str) -> KernelWork:
    """Count what a kernel does from its text; lengths in it are numbers, as shapes are known."""
    sizes = {name: _BYTES.get(kind.lstrip("*"), 4) for name, kind in pointers(source).items()}
    lengths: dict[str, int] = {}
    totals: Counter[str] = Counter()
    loops, inside = "\n    for " in source, False
    for line in source.splitlines():
        if length := _LENGTH.match(line):
            lengths[length[1]] = int(length[2])
            continue
        if line.startswith("    for "):
            inside = True
            continue
        inside = inside and line.startswith("        ")
        count = math.prod(lengths.values()) if inside or not loops else _outside(lengths)
        if load := _LOAD.search(line):
            name, where = load[1], load[2]
            totals["gathered_bytes"] += count * sizes.get(name, 4) * ("tmp" in where.split(", ")[0])
        totals["added"] += count * bool(_ATOMIC.search(line))
        totals["random"] += count * len(_RANDOM.findall(line))
        totals["running"] += count * len(_RUNNING.findall(line))
        totals["looped"] += inside * count * bool(_LOOPED.search(line))
    moved = _MOVED.search(source)
    return KernelWork(
        round(float(moved[1]) * 1e9) if moved else None, *(totals[name] for name in KernelWork._fields[1:])
    )


def _outside(lengths: dict[str, int]) -> int:
    return math.prod(count for name, count in lengths.items() if not name.startswith("r"))
