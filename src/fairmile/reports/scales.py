"""How values of a metric are drawn: between ends that show most of them well, in a unit that fits, by direction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairmile.base.quick_dataclass import dataclass
from fairmile.reports.figures import SHADES, axis_name, logarithmic, scale, short_label, short_number
from fairmile.reports.sweep import is_log
from fairmile.runs.record.values import Better

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTIONS = {"lower": "lower is better", "higher": "higher is better"}
MOST_DOTS = 1000
_ROOM = 16  # letters of a value beside an axis
_FAR = 4.0  # quarter ranges from the middle half; what lies further is cut off, not shown to scale


@dataclass(frozen=True)
class Scale:
    """How values of a metric are drawn: between two ends, in a unit that fits, logarithmic or not."""

    low: float
    high: float
    log: bool
    size: float
    unit: str
    better: Better
    beyond: int  # values that lie further out

    @property
    def note(self) -> str:
        if not self.beyond:
            return ""
        return f" {self.beyond} far outside {'is' if self.beyond == 1 else 'are'} drawn at the edge."

    def fraction(self, value: float) -> float:
        """Return where a value lies between the ends, from 0 to 1; the lower end of what is not larger than it."""
        low, high, value = (math.log(each) if self.log else each for each in (self.low, self.high, self.inside(value)))
        return (value - low) / (high - low) if high > low else 0.5

    def shade(self, value: float) -> int:
        """Return the place of its colour: 0 for the best."""
        place = self.fraction(value)
        place = 1 - place if self.better == "higher" else place
        return min(len(SHADES) - 1, int(place * len(SHADES)))

    def inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def text(self, fraction: float) -> str:
        """Return the value at a place between the ends as text."""
        return short_number(self.at(fraction) / self.size)

    def at(self, fraction: float) -> float:
        """Return the value at a place between the ends, from 0 to 1."""
        if self.log:
            return math.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low)))
        return self.low + fraction * (self.high - self.low)


def scale_of(values: Sequence[float], unit: str, better: Better, *, kept: Sequence[float] = ()) -> Scale:
    """Return the scale that shows most values well: those far outside are drawn at its ends, the best never."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    log = is_log(ordered) and low > 0 and high / low >= 100
    if not log and len(ordered) >= 8:
        first, third = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
        reach = _FAR * (third - first)
        if reach > 0:
            low = low if better == "lower" else max(low, first - reach)
            high = high if better == "higher" else min(high, third + reach)
            low, high = min([low, *kept]), max([high, *kept])
    beyond = sum(not low <= value <= high for value in ordered)
    size, word = scale(max(abs(low), abs(high)), unit)
    return Scale(low, high, log, size, word, better, beyond)


def draw_to_scale(axis: Axes, known: Scale) -> None:
    if known.log:
        logarithmic(axis, "y")
        reach = (known.high / known.low) ** 0.06
        axis.set_ylim(known.low / reach / known.size, known.high * reach / known.size)
    else:
        margin = (known.high - known.low) * 0.06 or abs(known.high) * 0.06 or 0.5
        axis.set_ylim((known.low - margin) / known.size, (known.high + margin) / known.size)


def goodness(shades: Scale, value: float) -> float:
    return turned(shades, shades.fraction(value))


def turned(shades: Scale, fraction: float) -> float:
    """Return a place counted from the worse end, so that up is better."""
    return 1 - fraction if shades.better == "lower" else fraction


def cost(value: float | None, better: Better) -> float:
    if value is None:
        return math.inf
    return -value if better == "higher" else value


def worst(known: Scale) -> float:
    return known.low if known.better == "higher" else known.high


def even_choice(items: Sequence[Any], most: int) -> list[Any]:
    """Return at most so many: the first half of them, and an even choice of the others."""
    if len(items) <= most:
        return list(items)
    first, rest = list(items[: most // 2]), items[most // 2 :]
    room = most - len(first)
    return first + [rest[at * len(rest) // room] for at in range(room)]


def cut_label(text: str, most: int = _ROOM) -> str:
    text = short_label(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def draw_bar(bar: Axes, shades: Scale, metric: str) -> None:
    """Draw what the colours mean; the best is on top."""
    from matplotlib.patches import Rectangle

    count = len(SHADES)
    for at, colour in enumerate(SHADES):
        bar.add_patch(Rectangle((0, count - 1 - at), 1, 1, facecolor=colour, edgecolor="none"))
    bar.set_xlim(0, 1)
    bar.set_ylim(0, count)
    bar.set_xticks([])
    bar.set_yticks(
        [turned(shades, tick / 2) * count for tick in range(3)], [shades.text(tick / 2) for tick in range(3)]
    )
    bar.yaxis.tick_right()
    bar.yaxis.set_label_position("right")
    bar.set_ylabel(axis_name(metric, shades.unit))
    bar.grid(False)
    bar.tick_params(length=0)
    bare(bar)


def bare(axis: Axes) -> None:
    """Take the frame off an axis."""
    for side in ("left", "bottom", "top", "right"):
        axis.spines[side].set_visible(False)
