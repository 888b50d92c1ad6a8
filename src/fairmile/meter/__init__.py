"""Times, events and metrics from inside a training program; `import fairmile.meter` is all it needs.

    from fairmile.meter import log, span

    with span("epoch", n=3):
        …
    log(loss=0.25, step=3)

They go to the log of the run that the process is part of, which FAIRMILE_EVENTS names. Outside of a run spans are
kept in memory for `current().summary()`.
"""

from __future__ import annotations

import os

from fairmile.meter.meter import Meter

__all__ = ["Meter", "current", "event", "flush", "log", "span", "start", "stop", "timed"]


class _ProcessMeter(Meter):
    """The meter of this process; where it writes is found out when something is recorded first."""

    def _place(self) -> str | None:
        # The variables are named in lines.py, too, which takes too long to import here.
        file = os.environ.get("FAIRMILE_EVENTS")
        if not file:
            return None
        shared_by = os.environ.get("FAIRMILE_EVENTS_HOST", "")
        if shared_by in ("", self.host):
            return os.path.abspath(file)
        from fairmile.base.words import slug

        stem, suffix = os.path.splitext(os.path.abspath(file))
        return f"{stem}.{slug(self.host, keep_case=True)}{suffix}"


_METER = _ProcessMeter()
# The bound methods themselves, so that a span costs no second call.
span = _METER.span
timed = _METER.timed
start = _METER.start
stop = _METER.stop
event = _METER.event
log = _METER.log
flush = _METER.flush


def current() -> Meter:
    """Return the meter of this process."""
    return _METER
