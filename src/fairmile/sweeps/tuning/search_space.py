"""The space that a tuning searches: distributions, the order in which they are drawn, and all points of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Literal, NoReturn

from fairmile.base.errors import UsageError
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.runs.record.values import Value
from fairmile.sweeps.filters import Filter
from fairmile.sweeps.model import Origin, place_of

Kind = Literal["uniform", "integer", "choice"]
_KINDS: tuple[Kind, ...] = ("uniform", "integer", "choice")
_FIELDS = {
    "uniform": ("kind", "low", "high", "log", "step", "when"),
    "integer": ("kind", "low", "high", "log", "step", "when"),
    "choice": ("kind", "choices", "when"),
}


@dataclass(frozen=True)
class Dimension:
    """One parameter to choose: a range of numbers, whole or not, or a list of choices, perhaps under a condition."""

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None  # None where the range is continuous
    choices: tuple[Value, ...] = ()
    condition: str = ""
    when: Filter | None = None

    @property
    def is_number(self) -> bool:
        return self.kind != "choice"

    def applies(self, values: Mapping[str, Value]) -> bool:
        """Tell whether the parameter exists beside `values`; not where its condition asks for one that does not."""
        return self.when is None or (all(name in values for name in self.when.names) and self.when.holds(values))

    def every(self) -> Iterator[Value]:
        """Yield all its values in order; of a continuous range UsageError."""
        if self.kind == "choice":
            yield from self.choices
        elif self.step is None:
            raise UsageError(
                f"{self.name} is continuous, so a grid is infinite",
                hint=f"add a step to {self.name}, or list its values with `choice`",
            )
        else:
            for place in range(_steps(self.low, self.high, self.step) + 1):
                yield self._at(place)

    def tidy(self, value: Value) -> Value:
        """Return a drawn value as one writes it: 0.3 of a range with steps of 0.1, not 0.30000000000000004."""
        if self.kind == "uniform" and self.step is not None and isinstance(value, (int, float)):
            return self._at(round((value - self.low) / self.step))
        return value

    def described(self) -> dict[str, object]:
        """Return what makes it this dimension, as JSON."""
        return {
            "kind": self.kind,
            **({"choices": list(self.choices)} if self.choices else {"low": self.low, "high": self.high}),
            "log": self.log,
            "step": self.step,
            "when": self.condition,
        }

    def _at(self, place: int) -> Value:
        assert self.step is not None
        value = Decimal(repr(self.low)) + place * Decimal(repr(self.step))
        return int(value) if self.kind == "integer" else float(value)


class Space:
    """Dimensions in an order in which every condition can be judged, else that of the file.

    `distributions` are normalised ones: {kind: uniform|integer|choice, low, high, log, step, choices, when}. Raises
    UsageError, with the place, for one that cannot be drawn from, a condition on an unknown name and a circle of them.
    """

    def __init__(self, distributions: Mapping[str, Mapping[str, object]], origin: Origin | None = None) -> None:
        self._origin = origin
        self._names = tuple(distributions)
        if not distributions:
            raise UsageError(
                f"{self._where()}: nothing to tune",
                hint="add a distribution to an axis, such as lr: {log: [1e-5, 0.1]}",
            )
        read = {name: _Reading(name, given, self._where(name)).dimension() for name, given in distributions.items()}
        self.dimensions = self._ordered(read)

    def __len__(self) -> int:
        return len(self.dimensions)

    @property
    def has_conditions(self) -> bool:
        return any(each.when for each in self.dimensions)

    def draw(self, choose: Callable[[Dimension], Value]) -> dict[str, Value]:
        """Return one point: `choose` is asked for each dimension that applies, in order."""
        values: dict[str, Value] = {}
        for each in self.dimensions:
            if each.applies(values):
                values[each.name] = each.tidy(choose(each))
        return self.in_order(values)

    def in_order(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return the values that belong to this space, tidy and in the order of the file."""
        of = {each.name: each for each in self.dimensions}
        return {name: of[name].tidy(values[name]) for name in self._names if name in values}

    def grid(self) -> Iterator[dict[str, Value]]:
        """Yield every point once, the last dimension fastest; a parameter whose condition fails is left out."""

        def below(place: int, values: dict[str, Value]) -> Iterator[dict[str, Value]]:
            if place == len(self.dimensions):
                yield self.in_order(values)
                return
            each = self.dimensions[place]
            if not each.applies(values):
                yield from below(place + 1, values)
                return
            for value in each.every():
                yield from below(place + 1, {**values, each.name: value})

        return below(0, {})

    def described(self) -> dict[str, dict[str, object]]:
        """Return the whole space as JSON, equal for equal spaces."""
        return {each.name: each.described() for each in self.dimensions}

    def _where(self, *path: str) -> str:
        return place_of(self._origin, "axes", *path)

    def _ordered(self, read: Mapping[str, Dimension]) -> tuple[Dimension, ...]:
        needs: dict[str, list[str]] = {}
        for name, each in read.items():
            needs[name] = sorted(each.when.names) if each.when else []
            for other in needs[name]:
                if other not in read:
                    hint = did_you_mean(other, read) or f"distributions: {', '.join(read)}"
                    raise UsageError(
                        f"{self._where(name)}: the condition {each.condition!r} uses {other!r}, which is not tuned",
                        hint=hint,
                    )
        placed: dict[str, Dimension] = {}
        while len(placed) < len(read):
            free = [name for name in read if name not in placed and all(other in placed for other in needs[name])]
            if not free:
                self._refuse_circle(needs, placed)
            placed[free[0]] = read[free[0]]
        return tuple(placed.values())

    def _refuse_circle(self, needs: Mapping[str, Sequence[str]], placed: Mapping[str, Dimension]) -> NoReturn:
        path = [next(name for name in needs if name not in placed)]
        while path[-1] not in path[:-1]:
            path.append(next(other for other in needs[path[-1]] if other not in placed))
        circle = path[path.index(path[-1]) :]
        raise UsageError(
            f"{self._where(circle[0])}: conditions form a cycle: {' → '.join(circle)}",
            hint="remove `when` from one of them",
        )


class _Reading:
    """Turns what is said of one distribution into a dimension."""

    def __init__(self, name: str, given: Mapping[str, object], where: str) -> None:
        self.name = name
        self.given = given
        self.where = where

    def dimension(self) -> Dimension:
        kind = self.given.get("kind")
        known = next((each for each in _KINDS if each == kind), None)
        if known is None:
            self._refuse(
                f"{kind!r} is not a kind of distribution", did_you_mean(str(kind), _KINDS) or ", ".join(_KINDS)
            )
        for key, value in self.given.items():
            if key not in _FIELDS[known] and value not in (None, (), [], False, ""):
                self._refuse(f"a distribution of kind {known} has no {key!r}", did_you_mean(key, _FIELDS[known]))
        condition = self.given.get("when") or ""
        if not isinstance(condition, str):
            self._refuse("`when` must be a condition as a string", "such as when: optimizer == 'sgd'")
        when = Filter(condition, self.where) if condition else None
        if known == "choice":
            return Dimension(self.name, known, choices=self._choices(), condition=condition, when=when)
        return self._range(known, condition, when)

    def _range(self, kind: Kind, condition: str, when: Filter | None) -> Dimension:
        whole = kind == "integer"
        low, high, log = self._number("low", whole), self._number("high", whole), self.given.get("log") or False
        if not isinstance(log, bool):
            self._refuse("`log` must be true or false")
        if low >= high:
            self._refuse(
                f"the range [{low:g}, {high:g}] is empty", "put the lower end first; move a constant to `settings`"
            )
        if log and low <= 0:
            self._refuse(f"a logarithmic range cannot start at {low:g}", "start above 0")
        step = self._number("step", whole) if self.given.get("step") is not None else None
        if step is not None and log:
            if not (whole and step == 1):
                self._refuse(
                    "a logarithmic range cannot have a step", "remove `step` or `log`, or list values with `choice`"
                )
        elif step is not None and not 0 < step <= high - low:
            self._refuse(f"the step {step:g} does not fit in the range [{low:g}, {high:g}]")
        if whole and step is None:
            step = 1
        if step is not None:
            high = _last(low, high, step)
        return Dimension(self.name, kind, low, high, log, step, condition=condition, when=when)

    def _number(self, key: str, whole: bool) -> float:
        value = self.given.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self._refuse(f"{key!r} must be a number, not {value!r}")
        if not whole:
            return float(value)
        if value != int(value):
            self._refuse(f"{key!r} must be an integer, not {value!r}", "use `uniform` for fractions")
        return int(value)

    def _choices(self) -> tuple[Value, ...]:
        given = self.given.get("choices")
        if not isinstance(given, (list, tuple)) or not given:
            self._refuse("`choice` must be a list of values", "such as choice: [adam, sgd]")
        for place, value in enumerate(given):
            if value is not None and not isinstance(value, (str, int, float)):
                self._refuse(f"the choice {value!r} is not a single value", "use a name, and define it in `settings`")
            if value in given[:place]:
                self._refuse(f"the choice {value!r} appears twice", "true equals 1 and false equals 0 here")
        return tuple(given)

    def _refuse(self, why: str, hint: str = "") -> NoReturn:
        raise UsageError(f"{self.where}: {why}", hint=hint or None)


def _steps(low: float, high: float, step: float) -> int:
    return int((Decimal(repr(high)) - Decimal(repr(low))) // Decimal(repr(step)))


def _last(low: float, high: float, step: float) -> float:
    last = Decimal(repr(low)) + _steps(low, high, step) * Decimal(repr(step))
    return int(last) if isinstance(low, int) else float(last)
