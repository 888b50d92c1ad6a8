"""Checks while a coupled simulation runs: what must be conserved, and inputs that the model has not learnt from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fairmile import meter

if TYPE_CHECKING:
    from fairmile.coupling.exchange import Exchange, Fields

    Quantity = Callable[[Fields], float]


_MOST_AHEAD = 1024  # steps that one process of a solver may be ahead of another


class Checks:
    """Logs metrics of each step: `NAME_drift` of conserved quantities, `FIELD_outside` of the range that was learnt.

    A quantity is a function of the fields of one process of the solver; that of the simulation is their sum. Its drift
    is the change since the first step, relative to its value then. `FIELD_outside` is the share of values beyond the
    range, NaN included.
    """

    def __init__(
        self,
        *,
        conserved: Mapping[str, Quantity] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.drift: dict[str, float] = {}  # the largest one of each quantity so far, with its sign
        self.outside: dict[str, int] = {}  # values beyond the range so far
        self._conserved, self._ranges = dict(conserved or {}), dict(ranges or {})
        self._first: dict[str, float] = {}
        self._open: dict[int, list[Mapping[str, float]]] = {}

    def see(self, exchange: Exchange) -> None:
        """Check the fields of one step of one process; metrics are logged when all processes have sent that step."""
        seen = {f"{name}_drift": float(quantity(exchange.fields)) for name, quantity in self._conserved.items()}
        for name, (least, most) in self._ranges.items():
            values = exchange.fields[name]
            beyond = int(values.size - ((values >= least) & (values <= most)).sum())
            self.outside[name] = self.outside.get(name, 0) + beyond
            seen |= {f"{name}_outside": float(beyond), f"{name}_size": float(values.size)}
        parts = self._open.setdefault(exchange.step, [])
        parts.append(seen)
        if len(parts) == exchange.solver.size:
            del self._open[exchange.step]
            self._log(exchange.step, {name: math.fsum(part[name] for part in parts) for name in seen})
        while len(self._open) > exchange.solver.lag + _MOST_AHEAD:  # a process has ended, and will never send its part
            del self._open[min(self._open)]

    def _log(self, step: int, sums: Mapping[str, float]) -> None:
        metrics = {}
        for name in self._conserved:
            metric = f"{name}_drift"
            first = self._first.setdefault(name, sums[metric])
            drift = (sums[metric] - first) / (abs(first) or 1.0)
            metrics[metric] = drift
            if not abs(drift) <= abs(self.drift.get(name, 0.0)):  # a NaN counts
                self.drift[name] = drift
        for name in self._ranges:
            metrics[f"{name}_outside"] = sums[f"{name}_outside"] / (sums[f"{name}_size"] or 1.0)
        meter.log(step=step, **metrics)
