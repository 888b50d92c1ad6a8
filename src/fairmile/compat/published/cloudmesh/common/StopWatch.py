"""`cloudmesh.common.StopWatch`, answered by Fairmile."""

from fairmile.compat.stopwatch import StopWatch, StopWatchBlock, benchmark, progress

__all__ = ["StopWatch", "StopWatchBlock", "benchmark", "progress"]
