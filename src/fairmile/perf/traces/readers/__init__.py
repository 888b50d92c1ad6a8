"""Readers of trace formats, one file each; `fairmile.perf.traces.reading` finds the right one."""
