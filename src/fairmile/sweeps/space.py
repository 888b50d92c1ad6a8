"""All combinations of axes, counted and walked without being held."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise, product
from typing import Any, Literal

from fairmile.base.digest import sha256_hex
from fairmile.base.errors import UsageError
from fairmile.base.lazy import lazy_pattern
from fairmile.base.quick_dataclass import dataclass
from fairmile.base.words import did_you_mean
from fairmile.runs.record.values import Value
from fairmile.sweeps.filters import Filter, alike
from fairmile.sweeps.model import Origin, Point, place_of

MOST_BYTES = 255  # of a file name
_MOST_POINTS = 10**12
_NOT_IN_NAMES = lazy_pattern(r"^\.+(?![0-9])|[\s/\\'\"`$*?<>|;&!~#(){}\[\]]+")
_REPEAT = "repeat"

Identify = Literal["all", "axes that vary"]
Condition = str | Filter | Mapping[str, Any]
# Tells of the values that are set so far whether all points with them are left out.
_IsOut = Callable[[Mapping[str, Any]], bool]


@dataclass
class _Group:
    """Axes that advance together; most groups have one."""

    names: list[str]
    places: list[int]
    rows: list[tuple[Value, ...]]
    texts: list[tuple[str, ...]]
    excluded: list[_IsOut] = field(default_factory=list)  # decidable once this group has its values
    unselected: list[_IsOut] = field(default_factory=list)


class _Walk:
    """Where a walk through a space stands."""

    def __init__(self, values: Mapping[str, Value], texts: list[str]) -> None:
        self.values = dict(values)
        self.texts = texts
        self.number = 0


class Space:
    """Points in the order of a product, the last axis fastest, with those of `include` behind them.

    Axes in one entry of `linked` advance together, at the place of the first of them. A point is left out where an
    entry of `exclude` fits, which is a condition or a mapping from axes to a value or to several. An entry of `include`
    maps axes to values; one that has a single value may be missing in it. Each point comes `repeats` times in a row.

    Points are numbered from 0; `select` leaves points out without changing the number or the id of any other. An id is
    made of the names and values of all axes, or of those that vary.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Value]],
        *,
        linked: Sequence[Sequence[str]] = (),
        exclude: Sequence[Condition] = (),
        include: Sequence[Mapping[str, Any]] = (),
        repeats: int = 1,
        select: str | Filter = "",
        identify: Identify = "all",
        origin: Origin | None = None,
    ) -> None:
        self.linked = linked
        self._origin = origin
        self._names = list(axes)
        self._values = {name: list(axes[name]) for name in axes}
        for name, several in self._values.items():
            if not several:
                raise self._error(f"the axis {name!r} has no values", "axes", name)
        if repeats < 1:
            raise self._error(f"repeats is {repeats}, expected at least 1", "repeats")
        self._repeats = repeats
        rows = self._rows(linked)
        included = [row for place, several in enumerate(include) for row in self._included(several, place)]
        self.axes: Mapping[str, Sequence[Value]] = {
            name: _distinct([*self._values[name], *(row[name] for row in included)]) for name in self._names
        }
        varying = [name for name in self._names if len(self.axes[name]) > 1]
        self._all_named = identify == "all" or not varying or len(varying) == len(self._names)
        self._texts = {
            name: _texts(name, several) if self._all_named or len(several) > 1 else {_key(several[0]): ""}
            for name, several in self.axes.items()
        }
        self._groups = [self._group(names, each) for names, each in rows if len(each) > 1]
        self._first = {name: several[0] for name, several in self._values.items()}
        self._never: list[_IsOut] = []  # exclusions that look only at axes with one value, and so for the selection
        self._unselected: list[_IsOut] = []
        for place, each in enumerate(exclude):
            names, is_out = self._condition(each, place)
            group = self._place(names)
            (self._never if group is None else group.excluded).append(is_out)
        self._selection = self._selected(select)
        if math.prod(len(group.rows) for group in self._groups) * repeats > _MOST_POINTS:
            raise self._error(f"the axes have more than {_MOST_POINTS:,} combinations", "axes")
        self._extra = self._not_yet_there(included, rows)
        self._count: int | None = None
        self._check_ids()

    # Count and walk

    def __len__(self) -> int:
        if self._count is None:
            values = dict(self._first)
            count = sum(1 for row in self._extra if self._is_selected(row))
            if not _any(self._never, values) and not _any(self._unselected, values):
                count += self._below(0, values, selected=True)
            self._count = count * self._repeats
        return self._count

    def __iter__(self) -> Iterator[Point]:
        if self._repeats == 1:
            for number, values, id in self._combinations():
                yield Point(number, id, values)
            return
        for number, values, id in self._combinations():
            for each in range(1, self._repeats + 1):
                yield Point(number * self._repeats + each - 1, self._repeated(id, each), values, each)

    def _combinations(self) -> Iterator[tuple[int, dict[str, Value], str]]:
        """Yield number, values and id of each combination, without repeats."""
        walk = _Walk(self._first, [self._texts[name][_key(self._first[name])] for name in self._names])
        if _any(self._never, walk.values):
            pass
        elif _any(self._unselected, walk.values):
            walk.number = self._below(0, walk.values)
        else:
            for _ in self._walk(0, walk):
                yield walk.number, walk.values.copy(), self._id(walk.texts)
                walk.number += 1
        for number, row in enumerate(self._extra, walk.number):
            if self._is_selected(row):
                yield number, dict(row), self._id([self._texts[name][_key(row[name])] for name in self._names])

    def _walk(self, depth: int, walk: _Walk) -> Iterator[None]:
        """Yield once for each combination of the groups from `depth` on, while `walk` has its values and texts."""
        if depth == len(self._groups):
            yield
            return
        group = self._groups[depth]
        is_last = depth == len(self._groups) - 1
        has_conditions = bool(group.excluded or group.unselected)
        values, texts = walk.values, walk.texts
        for row, row_texts in zip(group.rows, group.texts, strict=True):
            for name, place, value, text in zip(group.names, group.places, row, row_texts, strict=True):
                values[name] = value
                texts[place] = text
            if has_conditions:
                if _any(group.excluded, values):
                    continue
                if _any(group.unselected, values):
                    walk.number += self._below(depth + 1, values)
                    continue
            if is_last:
                yield
            else:
                yield from self._walk(depth + 1, walk)

    def _below(self, depth: int, values: dict[str, Value], *, selected: bool = False) -> int:
        """Return how many combinations the groups from `depth` on have; with `selected`, how many are selected."""
        rest = self._groups[depth:]
        if not any(group.excluded or (selected and group.unselected) for group in rest):
            return math.prod(len(group.rows) for group in rest)
        group, count = rest[0], 0
        for row in group.rows:
            values.update(zip(group.names, row, strict=True))
            if not _any(group.excluded, values) and not (selected and _any(group.unselected, values)):
                count += self._below(depth + 1, values, selected=selected)
        return count

    def _id(self, texts: list[str]) -> str:
        return "_".join(texts if self._all_named else filter(None, texts)) or "point"

    def _repeated(self, id: str, repeat: int) -> str:
        return f"{id}_{_REPEAT}_{repeat}" if self._names else f"{_REPEAT}_{repeat}"

    def _is_selected(self, row: Mapping[str, Value]) -> bool:
        return self._selection is None or self._selection.holds(row)

    # Make

    def _rows(self, linked: Sequence[Sequence[str]]) -> list[tuple[list[str], list[tuple[Value, ...]]]]:
        """Return the names of axes that advance together, and the values that they have together."""
        partners: dict[str, list[str]] = {}
        for place, group_names in enumerate(linked):
            self._check_names(group_names, "linked", place)
            lengths = {name: len(self._values[name]) for name in group_names}
            if len(set(lengths.values())) > 1:
                shown = ", ".join(f"{name} has {count} values" for name, count in lengths.items())
                raise self._error(f"linked axes need the same number of values: {shown}", "linked", place)
            for name in lengths:
                if name in partners:
                    raise self._error(f"the axis {name!r} is linked twice", "linked", place)
                partners[name] = [each for each in self._names if each in lengths]
        groups = [partners.get(name, [name]) for name in self._names]
        row_groups = []
        for name, group in zip(self._names, groups, strict=True):
            if group[0] == name:
                rows = zip(*(self._values[each] for each in group), strict=True)
                row_groups.append((group, list({tuple(map(_key, row)): row for row in rows}.values())))
        return row_groups

    def _group(self, names: list[str], rows: list[tuple[Value, ...]]) -> _Group:
        texts = [tuple(self._texts[name][_key(value)] for name, value in zip(names, row, strict=True)) for row in rows]
        return _Group(names, [self._names.index(name) for name in names], rows, texts)

    def _condition(self, condition: Condition, place: int) -> tuple[Collection[str], _IsOut]:
        """Return the axes that an exclusion looks at, and whether it fits."""
        if isinstance(condition, str):
            condition = Filter(condition, self._where("exclude", place))
        if isinstance(condition, Filter):
            self._check_names(condition.names, "exclude", place)
            return condition.names, condition.holds
        if not condition:
            raise self._error("an empty exclusion would exclude every point", "exclude", place)
        self._check_names(condition, "exclude", place)
        wanted = {name: _several(value) for name, value in condition.items()}

        def fits(values: Mapping[str, Any]) -> bool:
            return all(any(alike(values[name], each) for each in several) for name, several in wanted.items())

        return condition, fits

    def _selected(self, selection: str | Filter) -> Filter | None:
        if isinstance(selection, str) and not selection:
            return None
        chosen = selection if isinstance(selection, Filter) else Filter(selection, self._where("select"))
        self._check_names(chosen.names, "select")
        group = self._place(chosen.names)
        (self._unselected if group is None else group.unselected).append(lambda values: not chosen.holds(values))
        return chosen

    def _place(self, names: Collection[str]) -> _Group | None:
        """Return the last of the groups that hold these axes, or None where all of them have one value."""
        return next((group for group in reversed(self._groups) if not set(names).isdisjoint(group.names)), None)

    def _included(self, given: Mapping[str, Any], place: int) -> Iterator[dict[str, Value]]:
        self._check_names(given, "include", place)
        several = {}
        for name in self._names:
            several[name] = _several(given[name]) if name in given else self._values[name]
            if name not in given and len(several[name]) > 1:
                raise self._error(f"it lacks a value for {name!r}", "include", place)
        for row in product(*several.values()):
            yield dict(zip(several, row, strict=True))

    def _not_yet_there(
        self, included: Sequence[dict[str, Value]], rows: list[tuple[list[str], list[tuple[Value, ...]]]]
    ) -> list[dict[str, Value]]:
        """Return the included points that the product does not have, each once."""
        if not included:
            return []
        there = [(names, {tuple(map(_key, row)) for row in each}) for names, each in rows]
        is_out = [*self._never, *(each for group in self._groups for each in group.excluded)]
        fresh: dict[tuple[Any, ...], dict[str, Value]] = {}
        for row in included:
            is_in = all(tuple(_key(row[name]) for name in names) in keys for names, keys in there)
            if not is_in or _any(is_out, row):
                fresh.setdefault(tuple(map(_key, row.values())), row)
        return list(fresh.values())

    def _check_names(self, names: Collection[str], *path: str | int) -> None:
        for name in names:
            if name not in self._values:
                near = did_you_mean(name, self._names)
                known = ", ".join(self._names) or "none"
                message = f"no axis named {name!r}" + (f"; {near}" if near else "")
                raise self._error(message, *path, hint=f"axes: {known}")

    def _check_ids(self) -> None:
        """Refuse ids that are too long for a file name, or that two points would share.

        Both are looked for in a walk only where they may occur: where the longest texts together are too long, or where
        a value goes on as if the name of the next axis began.
        """
        longest = [max(len(text.encode()) for text in self._texts[name].values()) + 1 for name in self._names]
        end_bytes = len(f"_{_REPEAT}_{self._repeats}") if self._repeats > 1 else 0
        is_ambiguous = self._may_be_ambiguous()
        if sum(longest) + end_bytes <= MOST_BYTES and not is_ambiguous:
            return
        seen: set[str] = set()
        for _, values, id in self._combinations():
            size = len(id.encode()) + end_bytes
            if size > MOST_BYTES:
                raise self._too_long(values, size)
            if is_ambiguous:
                if id in seen:
                    raise self._error(f"two points have the same id {id}", "axes", hint="rename an axis or a value")
                seen.add(id)

    def _may_be_ambiguous(self) -> bool:
        """Tell whether ids of two combinations may be equal.

        Where they are, take the first axis in which they differ: one value is the other with an end that starts as what
        stands behind each value, or that is the start of it.
        """
        named = [name for name in self._names if any(self._texts[name].values())]
        for name, behind in pairwise(named):
            texts = set(self._texts[name].values())
            mark = f"_{_file_text(behind)}_"
            for text in texts:
                for cut in (match.start() for match in re.finditer("_", text)):
                    end = text[cut:]
                    if text[:cut] in texts and (end.startswith(mark) or mark.startswith(end)):
                        return True
        return False

    def _too_long(self, values: Mapping[str, Value], size: int) -> UsageError:
        texts = sorted((self._texts[name][_key(value)] for name, value in values.items()), key=len, reverse=True)
        shown = ", ".join(
            text if len(text) <= 40 else f"{text[:40]}… ({len(text.encode())} bytes)" for text in texts[:3]
        )
        return self._error(
            f"the id of a point has {size} bytes, but a file name has at most {MOST_BYTES}; "
            f"the longest of its {len(texts)} axes: {shown}",
            "axes",
            hint="shorten names or values, or move fixed values to `settings`",
        )

    def _where(self, *path: str | int) -> str:
        return self._origin(*path) if self._origin is not None else ""

    def _error(self, message: str, *path: str | int, hint: str | None = None) -> UsageError:
        return UsageError(f"{place_of(self._origin, *path)}: {message}", hint=hint)


def _any(conditions: Sequence[_IsOut], values: Mapping[str, Any]) -> bool:
    return any(condition(values) for condition in conditions)


def _key(value: Value) -> tuple[type, Value]:
    return type(value), value  # 1, 1.0 and true are equal, but not the same


def _distinct(values: Sequence[Value]) -> list[Value]:
    return list({_key(value): value for value in values}.values())


def _several(value: Any) -> list[Value]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _texts(name: str, values: Sequence[Value]) -> dict[tuple[type, Value], str]:
    """Return for each value of an axis what it adds to an id; no two add the same."""
    start = _file_text(name)
    texts: dict[tuple[type, Value], str] = {}
    taken: set[str] = set()
    for value in values:
        text = f"{start}_{_file_text('null' if value is None else str(value))}"
        if text in taken:  # 1 and "1"
            text += f"-{sha256_hex(repr(value).encode())[:6]}"
        taken.add(text)
        texts[_key(value)] = text
    return texts


def _file_text(text: str) -> str:
    """Return a text as part of a file name; one that cannot stand there is changed, and a piece of its digest added."""
    if text.isprintable() and not _NOT_IN_NAMES.search(text):
        return text
    plain = _NOT_IN_NAMES.sub("-", "".join(each if each.isprintable() else " " for each in text)).strip("-")
    digest = sha256_hex(text.encode("utf-8", "surrogatepass"))[:6]
    return f"{plain}-{digest}".lstrip("-")
