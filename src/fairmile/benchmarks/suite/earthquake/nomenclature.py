"""The names of quantities, as the published tables use them (Fox et al., GeoHazards 3 (2022) 199; mlcommons/science).

`Now` is the fortnight itself, `Back` a window that ends with it, `Ahead` a window that begins after it. The published
models predict the `Back` quantities of the fortnights that follow: these get a `Next` in front. `Next Year Back` thus
looks back over 26 fortnights of which 25 are known already; `Year Ahead` shares none with what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from fairmile.benchmarks.suite.earthquake.settings import Lead

    Array = np.ndarray[Any, Any]

FORTNIGHT_WEEKS = 2
WEEKS = (2, 4, 8, 14, 26, 52)  # windows of the sums of the observed features
TARGET_WEEKS = (2, 14, 26, 52)  # windows of the four targets, in the order of the last axis of every target array
OBSERVED = (
    "Magnitude 2 weeks Now",
    "Depth 2 weeks Now",
    "Multiplicity 2 weeks Now",
    "Mult >3.29 2 weeks Now",
    "Mag 4 Weeks Back",
    "Mag 2 Months Back",
    "Mag 3 Months Back",
    "Mag 6 Months Back",
    "Mag Year Back",
)
WINDOWS = {2: "2 Weeks", 4: "4 Weeks", 8: "2 Months", 14: "3 Months", 26: "6 Months", 52: "Year"}  # in words


@dataclass(frozen=True)
class Parameter:
    """One quantity that is predicted: the magnitude of the energy released in a window, a lead after what is known."""

    name: str  # as published, for example `Next Year Back`
    short: str  # for columns and metrics, for example `52wk`
    weeks: int  # length of the window
    target: int  # its place on the last axis of target arrays

    @property
    def fortnights(self) -> int:
        """Return the length of the window in fortnights."""
        return self.weeks // FORTNIGHT_WEEKS

    def lead(self, kind: Lead) -> int:
        """Return after how many fortnights the window ends: 1, or its own length, when it shares none that is known."""
        return 1 if kind == "overlapping" else self.fortnights

    def at(self, step: int) -> str:
        """Return its name when it is predicted `step` fortnights ahead."""
        if step == self.fortnights and step > 1:
            return f"{WINDOWS[self.weeks]} Ahead"
        return self.name if step == 1 else f"{self.name}, step {step}"


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("Next 2 Weeks Now", "2wk", 2, 0),
    *(
        Parameter(f"Next {WINDOWS[weeks]} Back", f"{weeks}wk", weeks, place)
        for place, weeks in enumerate(TARGET_WEEKS)
        if place
    ),
)


def lead_steps(kind: Lead) -> tuple[int, ...]:
    """Return for each target after how many fortnights it is scored: (1, 1, 1, 1) or (1, 7, 13, 26)."""
    return tuple(each.lead(kind) for each in PARAMETERS)


@dataclass(frozen=True)
class TopRow:
    """One row of the top table: a parameter at one step and what it scores."""

    rank: int
    name: str
    step: int  # fortnights ahead
    shared: float  # part of its window that is known when the forecast is made
    average: float
    summed: float


def top_table(average: Array, summed: Array, count: int = 20) -> Sequence[TopRow]:
    """Return the best (parameter, step) pairs by average NNSE; both arrays are [horizon, targets]."""
    horizon = average.shape[0]
    pairs = [(step, each) for step in range(1, horizon + 1) for each in PARAMETERS]
    scored = [pair for pair in pairs if average[pair[0] - 1, pair[1].target] == average[pair[0] - 1, pair[1].target]]
    scored.sort(key=lambda pair: -float(average[pair[0] - 1, pair[1].target]))
    return [
        TopRow(
            rank,
            each.at(step),
            step,
            max(0.0, 1 - step / each.fortnights),
            float(average[step - 1, each.target]),
            float(summed[step - 1, each.target]),
        )
        for rank, (step, each) in enumerate(scored[:count], 1)
    ]
