"""Positive constants fitted to measured times, from few runs: known sizes pull where the runs say little."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float64]

RUN_SPREAD = 0.06  # relative scatter of a run's time around a good model


def fit_constants(
    usual: Sequence[float],
    spreads: Sequence[float],
    predict_s: Callable[[Sequence[float]], Sequence[float]],
    measured_s: Sequence[float],
    *,
    run_spread: float = RUN_SPREAD,
    rounds: int = 40,
) -> list[float]:
    """Return the constants that are likeliest given the runs and what is usual.

    Both errors are relative: a constant lies within a factor of exp(spread) of what is usual, a run within
    `run_spread` of its prediction. Runs far off count by their distance, not by its square, so that one slow node
    does not bend all constants. Levenberg and Marquardt's method on logarithms.
    """
    import numpy as np

    if any(not (value > 0 and math.isfinite(value)) for value in measured_s):
        raise UsageError("a measured time is not positive, so nothing can be fitted to it")
    centre, scale = np.log(np.asarray(usual, dtype=float)), np.asarray(spreads, dtype=float)
    truth = np.log(np.asarray(measured_s, dtype=float))

    def errors(at: Vector) -> Vector:
        times = np.asarray(predict_s([float(value) for value in np.exp(at)]), dtype=float)
        off = (np.log(times) - truth) / run_spread
        soft = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off * off) - 1))
        return np.concatenate([soft, (at - centre) / scale])

    return [float(value) for value in np.exp(_minimise(errors, centre, rounds))]


def _minimise(errors: Callable[[Any], Any], start: Any, rounds: int) -> Any:
    import numpy as np

    here, damping = start.copy(), 1e-2
    found = errors(here)
    cost = float(found @ found)
    for _ in range(rounds):
        slopes = np.empty((len(found), len(here)))
        for number in range(len(here)):
            there = here.copy()
            there[number] += 1e-4
            slopes[:, number] = (errors(there) - found) / 1e-4
        normal, pull = slopes.T @ slopes, slopes.T @ found
        better = False
        while damping < 1e8:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -pull)
            trial = here + np.clip(step, -1.0, 1.0)
            seen = errors(trial)
            reached = float(seen @ seen)
            if reached < cost:
                better, gain = True, (cost - reached) / cost
                here, found, cost, damping = trial, seen, reached, damping / 4
                break
            damping *= 4
        if not better or gain < 1e-5:
            break
    return here
