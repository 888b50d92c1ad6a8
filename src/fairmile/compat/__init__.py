"""The Python calls of predecessors, under their own names: HPCFAIR's over Fairmile's catalog, cloudmesh's timers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairmile.compat.stopwatch import StopWatch, StopWatchBlock, benchmark

__all__ = ["StopWatch", "StopWatchBlock", "benchmark"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from fairmile.compat import stopwatch

        return getattr(stopwatch, name)
    raise AttributeError(f"module 'fairmile.compat' has no attribute {name!r}")
