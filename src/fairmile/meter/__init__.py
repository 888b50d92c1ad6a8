"""Times, events and metrics from inside a training program; `import fairmile.meter` is all it needs.

    from fairmile.meter import log, span

    with span("epoch", n=3):
        …
    log(loss=0.25, step=3)

They go to the log of the run that the process is part of, which FAIRMILE_EVENTS names. Outside of a run spans are
kept in memory for `current().summary()`. Programs that exchange data say so with `component`, `exchange`, `phase`,
`sample` and `metadata` (see coupling.py); `include()` is where the same for C, C++ and Fortran lies.
"""

from __future__ import annotations

import os

from fairmile.meter.meter import Meter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fairmile.meter.coupling import Coupling

    _COUPLING = Coupling(Meter())
    component = _COUPLING.component
    exchange = _COUPLING.exchange
    metadata = _COUPLING.metadata
    phase = _COUPLING.phase
    sample = _COUPLING.sample

__all__ = [
    "Meter",
    "component",
    "current",
    "event",
    "exchange",
    "flush",
    "include",
    "log",
    "metadata",
    "phase",
    "sample",
    "span",
    "start",
    "stop",
    "timed",
]


class _ProcessMeter(Meter):
    """The meter of this process; where it writes is found out when something is recorded first."""

    def _place(self) -> str | None:
        # The variables are named in lines.py, too, which takes too long to import here.
        file = os.environ.get("FAIRMILE_EVENTS")
        if not file:
            return None
        self.component = self.component or os.environ.get("FAIRMILE_COMPONENT", "")
        shared_by = os.environ.get("FAIRMILE_EVENTS_HOST", "")
        if shared_by in ("", self.host):
            return os.path.abspath(file)
        from fairmile.base.words import slug

        stem, suffix = os.path.splitext(os.path.abspath(file))
        return f"{stem}.{slug(self.host, keep_case=True)}{suffix}"


_COUPLED = ("component", "exchange", "metadata", "phase", "sample")
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


def include() -> str:
    """Return the folder of fairmile_meter.h and fairmile_meter.f90."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


def __getattr__(name: str) -> Callable[..., Any]:
    # Most programs exchange nothing and need not wait for what does.
    if name not in _COUPLED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fairmile.meter.coupling import Coupling

    coupling = Coupling(_METER)
    for each in _COUPLED:
        globals()[each] = getattr(coupling, each)
    call: Callable[..., Any] = globals()[name]
    return call
