"""The `tuning` section of a file, checked: what is unknown, what does not fit together, and what follows by itself."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fairmile.base.errors import UsageError
from fairmile.base.units import parse_time
from fairmile.base.words import did_you_mean
from fairmile.runs.record.values import Value
from fairmile.sweeps.model import Objective, Origin, place_of
from fairmile.sweeps.tuning.curves import METHODS
from fairmile.sweeps.tuning.engine import ENGINES, Settings
from fairmile.sweeps.tuning.search_space import Space

SAMPLERS = ("random", "grid", "tpe", "gp", "cma-es", "nsga-ii", "pbt", "bohb")
PRUNERS = ("asha", "hyperband", "median", "none")
DEFAULT_TRIALS = 50
# What a sampler of Optuna can be told beyond our own words, by Optuna's names.
OPTIONS: Mapping[str, Mapping[str, type]] = {
    "random": {},
    "grid": {},
    "tpe": {"n_startup_trials": int, "n_ei_candidates": int, "multivariate": bool, "constant_liar": bool},
    "gp": {"n_startup_trials": int, "deterministic_objective": bool},
    "cma-es": {"n_startup_trials": int, "sigma0": float, "popsize": int, "with_margin": bool},
    "nsga-ii": {"population_size": int, "mutation_prob": float, "crossover_prob": float, "swapping_prob": float},
}
KEYS = (
    *("engine", "sampler", "pruner", "trials", "time", "node_hours", "energy", "seed", "steps", "min_steps"),
    *("reduction", "startup", "extrapolate", "population", "interval", "options"),
)
_ENERGY = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([kMGT]?)(J|Wh)")
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parse_settings(
    tuning: Mapping[str, Any], objectives: Sequence[Objective], origin: Origin, *, space: Space | None = None
) -> Settings:
    """Return the settings that `tuning` states, completed by what fits the objectives.

    An unknown key or word, a value of the wrong type, and what cannot work together raise UsageError with the place
    and what to write instead. With `space` also what does not fit the distributions is refused.
    """
    given = _Given(tuning, origin)
    if not objectives:
        raise UsageError(
            f"{origin('tuning')}: a study needs an objective",
            hint="add --objective loss, objective='loss' in Python, or `objective: {loss: lower}` in a file",
        )
    sampler = given.word("sampler", SAMPLERS)
    engine = given.word("engine", ENGINES.names()) or ("ray" if sampler == "pbt" else "optuna")
    pruner = given.word("pruner", PRUNERS)
    if sampler == "bohb":
        if pruner not in ("", "hyperband"):
            given.refuse("pruner", f"bohb uses hyperband, not {pruner}", "remove the pruner")
        sampler, pruner = "tpe", "hyperband"
    sampler = sampler or ("nsga-ii" if len(objectives) > 1 and engine == "optuna" else "tpe")
    extrapolate = given.word("extrapolate", (*METHODS.names(), "none"))
    budgets = {
        "trials": given.whole("trials", 1),
        "time_s": given.duration("time"),
        "node_hours": given.number("node_hours"),
        "energy_j": given.energy("energy"),
    }
    if all(budget is None for budget in budgets.values()) and sampler not in ("grid", "pbt"):
        budgets["trials"] = DEFAULT_TRIALS
    own = Settings()
    settings = Settings(
        engine=engine,
        sampler=sampler,
        pruner="" if pruner == "none" else pruner,
        **budgets,  # type: ignore[arg-type]
        seed=given.whole("seed", 0),
        steps=given.whole("steps", 1),
        min_steps=given.whole("min_steps", 1),
        reduction=given.whole("reduction", 2) or own.reduction,
        startup=_or(given.whole("startup", 0), own.startup),
        extrapolate="" if extrapolate == "none" else extrapolate,
        population=given.whole("population", 2) or own.population,
        interval=given.whole("interval", 1) or own.interval,
        options=given.options(sampler if engine == "optuna" else ""),
    )
    check_fits(settings, objectives, space, origin=origin)
    return settings


def check_fits(
    settings: Settings, objectives: Sequence[Objective], space: Space | None = None, *, origin: Origin | None = None
) -> None:
    """Raise UsageError, with what to do, where settings cannot work together or with objectives or space."""

    def refuse(key: str, why: str, hint: str) -> NoReturn:
        raise UsageError(f"{_place(origin, key)}: {why}", hint=hint)

    several = len(objectives) > 1
    if several and settings.pruner:
        refuse("pruner", f"{settings.pruner} works with one objective, but there are {len(objectives)}", _LEAVE_PRUNER)
    if several and settings.extrapolate:
        refuse("extrapolate", "extrapolation works with one objective only", "remove `extrapolate`")
    if several and settings.sampler in ("cma-es", "pbt"):
        refuse(
            "sampler", f"{settings.sampler} works with one objective only", "use nsga-ii, tpe or gp, or one objective"
        )
    if settings.sampler == "pbt" and settings.engine != "ray":
        refuse("sampler", f"the engine {settings.engine} has no pbt", "set engine: ray, or remove the engine")
    if settings.sampler == "pbt" and settings.pruner:
        refuse("pruner", "pbt replaces poor members itself", "remove the pruner")
    if settings.pruner == "hyperband" and settings.steps is None:
        refuse("pruner", "hyperband needs the last step of a trial", "set steps: N, such as the number of epochs")
    if settings.steps is not None and (settings.min_steps or 0) > settings.steps:
        refuse("min_steps", f"min_steps {settings.min_steps} is larger than steps {settings.steps}", "make it smaller")
    if space is not None:
        _check_space(settings, space, refuse)


_LEAVE_PRUNER = "remove the pruner, or keep one objective"


def _check_space(settings: Settings, space: Space, refuse: Any) -> None:
    if settings.sampler == "cma-es":
        numbers = [each.name for each in space.dimensions if each.is_number and each.when is None]
        if len(numbers) < 2:
            count = f"only {numbers[0]} is" if numbers else "none is"
            refuse(
                "sampler",
                f"cma-es needs at least two numbers without a condition, but {count} one",
                "use tpe, which handles choices, conditions and single numbers",
            )
    if settings.sampler == "grid":
        endless = [each.name for each in space.dimensions if each.is_number and each.step is None]
        if endless:
            refuse(
                "sampler",
                f"a grid is infinite because {', '.join(endless)} is continuous",
                f"add a step to {endless[0]}, list its values with `choice`, or use the sampler random",
            )


class _Given:
    """Reads one key at a time, and refuses with the place."""

    def __init__(self, tuning: Mapping[str, Any], origin: Origin) -> None:
        self.tuning = tuning
        self.origin = origin
        for key in tuning:
            if key not in KEYS:
                hint = did_you_mean(str(key), KEYS) or f"keys: {', '.join(KEYS)}"
                self.refuse(str(key), f"tuning has no key {key!r}", hint)

    def refuse(self, key: str, why: str, hint: str) -> NoReturn:
        raise UsageError(f"{_place(self.origin, key)}: {why}", hint=hint or None)

    def word(self, key: str, words: Sequence[str]) -> str:
        value = self.tuning.get(key)
        if value is None:
            return ""
        # `cmaes`, `CMA_ES` and `NSGAII` are meant as what they look like.
        plain = {_letters(word): word for word in words}
        if isinstance(value, str) and _letters(value) in plain:
            return plain[_letters(value)]
        return self.refuse(
            key, f"unknown {key} {value!r}", did_you_mean(str(value), words) or f"choose one of {', '.join(words)}"
        )

    def whole(self, key: str, least: int) -> int | None:
        value = self.tuning.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(key, f"{key!r} must be a whole number, not {value!r}", "")
        if value < least:
            self.refuse(key, f"{key!r} must be at least {least}, not {value}", "")
        return value

    def number(self, key: str) -> float | None:
        value = self.tuning.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            self.refuse(key, f"{key!r} must be a number above 0, not {value!r}", "")
        return float(value)

    def duration(self, key: str) -> float | None:
        value = self.tuning.get(key)
        if value is None:
            return None
        try:
            seconds = parse_time(value)
        except UsageError as error:
            self.refuse(key, error.message, error.hint or "")
        if seconds <= 0:
            self.refuse(key, f"{key!r} must be longer than 0 s", "")
        return seconds

    def energy(self, key: str) -> float | None:
        value = self.tuning.get(key)
        if not isinstance(value, str):
            return self.number(key)
        match = _ENERGY.fullmatch(value.strip())
        joules = float(match[1]) * _SCALES[match[2]] * (3600 if match[3] == "Wh" else 1) if match else 0.0
        if not 0 < joules < math.inf:
            self.refuse(key, f"{value!r} is not an energy", "write joules as a number, '500 kJ' or '1.5 kWh'")
        return joules

    def options(self, sampler: str) -> dict[str, Value]:
        value = self.tuning.get("options")
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.refuse("options", f"'options' must be a mapping, not {value!r}", "")
        known = OPTIONS.get(sampler)
        for name, each in value.items():
            if each is not None and not isinstance(each, (str, int, float)):
                self.refuse("options", f"the option {name!r} must be a single value, not {each!r}", "")
            if known is not None:
                self._check_option(sampler, str(name), each, known)
        return {str(name): each for name, each in value.items()}

    def _check_option(self, sampler: str, name: str, value: Value, known: Mapping[str, type]) -> None:
        if name not in known:
            hint = did_you_mean(name, known) or (f"it has {', '.join(known)}" if known else "remove `options`")
            self.refuse("options", f"the sampler {sampler} has no option {name!r}", hint)
        kind = known[name]
        fits = (
            isinstance(value, bool) if kind is bool else isinstance(value, (int, kind)) and not isinstance(value, bool)
        )
        if not fits:
            words = {int: "a whole number", float: "a number", bool: "true or false"}
            self.refuse("options", f"the option {name!r} must be {words[kind]}, not {value!r}", "")


def _letters(word: str) -> str:
    return re.sub(r"[-_ ]", "", word).casefold()


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def _place(origin: Origin | None, key: str) -> str:
    return place_of(origin, "tuning", key)
