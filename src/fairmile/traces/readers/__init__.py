"""Readers of trace formats, one file each; `fairmile.traces.reading` finds the right one."""
