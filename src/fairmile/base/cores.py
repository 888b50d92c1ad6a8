"""The processors that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many processors this process may use; macOS cannot tell, and all count."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
