"""A tuning engine that covers the space evenly: the Halton sequence. It records trials as Fairmile's own engines do."""

import math
from collections.abc import Callable

from fairmile.runs.record.values import Value
from fairmile.sweeps.tuning.engine import Execute
from fairmile.sweeps.tuning.search_space import Dimension
from fairmile.sweeps.tuning.trial_log import RecordedEngine

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


class Halton(RecordedEngine):
    """`RecordedEngine` keeps what happened and resumes; `work` chooses and executes."""

    name = "halton"
    samplers = ("random", "tpe")  # what a file may ask for; both mean the sequence here
    pruners = ()

    def work(self, execute: Execute, *, at_once: int, worker: str, stop: Callable[[], bool]) -> None:
        """Execute one trial after the other until the budget is spent."""
        records = self.records
        with records.opened():
            while not stop() and not records.is_spent():
                number = len(records.entries())
                trial = records.begin(self._point(number), worker)
                records.carry_out(trial, execute, lambda step, value: "")  # no value is a reason to stop

    def _point(self, number: int) -> dict[str, Value]:
        places = {each.name: place for place, each in enumerate(self.records.rules.space.dimensions)}
        return self.records.rules.space.draw(
            lambda each: _value(each, _halton(number + 1, _PRIMES[places[each.name] % len(_PRIMES)]))
        )


def _halton(number: int, base: int) -> float:
    """Return the digits of a number mirrored at the point."""
    value, share = 0.0, 1.0
    while number:
        number, digit = divmod(number, base)
        share /= base
        value += digit * share
    return value


def _value(each: Dimension, share: float) -> Value:
    """Return the value that lies at a share, 0 to 1, of a dimension."""
    if each.kind == "choice":
        return each.choices[int(share * len(each.choices))]
    if each.log:
        value = math.exp(math.log(each.low) + share * (math.log(each.high) - math.log(each.low)))
    else:
        value = each.low + share * (each.high - each.low)
    return round(value) if each.kind == "integer" else value
