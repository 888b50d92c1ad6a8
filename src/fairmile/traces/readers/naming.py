"""What the names and notes of events mean, wherever a format leaves it to them: kinds, steps, sizes, ranks."""

from __future__ import annotations

import re
from typing import Any

from fairmile.traces.events import MOST_RANKS, EventKind

MOST = 1 << 62  # of bytes and nanoseconds: two of them can be added in 64 bits
MOST_US = 4e15  # of a time in microseconds, which is 127 years

_STEP = re.compile(
    r"(?i)^(?:profiler_?step|train(?:ing)?[ _-]?step|time[ _-]?step|step|iteration|iter|batch|epoch)[ #:_=/-]*(\d+)$"
)
_STEPS = re.compile(r"(?i)^(?:train(?:ing)?[ _-]?step|time[ _-]?step|step|iteration|iter|batch|epoch)$")
_COLLECTIVE = re.compile(
    r"(?i)(?:^|[^a-z])i?(?:all_?reduce|all_?gatherv?|reduce_?scatter|all_?to_?all[vw]?|all2all|barrier)"
    r"(?:_sum|_base|_coalesced|_into_tensor|_tensor|_block|_single)?_?$"
)
# Words that other functions bear as well count only with the library's name before them.
_ROOTED = re.compile(
    r"(?i)^(?:mpi|nccl|gloo|ucc|hvd|horovod|dist|c10d)[:_./ ]+i?(?:broadcast|bcast|reduce|gatherv?|scatterv?)_?$"
)
_MESSAGE = re.compile(r"(?i)^(?:mpi|nccl|gloo|ucc)[:_./ ]*(i?[bsr]?send|i?recv|sendrecv)")
_WAIT = re.compile(r"(?i)^(?:mpi_(?:wait|test|probe)\w*|cuda\w*synchronize|hip\w*synchronize)$")
_INPUT = re.compile(
    r"(?i)data_?loader|data_?fetch|next_?batch|load_?(?:data|batch)|data[ _-]loading|read_?(?:data|batch)"
)
_MPI_IO = re.compile(r"(?i)^(?:mpi_file_\w+|p?read(?:64)?|p?write(?:64)?|fread|fwrite)$")
_RANK = re.compile(r"(?i)(?:^|[^a-z])rank[ _.:#-]*(\d+)")
_NUMBER_AT_END = re.compile(r"(\d+)(?:\.(?:pt|trace|json|gz|pickle|pkl|bin|txt))*$")
_SIZES = {
    "float": 4, "half": 2, "double": 8, "int": 4, "longint": 8, "long": 8, "short": 2, "char": 1, "signedchar": 1,
    "byte": 1, "unsignedchar": 1, "bool": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int8": 1,
    "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "complexfloat": 8,
    "complexdouble": 16, "complex64": 8, "complex128": 16, "float8e4m3fn": 1, "float8e5m2": 1,
}  # fmt: skip


def kind_of_name(name: str) -> EventKind:
    """Return what a span of this name is, a REGION where the name tells nothing."""
    if _STEP.match(name) or _STEPS.match(name):
        return EventKind.PHASE
    if _MESSAGE.match(name):
        return EventKind.P2P
    if _COLLECTIVE.search(name) or _ROOTED.match(name):
        return EventKind.COLLECTIVE
    if _WAIT.match(name):
        return EventKind.SYNC
    return EventKind.IO if _INPUT.search(name) or _MPI_IO.match(name) else EventKind.REGION


def step_of_name(name: str) -> int:
    """Return the number of the iteration that a name states, -1 where it states none."""
    match = _STEP.match(name)
    return int(match[1]) if match and len(match[1]) < 10 else -1


def rank_in(text: str) -> int | None:
    """Return the rank that a text such as "rank 3" or "rank3.json" states."""
    return _rank(_RANK.search(text))


def number_at_end(name: str) -> int | None:
    """Return the number that a file's name ends with, before its endings."""
    return _rank(_NUMBER_AT_END.search(name))


def _rank(match: re.Match[str] | None) -> int | None:
    """Return a rank; a number that is too large for one is a date or an identifier."""
    return int(match[1]) if match and len(match[1]) < 10 and int(match[1]) < MOST_RANKS else None


def bytes_of_type(dtype: str) -> int:
    """Return the bytes of one number of a type, 0 where the type is not known."""
    return _SIZES.get(re.sub(r"[^a-z0-9]", "", dtype.lower().removeprefix("c10::").removeprefix("torch.")), 0)


def elements(dims: Any) -> int:
    """Return how many numbers a tensor of these dimensions has, or a list of tensors together."""
    if not isinstance(dims, list):
        return 0
    if any(isinstance(each, list) for each in dims):
        return sum(elements(each) for each in dims)
    count = 1
    for each in dims:
        count *= whole(each, 0)
    return count


def listed_ranks(listed: Any, size: int = -1) -> tuple[int, ...]:
    """Return the ranks that a list or a text such as "[0, 1]" names, none where it leaves some out."""
    text = listed if isinstance(listed, str) else str(listed)
    ranks = tuple(map(int, re.findall(r"\d+", text))) if "..." not in text else ()
    return ranks if size < 0 or len(ranks) == size else ()


def within(value: Any, least: int, most: int, default: int = -1) -> int:
    """Return a value as a whole number from `least` to `most`, the default where it is none."""
    number = whole(value, default)
    return number if least <= number <= most else default


def whole(value: Any, default: int = -1) -> int:
    """Return a value as a whole number, whatever type a trace writes it in."""
    if isinstance(value, bool):
        return default
    if isinstance(value, int):
        return value
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return default
