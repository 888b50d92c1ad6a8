"""The names of quantities, as the published tables use them (Fox et al., GeoHazards 3 (2022) 199; mlcommons/science).

`Now` is the fortnight itself, `Back` a window that ends with it, `Ahead` a window that begins after it. The published
models predict the `Back` quantities of the fortnights that follow: these get a `Next` in front. `Next Year Back` thus
looks back over 26 fortnights of which 25 are known already; `Year Ahead` shares none with what is known.

`2wk+7` is the seventh fortnight after what is known: `Mag Year Back 2wk+7` is the year that ends with it. `2wk+7AVG` is
the magnitude of two weeks averaged by energy over the next seven fortnights. The reference computes NNSE at 1, 7, 13
and 26.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairmile.base.errors import UsageError
from fairmile.base.words import did_you_mean

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

    @property
    def base(self) -> str:
        """Return the name of what is predicted, without a time: `Mag Year Back`."""
        return OBSERVED[0] if self.weeks == FORTNIGHT_WEEKS else f"Mag {WINDOWS[self.weeks]} Back"

    def at(self, step: int) -> str:
        """Return its name when it is predicted `step` fortnights ahead."""
        if step == self.fortnights and step > 1:
            return f"{WINDOWS[self.weeks]} Ahead"
        return self.name if step == 1 else f"{self.base} 2wk+{step}"


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
class Prediction:
    """A parameter at a step of the horizon, or the average of two weeks over all steps up to it."""

    parameter: Parameter
    step: int
    is_average: bool = False

    @property
    def name(self) -> str:
        """Return its published name."""
        return f"2wk+{self.step}AVG" if self.is_average else self.parameter.at(self.step)

    @property
    def shared(self) -> float:
        """Return the part of its window that is known when the forecast is made."""
        return 0.0 if self.is_average else max(0.0, 1 - self.step / self.parameter.fortnights)


STEPS = (1, 7, 13, 26)  # at which the reference computes NNSE
PREDICTIONS: tuple[Prediction, ...] = (
    *(Prediction(each, step) for step in STEPS for each in PARAMETERS),
    *(Prediction(PARAMETERS[0], step, is_average=True) for step in STEPS[1:]),
)
_AVERAGE = re.compile(r"(?:magnitude 2 weeks now )?2wk\+(\d+) ?avg")
_AT_STEP = re.compile(r"(.+) 2wk\+(\d+)")


def parse_prediction(text: str, horizon: int) -> Prediction:
    """Return what a published name means: `2wk+7AVG`, `Mag Year Back 2wk+13`, `Next Year Back`, `Year Ahead`."""
    word = " ".join(text.lower().split())
    if average := _AVERAGE.fullmatch(word):
        prediction = Prediction(PARAMETERS[0], int(average[1]), is_average=True)
    elif at_step := _AT_STEP.fullmatch(word):
        prediction = Prediction(_parameter(at_step[1], text), int(at_step[2]))
    else:
        ahead = {f"{WINDOWS[each.weeks]} Ahead".lower(): each for each in PARAMETERS[1:]}
        found = ahead.get(word)
        prediction = Prediction(found, found.fortnights) if found else Prediction(_parameter(word, text), 1)
    if not 1 <= prediction.step <= horizon or (prediction.is_average and prediction.step < 2):
        least = 2 if prediction.is_average else 1
        raise UsageError(f"prediction parameter {text!r}: expected 2wk+{least} to 2wk+{horizon}, the horizon")
    return prediction


def _parameter(word: str, text: str) -> Parameter:
    names = {name.lower(): each for each in PARAMETERS for name in (each.base, each.name, f"Next {each.base}")}
    if word not in names:
        near = did_you_mean(word, list(names)) or "such as 2wk+7AVG, Mag Year Back 2wk+13 or Next 6 Months Back"
        raise UsageError(f"no prediction parameter named {text!r}", hint=near)
    return names[word]


@dataclass(frozen=True)
class TopRow:
    """One row of the top table: a parameter at one step and what it scores."""

    rank: int
    name: str
    step: int  # fortnights ahead
    shared: float  # part of its window that is known when the forecast is made
    average: float
    summed: float


def top_table(
    average: Array, summed: Array, count: int = 20, averages: Mapping[int, tuple[float, float]] | None = None
) -> Sequence[TopRow]:
    """Return the best predictions by average NNSE; both arrays are [horizon, targets].

    `averages` are both scores of `2wk+NAVG`, by N.
    """
    scored: dict[Prediction, tuple[float, float]] = {}
    for step in range(1, average.shape[0] + 1):
        for each in PARAMETERS:
            at = step - 1, each.target
            scored[Prediction(each, step)] = float(average[at]), float(summed[at])
    for step, pair in (averages or {}).items():
        scored[Prediction(PARAMETERS[0], step, is_average=True)] = pair
    best = sorted((item for item in scored.items() if item[1][0] == item[1][0]), key=lambda item: -item[1][0])
    return [TopRow(rank, each.name, each.step, each.shared, *pair) for rank, (each, pair) in enumerate(best[:count], 1)]
