"""Settings of torch's caching allocator, as PYTORCH_CUDA_ALLOC_CONF states them."""

from __future__ import annotations

import re

from fairmile.base.errors import Unsupported, UsageError
from fairmile.base.quick_dataclass import dataclass

MIB = 1 << 20
_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_INTERVALS = 16  # of sizes from 1 MiB on, each twice the one before
_ENTRY = re.compile(r"\s*([a-z_0-9]+)\s*:\s*(\[[^\]]*\]|[^,\[\]]*?)\s*(?:,|$)")
_WITHOUT_EFFECT = {"pinned_use_cuda_host_register", "pinned_num_register_threads", "pinned_use_background_threads"}


@dataclass(frozen=True)
class AllocatorOptions:
    """How the caching allocator rounds, splits and gives back."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    garbage_collection_threshold: float = 0.0

    def divisions_of(self, size_bytes: int) -> int:
        """Return into how many parts the interval between two powers of two is divided at this size."""
        index = max(0, size_bytes.bit_length() - 21)
        return self.roundup_power2_divisions[min(index, _INTERVALS - 1)]


def parse_allocator_options(text: str) -> AllocatorOptions:
    """Return what a value of PYTORCH_CUDA_ALLOC_CONF says; UsageError where it says something else."""
    pairs: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _ENTRY.match(text, position)
        if match is None:
            raise _wrong(text, f"{text[position:].strip()!r} is not NAME:VALUE")
        pairs[match[1]] = match[2]
        position = match.end()
    backend = pairs.pop("backend", "native")
    if backend != "native":
        raise Unsupported(
            f"{_VARIABLE}: the allocator backend {backend!r} is not supported",
            hint="remove backend, or use native",
        )
    for name in _WITHOUT_EFFECT:
        pairs.pop(name, None)
    options = AllocatorOptions(
        expandable_segments=_truth(text, pairs.pop("expandable_segments", "False")),
        max_split_bytes=_split(text, pairs.pop("max_split_size_mb", None)),
        roundup_power2_divisions=_divisions(text, pairs.pop("roundup_power2_divisions", None)),
        garbage_collection_threshold=_share(text, pairs.pop("garbage_collection_threshold", None)),
    )
    if pairs:
        raise _wrong(text, f"unknown setting {min(pairs)!r}")
    return options


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(
        f"{_VARIABLE}={text}: {why}",
        hint="write settings like expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:[256:1,>:4]",
    )


def _truth(text: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _wrong(text, f"expandable_segments must be True or False, not {value!r}")
    return value == "True"


def _split(text: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdecimal() or int(value) <= 20:
        raise _wrong(text, f"max_split_size_mb must be a whole number above 20, not {value!r}")
    return int(value) * MIB


def _share(text: str, value: str | None) -> float:
    if value is None:
        return 0.0
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise _wrong(text, f"garbage_collection_threshold must be between 0 and 1, not {value!r}")
    return share


def _divisions(text: str, value: str | None) -> tuple[int, ...]:
    if value is None:
        return (0,) * _INTERVALS
    if not value.startswith("["):
        return (_power(text, value),) * _INTERVALS
    result = [0] * _INTERVALS
    filled = 0
    for part in value[1:-1].split(","):
        size, colon, count = part.partition(":")
        if not colon:
            raise _wrong(text, f"{part!r} in roundup_power2_divisions is not SIZE_MB:DIVISIONS")
        end = _INTERVALS if size.strip() == ">" else min(_power(text, size).bit_length() - 1, _INTERVALS - 1)
        divisions = _power(text, count)
        last = _INTERVALS if size.strip() == ">" else end + 1
        first = 0 if filled == 0 else end
        for index in range(min(filled, first), last):
            result[index] = divisions if index >= filled or index == end else result[index]
        filled = max(filled, last)
    return tuple(result)


def _power(text: str, value: str) -> int:
    number = value.strip()
    if not number.isdecimal() or int(number) < 1 or int(number) & (int(number) - 1):
        raise _wrong(text, f"{number!r} in roundup_power2_divisions is not a power of two")
    return int(number)
