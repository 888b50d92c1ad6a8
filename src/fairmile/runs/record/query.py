"""Questions about many runs, as SQL over the index: conditions, words, an order, and a part of the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.units import parse_duration

NEWEST = "-created"  # the newest run first
_TOKEN = lazy_pattern(r'(?:"[^"]*"?|[^\s"])+')
_CONDITION = lazy_pattern(r'((?:"[^"]+"|[^\s"=<>!])+)(!=|<=|>=|=|<|>)(.*)', re.DOTALL)
_OWN = {
    "id": "id",
    "name": "name",
    "state": "state",
    "system": "system",
    "group": "run_group",
    "asset": "asset",
    "reason": "reason",
    "created": "created",
    "elapsed_s": "elapsed_s",
    "energy_j": "energy_j",
}
_WORDS = "lower(id || ' ' || run_group || ' ' || asset || ' ' || system || ' ' || tags)"
_NOT_FINITE = "('NaN', 'Infinity', '-Infinity')"
_IS_NUMBER = "typeof({0}) IN ('integer', 'real')"


@dataclass(frozen=True)
class Clause:
    """A part of a statement, and the values of its question marks."""

    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class RunQuery:
    """Which runs, in which order.

    `text` has words, which the id, group, asset, system or tags contain, and conditions such as `lr>=0.01`,
    `loss<0.2`, `name=tides`, `tag=night`, `created>2026-11-01`, `elapsed_s<2h`, `used=dataset/lake` or `has=trace`; all
    must hold. A word that names nothing else is a parameter, or else a metric; `param.x` and `metric.x` name one of
    them. `sort` is such a name, with a minus for the largest first. A run must have one of `states`.
    """

    text: str = ""
    states: tuple[str, ...] = ()
    sort: str = NEWEST

    def where(self) -> Clause:
        """Return the condition without the states."""
        return _joined([_condition(token) for token in _TOKEN.findall(self.text)])

    def order(self) -> Clause:
        """Return the order; runs without a finite value come last."""
        if self.sort == NEWEST:
            # By the index, where all runs are listed. Among conditions it costs a look-up of each row: `+` forbids it.
            return Clause("+created DESC, id" if self.text else "created DESC, id")
        name = self.sort.removeprefix("-")
        if name == "tag":
            raise UsageError("runs cannot be sorted by tag", hint=f"sort by {', '.join(_OWN)}, a parameter or a metric")
        value = _value(name)
        way = "DESC" if self.sort.startswith("-") else "ASC"
        missing = f"coalesce({value.sql} IN {_NOT_FINITE}, 1)"
        return Clause(f"{missing}, {value.sql} {way}, created DESC, id", value.values * 2)


def _joined(clauses: Sequence[Clause]) -> Clause:
    sql = " AND ".join(f"({each.sql})" for each in clauses) or "1"
    return Clause(sql, tuple(value for each in clauses for value in each.values))


def _condition(token: str) -> Clause:
    match = _CONDITION.fullmatch(token)
    if match is None:
        if not (word := token.replace('"', "")):
            return Clause("1")
        return Clause(f"instr({_WORDS}, lower(?))", (word,))
    name, sign, text = match[1].replace('"', ""), match[2], match[3].replace('"', "")
    if name in _MEMBERS:
        if sign not in ("=", "!="):
            raise UsageError(f"{token!r} is not a condition", hint=f"write {name}=VALUE or {name}!=VALUE")
        return Clause(f"{'NOT ' if sign == '!=' else ''}{_MEMBERS[name]}", (text,))
    value = _value(name)
    number = _number(name, text)
    if sign in ("=", "!="):
        same, asked = f"lower(CAST({value.sql} AS TEXT)) = lower(?)", (*value.values, text)
        if number is not None:
            same = f"CASE WHEN {_IS_NUMBER.format(value.sql)} THEN {value.sql} = ? ELSE {same} END"
            asked = (*value.values * 2, number, *asked)
        return Clause(f"coalesce({same}, 0)" if sign == "=" else f"NOT coalesce({same}, 0)", asked)
    if number is None:
        raise UsageError(f"{token!r}: {text!r} is not a number", hint=f"write {name}{sign}0.1")
    # To SQLite a text is larger than any number. Here it is in no order with numbers; the value is computed once.
    if sign in ("<", "<="):
        return Clause(f"{value.sql} {sign} ?", (*value.values, number))
    least = Clause(f"{value.sql} BETWEEN ? AND 9e999", (*value.values, number))
    return least if sign == ">=" else _joined([least, Clause(f"{value.sql} != ?", (*value.values, number))])


_MEMBERS = {
    "tag": "EXISTS (SELECT 1 FROM json_each(tags) WHERE value = ?)",
    "has": "EXISTS (SELECT 1 FROM json_each(has) WHERE value = ?)",
    "used": "EXISTS (SELECT 1 FROM json_each(inputs) WHERE value = ?)",
}


def _value(name: str) -> Clause:
    """Return the value of a run under a name; a parameter goes before a metric of the same name."""
    if name in _OWN:
        return Clause(_OWN[name])
    kind, dot, rest = name.partition(".")
    if dot and rest and kind in ("param", "metric"):
        return _member(f"{kind}s", rest)
    param, metric = _member("params", name), _member("metrics", name)
    return Clause(f"coalesce({param.sql}, {metric.sql})", param.values + metric.values)


def _member(column: str, name: str) -> Clause:
    if '"' in name or "\\" in name:  # a path cannot say that
        return Clause(f"(SELECT value FROM json_each({column}) WHERE key = ?)", (name,))
    return Clause(f"json_extract({column}, ?)", (f'$."{name}"',))


def _number(name: str, text: str) -> float | None:
    """Return the number that a condition states: of a date the second, of a duration the seconds."""
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        value = float(text)
    except ValueError:
        reader = _READERS.get(name)
        try:
            return reader(text) if reader is not None else None
        except ValueError:  # also a UsageError, which says more than a word of a search needs
            return None
    return value if math.isfinite(value) else None


def _moment(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_READERS: Mapping[str, Callable[[str], float]] = {"created": _moment, "elapsed_s": parse_duration}
