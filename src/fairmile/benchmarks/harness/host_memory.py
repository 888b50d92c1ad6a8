"""How this process takes memory from the system: a step that takes fresh pages waits until each has been zeroed."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# Of mallopt in glibc's malloc.h. Setting one ends that glibc adapts either, so both are set.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_BYTES = 32 << 20  # that glibc takes from its heap; what is larger always goes back to the system
_HEAP_BYTES = (1 << 31) - 1  # free at the end of the heap before any goes back


def reuse_freed_memory() -> None:
    """Let glibc keep what tensors free for the next step; other C libraries are left as they are."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        if mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES):
            mallopt(_TRIM_THRESHOLD, _HEAP_BYTES)
