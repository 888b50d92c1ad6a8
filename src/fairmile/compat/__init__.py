"""Predecessors: files of SABATH and cloudmesh, and Python calls of HPCFAIR under their own names.

Resolvers and readers are registered by name, in `fairmile.resolve`, `fairmile.sweeps.files` and
`fairmile.meter.figures`; nothing of the core imports them.
"""

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
